"""Subscriptions: which connection follows which topic.

A request is taken whole or not at all where the limit of subscriptions is concerned; a topic that can't be had is
refused alone, in the receipt. Subscribing again to what one has is answered again and changes nothing, so that clients
may repeat themselves without growing memory or getting publications twice.

A request names hardly more topics than a client may have, and is carried out in pieces. The logic is asked for as many
topics of one connection at a time as the window has (`EdgeConfig.attaches_per_client`), and for another with each
answer: what all other clients want waits behind those only. Refusals leave by the window as well: each is many times as
long as the name that it is about. Until the last topic was asked for, what the same client sends waits (inbox.py).
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

from migratory_broker.core.edge.authorizer import Authorizer
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Connection, Request, Topic
from migratory_broker.core.edge.delivery import Delivery
from migratory_broker.core.edge.events import More
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
        """Checks the whole request and begins with it. Other receipts than of what is known at once come as the logic
        attaches the topics."""
        limit = self._config.subscriptions_per_client
        if len(message.topics) > limit + self._config.attaches_per_client:  # some may be there twice, or refused
            self._too_many(connection, message, f"{len(message.topics)} topics in one request")
            return
        wanted: dict[str, tuple[str, Position | None, bool]] = {}
        refused: dict[str, TopicReceipt] = {}
        for request in message.topics:
            if request.topic not in wanted and request.topic not in refused:
                try:
                    wanted[request.topic] = request.topic, self._check(connection, request), request.snapshot
                except Refused as error:
                    refused[request.topic] = TopicReceipt(request.topic, None, code=error.code, text=error.text)
        new = sum(not has(connection, self._splice.topics.get(name)) for name in wanted)
        if len(connection.topics) + new > limit:
            self._too_many(connection, message, f"{len(connection.topics)} subscriptions and {new} more")
            return
        # The first pages that are under way together are one page: many topics must not fill the queue at once.
        page = self._config.page // max(1, min(new, self._config.attaches_per_client))
        page = min(page, self._config.first_page)
        connection.request = Request(message.request, deque(wanted.values()), deque(refused.values()), page)
        if not message.topics:
            self._delivery.reply(connection, Subscribed(message.request, []))
        self.go_on(connection, connection.request)

    def _too_many(self, connection: Connection, message: Subscribe, text: str) -> None:
        text = f"{text}: a client has {self._config.subscriptions_per_client} at most"
        self._delivery.reply(connection, Error(errors.TOO_MANY_SUBSCRIPTIONS, text, request=message.request))

    def go_on(self, connection: Connection, request: Request) -> None:
        """Another piece of the connection's request. Afterwards the connection has none, or an answer of the logic is
        to come, or `More`."""
        window = self._config.attaches_per_client
        refused = request.refused
        receipts = [refused.popleft() for _ in range(min(window, len(refused)))]
        for _ in range(min(window - len(receipts), len(request.topics))):
            if connection.attaching >= window:
                break
            name, after, snapshot = request.topics.popleft()
            topic = self._splice.topics.get(name)
            if topic is None:
                topic = self._splice.begin(name)
            if has(connection, topic):
                receipt = self._again(connection, topic, request.number)
                if receipt is not None:
                    receipts.append(receipt)
            else:
                self._add(connection, topic)
                self._splice.attach(connection, topic, request.number, after, snapshot, request.page)
        if receipts:
            self._delivery.reply(connection, Subscribed(request.number, receipts))
        if not (request.topics or refused):
            connection.request = None
        elif not connection.attaching:
            self._delivery.aside(More(connection.number))

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

    def _again(self, connection: Connection, topic: Topic, request: int) -> TopicReceipt | None:
        """A topic that the connection has already: nothing changes. None: the receipt comes with the first one."""
        replay = topic.replays.get(connection)
        if replay is None:
            self._splice.conflation.release(topic)  # nothing comes behind the receipt that it has named
            return TopicReceipt(topic.name, "complete", topic.last)
        if not replay.requests:
            return TopicReceipt(topic.name, "complete", replay.cursor)
        if len(replay.requests) >= self._config.repeats:
            text = "the same request waits for its receipt already"
            return TopicReceipt(topic.name, None, code=errors.RETRY, text=text)
        replay.requests += (request,)
        return None

    def attached(self, event: Attached) -> Connection | None:
        """The logic's answer, and to whom. A topic that it refuses is not subscribed any more behind the receipt that
        says so."""
        replay = self._splice.answered(event)
        if replay is None:
            return None
        if not replay.requests:
            pass  # not wanted any more
        elif event.code:
            self._splice.refused(replay, event)
            self._drop(replay.connection, replay.topic)
        else:
            self._splice.attached(replay, event)
        return replay.connection

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
        connection.request = None
        for topic in connection.topics:
            self._remove(connection, topic)
        connection.topics = ()

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
            self._delivery.part(topic, connection)
        if topic.is_empty():
            self._splice.forget(topic)
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
