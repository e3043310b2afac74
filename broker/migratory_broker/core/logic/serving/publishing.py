"""The way of publications, for `Logic`: from this contact broker's clients to the coordinators of their topic groups,
and from other contact brokers to this coordinator.

A publication leaves in the turn in which it came, and is never sent again from here: only its publisher can repeat it,
with the mark that is current then. `answers.py` has the publications that wait for an answer, and `commits.py`
acknowledges them.
"""

from __future__ import annotations

from typing import NamedTuple

from migratory_protocol.peer import Forward, ForwardedPublication, ForwardReplies, ForwardReply
from migratory_protocol.topics import topic_group

from migratory_broker.core.logic.context import Context, expect
from migratory_broker.core.logic.events import PublishRequest
from migratory_broker.core.logic.membership.gossip import GossipMap
from migratory_broker.core.logic.replication.group import GroupRegistry, TopicGroup
from migratory_broker.core.logic.replication.sequencer import Sequencer
from migratory_broker.core.logic.serving.answers import PendingAnswer, PendingAnswers
from migratory_broker.core.logic.serving.policy import ClientId, TopicQuota


class PublishRoute(NamedTuple):
    """The publications of one request that belong to one group, and where they go.

    `sequencer` numbers them if this broker is the group's coordinator; else it is None, and they are forwarded.
    `pending` names the coordinator ("" for this broker), the client and the deadline, and is registered for each QoS 1
    publication. It is None while no linked broker is known as the coordinator: the publications are then refused.
    """

    group: TopicGroup
    pending: PendingAnswer | None
    sequencer: Sequencer | None
    publications: list[ForwardedPublication]


