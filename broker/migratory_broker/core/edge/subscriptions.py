"""Subscriptions, in the edge core: the topics that each connection follows, and (for the runtime) the topics that each
edge needs.

A request is refused as a whole if it exceeds the limit of subscriptions; an invalid or forbidden topic, or one for
which no memory is left, is refused alone, in its receipt. Subscribing again to a subscribed topic is answered again and
changes nothing, so that a client can repeat a request without growing memory or getting publications twice.

A request may name only a few more topics than a client may have, and is carried out in pieces. At most
`EdgeConfig.attaches_per_client` topics of one connection are pending at the logic, and each answer makes room for
another topic: so other clients' requests wait only for those. Refusals are sent in pieces too, because each is many
times as long as the topic's name. What the client sends after the request waits until its last topic is requested
(inbox.py).
"""

from __future__ import annotations

from collections import deque

from migratory_protocol import errors
from migratory_protocol.messages import (
    Error,
    Subscribe,
    Subscribed,
    TopicReceipt,
    TopicRequest,
    Unsubscribe,
    Unsubscribed,
)
from migratory_protocol.positions import Position, parse_position
from migratory_protocol.topics import BadTopic, check_topic

from migratory_broker.core.edge.budget import RETRY_AFTER, SubscriptionBudget
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.events import More
from migratory_broker.core.edge.identity import IdentityChecks
from migratory_broker.core.edge.splice import Splice
from migratory_broker.core.edge.state import ClientConnection, EdgeTopic, SubscribeRequest
from migratory_broker.core.logic.events import Attached, Observe
from migratory_broker.core.security.authorizer import ClientAccess


