"""Subscriptions, for `ClientCore`: the position of each topic, gaps and duplicates, and subscribe requests that await
their receipts.

The rules:

- The position advances before the application sees a publication. Whatever the application does next (unsubscribe,
  subscribe again, raise, close), the position is never behind what it was given.
- Publications of a topic are accepted only from the link whose receipt came last. While a client moves to another
  broker, the old link delivers until the new link's receipt. A publication that arrives twice has a position that is
  not above the last one, and is dropped.
- Between two publications no sequence number may be missing, unless a receipt named it or a message says that it
  stands for it (conflation). The client checks this, and reports a `hole` when a broker breaks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from migratory_protocol import messages as wire
from migratory_protocol.errors import OVERLOADED
from migratory_protocol.messages import Message, TopicReceipt, TopicRequest
from migratory_protocol.positions import Position
from migratory_protocol.topics import BadTopic, check_topic

from migratory_client.core.events import (
    Deliver,
    Effect,
    Problem,
    Receipt,
    Send,
    SubscribeRefused,
    SubscribeTopic,
    UnsubscribeTopic,
)
from migratory_client.core.settings import Settings

_MIN_RETRY_AFTER = 0.1
"""Seconds before a topic is requested again that an overloaded broker refused, whatever the broker asks for."""


class TopicStream:
    """The stream of one topic. `position` is the last position that the client has, None while it has none. `next` is
    the sequence number expected next, 0 while unknown. `floor` is the last sequence number that was reported missing, 0
    if none; `position` may be lower, because the epoch of missing publications is unknown. `snapshot` is True while the
    topic's latest publication is awaited as the first one."""

    __slots__ = ("floor", "link", "next", "position", "request", "snapshot", "topic")

    def __init__(self, topic: str, position: Position | None, snapshot: bool) -> None:
        self.topic = topic
        self.position = position
        self.next = 0 if position is None else position.sequence + 1
        self.floor = 0
        self.snapshot = snapshot  # the latest publication is still awaited
        self.link = 0  # the link whose publications are accepted
        self.request = 0  # the number of the unanswered request, 0 after its receipt

    def accept_message(self, link: int, message: Message, out: list[Effect]) -> bool:
        """Deliver a publication that arrived on `link`, and before it report a `hole` for publications that are missing
        without a receipt, or a `reset` if the sequence numbers went back without one. Return whether it was
        delivered. Drop it, without an effect, if it is a duplicate, from before a reported gap, or from another link
        than the topic's. The publication at the current position is delivered once if it is the awaited snapshot."""
        position = message.position
        last = self.position
        if link != self.link:
            return False
        if last is not None and position <= last:
            if not self.snapshot or position != last:
                return False
            self.snapshot = False
            out.append(Deliver(link, message))
            return True
        sequence = position.sequence
        first = message.first or sequence  # conflated: the message stands for all from `first` on
        if not first <= self.next <= sequence:
            if sequence <= self.floor:
                return False  # from before a reported gap, which can't be taken back
            if first > self.next > 0:
                out.append(Receipt(self.topic, "hole", position, last, self.next, first - 1, True))
            elif self.next:
                start = Position(position.epoch, first - 1)
                out.append(Receipt(self.topic, "reset", position, start, 0, 0, True, last))
        self.snapshot = False
        self.position = position
        self.next = sequence + 1
        out.append(Deliver(link, message))
        return True

    def accept_receipt(self, link: int, receipt: TopicReceipt, out: list[Effect]) -> None:
        """Apply the receipt that the broker sent on `link`, and report it to the application. From now on publications
        are accepted from this link only. A `truncated` receipt is reported as `complete` if its range was already
        delivered by another link or reported missing."""
        self.link = link
        resumed = self.position is not None
        kind = receipt.receipt
        position = receipt.position
        if kind == "reset":
            before = self.position
            self._restart_at(position)
            self.snapshot = False
            out.append(Receipt(self.topic, "reset", position, position, 0, 0, resumed, before))
            return
        if not resumed:
            self._restart_at(position)
            self.snapshot = self.snapshot and position is not None and position.sequence > 0
        if kind == "truncated" and receipt.last >= max(self.next, receipt.first):
            first = max(self.next, receipt.first)
            self.floor = receipt.last
            self.next = receipt.last + 1
            out.append(Receipt(self.topic, "truncated", position, self.position, first, receipt.last, resumed))
        else:  # complete, or truncated below what the other link delivered or what was reported meanwhile
            out.append(Receipt(self.topic, "complete", position, self.position, 0, 0, resumed))

    def _restart_at(self, position: Position | None) -> None:
        self.position = position
        self.next = 0 if position is None else position.sequence + 1
        self.floor = 0


