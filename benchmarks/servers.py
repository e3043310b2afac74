"""The servers that are compared, each with its own receiver: two raw loops and one broker of the product."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Protocol

from migratory_loadtest import Load, Scenario
from migratory_local.cluster import LocalCluster
from migratory_protocol.codec import MSGPACK
from migratory_protocol.frames import binary_frame
from migratory_protocol.messages import Message
from migratory_protocol.positions import Position
from migratory_resources import load_cluster_file
from msgspec import Struct

from benchmarks import machine

HERE = Path(__file__).parent


class Work(Struct, frozen=True):
    """The same for every server. `rate` is publications per topic and second."""

    subscribers: int = 5000
    topics: int = 100
    payload: int = 140
    rate: float = 5.0
    seconds: float = 6.0

    @property
    def deliveries(self) -> int:
        return round(self.rate * self.seconds) * self.subscribers


class Cost(Struct):
    """Of one round: CPU seconds of the server's processes."""

    deliveries: int
    user: float
    system: float

    @property
    def micros(self) -> float:
        return (self.user + self.system) / self.deliveries * 1e6


class Server(Protocol):
    name: str

    async def start(self, work: Work) -> None: ...

    async def round(self, work: Work) -> Cost: ...

    async def stop(self) -> None: ...


class Pipe:
    """A process that is spoken to in lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *command: str, core: int) -> Pipe:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=HERE.parent,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        return cls(process)

    async def line(self, limit: float = 120.0) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(limit):
            data = await self.process.stdout.readline()
        if not data:
            raise RuntimeError(f"a helper process ended early with {await self.process.wait()}")
        return data.decode().strip()

    async def ask(self, text: str, limit: float = 120.0) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        return await self.line(limit)

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def receiver(port: int, work: Work, kind: str) -> Pipe:
    _, core = machine.cores()
    script = [sys.executable, "-m", "benchmarks.receiver"]
    return await Pipe.start(*script, str(port), str(work.subscribers), str(work.topics), kind, core=core)


def _base_port() -> int:
    """Below the ephemeral ports, of which thousands are about to be taken, and away from a cluster that runs here."""
    return random.randrange(20_000, 32_000, 400)


def frame(work: Work) -> bytes:
    """What the product sends for one delivery of this work."""
    topic = f"bench/{work.topics - 1}"
    message = Message(topic, Position(1_700_000_000_000, 100), bytes(work.payload), 1.7e9, 1.7e9)
    return binary_frame(MSGPACK.encode(message))


class Raw:
    """`command` is a loop as in rawsend.c."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="migratory-bench-")
        self._server: Pipe | None = None
        self._receiver: Pipe | None = None

    async def start(self, work: Work) -> None:
        path = Path(self._folder.name) / "frame"
        path.write_bytes(frame(work))
        core, _ = machine.cores()
        self._server = await Pipe.start(*self._command, str(path), str(work.subscribers), str(work.topics), core=core)
        port = int((await self._server.line()).split()[1])
        self._receiver = await receiver(port, work, "raw")
        if await self._server.line() != "ready" or await self._receiver.line() != "ready":
            raise RuntimeError(f"{self.name} did not get ready")

    async def round(self, work: Work) -> Cost:
        assert self._server is not None
        answer = await self._server.ask(f"{work.rate} {work.seconds}", work.seconds * 10 + 60)
        deliveries, user, system, short = map(int, answer.split())
        if short:
            raise RuntimeError(f"{self.name}: {short} sends did not fit into the socket; take a lower rate")
        return Cost(deliveries, user / 1e6, system / 1e6)

    async def stop(self) -> None:
        for pipe in (self._receiver, self._server):
            if pipe is not None:
                await pipe.stop()
        self._folder.cleanup()


