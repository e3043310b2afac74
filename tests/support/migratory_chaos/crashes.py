"""Faults of broker processes: killed, frozen, stuttering, crashing again and again."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import ClassVar

from migratory_chaos.faults import Fault, Scene, refused, state

FENCED_AFTER = 6.0
"""Seconds: who hears nothing for so long is replaced, and knows it."""


@dataclass(frozen=True)
class KillBrokers(Fault):
    """SIGKILL; started again after `down` seconds."""

    count: int
    coordinator: bool
    down: float
    kind: ClassVar[str] = "kill"

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        victims = await scene.pick(self.count, self.coordinator)
        takeovers = await scene.takeovers(victims)
        for name in victims:
            cluster.supervisor.hold(name)
        try:
            await scene.blow(*victims)
            for name in victims:
                kill(scene, name)
            await asyncio.sleep(self.down)
        finally:
            for name in victims:
                cluster.supervisor.release(name)
        await takeovers()


@dataclass(frozen=True)
class CrashLoop(Fault):
    """One broker dies `times` times, each time a moment after it was started again: while it learns."""

    times: int
    alive: float
    kind: ClassVar[str] = "crash loop"

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        (name,) = await scene.pick(1, coordinator=True)
        process = cluster.broker(name).process
        takeovers = await scene.takeovers([name])
        cluster.supervisor.hold(name)
        starts = process.starts
        try:
            for _ in range(self.times):
                await scene.blow(name)
                kill(scene, name)
                process.start()
                await asyncio.sleep(self.alive)
        finally:
            cluster.supervisor.release(name)
        scene.prove(f"starts of {name}", self.times, process.starts - starts)
        await takeovers()


@dataclass(frozen=True)
class RestartStorm(Fault):
    """Every broker is killed, the next one as soon as the cluster is whole again."""

    within: float = 90.0
    kind: ClassVar[str] = "restart storm"

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        for number, name in enumerate(await scene.pick(len(cluster.names), coordinator=False)):
            if number and (wrong := await cluster.wait_whole(self.within)):
                scene.prove("whole before the next kill", "nothing is wrong", "; ".join(wrong), holds=False)
                return
            await scene.blow(name)
            kill(scene, name)


@dataclass(frozen=True)
class FreezeBrokers(Fault):
    """SIGSTOP and SIGCONT: it holds its sockets and answers nothing, then goes on as if no time had passed."""

    count: int
    coordinator: bool
    seconds: float
    kind: ClassVar[str] = "freeze"

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        victims = await scene.pick(self.count, self.coordinator)
        takeovers = await scene.takeovers(victims)
        processes = [cluster.broker(name).process for name in victims]
        try:
            await scene.blow(*victims)
            for process in processes:
                process.signal(signal.SIGSTOP)
            await scene.happens(
                "state of the frozen", "T", lambda: _states([process.pid for process in processes]), 5.0
            )
            await asyncio.sleep(self.seconds)
            if self.seconds >= FENCED_AFTER:
                await takeovers()
        finally:
            for process in processes:
                process.signal(signal.SIGCONT)


@dataclass(frozen=True)
class Stutter(Fault):
    """A broker that gets the processor now and then: `pulses` times stopped for `stop` seconds, running for `run`."""

    pulses: int
    stop: float
    run: float
    kind: ClassVar[str] = "stutter"

    async def inflict(self, scene: Scene) -> None:
        (name,) = await scene.pick(1, coordinator=True)
        process = scene.cluster.broker(name).process
        stopped = 0
        try:
            await scene.blow(name)
            for _ in range(self.pulses):
                process.signal(signal.SIGSTOP)
                await asyncio.sleep(self.stop)
                stopped += state(process.pid) == "T"
                process.signal(signal.SIGCONT)
                await asyncio.sleep(self.run)
        finally:
            process.signal(signal.SIGCONT)
        scene.prove(f"times that {name} was seen stopped", self.pulses, stopped)


def kill(scene: Scene, name: str) -> None:
    """SIGKILL, proved by the exit code and by what the next client meets."""
    broker = scene.cluster.broker(name)
    broker.process.kill()
    scene.prove(f"exit code of {name}", -signal.SIGKILL, broker.process.exit_code)
    scene.prove(f"a connection to {name}", "refused", refused(broker.host, broker.ports.clients))


async def _states(pids: list[int | None]) -> tuple[bool, object]:
    seen = [state(pid) for pid in pids]
    return set(seen) == {"T"}, ", ".join(seen)