class TopicStreams:
    """The streams of the topics that one client is subscribed to (`active`), and the positions of those that it left.
    `unanswered` is the number of active topics that await their receipt. `dropped` is the number of publications that
    were received and not delivered, such as duplicates and those of topics that were left."""

    __slots__ = ("_inactive", "_remembered", "active", "dropped", "unanswered")

    def __init__(self, remembered: int) -> None:
        """Create an empty table. `remembered` is the largest number of positions of left topics that are stored."""
        self.active: dict[str, TopicStream] = {}
        self.unanswered = 0  # topics that await their receipt
        self.dropped = 0  # publications that arrived twice, or after their topic was left
        self._inactive: dict[str, TopicStream] = {}  # the most recently left last
        self._remembered = remembered

    def add(self, topic: str, after: Position | None, snapshot: bool, fresh: bool) -> TopicStream:
        """Add and return the stream of a new subscription; the caller sends its request. It resumes after `after`, or
        else after the remembered position, which `fresh` ignores. Without a position it begins with new publications,
        and with `snapshot` with the topic's latest one."""
        inactive = self._inactive.pop(topic, None)
        if inactive is None or fresh or (after is not None and after != inactive.position):
            stream = TopicStream(topic, after, snapshot and after is None)
        else:
            stream = inactive
        self.active[topic] = stream
        return stream

    def remove(self, topic: str, seen: Position | None) -> bool:
        """End a subscription, remember its position (or `seen`, if given), and return True. Above the limit of
        remembered positions, forget the one that was left first. Without a subscription return False; `seen` then
        replaces a remembered position."""
        stream = self.active.pop(topic, None)
        if stream is None:
            if seen is not None and topic in self._inactive and self._inactive[topic].position != seen:
                self._inactive[topic] = TopicStream(topic, seen, False)
            return False
        self.set_request(stream, 0)
        stream.link = 0
        if seen is not None and seen != stream.position:
            stream = TopicStream(topic, seen, False)
        self._inactive.pop(topic, None)
        if stream.position is not None and self._remembered:
            self._inactive[topic] = stream
            if len(self._inactive) > self._remembered:
                del self._inactive[next(iter(self._inactive))]
        return True

    def remove_refused(self, topic: str) -> None:
        """End the subscription to a topic that was refused. Its position is not remembered. Raise KeyError without a
        subscription."""
        self.set_request(self.active.pop(topic), 0)

    def set_request(self, stream: TopicStream, request: int) -> None:
        """Set the number of the subscribe request that the stream awaits an answer to, 0 for none, and update the count
        of such streams."""
        self.unanswered += (request != 0) - (stream.request != 0)
        stream.request = request

    def topic_request(self, stream: TopicStream) -> TopicRequest:
        """Return the entry for a subscribe request that resumes the stream after its position, or asks for the snapshot
        if that is still awaited."""
        return TopicRequest(stream.topic, stream.position, stream.snapshot)


