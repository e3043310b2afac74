"""Subscriptions: which connection follows which topic.

A request is taken whole or not at all where the limit of subscriptions is concerned; a topic that can't be had is
refused alone, in the receipt. Subscribing again to what one has is answered again and changes nothing, so that clients
may repeat themselves without growing memory or getting publications twice.
"""

from __future__ import annotations

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

from migratory_broker.core.edge.authorizer import Authorizer
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Connection, Topic
from migratory_broker.core.edge.delivery import Delivery
from migratory_broker.core.edge.splice import Splice
from migratory_broker.core.logic.events import Attached


class Subscriptions:
    """`count` is for /metrics: subscriptions of all clients."""

    def __init__(self, config: EdgeConfig, delivery: Delivery, splice: Splice, authorizer: Authorizer) -> None:
        self._config = config
        self._delivery = delivery
        self._splice = splice
        self._authorizer = authorizer
        self.count = 0

    def subscribe(self, connection: Connection, message: Subscribe) -> None:
        """Answers what is known at once in one receipt; the others come as the logic attaches them."""
        wanted: dict[str, tuple[TopicRequest, Position | None]] = {}
        receipts: dict[str, TopicReceipt] = {}
        for request in message.topics:
            if request.topic not in wanted and request.topic not in receipts:
                try:
                    wanted[request.topic] = request, self._check(connection, request)
                except Refused as refused:
                    receipts[request.topic] = TopicReceipt(request.topic, None, code=refused.code, text=refused.text)
        new = {name: None for name in wanted if not has(connection, self._splice.topics.get(name))}
        limit = self._config.subscriptions_per_client
        if len(connection.topics) + len(new) > limit:
            text = f"{len(connection.topics)} subscriptions and {len(new)} more: a client has {limit} at most"
            self._delivery.reply(connection, Error(errors.TOO_MANY_SUBSCRIPTIONS, text, request=message.request))
            return
        for name in wanted:
            if name not in new and (receipt := self._again(connection, name, message.request)) is not None:
                receipts[name] = receipt
        if receipts or not wanted:
            self._delivery.reply(connection, Subscribed(message.request, list(receipts.values())))
        # The first pages of all topics together are one page: many topics must not fill the queue at once.
        page = self._config.page // max(1, len(new))
        for name in new:
            topic = self._splice.topics.get(name)
            if topic is None:
                topic = self._splice.topics[name] = Topic(name)
            self._add(connection, topic)
            request, after = wanted[name]
            self._splice.attach(connection, topic, message.request, after, request.snapshot, page)

    def _check(self, connection: Connection, request: TopicRequest) -> Position | None:
        """The position to resume from. Raises Refused when the client can't have this topic."""
        try:
            check_topic(request.topic, self._config.max_topic)
        except BadTopic as error:
            raise Refused(errors.BAD_TOPIC, str(error)) from None
        if not self._authorizer.subscribe(connection.identity, request.topic):
            raise Refused(errors.NOT_ALLOWED, "this client may not subscribe to the topic")
        if request.after is None:
            return None
        try:
            return parse_position(request.after)
        except ValueError as error:
            raise Refused(errors.BAD_POSITION, str(error)) from None

    def _again(self, connection: Connection, name: str, request: int) -> TopicReceipt | None:
        """A topic that the connection has already: nothing changes. None: the receipt comes with the first one."""
        topic = self._splice.topics[name]
        replay = topic.replays.get(connection)
        if replay is None:
            return TopicReceipt(name, "complete", topic.last)
        if not replay.requests:
            return TopicReceipt(name, "complete", replay.cursor)
        if len(replay.requests) >= self._config.repeats:
            return TopicReceipt(name, None, code=errors.RETRY, text="the same request waits for its receipt already")
        replay.requests += (request,)
        return None

    def attached(self, event: Attached) -> None:
        """The logic's answer. A topic that it refuses is not subscribed any more behind the receipt that says so."""
        if not event.code:
            self._splice.attached(event)
        elif (replay := self._splice.refused(event)) is not None:
            self._drop(replay.connection, replay.topic)

    def unsubscribe(self, connection: Connection, message: Unsubscribe) -> None:
        """From here on nothing of these topics is sent, whatever is still under way."""
        for name in message.topics:
            topic = self._splice.topics.get(name)
            if topic is not None and has(connection, topic):
                self._drop(connection, topic)
        self._delivery.reply(connection, Unsubscribed(message.request, message.topics))

    def leave(self, connection: Connection) -> None:
        """The connection ends, and all its subscriptions with it."""
        connection.pages = None
        topics, connection.topics = connection.topics, ()
        for topic in topics:
            self._remove(connection, topic)

    def _add(self, connection: Connection, topic: Topic) -> None:
        self.count += 1
        if not connection.topics:
            connection.topics = topic.alone
        else:
            if isinstance(connection.topics, tuple):
                connection.topics = dict.fromkeys(connection.topics)
            connection.topics[topic] = None

    def _drop(self, connection: Connection, topic: Topic) -> None:
        self._remove(connection, topic)
        if isinstance(connection.topics, dict):
            del connection.topics[topic]
        else:
            connection.topics = ()

    def _remove(self, connection: Connection, topic: Topic) -> None:
        self.count -= 1
        replay = topic.replays.get(connection)
        if replay is not None:
            self._splice.cancel(replay)
        else:
            topic.remove_live(connection)
        if topic.is_empty():
            del self._splice.topics[topic.name]
            topic.alone = ()  # no cycle is left behind for the garbage collector


class Refused(Exception):
    """One topic of a request is refused."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def has(connection: Connection, topic: Topic | None) -> bool:
    """Whether the connection is subscribed to the topic."""
    return topic is not None and topic in connection.topics
