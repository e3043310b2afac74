"""The two processes of recording clients as the run sees them: their newest sample, bursts, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from migratory_local.processes.network import Placement

from migratory_chaos.engine import LoadError, poll_until
from migratory_chaos.processes.recording_clients import Final, Sample

CLIENT_ERRORS = ("Exception in ", "Task exception", "Future exception", "Unclosed", "Fatal")
"""Beginnings of log lines that a client must not cause."""
MAX_ERRORS = 10
"""Lines reported of one process."""
_POLL_SECONDS = 0.1
_BURST_SECONDS = 2.0
_BURST_POLL_SECONDS = 0.001


class ClientProcess:
    """The process of one role: publishers or subscribers. Its error output goes to a log beside the options' file."""

    def __init__(self, role: str, options: Path, placement: Placement, environment: Mapping[str, str]) -> None:
        self.role = role
        self.sample = Sample()
        self.final: Final | None = None
        self._log = options.parent / f"{role}.log"
        module = "migratory_chaos.processes.recording_clients"
        self._words = [*placement.command_prefix, sys.executable, "-m", module, str(options), role]
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
        if self._process.stdout is None:
            raise RuntimeError("the client process has no output pipe")
        self._reading = asyncio.create_task(self._read(self._process.stdout), name=f"read {self.role}")

    async def _read(self, output: asyncio.StreamReader) -> None:
        async for line in output:
            if line.startswith(b'{"final"'):
                self.final = msgspec.json.decode(line, type=Final)
                self.sample = self.final.final
            else:
                self.sample = msgspec.json.decode(line, type=Sample)

    def check(self) -> None:
        """Check that the process runs. :raises LoadError: it ended."""
        if self.final is None and self._reading is not None and self._reading.done():
            raise LoadError(f"the {self.role} ended; their log ends:\n{self._log.read_text()[-3000:]}")

    async def wait_connected(self, within: float) -> None:
        """Return once clients have brokers, and subscriptions their first receipts. :raises LoadError: not in time"""

        async def look() -> bool:
            self.check()
            return 0 < self.sample.clients <= self.sample.connected

        if not await poll_until(look, within, _POLL_SECONDS):
            sample = self.sample
            raise LoadError(f"{sample.connected} of {sample.clients} {self.role} connected within {within:g} s")

    async def burst(self) -> None:
        """Return once the publishers have submitted a burst, or after two seconds if they are busy."""
        before = self.sample.bursts
        self._send("burst")

        async def look() -> bool:
            self.check()
            return self.sample.bursts != before

        await poll_until(look, _BURST_SECONDS, _BURST_POLL_SECONDS)

    async def end(self, command: str, within: float) -> Final:
        """Send the last command and return the totals. :raises LoadError: no totals within `within` seconds"""
        self._send(command)

        async def look() -> Final | None:
            self.check()
            return self.final

        final = await poll_until(look, within, _POLL_SECONDS)
        if final is None:
            raise LoadError(f"the {self.role} did not end within {within:g} s")
        return final

    def _send(self, command: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the client process was not started")
        self._process.stdin.write(command.encode() + b"\n")

    def errors(self) -> list[str]:
        """Return errors of callbacks and tasks from the log, which a program survives and must not have. Warnings of
        the client (a broker that does not answer) are none."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        found = [line for line in lines if line.startswith(CLIENT_ERRORS)]
        in_traceback = False
        for line in lines:
            if line.startswith("Traceback"):
                in_traceback = True
            elif in_traceback and not line.startswith(" "):
                in_traceback = False
                found.append(line)
        return list(dict.fromkeys(found))[:MAX_ERRORS]

    async def close(self) -> None:
        """End the process in any state."""
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