class SubscribeRequests:
    """The subscribe requests of one client, and its subscriptions (`streams`). `deadline` is the time at which the link
    counts as failed for want of an answer: a repeated request on the same link might be answered without a replay.
    `retry_at` is the time at which topics are requested again that an overloaded broker refused. Both are infinity
    without such a request."""

    __slots__ = ("_last_request", "_overloaded", "_settings", "deadline", "retry_at", "streams")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._last_request = 0
        self.streams = TopicStreams(settings.remembered_positions)
        self.deadline = inf
        self.retry_at = inf
        self._overloaded: list[TopicStream] = []

    def subscribe(self, event: SubscribeTopic, link: int, now: float, out: list[Effect]) -> None:
        """Start a subscription, and send a request for it on `link`. With `link` 0 it is requested on the next link.
        Refuse a malformed topic with `SubscribeRefused`. Nothing happens if the topic is subscribed already."""
        if event.topic in self.streams.active:
            return
        try:
            check_topic(event.topic)
        except BadTopic as error:
            out.append(SubscribeRefused(event.topic, error.code, str(error)))
            return
        stream = self.streams.add(event.topic, event.after, event.snapshot, event.fresh)
        if link:
            self.request(link, [stream], now, out)

    def unsubscribe(self, event: UnsubscribeTopic, link: int, out: list[Effect]) -> None:
        """End a subscription, and unsubscribe at the broker if `link` is not 0. For a topic that is not subscribed,
        only its remembered position is replaced by `seen`."""
        if self.streams.remove(event.topic, event.seen) and link:
            self._last_request += 1
            out.append(Send(link, [wire.Unsubscribe(self._last_request, [event.topic])]))

    def request(self, link: int, streams: Sequence[TopicStream], now: float, out: list[Effect]) -> None:
        """Send subscribe requests for these streams on `link`, each from its position, at most
        `Settings.subscribe_batch` topics in one. Set the deadline of their receipts, if none is set."""
        size = self._settings.subscribe_batch
        for start in range(0, len(streams), size):
            batch = streams[start : start + size]
            self._last_request += 1
            for stream in batch:
                self.streams.set_request(stream, self._last_request)
            topics = [self.streams.topic_request(stream) for stream in batch]
            out.append(Send(link, [wire.Subscribe(self._last_request, topics)]))
        if streams and self.deadline == inf:
            self.deadline = now + self._settings.receipt_timeout

    def restart(self, link: int, now: float, out: list[Effect]) -> None:
        """Request all topics on the new link `link`. No topic waits for a later request then."""
        self._overloaded, self.retry_at = [], inf
        self.request(link, list(self.streams.active.values()), now, out)

    def retry(self, link: int, now: float, out: list[Effect]) -> None:
        """Request the topics again that an overloaded broker refused, if that is due, except those that were left or
        requested since. With `link` 0 nothing happens: the next link requests all topics."""
        if not link or self.retry_at > now:
            return
        waiting, self._overloaded, self.retry_at = self._overloaded, [], inf
        active = self.streams.active
        self.request(link, [s for s in waiting if active.get(s.topic) is s and not s.request], now, out)

    def _retry_later(self, stream: TopicStream, receipt: TopicReceipt, now: float) -> None:
        """Note that an overloaded broker refused a topic, and when to request it again: after the time that the receipt
        names, or `Settings.backoff_cap` if it names none. That is also the longest time."""
        self.streams.set_request(stream, 0)
        self._overloaded.append(stream)
        wait = self._settings.backoff_cap if receipt.retry_after is None else receipt.retry_after
        self.retry_at = min(self.retry_at, now + min(max(wait, _MIN_RETRY_AFTER), self._settings.backoff_cap))

    def accept_receipts(self, link: int, message: wire.Subscribed, now: float, out: list[Effect]) -> None:
        """Apply receipts that arrived on `link`: answers to requests, or reports of gaps in topics that the link
        serves. Other receipts are ignored. A refusal ends its subscription with `SubscribeRefused`, except `overloaded`
        in an answer: that is reported as a problem, and the topic requested again later. While receipts are awaited,
        their time limit begins anew."""
        streams = self.streams
        problem = ""
        for receipt in message.topics:
            stream = streams.active.get(receipt.topic)
            if stream is None:
                continue
            if message.request:
                is_current = stream.request == message.request
            else:
                is_current = stream.link == link
            if not is_current:
                continue  # the answer to an earlier request, or from a link that does not serve this topic
            if receipt.code == OVERLOADED and message.request:
                self._retry_later(stream, receipt, now)
                problem = receipt.text
                continue
            if receipt.receipt is None:
                streams.remove_refused(receipt.topic)
                out.append(SubscribeRefused(receipt.topic, receipt.code, receipt.text))
                continue
            if message.request:
                streams.set_request(stream, 0)
            stream.accept_receipt(link, receipt, out)
        if problem:
            out.append(Problem(OVERLOADED, problem))
        if streams.unanswered:  # the time limit is for progress
            self.deadline = now + self._settings.receipt_timeout

    def accept_error(self, message: wire.Error, out: list[Effect]) -> bool:
        """End the subscriptions of the request that this error refuses as a whole. Return whether there were any."""
        topics = [
            topic
            for topic, stream in self.streams.active.items()
            if message.request and stream.request == message.request
        ]
        for topic in topics:
            self.streams.remove_refused(topic)
            out.append(SubscribeRefused(topic, message.code, message.text))
        return bool(topics)
