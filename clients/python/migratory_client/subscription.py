"""`Subscription`, the stream that an application iterates over: messages in order, and gaps and refusals in their place
among them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from migratory_protocol.messages import Message
from migratory_protocol.positions import Position

from migratory_client import errors
from migratory_client.core import events as ev


class Subscription:
    """An async iterator of `Message`, created by `Client.subscribe` and closed by `close` or `async with`.

    It buffers at most `limit` messages for a slow reader, plus those already sent. Then it unsubscribes from its
    topics, and subscribes again from the last buffered position once the reader has read half of the buffer.
    Publications that left the brokers' caches meanwhile are reported like any other gap. So neither this process nor
    the broker runs out of memory, and no loss is silent.
    """

    def __init__(
        self,
        step: Callable[[ev.Event], None],
        check_open: Callable[[], bool],
        on_topic_left: Callable[[Subscription, str], None],
        topics: Iterable[str],
        limit: int,
        on_gap: Callable[[ev.Receipt], None] | None,
    ) -> None:
        """Create a subscription; `start` subscribes to the topics. `step` gives events to the client's core.
        `check_open` returns whether the client is open, and raises where it can't be used. `on_topic_left` is called
        for each topic that the subscription leaves. `limit` is the number of buffered items at which it pauses.
        `on_gap` is called for each gap; with None the iteration raises GapError."""
        self._step = step
        self._check_open = check_open
        self._on_topic_left = on_topic_left
        self._topics: dict[str, None] = dict.fromkeys(topics)
        self._limit = limit
        self._on_gap = on_gap
        self._items: deque[Message | ev.Receipt | ev.SubscribeRefused] = deque()
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._paused = False
        self._taken_over: deque[str] = deque()  # topics that newer subscriptions took over, not yet reported
        self._snapshot = False
        self._buffered: dict[str, Position] = {}  # the last position in the buffer, per topic
        self._seen: dict[str, Position] = {}  # the position that the application has reached, per topic

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that this subscription still has: without those that were refused or taken over, and none after
        `close`."""
        return tuple(self._topics.copy())  # copied in one step: SyncSubscription reads it from another thread

    @property
    def positions(self) -> dict[str, Position]:
        """The position that the application has reached in each topic: that of the last message that it was given, or
        the one after which the stream began, or continued after a reset. Store it and pass it as `after` to resume."""
        return self._seen.copy()

    # ---- for the application -----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, waiting for it if none is buffered.

        Raise GapError for missing publications (without `on_gap`), and SubscribeError for a topic that was refused or
        taken over, each in its place in the stream; a topic that was taken over is reported after the messages that are
        buffered. The iteration may continue after them. It ends when the subscription or its client is closed, or when
        no topic is left. When several tasks iterate, each receives a part of the messages.
        """
        while True:
            while self._items:
                item = self._items.popleft()
                if self._paused and 2 * len(self._items) <= self._limit:
                    self._resume()
                if isinstance(item, Message):
                    self._seen[item.topic] = item.position
                    return item
                if isinstance(item, ev.SubscribeRefused):
                    raise errors.SubscribeError(item.code, f"{item.topic}: {item.text}" if item.topic else item.text)
                self._take_receipt(item)
            if self._taken_over:
                topic = self._taken_over.popleft()
                raise errors.SubscribeError("taken_over", f"{topic}: a newer subscription of this client took it over")
            if not self._topics or not self._check_open():
                raise StopAsyncIteration
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._waiters[waiter]

    def close(self) -> None:
        """Unsubscribe from all topics and end the iteration. Buffered messages are dropped, but not lost: the client's
        next subscription to a topic resumes after the last message that the application was given, unless it is
        `fresh` or the position is no longer remembered. Raise RuntimeError when called from another event loop or
        thread than the client's, if topics are left."""
        if self._topics:
            self._check_open()
        for topic in list(self._topics):
            self._leave(topic)
        self._items.clear()
        self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- for the client ----------------------------------------------------------------------------------------

    def start(self, after: dict[str, Position], snapshot: bool, fresh: bool) -> None:
        """Send the subscriptions of all topics to the core: each after its position in `after`, if it has one.
        `snapshot` and `fresh` as in `Client.subscribe`."""
        self._snapshot = snapshot
        for topic in self._topics.copy():
            if topic in after:
                self._buffered[topic] = self._seen[topic] = after[topic]
            self._step(ev.SubscribeTopic(topic, after.get(topic), snapshot, fresh))

    def release(self, topic: str) -> None:
        """Leave a topic that a newer subscription of the client takes over, and drop its buffered messages. The
        iteration reports it with SubscribeError, after the buffered messages of other topics."""
        self._leave(topic)
        self._items = deque(item for item in self._items if item.topic != topic)
        self._taken_over.append(topic)
        self._wake()

    def put(self, item: Message | ev.Receipt | ev.SubscribeRefused) -> None:
        """Append the next item to the stream. A refusal removes its topic from the subscription. If the buffer is full
        after a message, unsubscribe from all topics until the reader has read half of it."""
        self._items.append(item)
        if isinstance(item, ev.SubscribeRefused):
            self._topics.pop(item.topic, None)
        elif isinstance(item, Message):
            self._buffered[item.topic] = item.position
            if len(self._items) >= self._limit and not self._paused:
                self._pause()
        elif item.after is not None and (item.kind == "reset" or item.topic not in self._buffered):
            self._buffered[item.topic] = item.after
        self._wake()

    def _take_receipt(self, receipt: ev.Receipt) -> None:
        """Move the reached position to where the stream begins or, after a reset, continues, when the application
        reaches the receipt in the stream. Then, if publications are missing, call `on_gap` or raise GapError. A receipt
        without a gap, or the `reset` of a stream that had no position, is not reported."""
        if receipt.after is not None and (receipt.kind == "reset" or receipt.topic not in self._seen):
            self._seen[receipt.topic] = receipt.after
        if receipt.kind == "complete" or (receipt.kind == "reset" and not receipt.resumed):
            return
        if self._on_gap is None:
            raise errors.GapError(receipt)
        self._on_gap(receipt)

    def _leave(self, topic: str) -> None:
        """Unsubscribe from the topic and call `on_topic_left`. The client remembers the position that the application
        has reached, or the start of the stream if nothing of it was read."""
        self._topics.pop(topic, None)
        for item in self._items:
            if item.topic == topic and topic not in self._seen and isinstance(item, ev.Receipt) and item.after:
                self._seen[topic] = item.after  # the start of a subscription of which nothing was read
        self._step(ev.UnsubscribeTopic(topic, self._seen.get(topic)))
        self._on_topic_left(self, topic)

    def _pause(self) -> None:
        """Unsubscribe from all topics at the broker, because the buffer is full; the topics stay in `topics`."""
        self._paused = True
        for topic in self._topics.copy():
            self._step(ev.UnsubscribeTopic(topic))

    def _resume(self) -> None:
        """Subscribe to all topics again, each after the last position in the buffer."""
        self._paused = False
        for topic in self._topics.copy():
            self._step(ev.SubscribeTopic(topic, self._buffered.get(topic), self._snapshot))

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
