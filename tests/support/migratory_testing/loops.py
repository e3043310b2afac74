"""Event loops for tests: a decorator that runs a test on asyncio's loop and on uvloop, whose transports differ, and a
stand-in whose turns the test runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest
import uvloop

Site = TypeVar("Site")


def on_both_loops(
    sites: Callable[[], AbstractAsyncContextManager[Site]],
) -> Callable[[Callable[[Site], Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Return a decorator that makes an async test run twice, once on each real event loop, with what `sites()` yields
    as its argument."""

    def decorate(test: Callable[[Site], Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
        def both(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
            async def work() -> None:
                async with sites() as site:
                    await test(site)

            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(work())

        both.__name__, both.__doc__ = test.__name__, test.__doc__
        return both

    return decorate


class ManualLoop:
    """A stand-in for an event loop's `call_soon` (`soon`) and its clock (`now`); the test runs its turns."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.now = 0.0

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> bool:
        """Run the calls that are queued now, and not those that they queue. Return whether there were any."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        return bool(calls)