class SubscriptionTable:
    """The subscriptions of all clients of an edge, begun and ended here. `budget` counts them and their memory, for
    /metrics as well."""

    def __init__(self, config: EdgeConfig, delivery: EdgeDelivery, splice: Splice, identities: IdentityChecks) -> None:
        self._config = config
        self._delivery = delivery
        self._splice = splice
        self._identities = identities
        self.budget = SubscriptionBudget(config.subscriptions_total)

    def subscribe(self, connection: ClientConnection, message: Subscribe) -> None:
        """Check a request, and begin its subscriptions. Refuse the whole request with `error` if the client would have
        more subscriptions than it may, or the request names `attaches_per_client` topics more than that. Most receipts
        are sent later, when the logic has answered for the topics."""
        limit = self._config.subscriptions_per_client
        if len(message.topics) > limit + self._config.attaches_per_client:  # some may be repeated or refused
            self._refuse_request(connection, message, f"{len(message.topics)} topics in one request")
            return
        wanted: dict[str, tuple[str, Position | None, bool]] = {}
        refused: dict[str, TopicReceipt] = {}
        for request in message.topics:
            if request.topic not in wanted and request.topic not in refused:
                try:
                    wanted[request.topic] = request.topic, self._check_topic(connection, request), request.snapshot
                except TopicRefused as error:
                    refused[request.topic] = TopicReceipt(request.topic, None, code=error.code, text=error.text)
        new = sum(not is_subscribed(connection, self._splice.topics.get(name)) for name in wanted)
        if len(connection.topics) + new > limit:
            self._refuse_request(connection, message, f"{len(connection.topics)} subscriptions and {new} more")
            return
        # All first pages that are pending together are as large as one: many topics must not fill the queue at once.
        page = self._config.page // max(1, min(new, self._config.attaches_per_client))
        page = min(page, self._config.first_page)
        connection.request = SubscribeRequest(message.request, deque(wanted.values()), deque(refused.values()), page)
        if not message.topics:
            self._delivery.reply(connection, Subscribed(message.request, []))
        self.resume(connection, connection.request)

    def _refuse_request(self, connection: ClientConnection, message: Subscribe, text: str) -> None:
        """Refuse a whole subscribe request with `error`, because it exceeds the limit of subscriptions, and count that.
        `text` says what the request asks for."""
        text = f"{text}; the limit of subscriptions is {self._config.subscriptions_per_client} per client"
        self._delivery.emit(Observe("migratory_refusals_total", label="subscriptions_per_client"))
        self._delivery.reply(connection, Error(errors.TOO_MANY_SUBSCRIPTIONS, text, request=message.request))

    def resume(self, connection: ClientConnection, request: SubscribeRequest) -> None:
        """Attach and answer further topics of the connection's request, as many as are allowed to be pending at once.

        Afterwards either the request is finished, and `connection.request` is None, or an answer of the logic or the
        effect `More` will lead to the next call.
        """
        window = self._config.attaches_per_client
        refused = request.refused
        receipts = [refused.popleft() for _ in range(min(window, len(refused)))]
        for _ in range(min(window - len(receipts), len(request.topics))):
            if connection.pending_attaches >= window:
                break
            name, after, snapshot = request.topics.popleft()
            topic = self._splice.topics.get(name)
            if topic is not None and topic in connection.topics:
                receipt = self._repeat_receipt(connection, topic, request.number)
                if receipt is not None:
                    receipts.append(receipt)
            elif (reason := self.budget.refusal(connection, name, is_new=topic is None)) is not None:
                receipts.append(self._overloaded(name, reason))
            else:
                topic = self._add(connection, topic or self._add_topic(name))
                access = connection.access
                anew = after is not None and access is not None and not access.allows("history", name)
                self._splice.attach(connection, topic, request.number, after, snapshot, request.page, anew=anew)
        if receipts:
            self._delivery.reply(connection, Subscribed(request.number, receipts))
        if not (request.topics or refused):
            connection.request = None
        elif not connection.pending_attaches:
            self._delivery.emit(More(connection.number))

    def _overloaded(self, name: str, reason: str) -> TopicReceipt:
        """Count a topic that is refused for want of memory, and return the receipt that refuses it, with the time after
        which to ask again."""
        self._delivery.emit(Observe("migratory_refusals_total", label="subscriptions_total"))
        text = f"{reason}; try again after {RETRY_AFTER:g} s, or at another broker"
        return TopicReceipt(name, None, code=errors.OVERLOADED, text=text, retry_after=RETRY_AFTER)

    def _check_topic(self, connection: ClientConnection, request: TopicRequest) -> Position | None:
        """Return the position to resume after, None if the client gave none. Raise TopicRefused for an invalid name or
        position, a missing permission to subscribe, or a snapshot without a position for a client that may not read the
        history. A missing permission is counted and logged."""
        try:
            check_topic(request.topic, self._config.max_topic)
        except BadTopic as bad_topic:
            raise TopicRefused(errors.BAD_TOPIC, str(bad_topic)) from None
        access = connection.access
        if access is not None:
            if not access.allows("subscribe", request.topic):
                self._identities.record_not_allowed(connection, "subscribe", request.topic)
                raise TopicRefused(errors.NOT_ALLOWED, "this client may not subscribe to the topic")
            if request.snapshot and request.after is None and not access.allows("history", request.topic):
                self._identities.record_not_allowed(connection, "history", request.topic)
                raise TopicRefused(errors.NOT_ALLOWED, "this client may not read the topic's history; no snapshot")
        if request.after is None:
            return None
        try:
            return parse_position(request.after)
        except ValueError as error:
            raise TopicRefused(errors.BAD_POSITION, str(error)) from None

    def _repeat_receipt(self, connection: ClientConnection, topic: EdgeTopic, request: int) -> TopicReceipt | None:
        """Return the receipt for a topic to which the connection is subscribed already. Return None while its first
        receipt is pending: `request` is then answered together with the first. If `EdgeConfig.requests_per_topic`
        requests wait for that already, return a receipt that refuses this one with `retry`."""
        replay = topic.replays.get(connection)
        if replay is None:
            self._splice.conflator.flush(topic)  # a pending publication must come before a receipt that covers it
            return TopicReceipt(topic.name, "complete", topic.last)
        if not replay.requests:
            return TopicReceipt(topic.name, "complete", replay.cursor)
        if len(replay.requests) >= self._config.requests_per_topic:
            text = f"{len(replay.requests)} requests for this topic are pending; wait for their receipts"
            return TopicReceipt(topic.name, None, code=errors.RETRY, text=text)
        replay.requests += (request,)
        return None

    def handle_attached(self, event: Attached) -> ClientConnection | None:
        """Handle the logic's answer to an `Attach`, and return the connection that it belongs to. Return None if no
        replay waits for the answer.

        The answer begins the replay, or ends the subscription after a receipt that refuses the topic. The answer to a
        subscription that has ended meanwhile has no other effect than that it is pending no more.
        """
        replay = self._splice.match_attached(event)
        if replay is None:
            return None
        if not replay.requests:
            pass  # unsubscribed meanwhile
        elif event.code:
            self._splice.refuse(replay, event)
            self._drop(replay.connection, replay.topic)
        else:
            self._splice.begin_replay(replay, event)
        return replay.connection

    def unsubscribe(self, connection: ClientConnection, message: Unsubscribe) -> None:
        """End the subscriptions to the named topics and answer. Topics without a subscription are named in the answer
        too.

        Pending batches are written before the answer. Replays of these topics, and subscribe requests to them without a
        receipt, are dropped, and nothing of the topics is sent after the answer.
        """
        for name in message.topics:
            topic = self._splice.topics.get(name)
            if topic is not None and is_subscribed(connection, topic):
                self._drop(connection, topic)
        self._delivery.reply(connection, Unsubscribed(message.request, message.topics))

    def set_access(self, connection: ClientConnection, access: ClientAccess | None) -> str | None:
        """Set the access of a connection and return None. If no memory is left for it, change nothing, count that, and
        return the reason to refuse it."""
        reason = self.budget.set_access(connection, access)
        if reason is None:
            return None
        self._delivery.emit(Observe("migratory_refusals_total", label="subscriptions_total"))
        return f"{reason}; connect to another broker"

    def drop_forbidden(self, connection: ClientConnection, access: ClientAccess) -> None:
        """End the subscriptions that a new access does not allow, each with a receipt that refuses it; so also those
        that still replay the history, where it does not allow that. Nothing of their topics is sent after the receipts.
        A receipt names the request, 0 if that was answered before."""
        refused: dict[int, list[TopicReceipt]] = {}
        for topic in list(connection.topics):
            replay = topic.replays.get(connection)
            history = replay is not None and replay.history
            if access.allows("subscribe", topic.name) and (not history or access.allows("history", topic.name)):
                continue
            requests = (replay.requests if replay is not None else ()) or (0,)
            self._drop(connection, topic)
            text = "this client may not subscribe to the topic any more"
            for request in requests:
                refused.setdefault(request, []).append(
                    TopicReceipt(topic.name, None, code=errors.NOT_ALLOWED, text=text)
                )
        size = self._config.attaches_per_client  # receipts in one message, as in the answers to a request
        for request, receipts in refused.items():
            for start in range(0, len(receipts), size):
                self._delivery.reply(connection, Subscribed(request, receipts[start : start + size]))

    def drop_all(self, connection: ClientConnection) -> None:
        """End all subscriptions of a connection that ends, and drop its subscribe request. Nothing is answered. Its
        pending batches are written first."""
        connection.paged_replays = None
        connection.request = None
        for topic in connection.topics:
            self._remove(connection, topic)
        connection.topics = ()

    def _add_topic(self, name: str) -> EdgeTopic:
        """Create, count and return the state of a topic that gets its first subscriber."""
        self.budget.add_topic(name)
        return self._splice.add_topic(name)

    def _add(self, connection: ClientConnection, topic: EdgeTopic) -> EdgeTopic:
        """Add a topic to a connection's subscriptions, count it, and return the topic."""
        self.budget.add_subscription()
        if not connection.topics:
            connection.topics = topic.only_this
        else:
            if isinstance(connection.topics, tuple):
                connection.topics = dict.fromkeys(connection.topics)
            connection.topics[topic] = None
        return topic

    def _drop(self, connection: ClientConnection, topic: EdgeTopic) -> None:
        """End one subscription of a connection, without an answer."""
        self._remove(connection, topic)
        if isinstance(connection.topics, dict):
            del connection.topics[topic]
        else:
            connection.topics = ()

    def _remove(self, connection: ClientConnection, topic: EdgeTopic) -> None:
        """Remove a connection from a topic, and stop counting the subscription: cancel its replay, or write its pending
        batches and end its fan-outs. Remove the topic if this was its last subscriber. The connection's own `topics` do
        not change."""
        self.budget.remove_subscription()
        replay = topic.replays.get(connection)
        if replay is not None:
            self._splice.cancel(replay)
        else:
            self._delivery.part(topic, connection)
        if topic.is_empty():
            self.budget.remove_topic(topic.name)
            self._splice.remove_topic(topic)
            topic.only_this = ()  # break the reference cycle, so that no garbage collection is needed


