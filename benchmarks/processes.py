"""Helper processes that are spoken to in lines, and servers that are started, waited for and ended by their id."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TypeVar

import msgspec
from migratory_local.processes.process import Process, stop_all
from msgspec import Struct

from benchmarks import orders as o

ROOT = Path(__file__).parent.parent
GRACE = 5.0  # seconds for a process to end by itself
LONGEST_LINE = 64 * 1024 * 1024

Said = TypeVar("Said", bound=Struct)


class Broken(Exception):
    """A measurement could not be made: a helper or a server failed. The text says why."""


class Pipe:
    """A process that is spoken to in lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *command: str, core: int | None, niceness: int = 0) -> Pipe:
        def prepare() -> None:
            if core is not None:
                os.sched_setaffinity(0, {core})
            os.nice(niceness)

        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            limit=LONGEST_LINE,
            preexec_fn=prepare,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self, limit: float) -> str:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                data = await self._process.stdout.readline()
        except TimeoutError:
            raise Broken(f"a helper process said nothing for {limit:.0f} s") from None
        if not data:
            raise Broken(f"a helper process ended early with {await self._process.wait()}")
        return data.decode().strip()

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")

    async def ask(self, text: str, limit: float) -> str:
        self.say(text)
        return await self.line(limit)

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(GRACE):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class Helper:
    """A receiver or publisher: structs instead of lines."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    @classmethod
    async def start(cls, kind: o.Kind, setup: Struct, core: int | None, niceness: int = 0) -> Helper:
        """Started, not yet ready: see `ready`."""
        pipe = await Pipe.start(sys.executable, "-m", kind, core=core, niceness=niceness)
        pipe.say(o.line(setup).decode().strip())
        return cls(pipe)

    @property
    def pid(self) -> int:
        return self._pipe.pid

    async def ready(self, limit: float) -> None:
        await self._answer(o.Ready, limit)

    async def ask(self, order: o.Order, answer: type[Said], limit: float) -> Said:
        self._pipe.say(o.line(order).decode().strip())
        return await self._answer(answer, limit)

    async def _answer(self, answer: type[Said], limit: float) -> Said:
        text = await self._pipe.line(limit)
        if text.startswith('{"type":"Failed"'):
            raise Broken(msgspec.json.decode(text, type=o.Failed).text)
        return msgspec.json.decode(text, type=answer)

    async def stop(self) -> None:
        await self._pipe.stop()


async def wait_for_port(process: Process, port: int, limit: float = 30.0) -> None:
    """Until something listens there. Raises Broken, with the end of its log, when the process ends or is too slow."""
    deadline = time.monotonic() + limit
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if not process.alive or time.monotonic() > deadline:
                state = "does not listen" if process.alive else f"ended with {process.exit_code}"
                raise Broken(f"{process.name} {state}; its log ends:\n{process.tail()}") from None
        await asyncio.sleep(0.1)


async def stop_processes(processes: list[Process]) -> None:
    await asyncio.to_thread(stop_all, processes, GRACE)


def pids(processes: list[Process]) -> list[int]:
    return [process.pid for process in processes if process.pid is not None]


def tails(processes: list[Process]) -> str:
    """The last lines that each has written, to be put behind the reason of a failure."""
    told = ((process.name, process.tail()) for process in processes)
    return "".join(f"\n{name} said last:\n{text}" for name, text in told if text)


__all__ = ["Broken", "Helper", "Pipe", "Process", "pids", "signal", "stop_processes", "tails", "wait_for_port"]
