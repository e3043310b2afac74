"""Runs the work of a command until it is done or somebody wants it to end: Ctrl-C, SIGTERM, the terminal closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from typing import Any

ENDED_BY_SIGNAL = 128
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of `work`; 128 + the signal's number when it was ended by one.

    The first signal cancels `work`, whose `finally` blocks end what it started. A second one ends this process at once,
    and the kernel then ends all that it started (see launcher.py).
    """
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(ENDED_BY_SIGNAL + number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        if not received:
            raise asyncio.CancelledError
        return ENDED_BY_SIGNAL + received[0]
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
