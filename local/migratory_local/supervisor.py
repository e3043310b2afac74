"""Starts again what dies, less and less eagerly when it keeps dying, and leaves alone what it was told to leave: by a
call, or by a file that another process makes (`migratory drain`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from migratory_local.errors import LocalError
from migratory_local.process import Process

FIRST_WAIT = 0.5
LONGEST_WAIT = 15.0
STEADY = 20.0
"""A process that lived so long (seconds) is forgiven its earlier deaths."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Happening:
    """What the supervisor saw or did. `text` is a sentence for people."""

    kind: str
    """died, restarted, failed (it could not be started; tried again later) or away (until its file is gone)."""
    name: str
    text: str


@dataclass
class _Watched:
    process: Process
    wait: float = field(default_factory=lambda: FIRST_WAIT)
    since: float = field(default_factory=time.monotonic)
    due: float | None = None
    """When to start it again; None while it lives."""
    held: bool = False
    stays_away: Path | None = None
    """While there is this file it is not started again."""
    away: bool = False
    """Whether it is dead and was found to stay so."""


class Supervisor:
    """Watches processes that run already. Use `run` as a task of the event loop's main thread (see process.py)."""

    def __init__(self, on_happening: Callable[[Happening], None] = lambda _: None) -> None:
        self._watched: dict[str, _Watched] = {}
        self._tell = on_happening

    def watch(self, process: Process, stays_away: Path | None = None) -> None:
        """`stays_away`: while there is this file the process is not started again when it ends."""
        self._watched[process.name] = _Watched(process, stays_away=stays_away)

    def hold(self, name: str) -> None:
        """From now on this process is not started again."""
        self._watched[name].held = True

    def release(self, name: str) -> None:
        """Ends a hold; if it is dead it is started at the next look."""
        watched = self._watched[name]
        watched.held = False
        watched.wait = FIRST_WAIT
        watched.due = time.monotonic() if not watched.process.alive else None

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            for watched in list(self._watched.values()):
                self._look(watched, time.monotonic())
            await asyncio.sleep(_POLL_SECONDS)

    def _look(self, watched: _Watched, now: float) -> None:
        process = watched.process
        if process.alive or watched.held:
            return
        if watched.stays_away is not None and watched.stays_away.exists():
            if not watched.away:
                watched.away = True
                text = f"{process.name} {ending(process.exit_code)}; it stays away until `migratory drain --back`"
                self._tell(Happening("away", process.name, text))
            return
        if watched.away:
            watched.away, watched.wait, watched.due = False, FIRST_WAIT, now
        if watched.due is None:
            if now - watched.since >= STEADY:
                watched.wait = FIRST_WAIT
            watched.due = now + watched.wait
            self._tell(
                Happening(
                    "died", process.name, f"{process.name} {ending(process.exit_code)}; again in {watched.wait:g} s"
                )
            )
            watched.wait = min(watched.wait * 2, LONGEST_WAIT)
        if now < watched.due:
            return
        try:
            process.start()
        except LocalError as error:
            watched.due = now + watched.wait
            watched.wait = min(watched.wait * 2, LONGEST_WAIT)
            self._tell(Happening("failed", process.name, str(error)))
            return
        watched.since, watched.due = now, None
        self._tell(Happening("restarted", process.name, f"{process.name} started again"))


def ending(exit_code: int | None) -> str:
    """How a process ended, in words."""
    if exit_code is None:
        return "never ran"
    return f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with {exit_code}"
