"""The kinds of faults of local processes, and the mixes that `--mix` names, with a weight for each kind.

Of a member list `minCopies - 1` brokers may be away at a time. A fault takes away at most that many, and the engine
waits between faults until the cluster is healthy. ZooKeeper may lose any number of members, also together with brokers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from migratory_chaos.engine import Fault, Kind
from migratory_chaos.processes.broker_faults import CrashLoop, FreezeBrokers, KillBrokers, RestartStorm, Stutter
from migratory_chaos.processes.network_faults import DIRECTIONS, SIDES, CutMember, Delay, Loss, Partition
from migratory_chaos.processes.resource_faults import FullLogDisk, FullMemberDisk, NoDescriptors
from migratory_chaos.processes.scene import ProcessScene
from migratory_chaos.processes.zookeeper_faults import MEMBERS, LoseMembers

ProcessFault = Fault[ProcessScene]
NAMESPACES = "namespaces"
"""The need of faults of networks and disks: small disks are mounts, which need what network namespaces need."""


@dataclass(frozen=True)
class Combined(Fault[ProcessScene]):
    """Two faults at once in different parts of the cluster, each within what the product promises to survive."""

    kinds: tuple[str, str]
    first: ProcessFault
    second: ProcessFault

    async def inject(self, scene: ProcessScene) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.first.inject(scene))
            tasks.create_task(self.second.inject(scene))

    def kind(self, drawn_as: str) -> str:
        return " + ".join(self.kinds)

    def as_data(self) -> dict[str, Any]:
        return {"first": self.first.as_data(), "second": self.second.as_data()}


def _kill(chance: random.Random, away: int) -> ProcessFault:
    return KillBrokers(chance.randint(1, away), chance.random() < 0.7, chance.choice((0.0, 1.0, 5.0, 12.0)))


def _freeze(chance: random.Random, away: int) -> ProcessFault:
    seconds = (0.5, 2.0, 3.5, 4.5, 7.0, 15.0)
    return FreezeBrokers(chance.randint(1, away), chance.random() < 0.7, chance.choice(seconds))


def _stutter(chance: random.Random, _: int) -> ProcessFault:
    return Stutter(chance.randint(5, 25), chance.choice((0.05, 0.2, 0.6, 1.5)), chance.choice((0.02, 0.1, 0.3)))


def _partition(chance: random.Random, _: int) -> ProcessFault:
    seconds = chance.choice((1.0, 3.0, 5.0, 9.0, 16.0))
    return Partition(chance.choice(SIDES), chance.choice(DIRECTIONS), chance.random() < 0.7, seconds)


def _loss(chance: random.Random, _: int) -> ProcessFault:
    side, probability = chance.choice(SIDES), chance.choice((0.02, 0.1, 0.3))
    if side == "zookeeper":
        probability = (
            0.3  # a broker sends it two requests a second: a lower probability may lose none of so few packets
        )
    return Loss(side, probability, chance.choice((5.0, 12.0)))


def _delay(chance: random.Random, _: int) -> ProcessFault:
    seconds, jitter = chance.choice(((0.02, 0.02), (0.1, 0.1), (0.3, 0.3)))
    return Delay(chance.choice(("brokers", "zookeeper", "clients")), seconds, jitter, chance.choice((6.0, 12.0)))


def _zookeeper(chance: random.Random, _: int) -> ProcessFault:
    return LoseMembers(chance.choice(MEMBERS), chance.random() < 0.4, chance.choice((1.0, 4.0, 9.0, 15.0)))


def _zookeeper_and_broker(chance: random.Random, away: int) -> ProcessFault:
    """ZooKeeper loses members while a broker dies or hangs: takeovers may have to wait until it is back."""
    members = _zookeeper(chance, away)
    kind, draw = chance.choice((("kill", _kill), ("freeze", _freeze)))
    return Combined(("ZooKeeper", kind), members, draw(chance, away))


_DRAWS: dict[str, Callable[[random.Random, int], ProcessFault]] = {
    "kill": _kill,
    "freeze": _freeze,
    "stutter": _stutter,
    "crash loop": lambda chance, _: CrashLoop(chance.randint(2, 5), chance.choice((0.3, 1.0, 2.0, 3.5))),
    "restart storm": lambda _, __: RestartStorm(),
    "partition": _partition,
    "loss": _loss,
    "delay": _delay,
    "cut ZooKeeper member": lambda chance, _: CutMember(chance.random() < 0.6, chance.choice((1.0, 6.0))),
    "ZooKeeper": _zookeeper,
    "ZooKeeper + broker": _zookeeper_and_broker,
    "full disk (ZooKeeper)": lambda chance, _: FullMemberDisk(chance.random() < 0.5),
    "full disk (logs)": lambda chance, _: FullLogDisk(chance.choice((1.0, 5.0))),
    "no descriptors": lambda chance, _: NoDescriptors(chance.choice((2.0, 8.0))),
}
"""Kinds by name. The second argument is the number of brokers that may be away at once."""
_IN_NAMESPACES = {
    "partition", "loss", "delay", "cut ZooKeeper member", "full disk (ZooKeeper)", "full disk (logs)"
}  # fmt: skip
MIXES: dict[str, dict[str, int]] = {
    "processes": {"kill": 5, "freeze": 4, "stutter": 2, "crash loop": 2, "restart storm": 1},
    "network": {"partition": 5, "loss": 3, "delay": 3, "cut ZooKeeper member": 1},
    "zookeeper": {"ZooKeeper": 4, "cut ZooKeeper member": 2, "ZooKeeper + broker": 3},
    "shortages": {"full disk (ZooKeeper)": 1, "full disk (logs)": 1, "no descriptors": 1},
}
"""Kinds and weights. `--mix` takes these names, and `all` for their union."""
MIXES["all"] = {kind: weight for mix in list(MIXES.values()) for kind, weight in mix.items()}


def mix_kinds(mix: str, away: int) -> dict[str, Kind[ProcessScene]]:
    """Return the kinds of a mix. :param away: the number of brokers that may be away at once."""

    def kind(name: str, weight: int) -> Kind[ProcessScene]:
        needs = NAMESPACES if name in _IN_NAMESPACES else None
        return Kind(lambda chance: _DRAWS[name](chance, away), needs, weight)

    return {name: kind(name, weight) for name, weight in MIXES[mix].items()}
