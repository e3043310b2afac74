"""The contact broker's duties towards publishers: forward, and answer when a publication is committed here.

CONTACT-ACKS-COMMITS: a publication is answered at its commit at this broker (with two copies and listed: at its own
accept), by the coordinator's answer (duplicates and refusals), or with `retry` when the link went or time is up. Never
because it was numbered. Nothing is held for later or sent again from here: marks must be the publisher's, and fresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_protocol.messages import Ack, Nack
from migratory_protocol.peer import Answer, Answers, Forward, Forwarded, Publication
from migratory_protocol.topics import topic_group
from msgspec import Struct

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import Fanout, PublishAnswers, PublishRequest
from migratory_broker.core.logic.gossip import Gossip
from migratory_broker.core.logic.makers import Client, Makers

if TYPE_CHECKING:
    from migratory_broker.core.logic.authorizer import Authorizer
    from migratory_broker.core.logic.group import Group
    from migratory_broker.core.logic.sequencer import Sequencer

Key = tuple[str, str, int]  # topic, publisher, id


class Pending(Struct, frozen=True):
    """What waits for an answer, one for all publications of a request that go the same way."""

    via: str  # the coordinator they were sent to, "" for this broker
    deadline: float
    clients: tuple[Client, ...]  # who wait: several sent the same publication


class Route(Struct):
    """Where the publications of one request to one group go: `pending` is None while there is nobody to number them,
    `sequencer` is there when this broker does."""

    group: Group
    pending: Pending | None
    sequencer: Sequencer | None
    publications: list[Forwarded]


class Contact:
    def __init__(self, ctx: Context, gossip: Gossip, authorizer: Authorizer) -> None:
        self.ctx = ctx
        self.gossip = gossip
        self.authorizer = authorizer
        self.makers = Makers(ctx)
        self.groups: list[Group] = []
        self.pending: dict[Key, Pending] = {}  # all wait equally long: in the order of their deadlines
        self._forwards: dict[str, dict[int, list[Forwarded]]] = {}  # peer -> group -> publications of this turn
        self._answers: dict[str, list[Answer]] = {}  # peer -> answers of this turn
        self._told: dict[Client, list[Ack | Nack]] = {}  # client of this broker -> answers of this turn

    # ---- from an edge ----------------------------------------------------------------------------------------

    def publish(self, event: PublishRequest) -> None:
        """Each to its group's coordinator, those of one group together."""
        client = (event.edge, event.reference)
        groups = len(self.groups)
        routes: dict[int, Route] = {}
        for publication in event.publications:
            number = topic_group(publication.topic, groups)
            route = routes.get(number)
            if route is None:
                route = routes[number] = self._route(number, client)
            if self._admit(publication, route, client):
                route.publications.append(publication)
        for number, route in routes.items():
            if route.sequencer is not None:
                route.sequencer.take(route.publications, None)
            elif route.pending is not None and route.publications:
                forwards = self._forwards.setdefault(route.pending.via, {})
                forwards.setdefault(number, []).extend(route.publications)

    def _route(self, number: int, client: Client) -> Route:
        group, ctx = self.groups[number], self.ctx
        deadline = ctx.now + ctx.config.publish_wait
        if group.reign is not None and group.reign.active:
            return Route(group, Pending("", deadline, (client,)), group.reign.sequencer, [])
        via = self.gossip.coordinator(number)
        return Route(group, Pending(via, deadline, (client,)) if via in ctx.links else None, None, [])

    def _admit(self, publication: Forwarded, route: Route, client: Client) -> bool:
        """Whether it goes on; else it was answered."""
        if refusal := self.authorizer.publish(*client, publication):
            return self._refuse(client, publication, "not_allowed", refusal)
        if self.ctx.fenced:
            return self._retry(client, publication, "this broker is cut off from the others")
        topic, pending = publication.topic, route.pending
        if pending is None:
            return self._retry(client, publication, f"topic group {route.group.number} has no coordinator now")
        replica = route.group.replica
        if topic not in replica.topics and replica.synced:  # every broker has every topic
            refusal = self.makers.admit(topic, client)
            if refusal:
                return self._refuse(client, publication, "too_many_topics", refusal)
        if publication.id:
            key = (topic, publication.publisher, publication.id)
            before = self.pending.get(key)
            if before is not None:
                pending = Pending(pending.via, before.deadline, (*before.clients, client))
            elif len(self.pending) >= self.ctx.config.max_pending:
                return self._retry(client, publication, "too many publications wait for their copies")
            self.pending[key] = pending
        return True

    def _retry(self, client: Client, publication: Forwarded, text: str) -> bool:
        return self._refuse(client, publication, "retry", text)

    def _refuse(self, client: Client, publication: Forwarded, code: str, text: str) -> bool:
        if publication.id:
            wait = self.ctx.config.publish_retry_after if code == "retry" else None
            self._tell(client, Nack(publication.topic, publication.publisher, publication.id, code, text, wait))
        return False

    # ---- commits and answers ---------------------------------------------------------------------------------

    def committed(self, topic: str, publications: list[Publication]) -> None:
        """Committed at this broker: to every edge, and acknowledged to the publishers that wait here."""
        self.ctx.emit(Fanout(topic, tuple(publications)))
        self.ctx.committed += len(publications)
        waiting = self.pending
        if waiting:
            for entry in publications:
                number = entry.id
                if number and (pending := waiting.pop((topic, entry.publisher, number), None)) is not None:
                    self._acknowledge(pending, Ack(topic, entry.publisher, number, entry.position))

    def resolve(self, answer: Answer) -> None:
        """What a coordinator answers, or this broker in its place."""
        topic, publisher, number = answer.topic, answer.publisher, answer.id
        pending = self.pending.pop((topic, publisher, number), None)
        if pending is None:
            return
        if not answer.code:
            self._acknowledge(pending, Ack(topic, publisher, number, answer.position))
            return
        wait = answer.retry_after if answer.code == "retry" else None
        for client in pending.clients:
            self._tell(client, Nack(topic, publisher, number, answer.code, answer.text, wait))

    def _acknowledge(self, pending: Pending, ack: Ack) -> None:
        answer: Ack | Nack = ack
        if self.ctx.fenced:  # FENCED-SILENT: no acknowledgement from a broker that is cut off
            wait = self.ctx.config.publish_retry_after
            answer = Nack(ack.topic, ack.publisher, ack.id, "retry", "this broker is cut off", wait)
        for client in pending.clients:
            self._tell(client, answer)

    def _tell(self, client: Client, answer: Ack | Nack) -> None:
        """With what else the client is told in this turn."""
        told = self._told.get(client)
        if told is None:
            self._told[client] = [answer]
        else:
            told.append(answer)

    def answer_from(self, contact: str | None, answer: Answer) -> None:
        """The coordinator (this broker) answers to a contact: another, or this one."""
        if contact is None:
            self.resolve(answer)
        else:
            self._answers.setdefault(contact, []).append(answer)

    # ---- between brokers -------------------------------------------------------------------------------------

    def forwarded(self, peer: str, message: Forward) -> None:
        """Publications from their contact. Not the coordinator, or cut off: the publisher tries again."""
        if not 0 <= message.group < len(self.groups):
            return
        reign = self.groups[message.group].reign
        if reign is not None and reign.active and not self.ctx.fenced:
            reign.sequencer.take(message.publications, peer)
            return
        wait = self.ctx.config.publish_retry_after
        for publication in message.publications:
            if publication.qos:
                self.answer_from(
                    peer,
                    Answer(
                        publication.topic,
                        publication.publisher,
                        publication.id,
                        "retry",
                        text="the coordinator is changing",
                        retry_after=wait,
                    ),
                )

    def answers(self, message: Answers) -> None:
        for answer in message.answers:
            self.resolve(answer)

    def peer_down(self, peer: str) -> None:
        """What went to that coordinator may be lost: its publishers send it again, freshly marked."""
        self._forwards.pop(peer, None)
        self._answers.pop(peer, None)
        for topic, publisher, number in [key for key, pending in self.pending.items() if pending.via == peer]:
            self._give_back(topic, publisher, number, "the link to the coordinator broke")

    def give_back_all(self, text: str) -> None:
        for topic, publisher, number in list(self.pending):
            self._give_back(topic, publisher, number, text)

    def _give_back(self, topic: str, publisher: str, number: int, text: str) -> None:
        wait = self.ctx.config.publish_retry_after
        self.resolve(Answer(topic, publisher, number, "retry", None, text, wait))

    def tick(self) -> None:
        self.makers.tick(self._exists)
        late = []
        for key, pending in self.pending.items():
            if pending.deadline > self.ctx.now:
                break
            late.append(key)
        for key in late:
            self._give_back(*key, "no answer from the coordinator in time")

    def _exists(self, topic: str) -> bool:
        return topic in self.groups[topic_group(topic, len(self.groups))].replica.topics

    def flush(self) -> None:
        """What came together in this turn leaves together."""
        if self._told:
            told, self._told = self._told, {}
            for (edge, reference), acknowledged in told.items():
                self.ctx.emit(PublishAnswers(edge, reference, acknowledged))
        if not (self._forwards or self._answers):
            return
        forwards, self._forwards = self._forwards, {}
        for peer, groups in forwards.items():
            for group, publications in groups.items():
                self.ctx.send(peer, Forward(group, publications))
        answers, self._answers = self._answers, {}
        for peer, list_ in answers.items():
            self.ctx.send(peer, Answers(list_))

    @property
    def owes(self) -> bool:
        """Whether `flush` has anything to say."""
        return bool(self._told or self._forwards or self._answers)
