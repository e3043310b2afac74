"""Waiting for a condition with a limit: tests poll, and never sleep for the longest possible time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

LIMIT = 30.0
STEP = 0.01
ASKING = 0.1
"""Seconds between two checks of a condition that is a coroutine."""
T = TypeVar("T")


def poll(condition: Callable[[], T], what: str = "", limit: float = LIMIT) -> T:
    """Call `condition` every `STEP` seconds, and return its first true value. Raise AssertionError with the text `what`
    after `limit` seconds. The calling thread is blocked meanwhile."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, _late(what, limit)
        time.sleep(STEP)
    return found


@overload
async def until(condition: Callable[[], Coroutine[Any, Any, T]], what: str = "", limit: float = LIMIT) -> T: ...
@overload
async def until(condition: Callable[[], T], what: str = "", limit: float = LIMIT) -> T: ...
async def until(condition: Callable[[], Any], what: str = "", limit: float = LIMIT) -> Any:
    """Return the first true value of `condition`, which may be a coroutine function, while the event loop runs. Raise
    AssertionError with the text `what` after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        found = condition()
        asks = asyncio.iscoroutine(found)
        if asks:
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, _late(what, limit)
        await asyncio.sleep(ASKING if asks else STEP)


async def poll_apart(condition: Callable[[], T], what: str = "", limit: float = LIMIT) -> T:
    """Run `poll` in a thread, for a condition that blocks while this event loop must serve connections. `limit` is in
    seconds."""
    return await asyncio.to_thread(poll, condition, what, limit)


def _late(what: str, limit: float) -> str:
    return f"did not happen within {limit:g} s{': ' if what else ''}{what}"
