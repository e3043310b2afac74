"""The process of the recording clients, as a chaos run controls it: commands and answers, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import msgspec
from migratory_local.processes.network import Placement

from migratory_chaos.engine import LoadError
from migratory_chaos.processes.recording_clients import LoadOptions, Sample

CLIENT_ERRORS = ("Exception in ", "Task exception", "Future exception", "Unclosed", "Fatal")
"""Beginnings of log lines that show an error in the client."""
MAX_ERRORS = 10
"""Log lines that are reported at most."""
CONNECT_SECONDS = 60.0
ANSWER_SECONDS = 20.0
"""Seconds for an answer of the process. No fault freezes it, so it answers at once unless the machine is very busy."""
END_SECONDS = 200.0
"""Seconds for the answer to `stop`, which waits for the last answers and deliveries (`PATIENCE_SECONDS` of the
clients)."""
_EXIT_SECONDS = 5.0


class ClientProcess:
    """The process. Its error output goes to a log in `folder`."""

    def __init__(self, folder: Path, placement: Placement) -> None:
        self._options = folder / "load.json"
        self._log = folder / "clients.log"
        self._prefix = placement.command_prefix
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._requests = 0
        self._ended = False

    async def start(self, options: LoadOptions) -> None:
        """Start the process and wait until all clients are connected. :raises LoadError: not in time"""
        self._options.write_bytes(msgspec.json.encode(options))
        module = "migratory_chaos.processes.recording_clients"
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*self._prefix, sys.executable, "-m", module, str(self._options)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        await self.ask("sample", CONNECT_SECONDS)

    async def ask(self, command: str, within: float = ANSWER_SECONDS) -> Sample:
        """Send a command and return the answer. :raises LoadError: none in time, or the process ended"""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the client process was not started")
        async with self._asking:  # faults at the same time ask at the same time
            self._requests += 1
            self._process.stdin.write(f"{self._requests} {command}\n".encode())
            sample = Sample()
            try:
                async with asyncio.timeout(within):
                    while sample.request != self._requests:  # an earlier one, whose question was cancelled
                        line = await self._process.stdout.readline()
                        if not line:
                            raise LoadError(f"the clients ended; their log ends:\n{self._log.read_text()[-3000:]}")
                        sample = msgspec.json.decode(line, type=Sample)
            except TimeoutError as error:
                raise LoadError(f"the clients did not answer `{command}` within {within:g} s") from error
        return sample

    async def burst(self) -> None:
        """Make the publishers submit a burst, and wait until they have."""
        await self.ask("burst")

    async def end(self) -> Sample:
        """Stop the publishers, wait until everything is answered and delivered or given up, and return the totals."""
        sample = await self.ask("stop", END_SECONDS)
        self._ended = True
        return sample

    def errors(self) -> list[str]:
        """Return the log lines of errors in callbacks and tasks, at most `MAX_ERRORS`: a program survives such
        errors, but must not have any. Warnings, such as that a broker does not answer, are left out."""
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
        """End the process: after `end` give it time to end by itself, otherwise kill it."""
        if self._process is None:
            return
        if self._ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _EXIT_SECONDS)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
