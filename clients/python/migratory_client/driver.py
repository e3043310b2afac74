"""The asyncio driver, for `Client`: it runs the sans-I/O core (`core/`) on an event loop and decides nothing itself.

It provides the clock, the timer, the connections (`transport.py`) and the application's tokens. Effects that concern
the application (deliveries, receipts, answers, status) are passed on in the order in which the core returned them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from math import inf

from migratory_protocol.codec import Codec

from migratory_client import errors
from migratory_client.core import events as ev
from migratory_client.core.session import ClientCore
from migratory_client.transport import Transport

TokenSource = Callable[[], str | Awaitable[str]]
ApplicationEffect = (
    ev.Deliver
    | ev.Receipt
    | ev.SubscribeRefused
    | ev.Acknowledged
    | ev.PublishFailed
    | ev.LinkUp
    | ev.LinkDown
    | ev.Ready
    | ev.Problem
)  # fmt: skip


class LoopGuard:
    """A guard against the use of a client outside of the event loop, thread and process that opened it. Create it
    there, while the loop runs.

    asyncio objects must not be used from anywhere else: this would mostly work, and now and then hang or send half of a
    message.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._process = os.getpid()

    def is_usable(self) -> bool:
        """Return whether the guard's loop is not closed. Return False in a forked process, which does not have that
        loop. Raise RuntimeError when called from another loop or thread while the guard's loop is not closed."""
        if os.getpid() != self._process:
            return False
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None  # between two runs of the loop, for example
        if threading.get_ident() == self._thread and running in (None, self.loop):
            return not self.loop.is_closed()
        if not self.loop.is_closed():
            raise RuntimeError(
                "the client belongs to the event loop that opened it, and can't be used from another one or another "
                "thread; use loop.call_soon_threadsafe or SyncClient"
            )
        return False


class Driver:
    """The driver of one client. It is closed until `start`, and after `close`. `codec` encodes and decodes the
    messages. `notify` receives the effects that concern the application, and may call `step`. `token_source` is called
    for a token whenever the core emits `RequestToken`; None if the core never does. `ssl_context` is for wss:// URLs,
    None for Python's default. `headers` are added to the HTTP request of each WebSocket handshake."""

    def __init__(
        self,
        core: ClientCore,
        codec: Codec,
        notify: Callable[[ApplicationEffect], None],
        token_source: TokenSource | None,
        ssl_context: ssl.SSLContext | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self.core = core
        self._codec = codec
        self._notify = notify
        self._token_source = token_source
        self._ssl_context = ssl_context
        self._headers = headers
        self.guard: LoopGuard | None = None
        self.transport: Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._effects: deque[ev.Effect] = deque()
        self._performing = False
        self._token_tasks: set[asyncio.Task[None]] = set()

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind the driver to the running event loop, and create a transport that has no connection yet. The caller then
        steps the core with `Open`."""
        self.guard = LoopGuard()
        self.transport = Transport(self._codec, self.step, ssl_context=self._ssl_context, headers=self._headers)

    def is_open(self) -> bool:
        """Return whether the client is open. Raise RuntimeError when called from another event loop or thread than the
        client's.

        A loop that was closed before the client took links and timers with it, and a forked process has none of them.
        In both cases forget them, close the core without passing its effects on, and return False.
        """
        if self.transport is None or self.guard is None:
            return False
        if self.guard.is_usable():
            return True
        self.transport = self._timer = None
        self._token_tasks.clear()
        self.core.step(ev.Close(), self.guard.loop.time())
        return False

    def close(self) -> list[asyncio.Task[None]]:
        """Close the core, begin to disconnect from the brokers, and stop the timer. Return the cancelled tasks that
        obtained tokens. The application is notified of what the core ends, such as unanswered publications.

        `transport` is None afterwards. The caller must have kept it: it awaits the returned tasks, and then closes the
        transport. Raise Closed before the first `start`.
        """
        self.step(ev.Close())
        self.transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._token_tasks)
        for task in tasks:
            task.cancel()
        return tasks

    # ---- events and effects ------------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        """Give an event to the core, carry out its effects, and set the timer to the core's deadline. A call from
        within an effect only queues its own effects: the outer call carries them out after those of the earlier event.
        Raise Closed before the first `start`."""
        if self.guard is None:
            raise errors.Closed
        self._effects.extend(self.core.step(event, self.guard.loop.time()))
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._performing = False
        self._set_timer()

    def _perform(self, effect: ev.Effect) -> None:
        """Carry out one effect. The transport sends, dials and disconnects; while the client is closed there is none,
        and such effects are dropped. A token is requested in a task of its own, which replaces an unfinished one. All
        other effects go to `notify`."""
        transport = self.transport
        match effect:
            case ev.Send():
                if transport is not None:
                    transport.send(effect.link, effect.messages)
            case ev.Dial():
                if transport is not None:
                    transport.dial(effect.link, effect.url)
            case ev.Disconnect():
                if transport is not None:
                    transport.disconnect(effect.link, effect.abort)
            case ev.RequestToken():
                for earlier in self._token_tasks:  # for a link that was given up
                    earlier.cancel()
                task = asyncio.create_task(self._get_token(effect.link), name=f"migratory-token-{effect.link}")
                self._token_tasks.add(task)
                task.add_done_callback(self._token_tasks.discard)
            case _:
                self._notify(effect)

    async def _get_token(self, link: int) -> None:
        """Call the token source, and step the core with `Token`, or with `TokenFailed` when the source raised or did
        not return a str. Raise TypeError if the client has no token source."""
        if self._token_source is None:
            raise TypeError("no token source")
        try:
            returned = self._token_source()
            token = await returned if inspect.isawaitable(returned) else returned
            if not isinstance(token, str):
                raise TypeError(f"a token is a str, not {type(token).__name__}")
        except Exception as error:  # noqa: BLE001 - the application's code; the core reports it and retries
            self.step(ev.TokenFailed(link, f"the token callback raised {error!r}"))
        else:
            self.step(ev.Token(link, token))

    # ---- time --------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Let `_tick` run at the core's deadline, or earlier at the time that is set already. Set no timer without a
        deadline, or while the client is closed."""
        deadline = self.core.deadline
        if self._timer is not None:
            if self._timer_due <= deadline and not self._timer.cancelled():
                return  # an early tick is harmless
            self._timer.cancel()
            self._timer = None
        if deadline != inf and self.guard is not None and self.transport is not None:
            # Stored here because uvloop returns a handle without `when` for a time that has passed.
            self._timer_due = deadline
            self._timer = self.guard.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.step(ev.Tick())