class PublishContact:
    """The handling of publications: those of this broker's clients as their contact broker, and those that other
    contact brokers forward to it as coordinator."""

    def __init__(self, ctx: Context, groups: GroupRegistry, gossip: GossipMap, answers: PendingAnswers) -> None:
        self.ctx = ctx
        self.groups = groups
        self.gossip = gossip
        self.answers = answers
        self.topic_quota = TopicQuota(ctx)
        self._forwards: dict[str, dict[int, list[ForwardedPublication]]] = {}  # peer -> group, of this turn

    # ---- from an edge ----------------------------------------------------------------------------------------

    def publish(self, event: PublishRequest) -> None:
        """Bring each publication to its group's coordinator, those of one group together: number it here if that is
        this broker, else queue it for `flush` to forward. Refuse it with `retry` while this broker is fenced, while no
        linked broker is known as the coordinator, and at the limits of unanswered publications. Refuse it with
        `too_many_topics` if its client may create no more topics, and with `id_reused` if its message id awaits an
        answer with another payload. Refusals of QoS 0 are silent."""
        client = (event.edge, event.reference)
        groups = len(self.groups)
        routes: dict[int, PublishRoute] = {}
        for publication in event.publications:
            number = topic_group(publication.topic, groups)
            route = routes.get(number)
            if route is None:
                route = routes[number] = self._route(number, client)
            if self._admit(publication, route, client):
                route.publications.append(publication)
        for number, route in routes.items():
            if route.sequencer is not None:
                route.sequencer.number(route.publications, None)
            elif route.pending is not None and route.publications:
                forwards = self._forwards.setdefault(route.pending.coordinator, {})
                forwards.setdefault(number, []).extend(route.publications)

    def _route(self, number: int, client: ClientId) -> PublishRoute:
        """Return the route of a client's publications to a group, without publications: to this broker's active term,
        or to the linked broker that gossip names as the coordinator. They wait for their answers `publish_wait` from
        now."""
        group, ctx = self.groups[number], self.ctx
        deadline = ctx.now + ctx.config.publish_wait
        if group.term is not None and group.term.active:
            return PublishRoute(group, PendingAnswer("", deadline, (client,)), group.term.sequencer, [])
        peer = self.gossip.coordinator(number)
        pending = PendingAnswer(peer, deadline, (client,)) if peer in ctx.links else None
        return PublishRoute(group, pending, None, [])

    def _admit(self, publication: ForwardedPublication, route: PublishRoute, client: ClientId) -> bool:
        """Return whether the publication may be sent on. If so, register a QoS 1 publication as waiting for its answer.
        If not, answer with a refusal. A topic that does not exist is counted against its client's quota, even if the
        publication is then refused for its id or at a limit."""
        if self.ctx.fenced:
            return self._refuse(client, publication, "retry", "this broker is cut off from the others")
        topic, pending = publication.topic, route.pending
        if pending is None:
            return self._refuse(
                client, publication, "retry", f"topic group {route.group.number} has no coordinator now"
            )
        replica = route.group.replica
        if topic not in replica.topics and replica.synced:  # every broker has every topic
            refusal = self.topic_quota.admit(topic, client)
            if refusal:
                return self._refuse(client, publication, "too_many_topics", refusal)
        if publication.id:
            waiting, config = self.answers.pending, self.ctx.config
            key = (topic, publication.publisher, publication.id)
            if (found := waiting.get(key)) is not None:
                before, payload = found
                if payload != publication.payload:
                    text = f"message id {publication.id} of this publisher awaits its answer with another payload"
                    return self._refuse(client, publication, "id_reused", text)
                pending = PendingAnswer(pending.coordinator, before.deadline, (*before.clients, client))
            elif len(waiting) >= config.max_pending or self.answers.held >= config.max_pending_bytes:
                self.ctx.observe("migratory_refusals_total", label="publishes_total")
                text = (
                    "limit of publications of all clients that wait for their copies reached "
                    f"({config.max_pending}, or {config.max_pending_bytes} bytes)"
                )
                return self._refuse(client, publication, "retry", text)
            self.answers.add(key, pending, publication.payload)
        return True

    def _refuse(self, client: ClientId, publication: ForwardedPublication, code: str, text: str) -> bool:
        """Queue a refusal of the publication, and return False."""
        self.answers.reject(client, publication, code, text)
        return False

    # ---- between brokers -------------------------------------------------------------------------------------

    def forwarded(self, peer: str, message: Forward) -> None:
        """Number publications that the contact broker `peer` has forwarded. If this broker is not the group's
        coordinator, or is fenced, reply `retry` to those of QoS 1 and drop the others. Raise PeerError, before any is
        numbered, if the group does not exist or a topic is of another group."""
        expect(message.group < len(self.groups), "group", "the group is one of the cluster's")
        for publication in message.publications:
            own = topic_group(publication.topic, len(self.groups)) == message.group
            expect(own, "group", "publications are of topics of their group")
        term = self.groups[message.group].term
        if term is not None and term.active and not self.ctx.fenced:
            term.sequencer.number(message.publications, peer)
            return
        retry_after = self.ctx.config.publish_retry_after
        for publication in message.publications:
            if publication.qos:
                self.answers.reply(
                    peer,
                    ForwardReply(
                        publication.topic,
                        publication.publisher,
                        publication.id,
                        "retry",
                        text="the coordinator is changing",
                        retry_after=retry_after,
                    ),
                )

    def replies(self, peer: str, message: ForwardReplies) -> None:
        """Queue the answers for this broker's clients that the coordinator `peer` gives to publications which were
        forwarded to it."""
        for reply in message.replies:
            self.answers.replied(peer, reply)

    def peer_down(self, peer: str) -> None:
        """Drop the publications that were to be forwarded to `peer` in this turn, and queue a `retry` for all that wait
        for its answer."""
        self._forwards.pop(peer, None)
        self.answers.peer_down(peer)

    # ---- time and turns --------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.topic_quota.tick(self._exists)
        self.answers.tick()

    def _exists(self, topic: str) -> bool:
        return topic in self.groups[topic_group(topic, len(self.groups))].replica.topics

    def flush(self) -> None:
        """Send the publications that were collected in this turn for other coordinators: one message for each
        coordinator and group."""
        if self._forwards:
            forwards, self._forwards = self._forwards, {}
            for peer, groups in forwards.items():
                for group, publications in groups.items():
                    self.ctx.send(peer, Forward(group, publications))

    @property
    def has_output(self) -> bool:
        """True if `flush` would send anything."""
        return bool(self._forwards)
