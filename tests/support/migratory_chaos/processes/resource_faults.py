"""Faults of resources: a full disk below a ZooKeeper member or the brokers' logs, file descriptors exhausted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from migratory_chaos.engine import Fault, Observation
from migratory_chaos.processes.scene import ProcessScene

SPARE_DESCRIPTORS = 2
"""Descriptors that a broker may still open: fewer than `CONNECTIONS` need."""
CONNECTIONS = 40
"""Connections that are made to the broker. Each needs a descriptor there."""


@dataclass(frozen=True)
class FullMemberDisk(Fault[ProcessScene]):
    """A ZooKeeper member's disk is full (the leader's if `leader`) while the broker with most groups dies, so that
    records must be written. The member must end or stop serving, and other brokers take the groups over."""

    leader: bool

    async def inject(self, scene: ProcessScene) -> None:
        cluster = scene.cluster
        leader = await cluster.leader()
        victim = scene.random.choice([m for m in cluster.ensemble.members if (m is leader) == self.leader])
        (broker,) = await scene.pick_brokers(1, coordinator=True)
        prove_takeovers = await scene.expect_takeovers([broker])
        starts = victim.process.starts

        async def look() -> Observation:
            mode = await asyncio.to_thread(victim.mode)
            if victim.process.starts > starts or not victim.process.alive:
                return True, "ended"
            return mode is None, mode or "does not serve"

        with full_disk(scene, victim.folder):
            await scene.start_injection(victim.name, broker)
            scene.kill_broker(broker)
            await scene.wait_until(victim.name, "ended, or does not serve", look, 30.0)
        await prove_takeovers()


@dataclass(frozen=True)
class FullLogDisk(Fault[ProcessScene]):
    """The disk of the brokers' logs is full for `seconds` while the broker with most groups dies and the others log
    much about it. They must take its groups over, and later log how many lines they dropped."""

    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        cluster = scene.cluster
        (name,) = await scene.pick_brokers(1, coordinator=True)
        prove_takeovers = await scene.expect_takeovers([name])
        logs = {other: cluster.broker(other).process.log for other in cluster.broker_names() if other != name}
        with scene.held([name]), full_disk(scene, next(iter(logs.values())).parent):
            sizes = {other: log.stat().st_size for other, log in logs.items()}
            await scene.start_injection(name)
            scene.kill_broker(name)
            await prove_takeovers()
            await asyncio.sleep(self.seconds)
            grown = sum(log.stat().st_size - sizes[other] for other, log in logs.items())
            room = len(logs) * os.sysconf("SC_PAGE_SIZE")  # the last page of a file may have room for a line or two
            scene.prove("bytes written to the logs", f"< {room}", grown, grown < room)

        async def look() -> Observation:
            found = [other for other, log in logs.items() if b'"dropped_lines"' in _read_from(log, sizes[other])]
            return bool(found), ", ".join(found)

        await scene.wait_until("brokers that log how many lines they dropped", "one or more", look, 30.0)


@dataclass(frozen=True)
class NoDescriptors(Fault[ProcessScene]):
    """The broker with most groups may open only `SPARE_DESCRIPTORS` more descriptors for `seconds`, while `CONNECTIONS`
    clients connect. It must log the new limit and that it refused connections."""

    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        cluster = scene.cluster
        (name,) = await scene.pick_brokers(1, coordinator=True)
        broker = cluster.broker(name)
        pid = broker.process.pid
        if pid is None:
            raise RuntimeError(f"{name} does not run")
        size = broker.process.log.stat().st_size
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        limit = cluster.used_descriptors(name) + SPARE_DESCRIPTORS
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))

        async def logged() -> Observation:
            log = _read_from(broker.process.log, size)
            events = [event for event in ("descriptor_limit_changed", "accept_failed") if f'"{event}"'.encode() in log]
            return len(events) == 2, ", ".join(events) or "nothing"

        connections: list[socket.socket] = []
        try:
            await scene.start_injection(name)
            for _ in range(CONNECTIONS):
                connections.append(socket.socket())
                connections[-1].setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connections[-1].connect((broker.host, broker.ports.clients))
            await scene.wait_until(f"log of {name}", "the new limit and connections refused by it", logged, 10.0)
            await asyncio.sleep(self.seconds)
        finally:
            for connection in connections:
                connection.close()
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def full_disk(scene: ProcessScene, folder: Path) -> Iterator[None]:
    """Fill the folder's disk for the time of the context, and prove that it is full. Raise RuntimeError unless it is
    a small disk that `cluster.py` mounted."""
    if not os.path.ismount(folder):
        raise RuntimeError(f"{folder} is not a disk of its own; filling it could fill the machine's disk")
    ballast = folder / "ballast"
    seen = "room"
    try:
        with ballast.open("wb", buffering=0) as file:
            block = bytes(1 << 16)
            while block:
                try:
                    file.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    seen = "no space left"
                    block = block[: len(block) // 2]  # fill the rest with smaller blocks
        scene.prove(f"a write to the disk of {folder.name}", "no space left", seen)
        yield
    finally:
        ballast.unlink(missing_ok=True)


def _read_from(log: Path, size: int) -> bytes:
    with log.open("rb") as file:
        file.seek(size)
        return file.read()
