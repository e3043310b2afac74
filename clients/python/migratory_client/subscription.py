"""What the application iterates over: messages in order, and what is missing, in its place among them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from migratory_protocol.messages import Message
from migratory_protocol.positions import Position

from migratory_client import errors
from migratory_client import events as ev


class Subscription:
    """An async iterator of `Message`; made by `Client.subscribe`. `async with` closes it; so does `close`.

    It holds at most `limit` messages for a slow reader (and what was on its way): then it leaves the topics, and
    comes back to them, from the last position it holds, when the reader has caught up. What the brokers' caches lost
    meanwhile is reported like any other gap. So neither this process nor the broker fills up, and nothing is silent.
    """

    def __init__(
        self,
        step: Callable[[ev.Event], None],
        usable: Callable[[], bool],
        let_go: Callable[[Subscription, str], None],
        topics: Iterable[str],
        limit: int,
        on_gap: Callable[[ev.Receipt], None] | None,
    ) -> None:
        self._step = step
        self._usable = usable  # raises where the client can't be used from
        self._let_go = let_go
        self._topics: dict[str, None] = dict.fromkeys(topics)
        self._limit = limit
        self._on_gap = on_gap
        self._items: deque[Message | ev.Receipt | ev.Refused] = deque()
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._paused = False
        self._taken_over: deque[str] = deque()  # topics that other subscriptions took, not yet reported
        self._snapshot = False
        self._reached: dict[str, Position] = {}  # the last position in hand, per topic
        self._seen: dict[str, Position] = {}  # the last position that the application was given

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that are still subscribed."""
        return tuple(self._topics.copy())  # copied in one step: another thread may ask, through the synchronous face

    @property
    def positions(self) -> dict[str, Position]:
        """Where the application stands in each topic: to be stored, and given as `after` another time."""
        return self._seen.copy()

    # ---- for the application -----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Raises GapError, SubscribeError (one topic refused, or taken over), each in its place;
        iterating may go on after them. Ends when closed, or when no topic is left. Several tasks may iterate: each
        gets a part of the messages."""
        while True:
            while self._items:
                item = self._items.popleft()
                if self._paused and 2 * len(self._items) <= self._limit:
                    self._resume()
                if isinstance(item, Message):
                    self._seen[item.topic] = item.position
                    return item
                if isinstance(item, ev.Refused):
                    raise errors.SubscribeError(item.code, f"{item.topic}: {item.text}" if item.topic else item.text)
                self._take_receipt(item)
            if self._taken_over:
                topic = self._taken_over.popleft()
                raise errors.SubscribeError("taken_over", f"{topic}: a newer subscription of this client took it over")
            if not self._topics or not self._usable():
                raise StopAsyncIteration
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._waiters[waiter]

    def close(self) -> None:
        """Unsubscribe. What was not taken stays untaken: the client's next subscription to a topic goes on behind the
        last message that the application was given."""
        if self._topics:
            self._usable()
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
        self._snapshot = snapshot
        for topic in self._topics.copy():
            if topic in after:
                self._reached[topic] = self._seen[topic] = after[topic]
            self._step(ev.WantTopic(topic, after.get(topic), snapshot, fresh))

    def lose(self, topic: str) -> None:
        """Another subscription of the client wants the topic."""
        self._leave(topic)
        self._items = deque(item for item in self._items if item.topic != topic)
        self._taken_over.append(topic)
        self._wake()

    def put(self, item: Message | ev.Receipt | ev.Refused) -> None:
        """The next item of the stream."""
        self._items.append(item)
        if isinstance(item, ev.Refused):
            self._topics.pop(item.topic, None)
        elif isinstance(item, Message):
            self._reached[item.topic] = item.position
            if len(self._items) >= self._limit and not self._paused:
                self._pause()
        elif item.after is not None and (item.kind == "reset" or item.topic not in self._reached):
            self._reached[item.topic] = item.after
        self._wake()

    def _take_receipt(self, receipt: ev.Receipt) -> None:
        if receipt.after is not None and (receipt.kind == "reset" or receipt.topic not in self._seen):
            self._seen[receipt.topic] = receipt.after
        if receipt.kind == "complete" or (receipt.kind == "reset" and not receipt.resumed):
            return
        if self._on_gap is None:
            raise errors.GapError(receipt)
        self._on_gap(receipt)

    def _leave(self, topic: str) -> None:
        """Give the topic back, at the position that the application has reached in it."""
        self._topics.pop(topic, None)
        for item in self._items:
            if item.topic == topic and topic not in self._seen and isinstance(item, ev.Receipt) and item.after:
                self._seen[topic] = item.after  # where a subscription began of which nothing was taken
        self._step(ev.DropTopic(topic, self._seen.get(topic)))
        self._let_go(self, topic)

    def _pause(self) -> None:
        self._paused = True
        for topic in self._topics.copy():
            self._step(ev.DropTopic(topic))

    def _resume(self) -> None:
        self._paused = False
        for topic in self._topics.copy():
            self._step(ev.WantTopic(topic, self._reached.get(topic), self._snapshot))

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
