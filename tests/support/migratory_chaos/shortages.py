"""Faults of resources: a full disk under a ZooKeeper member or under the brokers' logs, descriptors that run out."""

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
from typing import ClassVar

from migratory_local.cluster.zookeeper import ZooKeeperMember

from migratory_chaos.crashes import kill
from migratory_chaos.faults import Fault, Scene

SPARE = 2
"""Descriptors that a broker may still open when the shortage begins."""
STRANGERS = 40
"""Connections that want one."""
_BLOCK = bytes(1 << 16)


@dataclass(frozen=True)
class FullMemberDisk(Fault):
    """A ZooKeeper member's disk is full while a coordinator dies, whose groups' records must be written."""

    leader: bool
    kind: ClassVar[str] = "full disk (ZooKeeper)"
    needs_network: ClassVar[bool] = True  # a disk of its own: mounts need what namespaces need

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        leader = await cluster.leader()
        victim = scene.random.choice([m for m in cluster.ensemble.members if (m is leader) == self.leader])
        (broker,) = await scene.pick(1, coordinator=True)
        takeovers = await scene.takeovers([broker])
        starts = victim.process.starts
        with full(scene, victim.folder):
            await scene.blow(victim.name, broker)
            kill(scene, broker)
            await scene.happens(f"{victim.name}", "ended, or serves nobody", lambda: _fails(victim, starts), 30.0)
        await takeovers()


@dataclass(frozen=True)
class FullLogDisk(Fault):
    """The disk of the brokers' logs is full while a coordinator dies and the others have much to tell."""

    seconds: float
    kind: ClassVar[str] = "full disk (logs)"
    needs_network: ClassVar[bool] = True

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        (name,) = await scene.pick(1, coordinator=True)
        takeovers = await scene.takeovers([name])
        logs = {other: cluster.broker(other).process.log for other in cluster.names if other != name}
        cluster.supervisor.hold(name)
        try:
            with full(scene, next(iter(logs.values())).parent):
                sizes = {other: log.stat().st_size for other, log in logs.items()}
                await scene.blow(name)
                kill(scene, name)
                await takeovers()
                await asyncio.sleep(self.seconds)
                grown = sum(log.stat().st_size - sizes[other] for other, log in logs.items())
                # The last page of a file may have room for a line or two.
                room = len(logs) * os.sysconf("SC_PAGE_SIZE")
                scene.prove("bytes that got into the logs", f"< {room}", grown, grown < room)
        finally:
            cluster.supervisor.release(name)

        async def look() -> tuple[bool, object]:
            found = [other for other, log in logs.items() if b'"dropped_lines"' in _behind(log, sizes[other])]
            return bool(found), ", ".join(found)

        await scene.happens("brokers that tell of lines they dropped", "one or more", look, 30.0)


@dataclass(frozen=True)
class NoDescriptors(Fault):
    """A broker may open no more descriptors than it has, while strangers connect."""

    seconds: float
    kind: ClassVar[str] = "no descriptors"

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        (name,) = await scene.pick(1, coordinator=True)
        broker = cluster.broker(name)
        pid = broker.process.pid
        if pid is None:
            raise RuntimeError(f"{name} does not run")
        size = broker.process.log.stat().st_size
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        limit = cluster.used_descriptors(name) + SPARE
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        strangers: list[socket.socket] = []
        try:
            await scene.blow(name)
            for _ in range(STRANGERS):
                stranger = socket.socket()
                stranger.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    stranger.connect((broker.host, broker.ports.clients))
                strangers.append(stranger)

            async def used() -> tuple[bool, object]:
                count = cluster.used_descriptors(name)
                return count >= limit, f"{count} of {limit}"

            async def complained() -> tuple[bool, object]:
                found = b'"accept_failed"' in _behind(broker.process.log, size)
                return found, "accept_failed" if found else "nothing"

            await scene.happens(f"descriptors of {name}", "all used", used, 10.0)
            await scene.happens(f"log of {name}", "accept_failed", complained, 10.0)
            await asyncio.sleep(self.seconds)
        finally:
            for stranger in strangers:
                stranger.close()
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def full(scene: Scene, folder: Path) -> Iterator[None]:
    """The folder's disk has no room until the end of this. It must be a small one that `cluster.py` mounts."""
    if not os.path.ismount(folder):
        raise RuntimeError(f"{folder} is no disk of its own")
    ballast = folder / "ballast"
    seen = "room"
    try:
        with ballast.open("wb", buffering=0) as file:
            block = _BLOCK
            while block:
                try:
                    file.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    seen = "no space left"
                    block = block[: len(block) // 2]  # what is left is smaller than that
        scene.prove(f"a write to the disk of {folder.name}", "no space left", seen)
        yield
    finally:
        ballast.unlink(missing_ok=True)


async def _fails(member: ZooKeeperMember, starts: int) -> tuple[bool, object]:
    mode = await asyncio.to_thread(member.mode)
    if member.process.starts > starts or not member.process.alive:
        return True, "ended"
    return mode is None, mode or "serves nobody"


def _behind(log: Path, size: int) -> bytes:
    with log.open("rb") as file:
        file.seek(size)
        return file.read()