def compile_c(folder: Path) -> list[str] | None:
    """The command of the C loop; None when there is no compiler. Raises RuntimeError when it can't be compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    import subprocess

    program = folder / "rawsend"
    done = subprocess.run(
        [compiler, "-O2", "-Wall", "-Werror", "-o", str(program), str(HERE / "rawsend.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{compiler} can't compile rawsend.c:\n{done.stderr}")
    return [str(program)]


def python_loop() -> list[str]:
    return [sys.executable, str(HERE / "rawsend.py")]


class Product:
    """One broker with a ZooKeeper of its own; publications come over WebSocket, with QoS 1, from another process.
    `heard` False leaves the subscribers out: what remains is the cost of the publications, timers and so on."""

    def __init__(self, name: str = "product", *, heard: bool = True) -> None:
        self.name = name
        self._heard = heard
        self._folder = tempfile.TemporaryDirectory(prefix="migratory-bench-")
        self._cluster: LocalCluster | None = None
        self._receiver: Pipe | None = None

    @property
    def pid(self) -> int:
        assert self._cluster is not None
        pid = self._cluster.brokers[0].process.pid
        if pid is None:
            raise RuntimeError("the broker ended")
        return pid

    @property
    def port(self) -> int:
        assert self._cluster is not None
        return self._cluster.brokers[0].ports.clients

    async def start_broker(self) -> None:
        server, rest = machine.cores()
        resource = load_cluster_file(HERE / "cluster.yaml").cluster
        self._cluster = LocalCluster(resource, Path(self._folder.name), ports=_base_port())
        await self._cluster.start()
        for process in self._cluster.processes:
            if process.pid is not None:
                machine.pin(process.pid, rest)
        machine.pin(self.pid, server)

    async def start(self, work: Work) -> None:
        await self.start_broker()
        if self._heard:
            await self.connect(work)

    async def connect(self, work: Work) -> None:
        """All of `work`'s subscribers; returns when each has its receipt."""
        self._receiver = await receiver(self.port, work, "product")
        if await self._receiver.line() != "ready":
            raise RuntimeError("the receiver did not get ready")

    async def round(self, work: Work) -> Cost:
        assert self._cluster is not None
        began = await self._bytes()
        lead = 1.0
        scenario = Scenario(
            servers=(self._cluster.brokers[0].url,),
            subscribers=0,
            publishers=4,
            workers=1,
            topics=work.topics,
            payload=work.payload,
            rate=work.rate,
            warmup=lead,
            duration=work.seconds + lead,
        )
        async with Load(scenario) as load:
            _, core = machine.cores()
            for pid in load.pids:
                machine.pin(pid, core)
            await load.measuring()
            first, before = await self._bytes(), machine.cpu(self.pid)
            await asyncio.sleep(work.seconds)
            last, after = await self._bytes(), machine.cpu(self.pid)
            result = await load.result()
        spent = after - before
        if not self._heard:
            return Cost(work.deliveries, spent.user, spent.system)
        per_publication = work.subscribers // work.topics
        received = await self._bytes() - began
        size = received / (result.acknowledged * per_publication) if result.acknowledged else 0.0
        # A late generator spoils latencies, not CPU; a delivery that is missing would spoil both.
        if result.acknowledged != result.scheduled or abs(size - len(frame(work))) > 8:
            raise RuntimeError(f"the product did not deliver everything: {result.reasons}, {size:.1f} bytes a delivery")
        return Cost(round((last - first) / size), spent.user, spent.system)

    async def _bytes(self) -> int:
        """Received so far by all subscribers."""
        return 0 if self._receiver is None else int(await self._receiver.ask("bytes"))

    async def idle(self, seconds: float) -> float:
        """CPU seconds per second with all subscribers connected and nothing published: ticks and heartbeats."""
        before = machine.cpu(self.pid)
        await asyncio.sleep(seconds)
        return (machine.cpu(self.pid) - before).total / seconds

    async def stop(self) -> None:
        if self._receiver is not None:
            await self._receiver.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        self._folder.cleanup()
