"""The client for asyncio: what an application uses. `driver.py` drives the core below it."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self, assert_never

from migratory_protocol.codec import find_codec
from migratory_protocol.messages import Message, Server
from migratory_protocol.positions import Position

from migratory_client import errors
from migratory_client import events as ev
from migratory_client.arguments import Payload, Place, as_after, as_bytes, as_servers
from migratory_client.driver import Driver, TokenSource, Told
from migratory_client.reports import Reports, Status
from migratory_client.session import ClientCore
from migratory_client.settings import DEFAULTS, Settings
from migratory_client.subscription import Subscription
from migratory_client.transport import Transport

__all__ = ["Client", "Subscription"]


def _identity(name: str | None) -> dict[str, str]:
    """One that no other client of the cluster has, in this process or another."""
    identity = uuid.uuid4().hex
    return {"client": name or f"python-{identity[:12]}", "publisher": identity}


class Client:
    """A connection to a cluster that moves between its brokers by itself.

        async with Client(["ws://a:8800/ws", "ws://b:8800/ws"]) as client:
            position = await client.publish("quotes/eur", b"1.0842")
            async for message in client.subscribe("quotes/eur"):
                ...

    Everything is used from the event loop that opened it: RuntimeError elsewhere. After `close`, also one that is
    cancelled, no task, timer or socket is left; the client may be opened again, and goes on from the positions that it
    had.
    """

    def __init__(
        self,
        servers: Iterable[str | Server],
        *,
        token: str | TokenSource | None = None,
        name: str | None = None,
        wire: str = "msgpack",
        settings: Settings = DEFAULTS,
        open_timeout: float | None = 30.0,
        queue: int = 1000,
        ssl_context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        on_status: Callable[[Status], None] | None = None,
        on_receipt: Callable[[ev.Receipt], None] | None = None,
        on_delivery: Callable[[Message, float | None], None] | None = None,
    ) -> None:
        """`token` may be a function, also an async one: it is called before every connect. `wire` is "msgpack" or
        "json". `open_timeout`: seconds that `open` waits for a broker, None for ever. `queue`: messages that a
        subscription holds for a slow reader before it pauses.

        `on_status` hears of connections and problems, `on_receipt` of every receipt, `on_delivery` of every message
        with the seconds since its publisher sent it (by the two wall clocks; None when it carries no time). They run
        in the event loop and must not block.

        Raises ValueError when no usable server is given (malformed ones among others are reported to `on_status`) or
        `queue` is below 1, TypeError for arguments of another kind."""
        self._settings = settings
        usable, self._malformed = as_servers(servers)
        if token is not None and not isinstance(token, str) and not callable(token):
            raise TypeError(f"the token is a str or a function that returns one, not {type(token).__name__}")
        if queue < 1:
            raise ValueError(f"queue is {queue}: a subscription holds at least 1 message")
        source = token if callable(token) else None
        if source is not None:
            settings = replace(settings, asks_token=True)
        self._process = os.getpid()
        self._core = ClientCore(
            usable,
            random.random,
            **_identity(name),
            token=token if isinstance(token, str) else None,
            settings=settings,
            codec=find_codec(wire),
        )
        self._driver = Driver(self._core, find_codec(wire), self._told, source, ssl_context, headers)
        self._reports = Reports(on_status, on_receipt, on_delivery)
        self._open_timeout = open_timeout
        self._queue = queue
        self._name = name
        self._subscriptions: dict[str, Subscription] = {}
        self._connected = asyncio.Event()
        self._changed = asyncio.Event()  # some publication was answered

    # ---- life --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect to one of the servers. Raises ConnectError, and closes, when none says welcome in time; Closed when
        somebody closes it meanwhile. Who opens a client that is being opened waits for the same welcome."""
        begins = not self._is_open()
        if begins:
            self._begin()
        transport, connected = self._driver.transport, self._connected
        try:
            async with asyncio.timeout(self._open_timeout):
                await connected.wait()
        except TimeoutError:
            await self._not_opened(transport, begins)
            problem = self._reports.last_problem
            why = f": {problem.text}" if problem else ""
            raise errors.ConnectError("connect_failed", f"no broker within {self._open_timeout:g} s{why}") from None
        except BaseException:
            await self._not_opened(transport, begins)
            raise
        if self._driver.transport is not transport:
            raise errors.Closed("the client was closed while it was being opened")

    def _begin(self) -> None:
        if self._process != os.getpid():  # forked since: the other process goes on with these message ids
            self._process = os.getpid()
            self._core.rename(**_identity(self._name))
        self._driver.begin()
        self._connected = asyncio.Event()  # new ones: it may be another loop than the last time
        self._changed = asyncio.Event()
        for line in self._malformed:
            self._reports.status(ev.Problem("bad_server", line))
        self._malformed = ()
        self._driver.step(ev.Open())

    async def _not_opened(self, transport: Transport | None, began: bool) -> None:
        """Who began ends it, unless another did so, and perhaps opened it anew."""
        if began and self._driver.transport is transport:
            await self.close(flush=0.0)

    async def close(self, flush: float = 5.0) -> None:
        """Wait up to `flush` seconds for answers to what was published, then leave. Subscriptions end; the client
        keeps their positions. No effect when closed. A `close` that is cancelled waits no longer, and leaves."""
        transport = self._driver.transport
        if not self._is_open() or transport is None:
            return
        try:
            if flush > 0 and self._core.publisher.waiting:
                await self._all_answered(flush)
        finally:
            await self._end(transport)

    async def _all_answered(self, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                while self._core.publisher.waiting:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass  # what waits still is answered with Closed: never silently

    async def _end(self, transport: Transport) -> None:
        tasks: list[asyncio.Task[None]] = []
        if self._driver.transport is transport:  # else another `close` was faster
            for subscription in set(self._subscriptions.values()):
                subscription.close()
            tasks = self._driver.close()
            self._connected.set()
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            await transport.close()

    def _is_open(self) -> bool:
        """Raises RuntimeError in another event loop or thread than the client's, where it can't be used."""
        was_open = self._driver.transport is not None
        if self._driver.lives():
            return True
        if was_open:  # its loop is gone
            for subscription in set(self._subscriptions.values()):
                subscription.close()
        return False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(flush=5.0 if kind is None else 0.0)

    @property
    def connected(self) -> bool:
        """Whether a broker serves this client now. Nothing needs to be done when not."""
        return self._core.connected

    @property
    def reconnects(self) -> int:
        """Changes of broker so far."""
        return self._core.reconnects

    @property
    def reconnect_causes(self) -> dict[ev.Cause, int]:
        """The same by cause: `broken` links, brokers that left (`drained`), moves for balance (`moved`)."""
        return self._core.changes.by_cause()

    # ---- publishing --------------------------------------------------------------------------------------------

    async def publish(self, topic: str, payload: Payload, *, qos: int = 1) -> Position | None:
        """Publish and wait for the answer; text is sent as UTF-8. With QoS 1 the publication is then held by
        `minCopies` brokers and reaches every subscriber once. The position is None for QoS 0, and for a repeat so
        late that its publication is no longer cached.

        Raises PublishError for a refusal, PublishTimeout when no answer came within `Settings.publish_timeout`,
        TooManyWaiting, NotConnected (QoS 0 only), Closed. Cancelling gives up: it may still be published.
        TypeError for another kind of topic or payload."""
        return await self.submit(topic, payload, qos=qos)

    def submit(self, topic: str, payload: Payload, *, qos: int = 1) -> asyncio.Future[Position | None]:
        """As `publish`, without waiting: many may be under way, and keep their order within a topic."""
        home = self._driver.home
        if not self._is_open() or home is None:
            raise errors.Closed
        if qos not in (0, 1):
            raise ValueError("qos is 0 (at most once) or 1 (acknowledged)")
        data = as_bytes(topic, payload)
        future: asyncio.Future[Position | None] = home.loop.create_future()
        self._driver.step(ev.Submit(future, topic, data, qos, time.time()))
        if not future.done():
            future.add_done_callback(self._maybe_give_up)
        return future

    def _maybe_give_up(self, future: asyncio.Future[Position | None]) -> None:
        if future.cancelled():
            self._driver.step(ev.GiveUp(future))

    # ---- subscribing -------------------------------------------------------------------------------------------

    def subscribe(
        self,
        *topics: str,
        after: Place | Mapping[str, Place] | None = None,
        snapshot: bool = False,
        fresh: bool = False,
        on_gap: Callable[[ev.Receipt], None] | None = None,
    ) -> Subscription:
        """One ordered stream of the publications of these topics.

        A topic that this client had before goes on where the application left it (`fresh`: from now on instead);
        `after` gives the position to go on from: a Position, its text "epoch:sequence" or [epoch, sequence]; for
        several topics a mapping from topic to position, where topics without one begin as above. `snapshot` begins a
        new topic with its latest publication. Topics are exact names: there are no wildcards. Where publications are
        missing, `on_gap` is called in the stream's order; without it the iteration raises GapError, and may be taken up
        again. A topic belongs to one subscription at a time: a newer one takes it over.

        Raises Closed; ValueError for what is no position, TypeError for another kind of argument."""
        if not self._is_open():
            raise errors.Closed
        if not topics:
            raise ValueError("name at least one topic")
        for topic in topics:
            if not isinstance(topic, str):
                raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        places = as_after(after, topics)
        subscription = Subscription(
            self._driver.step, self._is_open, self._let_go, dict.fromkeys(topics), self._queue, on_gap
        )
        for topic in dict.fromkeys(topics):
            other = self._subscriptions.get(topic)
            if other is not None:
                other.lose(topic)
            self._subscriptions[topic] = subscription
        subscription.start(places, snapshot, fresh)
        return subscription

    def _let_go(self, subscription: Subscription, topic: str) -> None:
        if self._subscriptions.get(topic) is subscription:
            del self._subscriptions[topic]

    # ---- what the core tells -----------------------------------------------------------------------------------

    def _told(self, effect: Told) -> None:
        match effect:
            case ev.Deliver(message=message):
                subscription = self._subscriptions.get(message.topic)
                if subscription is not None:
                    subscription.put(message)
                self._reports.delivery(message)
            case ev.Answered(ticket=asyncio.Future() as future):
                if not future.done():
                    future.set_result(effect.position)
                self._changed.set()
            case ev.Failed(ticket=asyncio.Future() as future):
                if not future.done():
                    future.set_exception(errors.publish_error(effect))
                self._changed.set()
            case ev.Receipt():
                subscription = self._subscriptions.get(effect.topic)
                if subscription is not None:
                    subscription.put(effect)
                self._reports.receipt(effect)
            case ev.Refused():
                subscription = self._subscriptions.pop(effect.topic, None)
                if subscription is not None:
                    subscription.put(effect)
            case ev.LinkUp():
                self._connected.set()
                self._reports.status(effect)
            case ev.LinkDown() | ev.Ready() | ev.Problem():
                self._reports.status(effect)
            case ev.Answered() | ev.Failed():
                raise TypeError("a ticket that this client did not make")
            case _:
                assert_never(effect)
