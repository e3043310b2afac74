"""The core, driven by an event loop: its clock, its timers, the links of transport.py, the application's tokens.

What concerns the application (deliveries, receipts, answers, reports) is handed on, in the order in which the core gave
it.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from math import inf

from migratory_protocol.codec import Codec

from migratory_client import errors
from migratory_client import events as ev
from migratory_client.home import Home
from migratory_client.session import ClientCore
from migratory_client.transport import Transport

TokenSource = Callable[[], str | Awaitable[str]]
Told = (
    ev.Deliver
    | ev.Receipt
    | ev.Refused
    | ev.Answered
    | ev.Failed
    | ev.LinkUp
    | ev.LinkDown
    | ev.Ready
    | ev.Problem
)  # fmt: skip


class Driver:
    """Closed until `begin`, and after `close`. `tell` takes what concerns the application; it may call `step`."""

    def __init__(
        self,
        core: ClientCore,
        codec: Codec,
        tell: Callable[[Told], None],
        token_source: TokenSource | None,
        ssl_context: ssl.SSLContext | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self.core = core
        self._codec = codec
        self._tell = tell
        self._token_source = token_source
        self._ssl_context = ssl_context
        self._headers = headers
        self.home: Home | None = None
        self.transport: Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._effects: deque[ev.Effect] = deque()
        self._performing = False
        self._tokens: set[asyncio.Task[None]] = set()

    # ---- life --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """In the event loop that this belongs to until `close`."""
        self.home = Home()
        self.transport = Transport(self._codec, self.step, ssl_context=self._ssl_context, headers=self._headers)

    def lives(self) -> bool:
        """Raises RuntimeError in another event loop or thread than the client's, where it can't be used.

        A loop that ended without `close` took links and timers with it, and a forked process has none of them: then the
        core is closed, and nobody is left to be told."""
        if self.transport is None or self.home is None:
            return False
        if self.home.lives():
            return True
        self.transport = self._timer = None
        self._tokens.clear()
        self.core.step(ev.Close(), self.home.loop.time())
        return False

    def close(self) -> list[asyncio.Task[None]]:
        """The core leaves its brokers. Returns tasks that were cancelled and are to be waited for."""
        self.step(ev.Close())
        self.transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._tokens)
        for task in tasks:
            task.cancel()
        return tasks

    # ---- events and effects ------------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        """Give the core an event and do what it answers. Effects are done in order, also when doing one calls back."""
        if self.home is None:
            raise errors.Closed
        self._effects.extend(self.core.step(event, self.home.loop.time()))
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
        transport = self.transport
        match effect:
            case ev.Send():
                if transport is not None:
                    transport.send(effect.link, effect.messages)
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
            case _:
                self._tell(effect)

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

    # ---- time --------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        deadline = self.core.deadline
        if self._timer is not None:
            if self._timer_due <= deadline and not self._timer.cancelled():
                return  # early is harmless
            self._timer.cancel()
            self._timer = None
        if deadline != inf and self.home is not None and self.transport is not None:
            # Kept beside it: what uvloop gives for a moment that has passed is a handle without `when`.
            self._timer_due = deadline
            self._timer = self.home.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.step(ev.Tick())
