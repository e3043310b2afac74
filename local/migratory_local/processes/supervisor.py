"""The supervisor: starts processes again when they end, with exponential backoff, and kills those that hang.

A process hangs if it has answered its probe once and then leaves `HUNG_PROBES` probes in a row unanswered. Probes are
counted, not seconds, so that a machine that was suspended harms no process.

A process is not started again while it is held by a call (`hold`), or while a file exists that another process made
(`migratory drain`).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from migratory_local import LocalError
from migratory_local.processes.process import Process, describe_exit

FIRST_BACKOFF = 0.5
"""Seconds before the first restart. Long enough for a port to be released."""
MAX_BACKOFF = 15.0
"""Seconds between restarts of a process that keeps failing: a user who fixes the cause waits no longer than this."""
STABLE_SECONDS = 20.0
"""Seconds of running after which the backoff starts anew."""
PROBE_SECONDS = 2.0
"""Seconds between two probes of a process."""
HUNG_PROBES = 5
"""Unanswered probes in a row after which a process hangs. With the timeout of a probe, about 20 s: longer than any
pause that a healthy broker recovers from."""
_POLL_SECONDS = 0.05


Probe = Callable[[], Awaitable[bool]]
"""Returns whether the process answers; waits for it only for a limited time."""


@dataclass(frozen=True)
class SupervisorEvent:
    """An observation or an action of the supervisor. `text` is a sentence for the user."""

    kind: str
    """`died`, `restarted`, `hung` (it was killed), `failed` (the start failed and will be retried) or `away` (until its
    file is removed)."""
    name: str
    text: str


@dataclass
class _Watched:
    """A supervised process, and the state of its restarts and probes."""

    process: Process
    backoff: float = field(default_factory=lambda: FIRST_BACKOFF)
    started_at: float = field(default_factory=time.monotonic)
    restart_at: float | None = None
    """Monotonic time at which the process is started again; None while it runs."""
    held: bool = False
    away_file: Path | None = None
    """While this file exists, the process is not started again."""
    away: bool = False
    """True if the process has ended and is not started again because of `away_file`."""
    probe: Probe | None = None
    probed_pid: int | None = None
    """The process id of the run that has answered a probe; None before."""
    unanswered: int = 0
    """Probes in a row that this run has left unanswered since its last answer."""


class Supervisor:
    """A supervisor of processes that are already running.

    Run `run` as a task on the event loop of the main thread (see process.py).

    :param on_event: called with each observation and action.
    """

    def __init__(self, on_event: Callable[[SupervisorEvent], None] = lambda _: None) -> None:
        self._watched: dict[str, _Watched] = {}
        self._on_event = on_event

    def watch(self, process: Process, away_file: Path | None = None, probe: Probe | None = None) -> None:
        """Supervise a running process, under its name.

        :param away_file: the process is not started again while this file exists; None for no such file.
        :param probe: asks the process for an answer; the process is killed when it hangs. None: it is not probed.
        """
        self._watched[process.name] = _Watched(process, away_file=away_file, probe=probe)

    def hold(self, name: str) -> None:
        """Do not start the process of this name again, nor probe it, until `release`. The process itself is not ended.
        Raise KeyError for a name that is not watched."""
        self._watched[name].held = True

    def release(self, name: str) -> None:
        """End the hold of the process of this name. If the process has ended, start it at the next check without a
        wait, unless its `away_file` exists. Raise KeyError for a name that is not watched."""
        watched = self._watched[name]
        watched.held = False
        watched.backoff = FIRST_BACKOFF
        watched.restart_at = time.monotonic() if not watched.process.alive else None

    async def run(self) -> None:
        """Restart ended processes and kill hung ones, until cancelled."""
        await asyncio.gather(self._restart_ended(), self._kill_hung())

    async def _restart_ended(self) -> None:
        while True:
            for watched in list(self._watched.values()):
                self._check(watched, time.monotonic())
            await asyncio.sleep(_POLL_SECONDS)

    async def _kill_hung(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            await asyncio.gather(*(self._probe(watched) for watched in list(self._watched.values())))

    async def _probe(self, watched: _Watched) -> None:
        """Probe a process, unless it has no probe, does not run or is held. Kill it if it hangs. An answer of an
        earlier run of the process does not count, nor do probes that a run leaves unanswered before its first
        answer."""
        process, pid = watched.process, watched.process.pid
        if watched.probe is None or pid is None or watched.held:
            return
        answered = await watched.probe()
        if process.pid != pid:
            return
        if answered or watched.probed_pid != pid:
            watched.probed_pid = pid if answered else None
            watched.unanswered = 0
            return
        watched.unanswered += 1
        if watched.unanswered >= HUNG_PROBES:
            watched.probed_pid = None
            self._emit("hung", process, f"{process.name} does not answer any more and was killed")
            process.signal(signal.SIGKILL)

    def _check(self, watched: _Watched, now: float) -> None:
        """Start a process that has ended, once its backoff is over. Do nothing while it runs, is held, or its
        `away_file` exists. Report each end, start, failed start and absence as an event.

        The backoff doubles with each restart, up to `MAX_BACKOFF`. It starts anew after `STABLE_SECONDS` of running,
        and when `away_file` was removed, which starts the process at once.
        """
        process = watched.process
        if process.alive or watched.held:
            return
        if watched.away_file is not None and watched.away_file.exists():
            if not watched.away:
                watched.away = True
                ended = f"{process.name} {describe_exit(process.exit_code)}"
                self._emit("away", process, f"{ended}; it stays away until `migratory drain --back`")
            return
        if watched.away:
            watched.away, watched.backoff, watched.restart_at = False, FIRST_BACKOFF, now
        if watched.restart_at is None:
            if now - watched.started_at >= STABLE_SECONDS:
                watched.backoff = FIRST_BACKOFF
            watched.restart_at = now + watched.backoff
            ended = f"{process.name} {describe_exit(process.exit_code)}"
            self._emit("died", process, f"{ended}; restart in {watched.backoff:g} s")
            watched.backoff = min(watched.backoff * 2, MAX_BACKOFF)
        if now < watched.restart_at:
            return
        try:
            process.start()
        except LocalError as error:
            watched.restart_at = now + watched.backoff
            watched.backoff = min(watched.backoff * 2, MAX_BACKOFF)
            self._emit("failed", process, str(error))
            return
        watched.started_at, watched.restart_at = now, None
        self._emit("restarted", process, f"{process.name} started again")

    def _emit(self, kind: str, process: Process, text: str) -> None:
        self._on_event(SupervisorEvent(kind, process.name, text))
