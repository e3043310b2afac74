"""The limit of the machine: one `send()` of prepared bytes for each delivery, and nothing else."""

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

from benchmarks import ipc
from benchmarks.payload import build
from benchmarks.processes import LineProcess, MeasurementFailed
from benchmarks.systems.base import System, Workload

_BENCHMARKS = Path(__file__).parent.parent
C_LOOP = "raw loop in C"
"""Name of the loop that ratios refer to."""


def frame(work: Workload) -> bytes:
    """Return the frame that the product sends for one delivery of this work."""
    topic = ipc.topic_names(work.topics, "bench")[-1]
    payload = build(work.payload, time.monotonic_ns(), 1)
    return binary_frame(MSGPACK.encode(Message(topic, Position(1_700_000_000_000, 100), payload, 1.7e9, 1.7e9)))


class RawLoop(System):
    """A raw loop; `command` runs rawsend.c or rawsend.py, which can have TLS."""

    protocol = "raw"

    def __init__(self, name: str, command: list[str], *, tls: bool = False) -> None:
        super().__init__(name)
        self._command = command
        self._tls = tls
        self._process: LineProcess | None = None

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid]

    async def start(self, work: Workload, core: int | None) -> None:
        path = self.folder / "frame"
        path.write_bytes(frame(work))
        certificate = map(str, self.make_certificate()) if self._tls else ()
        self._process = await LineProcess.start(
            *self._command, str(path), str(work.subscribers), str(work.topics), *certificate, core=core
        )
        self.addresses = [("127.0.0.1", int((await self._process.read_line(30.0)).split()[1]))]

    async def connected(self) -> None:
        assert self._process is not None
        if await self._process.read_line(60.0) != "ready":
            raise MeasurementFailed(f"{self.name} did not accept all subscribers")

    async def start_publisher(self, work: Workload, core: int | None, connections: int = 4) -> None:
        """Do nothing: the loop itself publishes."""

    async def publish_open_loop(self, rate: float, seconds: float, settle: float = 30.0) -> ipc.PublishReport:
        assert self._process is not None
        begin = time.monotonic()
        bursts, short = map(int, (await self._process.ask(f"{rate} {seconds}", seconds * 10 + 60)).split())
        if short:
            raise MeasurementFailed(f"{self.name}: {short} sends did not fit into the socket; take a lower rate")
        return ipc.PublishReport(scheduled=bursts, sent=bursts, answered=bursts, seconds=time.monotonic() - begin)

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()
        await super().stop()


def c_loop(folder: Path) -> list[str] | None:
    """Compile rawsend.c. Return its command, or None without a compiler. Raise MeasurementFailed when it can't be
    compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    program = folder / "rawsend"
    done = subprocess.run(
        [compiler, "-O2", "-Wall", "-Werror", "-o", str(program), str(_BENCHMARKS / "rawsend.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise MeasurementFailed(f"{compiler} can't compile rawsend.c:\n{done.stderr}")
    return [str(program)]


def python_loop() -> list[str]:
    """Return the command of rawsend.py."""
    return [sys.executable, str(_BENCHMARKS / "rawsend.py")]
