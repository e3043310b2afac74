"""Processes of a benchmark: helpers that exchange lines with it, and servers that it starts, awaits and stops by id."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import TypeVar

import msgspec
from migratory_local.processes.process import Process, stop_all
from msgspec import Struct

from benchmarks import ipc

_ROOT = Path(__file__).parent.parent

_GRACE_SECONDS = 5.0
"""Seconds for a process to end by itself before it is killed."""

_MAX_LINE_BYTES = 64 * 1024 * 1024
"""Bytes of a helper's answer: a report has one number for each publication of a window of 1."""

Reply = TypeVar("Reply", bound=Struct)


class MeasurementFailed(Exception):
    """A measurement could not be made because a helper or a server failed. The text says why."""


class LineProcess:
    """A child process that reads commands and writes answers as lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *command: str, core: int | None, niceness: int = 0) -> LineProcess:
        """Start a command on a core, or on any core with None. A `niceness` above 0 lowers its priority."""

        def prepare() -> None:
            if core is not None:
                os.sched_setaffinity(0, {core})
            os.nice(niceness)

        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=_ROOT,
            limit=_MAX_LINE_BYTES,
            preexec_fn=prepare,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def read_line(self, limit: float) -> str:
        """Return the next line. Raise MeasurementFailed after `limit` seconds or when the process has ended."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                data = await self._process.stdout.readline()
        except TimeoutError:
            raise MeasurementFailed(f"a helper process did not answer within {limit:.0f} s") from None
        if not data:
            raise MeasurementFailed(f"a helper process ended early with {await self._process.wait()}")
        return data.decode().strip()

    def write_line(self, text: str) -> None:
        """Write a line to the process's stdin. Do not wait until it is sent."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")

    async def ask(self, text: str, limit: float) -> str:
        """Write a line to the process's stdin and return the next line of its stdout. Raise MeasurementFailed as
        `read_line` does."""
        self.write_line(text)
        return await self.read_line(limit)

    async def stop(self) -> None:
        """End the process by the end of its stdin, or kill it after a grace period."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class HelperProcess:
    """A receiver or publisher, with structs of `ipc` in place of lines."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: ipc.HelperModule, setup: Struct, core: int | None, niceness: int = 0) -> HelperProcess:
        """Start a helper and send its setup. Await `ready` before the first command."""
        process = await LineProcess.start(sys.executable, "-m", module, core=core, niceness=niceness)
        process.write_line(ipc.encode_line(setup).decode().strip())
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ready(self, limit: float) -> None:
        """Wait until the helper has its connections. Raise MeasurementFailed when it fails or does not answer within
        `limit` seconds."""
        await self._read(ipc.HelperReady, limit)

    async def ask(self, command: ipc.Command, reply: type[Reply], limit: float) -> Reply:
        """Send a command and return its report. Raise MeasurementFailed when the run is void, or there is no answer
        within `limit` seconds."""
        self._process.write_line(ipc.encode_line(command).decode().strip())
        return await self._read(reply, limit)

    async def _read(self, reply: type[Reply], limit: float) -> Reply:
        text = await self._process.read_line(limit)
        if text.startswith('{"type":"HelperFailed"'):
            raise MeasurementFailed(msgspec.json.decode(text, type=ipc.HelperFailed).text)
        return msgspec.json.decode(text, type=reply)

    async def stop(self) -> None:
        """End the helper."""
        await self._process.stop()


async def wait_for_port(process: Process, port: int, limit: float = 30.0) -> None:
    """Wait until the process listens on a port. Raise MeasurementFailed, with the end of its log, when the process ends
    or does not listen within `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if not process.alive or time.monotonic() > deadline:
                state = "does not listen" if process.alive else f"ended with {process.exit_code}"
                raise MeasurementFailed(f"{process.name} {state}; its log ends:\n{process.tail()}") from None
        await asyncio.sleep(0.1)


async def stop_processes(processes: list[Process]) -> None:
    """Stop servers, and kill those that do not end within a grace period."""
    await asyncio.to_thread(stop_all, processes, _GRACE_SECONDS)


def pids(processes: list[Process]) -> list[int]:
    """Return the ids of the running processes."""
    return [process.pid for process in processes if process.pid is not None]


def tails(processes: list[Process]) -> str:
    """Return the last lines of each log, to be appended to the reason of a failure."""
    logs = ((process.name, process.tail()) for process in processes)
    return "".join(f"\nthe log of {name} ends:\n{text}" for name, text in logs if text)
