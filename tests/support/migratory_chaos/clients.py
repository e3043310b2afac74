"""The two processes of clients (`load.py`) as the run sees them: their newest sample, and how to end them in order."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from migratory_local.processes.network import Placement

from migratory_chaos.load import Final, LoadOptions, Sample

COMPLAINTS = ("Exception in ", "Task exception", "Future exception", "Unclosed", "Fatal")
MOST_COMPLAINTS = 10
_POLL_SECONDS = 0.1
_BURST_SECONDS = 2.0
_BURST_POLL_SECONDS = 0.001


class LoadError(Exception):
    """A process of clients ended, or did not do what it was told in time: a fault of the run, or of the client."""


class Clients:
    """`role`: publishers or subscribers. Its errors go to a log beside the histories."""

    def __init__(self, role: str, file: Path, place: Placement, environment: Mapping[str, str]) -> None:
        self.role = role
        self.sample = Sample()
        self.final: Final | None = None
        self._log = file.parent / f"{role}.log"
        self._words = [*place.command_prefix, sys.executable, "-m", "migratory_chaos.load", str(file), role]
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        self._reading = asyncio.create_task(self._read(), name=f"read {self.role}")

    async def _read(self) -> None:
        if self._process is None or self._process.stdout is None:
            raise RuntimeError("not started")
        async for line in self._process.stdout:
            if line.startswith(b'{"final"'):
                self.final = msgspec.json.decode(line, type=Final)
                self.sample = self.final.final
            else:
                self.sample = msgspec.json.decode(line, type=Sample)

    def check(self) -> None:
        """:raises LoadError: when the process is gone."""
        if self.final is None and self._reading is not None and self._reading.done():
            raise LoadError(f"the {self.role} ended; their log says:\n{self._log.read_text()[-3000:]}")

    async def connected(self, within: float) -> None:
        """Returns when every client has a broker (and each subscription its first receipt).

        :raises LoadError: when the time is up.
        """
        deadline = time.monotonic() + within
        while not self.sample.clients or self.sample.connected < self.sample.clients:
            self.check()
            if time.monotonic() > deadline:
                raise LoadError(
                    f"{self.sample.connected} of {self.sample.clients} {self.role} connected in {within:g} s"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def burst(self) -> None:
        """Returns when the publishers have submitted many at once; or soon, when they are busy otherwise."""
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("not started")
        before = self.sample.bursts
        self._process.stdin.write(b"burst\n")
        deadline = time.monotonic() + _BURST_SECONDS
        while self.sample.bursts == before and time.monotonic() < deadline:
            self.check()
            await asyncio.sleep(_BURST_POLL_SECONDS)

    async def end(self, command: str, within: float) -> Final:
        """Tells it to come to its end.

        :raises LoadError: when it does not within so many seconds.
        """
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("not started")
        self._process.stdin.write(command.encode() + b"\n")
        deadline = time.monotonic() + within
        while self.final is None:
            self.check()
            if time.monotonic() > deadline:
                raise LoadError(f"the {self.role} did not end within {within:g} s")
            await asyncio.sleep(_POLL_SECONDS)
        return self.final

    def complaints(self) -> list[str]:
        """What went wrong inside: errors in callbacks and tasks, which a program may survive and must not have. The
        client's own warnings (a broker that is not there) are none."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        found = [line for line in lines if line.startswith(COMPLAINTS)]
        inside = False
        for line in lines:
            if line.startswith("Traceback"):
                inside = True
            elif inside and not line.startswith(" "):
                inside = False
                found.append(line)
        return list(dict.fromkeys(found))[:MOST_COMPLAINTS]

    async def close(self) -> None:
        """Ends the process, whatever it does."""
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, TimeoutError):
                    async with asyncio.timeout(5.0 if self.final is not None else 0.0):
                        await self._process.wait()
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def write_options(options: LoadOptions, file: Path) -> None:
    file.write_bytes(msgspec.json.encode(options))
