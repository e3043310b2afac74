"""The limit: one `send()` for each delivery, of bytes prepared once, and nothing besides."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from migratory_protocol.codec import MSGPACK
from migratory_protocol.frames import binary_frame
from migratory_protocol.messages import Message
from migratory_protocol.positions import Position

from benchmarks import orders as o
from benchmarks.contenders.base import Contender, Work
from benchmarks.payload import build
from benchmarks.processes import Broken, Pipe

HERE = Path(__file__).parent.parent
C_LOOP = "raw loop in C"
"""The limit that ratios are to."""


def frame(work: Work) -> bytes:
    """What the product sends for one delivery of this work."""
    topic = o.topic_names(work.topics, "bench")[-1]
    payload = build(work.payload, time.monotonic_ns(), 1)
    return binary_frame(MSGPACK.encode(Message(topic, Position(1_700_000_000_000, 100), payload, 1.7e9, 1.7e9)))


class Raw(Contender):
    """`command` is a loop as in rawsend.c."""

    dialect = "raw"

    def __init__(self, name: str, command: list[str]) -> None:
        super().__init__(name)
        self._command = command
        self._pipe: Pipe | None = None

    @property
    def pids(self) -> list[int]:
        assert self._pipe is not None
        return [self._pipe.pid]

    async def start(self, work: Work, core: int | None) -> None:
        path = self.folder / "frame"
        path.write_bytes(frame(work))
        self._pipe = await Pipe.start(*self._command, str(path), str(work.subscribers), str(work.topics), core=core)
        self.addresses = [("127.0.0.1", int((await self._pipe.line(30.0)).split()[1]))]

    async def connected(self) -> None:
        assert self._pipe is not None
        if await self._pipe.line(60.0) != "ready":
            raise Broken(f"{self.name} did not get ready")

    async def publishes(self, work: Work, core: int | None, connections: int = 4) -> None:
        """It needs nobody."""

    async def schedule(self, rate: float, seconds: float, settle: float = 30.0) -> o.Published:
        assert self._pipe is not None
        begin = time.monotonic()
        bursts, short = map(int, (await self._pipe.ask(f"{rate} {seconds}", seconds * 10 + 60)).split())
        if short:
            raise Broken(f"{self.name}: {short} sends did not fit into the socket; take a lower rate")
        return o.Published(scheduled=bursts, sent=bursts, answered=bursts, seconds=time.monotonic() - begin)

    async def stop(self) -> None:
        if self._pipe is not None:
            await self._pipe.stop()
        await super().stop()


def c_loop(folder: Path) -> list[str] | None:
    """The command of the C loop; None when there is no compiler. Raises Broken when it can't be compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    program = folder / "rawsend"
    done = subprocess.run(
        [compiler, "-O2", "-Wall", "-Werror", "-o", str(program), str(HERE / "rawsend.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Broken(f"{compiler} can't compile rawsend.c:\n{done.stderr}")
    return [str(program)]


def python_loop() -> list[str]:
    return [sys.executable, str(HERE / "rawsend.py")]
