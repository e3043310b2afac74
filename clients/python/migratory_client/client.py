"""The client for asyncio: the core, driven by the running loop's clock and the links of transport.py."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import ssl
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self, assert_never

from migratory_protocol.closecodes import CloseCode
from migratory_protocol.codec import codec_named
from migratory_protocol.messages import Message, Server
from migratory_protocol.positions import Position

from migratory_client import errors
from migratory_client import events as ev
from migratory_client.arguments import Payload, Place, as_after, as_bytes, as_servers
from migratory_client.farewells import describe_end
from migratory_client.home import Home
from migratory_client.session import ClientCore
from migratory_client.settings import DEFAULTS, Settings
from migratory_client.subscription import Subscription
from migratory_client.transport import Transport

__all__ = ["Client", "Subscription"]

TokenSource = Callable[[], str | Awaitable[str]]
Status = ev.LinkUp | ev.LinkDown | ev.Ready | ev.Problem

_log = logging.getLogger("migratory_client")
_LOGGED = 100  # problems that are remembered as logged: texts may differ for ever


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
        self._token_source = token if callable(token) else None
        if self._token_source is not None:
            settings = replace(settings, asks_token=True)
        self._process = os.getpid()
        self._core = ClientCore(
            usable,
            random.random,
            **_identity(name),
            token=token if isinstance(token, str) else None,
            settings=settings,
        )
        self._codec = codec_named(wire)
        self._open_timeout = open_timeout
        self._queue = queue
        self._ssl_context = ssl_context
        self._headers = headers
        self._name = name
        self._on_status = on_status
        self._on_receipt = on_receipt
        self._on_delivery = on_delivery
        self._home: Home | None = None
        self._transport: Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._effects: deque[ev.Effect] = deque()
        self._performing = False
        self._tokens: set[asyncio.Task[None]] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._connected = asyncio.Event()
        self._changed = asyncio.Event()  # some publication was answered
        self._last_problem: ev.Problem | None = None
        self._logged: set[str] = set()  # problems, since the last connection: attempts repeat, and fail alike

    # ---- life --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect to one of the servers. Raises ConnectError, and closes, when none says welcome in time; Closed when
        somebody closes it meanwhile. Who opens a client that is being opened waits for the same welcome."""
        begins = not self._is_open()
        if begins:
            self._begin()
        transport, connected = self._transport, self._connected
        try:
            async with asyncio.timeout(self._open_timeout):
                await connected.wait()
        except TimeoutError:
            await self._not_opened(transport, begins)
            why = f": {self._last_problem.text}" if self._last_problem else ""
            raise errors.ConnectError("connect_failed", f"no broker within {self._open_timeout:g} s{why}") from None
        except BaseException:
            await self._not_opened(transport, begins)
            raise
        if self._transport is not transport:
            raise errors.Closed("the client was closed while it was being opened")

    def _begin(self) -> None:
        self._home = Home()
        if self._process != os.getpid():  # forked since: the other process goes on with these message ids
            self._process = os.getpid()
            self._core.rename(**_identity(self._name))
        self._transport = Transport(self._codec, self.step, ssl_context=self._ssl_context, headers=self._headers)
        self._connected = asyncio.Event()  # new ones: it may be another loop than the last time
        self._changed = asyncio.Event()
        for line in self._malformed:
            self._status(ev.Problem("bad_server", line))
        self._malformed = ()
        self.step(ev.Open())

    async def _not_opened(self, transport: Transport | None, began: bool) -> None:
        """Who began ends it, unless another did so, and perhaps opened it anew."""
        if began and self._transport is transport:
            await self.close(flush=0.0)

    async def close(self, flush: float = 5.0) -> None:
        """Wait up to `flush` seconds for answers to what was published, then leave. Subscriptions end; the client
        keeps their positions. No effect when closed. A `close` that is cancelled waits no longer, and leaves."""
        if not self._is_open() or self._transport is None:
            return
        transport = self._transport
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
        tokens: list[asyncio.Task[None]] = []
        if self._transport is transport:  # else another `close` was faster
            for subscription in set(self._subscriptions.values()):
                subscription.close()
            self.step(ev.Close())
            self._transport = None
            self._connected.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            tokens = list(self._tokens)
        for task in tokens:
            task.cancel()
        try:
            if tokens:
                await asyncio.wait(tokens)
        finally:
            await transport.close()

    def _is_open(self) -> bool:
        """Raises RuntimeError in another event loop or thread than the client's, where it can't be used.

        A loop that ended without `close` took links and timers with it, and a forked process has none of them: then the
        client is closed."""
        if self._transport is None or self._home is None:
            return False
        if self._home.lives():
            return True
        self._transport = self._timer = None
        self._tokens.clear()
        for subscription in set(self._subscriptions.values()):
            subscription.close()
        self._core.step(ev.Close(), self._home.loop.time())  # nobody is left to be told
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
        """Changes of broker so far, drains included."""
        return self._core.reconnects

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
        if not self._is_open() or self._home is None:
            raise errors.Closed
        if qos not in (0, 1):
            raise ValueError("qos is 0 (at most once) or 1 (acknowledged)")
        data = as_bytes(topic, payload)
        future: asyncio.Future[Position | None] = self._home.loop.create_future()
        self.step(ev.Submit(future, topic, data, qos, time.time()))
        if not future.done():
            future.add_done_callback(self._maybe_give_up)
        return future

    def _maybe_give_up(self, future: asyncio.Future[Position | None]) -> None:
        if future.cancelled():
            self.step(ev.GiveUp(future))

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
        subscription = Subscription(self.step, self._is_open, self._let_go, dict.fromkeys(topics), self._queue, on_gap)
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

    # ---- driving the core --------------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        """Give the core an event and do what it answers. Called by the parts of this package. Effects are done in
        order, also when doing one calls back into the client."""
        if self._home is None:
            raise errors.Closed
        self._effects.extend(self._core.step(event, self._home.loop.time()))
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._performing = False
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self._core.deadline
        if self._timer is not None:
            if self._timer_due <= deadline and not self._timer.cancelled():
                return  # early is harmless
            self._timer.cancel()
            self._timer = None
        if deadline != float("inf") and self._home is not None and self._transport is not None:
            # Kept beside it: what uvloop gives for a moment that has passed is a handle without `when`.
            self._timer_due = deadline
            self._timer = self._home.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.step(ev.Tick())

    def _perform(self, effect: ev.Effect) -> None:
        transport = self._transport
        match effect:
            case ev.Deliver(message=message):
                subscription = self._subscriptions.get(message.topic)
                if subscription is not None:
                    subscription.put(message)
                if self._on_delivery is not None:
                    latency = None if message.sent is None else time.time() - message.sent
                    self._call(self._on_delivery, message, latency)
            case ev.Send():
                if transport is not None:
                    transport.send(effect.link, effect.messages)
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
                if self._on_receipt is not None:
                    self._call(self._on_receipt, effect)
            case ev.Refused():
                subscription = self._subscriptions.pop(effect.topic, None)
                if subscription is not None:
                    subscription.put(effect)
            case ev.Dial():
                if transport is not None:
                    transport.dial(effect.link, effect.url)
            case ev.HangUp():
                if transport is not None:
                    transport.hang_up(effect.link, effect.abort)
            case ev.AskToken():
                for earlier in self._tokens:  # for a link that was given up
                    earlier.cancel()
                task = asyncio.create_task(self._get_token(effect.link), name=f"migratory-token-{effect.link}")
                self._tokens.add(task)
                task.add_done_callback(self._tokens.discard)
            case ev.LinkUp() | ev.LinkDown() | ev.Ready() | ev.Problem():
                self._status(effect)
            case ev.Answered() | ev.Failed():
                raise TypeError("a ticket that this client did not make")
            case _:
                assert_never(effect)

    def _status(self, status: Status) -> None:
        match status:
            case ev.LinkUp():
                self._connected.set()
                self._logged.clear()
                _log.info("connected to %s at %s", status.broker, status.url)
            case ev.LinkDown():
                level = logging.WARNING if status.code == CloseCode.SLOW_CONSUMER else logging.INFO
                _log.log(level, "left the broker: %s (%s)", describe_end(status.code, status.reason), status.code)
            case ev.Problem():
                self._last_problem = status
                line = f"{status.code}: {status.text}"
                _log.log(logging.DEBUG if line in self._logged else logging.WARNING, "%s", line)
                if len(self._logged) < _LOGGED:
                    self._logged.add(line)
            case ev.Ready():
                pass
            case _:
                assert_never(status)
        if self._on_status is not None:
            self._call(self._on_status, status)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """The application's code: what it raises must not stop the client, and must not be hidden."""
        try:
            function(*args)
        except Exception as error:  # handed to the loop's handler, which reports it
            if self._home is None:
                raise
            self._home.loop.call_exception_handler({"message": f"{function!r} raised", "exception": error})

    async def _get_token(self, link: int) -> None:
        if self._token_source is None:
            raise TypeError("no token source")
        try:
            found = self._token_source()
            token = await found if inspect.isawaitable(found) else found
            if not isinstance(token, str):
                raise TypeError(f"a token is a str, not {type(token).__name__}")
        except Exception as error:  # noqa: BLE001 - the application's code; the reason is reported, and tried again
            self.step(ev.NoToken(link, f"the token callback raised {error!r}"))
        else:
            self.step(ev.Token(link, token))
