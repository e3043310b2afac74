"""The asyncio client that applications use, `Client`: opening and closing, publishing, and subscribing. It passes what
the core returns to futures, subscriptions and callbacks. `driver.py` runs the sans-I/O core below it."""

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
from migratory_client.arguments import Payload, PositionLike, as_bytes, as_positions, as_servers
from migratory_client.core import events as ev
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import DEFAULTS, Settings
from migratory_client.driver import ApplicationEffect, Driver, TokenSource
from migratory_client.notifications import Notifier, Status
from migratory_client.subscription import Subscription
from migratory_client.transport import Transport

__all__ = ["Client", "Subscription"]


def _new_identity(name: str | None) -> dict[str, str]:
    """Return a client name and a publisher name, under the keys `client` and `publisher` of `ClientCore`'s arguments.
    The client's name is `name`, if the application gave one. All other names are random, and so unique in the
    cluster."""
    identity = uuid.uuid4().hex
    return {"client": name or f"python-{identity[:12]}", "publisher": identity}


class Client:
    """A connection to a cluster that changes to another broker by itself when its broker fails or leaves.

        async with Client(["ws://a:8800/ws", "ws://b:8800/ws"]) as client:
            position = await client.publish("quotes/eur", b"1.0842")
            async for message in client.subscribe("quotes/eur"):
                ...

    Use it only from the event loop that opened it: while it is open, its methods raise RuntimeError elsewhere. After
    `close`, even a cancelled one, no task, timer or socket is left. A closed client can be opened again, also in
    another event loop, and resumes from its positions.
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
        """Create a closed client. `token` may be a function or an async function. It is called for every new
        connection, and again before the token expires. `name` is the client's name in the broker's logs. `wire` is
        "msgpack" or "json". `open_timeout`: seconds that `open` waits for a broker, None without a limit. `queue`: the
        number of messages that a subscription buffers for a slow reader before it pauses. `ssl_context` is used for
        wss:// URLs; None for Python's default. `headers` are added to the HTTP request of the WebSocket handshake.

        `on_status` receives connection changes and problems, `on_receipt` every receipt, and `on_delivery` every
        message with its latency in seconds, by the wall clocks of both ends, or None for a message without a time. The
        callbacks run in the event loop and must not block.

        Raise ValueError when no server is usable, for another `wire`, or when `queue` is below 1. Raise TypeError for
        arguments of another kind. When only some servers are malformed, `on_status` receives a problem for each at the
        first `open`.
        """
        self._settings = settings
        usable, self._malformed = as_servers(servers)
        if token is not None and not isinstance(token, str) and not callable(token):
            raise TypeError(f"the token is a str or a function that returns one, not {type(token).__name__}")
        if queue < 1:
            raise ValueError(f"queue is {queue}: a subscription holds at least 1 message")
        source = token if callable(token) else None
        if source is not None:
            settings = replace(settings, request_token=True)
        self._process = os.getpid()
        self._core = ClientCore(
            usable,
            random.random,
            **_new_identity(name),
            token=token if isinstance(token, str) else None,
            settings=settings,
            codec=find_codec(wire),
        )
        self._driver = Driver(self._core, find_codec(wire), self._handle_effect, source, ssl_context, headers)
        self._notifier = Notifier(on_status, on_receipt, on_delivery)
        self._open_timeout = open_timeout
        self._queue = queue
        self._name = name
        self._subscriptions: dict[str, Subscription] = {}
        self._connected = asyncio.Event()  # set while a broker serves the client, and once nothing will connect it
        self._answered = asyncio.Event()  # a publication was answered

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the client, and wait until a broker serves it. If it is open already, or another call opens it, only
        wait: return at once while a broker serves it, and otherwise when one does again.

        Raise ConnectError when no broker accepts the client within `open_timeout` (the client is then closed if this
        call opened it), or when a broker refuses its token for good (it is then closed). Raise Closed when the client
        is closed meanwhile. Raise RuntimeError when it is open in another event loop or thread.
        """
        opens = not self._is_open()
        if opens:
            self._start()
        transport, connected = self._driver.transport, self._connected
        try:
            async with asyncio.timeout(self._open_timeout):
                await connected.wait()
        except TimeoutError:
            await self._undo_open(transport, opens)
            problem = self._notifier.last_problem
            reason = f": {problem.text}" if problem else ""
            raise errors.ConnectError("connect_failed", f"no broker within {self._open_timeout:g} s{reason}") from None
        except BaseException:
            await self._undo_open(transport, opens)
            raise
        if self._driver.transport is not transport:
            raise errors.Closed("the client was closed while it was being opened")
        if self._core.closed:  # refused for good
            await self._undo_open(transport, True)
            problem = self._notifier.last_problem
            raise errors.ConnectError("unauthenticated", problem.text if problem else "refused")

    def _start(self) -> None:
        """Start the driver in the running event loop, report malformed servers once, and begin to connect. In a process
        that was forked since the last `_start`, use a new client name and a new publisher name first."""
        if self._process != os.getpid():  # forked since: the parent process continues with the old publisher's ids
            self._process = os.getpid()
            self._core.rename(**_new_identity(self._name))
        self._driver.start()
        self._connected = asyncio.Event()  # new events: the loop may be another one than the last time
        self._answered = asyncio.Event()
        for line in self._malformed:
            self._notifier.status(ev.Problem("bad_server", line))
        self._malformed = ()
        self._driver.step(ev.Open())

    async def _undo_open(self, transport: Transport | None, opens: bool) -> None:
        """Close the client without waiting for answers, if the caller opened it (`opens`) and `transport` is still the
        client's. Otherwise another call has closed it since, and perhaps opened it again: do nothing."""
        if opens and self._driver.transport is transport:
            await self.close(flush=0.0)

    async def close(self, flush: float = 5.0) -> None:
        """Wait up to `flush` seconds for the answers to publications, then disconnect. Nothing happens if the client is
        closed.

        Subscriptions end; the client remembers their positions. Publications that are still unanswered fail with
        Closed. A cancelled `close` stops waiting and disconnects. Raise RuntimeError when the client is open in another
        event loop or thread.
        """
        transport = self._driver.transport
        if not self._is_open() or transport is None:
            return
        try:
            if flush > 0 and self._core.publisher.waiting:
                await self._wait_answered(flush)
        finally:
            await self._end(transport)

    async def _wait_answered(self, limit: float) -> None:
        """Wait until no QoS 1 publication is unanswered, at most `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                while self._core.publisher.waiting:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            pass  # the publications that still wait fail with Closed, so none is lost silently

    async def _end(self, transport: Transport) -> None:
        """Close all subscriptions and the driver, if `transport` is still the client's: otherwise a concurrent `close`
        did. Then wait until the transport has closed its connections."""
        tasks: list[asyncio.Task[None]] = []
        if self._driver.transport is transport:  # else a concurrent `close` was faster
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
        """Return whether the client is open. Raise RuntimeError when called from another event loop or thread than the
        one that opened it. When the client was open in an event loop that is closed, or before a fork, close its
        subscriptions and return False."""
        was_open = self._driver.transport is not None
        if self._driver.is_open():
            return True
        if was_open:  # its loop has ended
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
        """True while a broker serves this client. While it is False, an open client reconnects by itself."""
        return self._core.connected

    @property
    def reconnects(self) -> int:
        """The number of changes of broker since the client was created, for any cause."""
        return self._core.reconnects

    @property
    def reconnect_causes(self) -> dict[ev.Cause, int]:
        """The number of changes of broker since the client was created, by cause: the link broke (`broken`), the broker
        left (`drained`), or the cluster rebalanced its clients (`moved`)."""
        return self._core.reconnect_counter.by_cause()

    # ---- publishing --------------------------------------------------------------------------------------------

    async def publish(self, topic: str, payload: Payload, *, qos: int = 1) -> Position | None:
        """Publish `payload` on `topic`, and wait for the answer. A str is sent as UTF-8.

        With QoS 1 the publication is then stored by `minCopies` brokers and reaches every subscriber once. Return its
        position. Return None for QoS 0, which is answered as soon as it is sent, and for a repeat whose position an
        older broker no longer knows.

        Raise PublishError for a refusal, PublishTimeout when no answer came within `Settings.publish_timeout`,
        OutcomeUnknown when the cluster no longer knows whether the publication was stored, TooManyWaiting at the limit
        of unanswered publications, NotConnected (QoS 0 only), Closed, ValueError for another `qos`, or TypeError for
        another kind of topic or payload. When the call is cancelled, the client stops waiting for the answer; the
        publication may still be stored.
        """
        return await self.submit(topic, payload, qos=qos)

    def submit(self, topic: str, payload: Payload, *, qos: int = 1) -> asyncio.Future[Position | None]:
        """Publish like `publish`, but return at once, with a future of the answer. Many publications may be pending,
        and keep their order within a topic. Cancel the future to stop waiting: the publication may still be stored.

        Raise Closed, ValueError for another `qos`, and TypeError for another kind of topic or payload. All other errors
        are the future's.
        """
        guard = self._driver.guard
        if not self._is_open() or guard is None:
            raise errors.Closed
        if qos not in (0, 1):
            raise ValueError(f"qos is {qos!r}; use 0 (at most once) or 1 (acknowledged)")
        data = as_bytes(topic, payload)
        future: asyncio.Future[Position | None] = guard.loop.create_future()
        self._driver.step(ev.Submit(future, topic, data, qos, time.time()))
        if not future.done():
            future.add_done_callback(self._give_up_cancelled)
        return future

    def _give_up_cancelled(self, future: asyncio.Future[Position | None]) -> None:
        """Let the core stop waiting for the answer to a publication, if the application cancelled its future."""
        if future.cancelled():
            self._driver.step(ev.GiveUp(future))

    # ---- subscribing -------------------------------------------------------------------------------------------

    def subscribe(
        self,
        *topics: str,
        after: PositionLike | Mapping[str, PositionLike] | None = None,
        snapshot: bool = False,
        fresh: bool = False,
        on_gap: Callable[[ev.Receipt], None] | None = None,
    ) -> Subscription:
        """Return one ordered stream of the publications of these topics, which are exact names without wildcards.

        A topic that this client had before resumes where the application left it; `fresh` starts with the next
        publication instead. `after` is the position to resume after: a Position, its text "epoch:sequence" or [epoch,
        sequence]; for several topics a mapping from topic to position, where topics without one start as above.
        `snapshot` starts a topic for which there is no position with its latest publication. A topic belongs to one
        subscription at a time: a newer one takes it over.

        Where publications are missing, `on_gap` is called with the receipt, in the stream's order. Without `on_gap` the
        iteration raises GapError, and may be continued. It raises SubscribeError for a topic that a broker refuses,
        that is malformed, or that a newer subscription took over.

        Raise Closed, ValueError without a topic or for a malformed position, TypeError for another kind of argument.
        """
        if not self._is_open():
            raise errors.Closed
        if not topics:
            raise ValueError("name at least one topic")
        for topic in topics:
            if not isinstance(topic, str):
                raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        positions = as_positions(after, topics)
        subscription = Subscription(
            self._driver.step, self._is_open, self._forget_topic, dict.fromkeys(topics), self._queue, on_gap
        )
        for topic in dict.fromkeys(topics):
            other = self._subscriptions.get(topic)
            if other is not None:
                other.release(topic)
            self._subscriptions[topic] = subscription
        subscription.start(positions, snapshot, fresh)
        return subscription

    def _forget_topic(self, subscription: Subscription, topic: str) -> None:
        """Remove a topic that `subscription` left from the client's table, unless a newer subscription has it."""
        if self._subscriptions.get(topic) is subscription:
            del self._subscriptions[topic]

    # ---- effects of the core -----------------------------------------------------------------------------------

    def _handle_effect(self, effect: ApplicationEffect) -> None:
        """Pass one effect of the core on: to the subscription of its topic, to the future of its publication, and to
        the application's callbacks. A link that comes up, or a refusal for good, ends the waiting in `open`. Raise
        TypeError for a publication that `submit` did not create."""
        match effect:
            case ev.Deliver(message=message):
                subscription = self._subscriptions.get(message.topic)
                if subscription is not None:
                    subscription.put(message)
                self._notifier.delivery(message)
            case ev.Acknowledged(ticket=asyncio.Future() as future):
                if not future.done():
                    future.set_result(effect.position)
                self._answered.set()
            case ev.PublishFailed(ticket=asyncio.Future() as future):
                if not future.done():
                    future.set_exception(errors.publish_error(effect))
                self._answered.set()
            case ev.Receipt():
                subscription = self._subscriptions.get(effect.topic)
                if subscription is not None:
                    subscription.put(effect)
                self._notifier.receipt(effect)
            case ev.SubscribeRefused():
                subscription = self._subscriptions.pop(effect.topic, None)
                if subscription is not None:
                    subscription.put(effect)
            case ev.LinkUp():
                self._connected.set()
                self._notifier.status(effect)
            case ev.LinkDown() | ev.Ready() | ev.Problem():
                if isinstance(effect, ev.LinkDown) and not effect.replaced:
                    self._connected.clear()
                self._notifier.status(effect)
                if self._core.closed:  # refused for good: nothing else will end what waits for a connection
                    self._connected.set()
            case ev.Acknowledged() | ev.PublishFailed():
                raise TypeError("the ticket was not created by this client")
            case _:
                assert_never(effect)