class TopicRefused(Exception):
    """The error for one topic of a subscribe request that is refused. `code` and `text` are for the receipt."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def is_subscribed(connection: ClientConnection, topic: EdgeTopic | None) -> bool:
    """Return whether the connection is subscribed to the topic, live or replaying. False for None."""
    return topic is not None and topic in connection.topics


class TopicInterest:
    """For each topic the numbers of the edges that need its publications. Used where edges run in processes of their
    own: a publication is sent only to the edges that need it.

    An edge is added with its `Attach`, before the logic has answered it, because everything after that answer is
    needed. It is removed with `Detach`. Apply both in the order in which the edge sent them.
    """

    def __init__(self) -> None:
        self._edges: dict[str, tuple[int, ...]] = {}
        self._alone: dict[int, tuple[int, ...]] = {}  # one shared tuple for all topics that only this edge needs

    def __len__(self) -> int:
        """Return the number of topics that at least one edge needs."""
        return len(self._edges)

    def add(self, edge: int, topic: str) -> None:
        """Record that an edge needs the topic. Nothing if that is recorded already."""
        edges = self._edges.get(topic)
        if edges is None:
            self._edges[topic] = self._alone.setdefault(edge, (edge,))
        elif edge not in edges:
            self._edges[topic] = (*edges, edge)

    def remove(self, edge: int, topic: str) -> None:
        """Record that an edge does not need the topic any more. Nothing if it did not need it."""
        edges = self._edges.get(topic)
        if edges is None or edge not in edges:
            return
        if len(edges) == 1:
            del self._edges[topic]
        else:
            self._edges[topic] = tuple(other for other in edges if other != edge)

    def remove_edge(self, edge: int) -> None:
        """Remove an edge that has ended from all topics."""
        for topic in [topic for topic, edges in self._edges.items() if edge in edges]:
            self.remove(edge, topic)
        self._alone.pop(edge, None)

    def edges_of(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of the edges that need the topic, () if none does."""
        return self._edges.get(topic, ())
