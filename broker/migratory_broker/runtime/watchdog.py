"""The watchdog of a broker's processes: a thread that ends the process when its event loop stands still.

ZooKeeper's client sends its heartbeats from a thread of its own. So a broker whose loop hangs keeps its session, and
the groups that it coordinates wait for it. The process must end itself: a supervisor starts it again, and its session
expires.

`LoopProgress` decides, without a clock or a thread. `Watchdog` is the thread. A call that holds the interpreter's lock
stops this thread as well, but also the client's heartbeats: then the session expires, and the supervisor's probe ends
the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from migratory_broker.runtime.errors import EXIT_HUNG
from migratory_broker.runtime.logs import Log

WATCH_INTERVAL = 0.1
"""Seconds between two observations of the loop, and between two signs of life of the loop."""

LATE_TICK = 0.5
"""Seconds of delay above which a tick is logged and counted as a stall of the loop."""

STALL_SHARE = 0.75
"""The fraction of the shorter of session and fencing time for which the loop may stand still."""


def stall_limit(session_timeout: float, fencing: float) -> float:
    """Return the seconds for which the loop may stand still before the process ends itself: `STALL_SHARE` of the
    shorter argument. Both arguments are seconds.

    It is less than the session time, so that a loop that hangs delays a takeover by less than one more session, and
    less than the fencing time, so that the process is gone before its I/O processes must assume so.
    """
    return STALL_SHARE * min(session_timeout, fencing)


class LoopProgress:
    """The measurement of the time for which the loop has stood still while the process ran.

    Of the time between two observations, at most two intervals count. When the observer was late by more, the whole
    process did not run (SIGSTOP, a suspended machine), which says nothing about the loop.
    """

    def __init__(self, now: float) -> None:
        self._observed_at = now
        self._turns = self._observed_turns = 0
        self._stalled = 0.0

    def turn(self) -> None:
        """Record that the loop runs. This is the only method that the loop's thread calls."""
        self._turns += 1

    def observe(self, now: float) -> float:
        """Return the seconds for which the loop has stood still, at the time `now`; 0 if it ran since the last
        observation."""
        elapsed, self._observed_at = now - self._observed_at, now
        if self._turns != self._observed_turns:
            self._observed_turns = self._turns
            self._stalled = 0.0
        else:
            self._stalled += min(elapsed, 2 * WATCH_INTERVAL)
        return self._stalled


class Watchdog:
    """The watchdog of the event loop that runs in the creating thread. A thread of its own, started when this object is
    created, watches until the loop ends.

    :param limit: seconds for which the loop may stand still; above it the loop's stack is logged and the process ended.
    :param end: ends the process with an exit code, `EXIT_HUNG`.
    """

    def __init__(self, limit: float, log: Log, end: Callable[[int], object] = os._exit) -> None:
        self._limit = limit
        self._log = log
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._progress = LoopProgress(time.monotonic())
        self._loop.call_soon(self._beat)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _beat(self) -> None:
        """Record that the loop runs, and schedule the next record."""
        self._progress.turn()
        self._loop.call_later(WATCH_INTERVAL, self._beat)

    def _watch(self) -> None:
        """Observe the loop until it ends or stands still for too long, on the watchdog's thread."""
        while self._loop.is_running():
            time.sleep(WATCH_INTERVAL)
            stalled = self._progress.observe(time.monotonic())
            if stalled > self._limit:
                self._end_process(stalled)
                return

    def _end_process(self, stalled: float) -> None:
        """Log how long the loop stood still and where it stands, and end the process."""
        frame = sys._current_frames().get(self._loop_thread)
        self._log(
            "error",
            "loop_hung",
            seconds=round(stalled, 3),
            limit=self._limit,
            code=EXIT_HUNG,
            stack=traceback.format_stack(frame) if frame is not None else [],
        )
        self._log.close()
        self._end(EXIT_HUNG)
