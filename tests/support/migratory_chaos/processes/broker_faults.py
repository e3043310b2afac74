"""Faults of broker processes: killed, frozen, stopped and continued in turn, crashing repeatedly."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

from migratory_chaos.engine import Fault
from migratory_chaos.processes.scene import FENCING_SECONDS, ProcessScene, process_state


@dataclass(frozen=True)
class KillBrokers(Fault[ProcessScene]):
    """`count` brokers are killed with SIGKILL, and started again after `down` seconds. With `coordinator` the one
    with most groups is among them."""

    count: int
    coordinator: bool
    down: float

    async def inject(self, scene: ProcessScene) -> None:
        victims = await scene.pick_brokers(self.count, self.coordinator)
        prove_takeovers = await scene.expect_takeovers(victims)
        with scene.held(victims):
            await scene.start_injection(*victims)
            for name in victims:
                scene.kill_broker(name)
            await asyncio.sleep(self.down)
        await prove_takeovers()


@dataclass(frozen=True)
class CrashLoop(Fault[ProcessScene]):
    """The broker with most groups is killed and started again `times` times. Each time it runs for `alive` seconds, in
    which it catches up."""

    times: int
    alive: float

    async def inject(self, scene: ProcessScene) -> None:
        (name,) = await scene.pick_brokers(1, coordinator=True)
        process = scene.cluster.broker(name).process
        prove_takeovers = await scene.expect_takeovers([name])
        starts = process.starts
        with scene.held([name]):
            for _ in range(self.times):
                await scene.start_injection(name)
                scene.kill_broker(name)
                process.start()
                await asyncio.sleep(self.alive)
        scene.prove(f"starts of {name}", self.times, process.starts - starts)
        await prove_takeovers()


@dataclass(frozen=True)
class RestartStorm(Fault[ProcessScene]):
    """Every broker is killed in turn, and started again by the supervisor; the next one is killed as soon as the
    cluster is healthy. If it is not healthy `within` seconds after a kill, the fault ends with a proof that fails."""

    within: float = 90.0

    async def inject(self, scene: ProcessScene) -> None:
        cluster = scene.cluster
        for number, name in enumerate(await scene.pick_brokers(len(cluster.broker_names()), coordinator=False)):
            if number and (wrong := await cluster.wait_healthy(self.within)):
                scene.prove("healthy before the next kill", "nothing is wrong", "; ".join(wrong), holds=False)
                return
            await scene.start_injection(name)
            scene.kill_broker(name)


@dataclass(frozen=True)
class FreezeBrokers(Fault[ProcessScene]):
    """`count` brokers are stopped with SIGSTOP for `seconds`: they hold their sockets and answer nothing, then go on
    as if no time had passed. With `coordinator` the one with most groups is among them."""

    count: int
    coordinator: bool
    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        victims = await scene.pick_brokers(self.count, self.coordinator)
        prove_takeovers = await scene.expect_takeovers(victims)
        await scene.start_injection(*victims)
        async with scene.frozen([scene.cluster.broker(name).process for name in victims]):
            await asyncio.sleep(self.seconds)
            if self.seconds >= FENCING_SECONDS:
                await prove_takeovers()


@dataclass(frozen=True)
class Stutter(Fault[ProcessScene]):
    """The broker with most groups is short of processor time: `pulses` times it is stopped for `stop` seconds and
    then runs for `run` seconds."""

    pulses: int
    stop: float
    run: float

    async def inject(self, scene: ProcessScene) -> None:
        (name,) = await scene.pick_brokers(1, coordinator=True)
        process = scene.cluster.broker(name).process
        stopped = 0
        with scene.held([name]):
            try:
                await scene.start_injection(name)
                for _ in range(self.pulses):
                    process.signal(signal.SIGSTOP)
                    await asyncio.sleep(self.stop)
                    stopped += process_state(process.pid) == "T"
                    process.signal(signal.SIGCONT)
                    await asyncio.sleep(self.run)
            finally:
                process.signal(signal.SIGCONT)
        scene.prove(f"times that {name} was seen stopped", self.pulses, stopped)
