"""The kinds of faults of local processes, and the mixes that `--mix` names, with a weight for each kind.

Of a member list `minCopies - 1` brokers may be away at a time. A fault takes away at most that many, and the engine
waits between faults until the cluster is healthy. ZooKeeper may lose any number of members, also together with brokers.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial

from migratory_chaos.engine import Fault, Kind
from migratory_chaos.processes.broker_faults import CrashLoop, FreezeBrokers, KillBrokers, RestartStorm, Stutter
from migratory_chaos.processes.network_faults import DIRECTIONS, SIDES, CutMember, Delay, Loss, Partition
from migratory_chaos.processes.resource_faults import FullLogDisk, FullMemberDisk, NoDescriptors
from migratory_chaos.processes.scene import ProcessScene
from migratory_chaos.processes.zookeeper_faults import MEMBERS, EmptyMembers, LoseMembers

ProcessFault = Fault[ProcessScene]
NAMESPACES = "namespaces"
"""The name of the need of network and disk faults. Small disks are mounts, which need the same rights as network
namespaces."""
MIXES = ("all", "network", "processes", "shortages", "zookeeper")


@dataclass(frozen=True)
class Combined(Fault[ProcessScene]):
    """Two faults at once in different parts of the cluster, each within what the product promises to survive."""

    first: ProcessFault
    second: ProcessFault

    async def inject(self, scene: ProcessScene) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.first.inject(scene))
            tasks.create_task(self.second.inject(scene))


def _stutter(chance: random.Random) -> ProcessFault:
    return Stutter(chance.randint(5, 25), chance.choice((0.05, 0.2, 0.6, 1.5)), chance.choice((0.02, 0.1, 0.3)))


def _partition(chance: random.Random) -> ProcessFault:
    seconds = chance.choice((1.0, 3.0, 5.0, 9.0, 16.0))
    return Partition(chance.choice(SIDES), chance.choice(DIRECTIONS), chance.random() < 0.7, seconds)


def _loss(chance: random.Random) -> ProcessFault:
    side, probability = chance.choice(SIDES), chance.choice((0.02, 0.1, 0.3))
    if side == "zookeeper":
        # A broker sends it two requests a second: a lower probability may lose none of so few packets.
        probability = 0.3
    return Loss(side, probability, chance.choice((5.0, 12.0)))


def _delay(chance: random.Random) -> ProcessFault:
    seconds, jitter = chance.choice(((0.02, 0.02), (0.1, 0.1), (0.3, 0.3)))
    return Delay(chance.choice(("brokers", "zookeeper", "clients")), seconds, jitter, chance.choice((6.0, 12.0)))


def _zookeeper(chance: random.Random) -> ProcessFault:
    return LoseMembers(chance.choice(MEMBERS), chance.random() < 0.4, chance.choice((1.0, 4.0, 9.0, 15.0)))


def make_mixes(away: int) -> dict[str, dict[str, Kind[ProcessScene]]]:
    """Return the kinds of faults of each mix. :param away: the number of brokers that may be away at once."""

    def kill(chance: random.Random) -> ProcessFault:
        return KillBrokers(chance.randint(1, away), chance.random() < 0.7, chance.choice((0.0, 1.0, 5.0, 12.0)))

    def freeze(chance: random.Random) -> ProcessFault:
        seconds = chance.choice((0.5, 2.0, 3.5, 4.5, 7.0, 15.0))
        return FreezeBrokers(chance.randint(1, away), chance.random() < 0.7, seconds)

    in_namespaces = partial(Kind[ProcessScene], needs=NAMESPACES)
    cut = in_namespaces(lambda chance: CutMember(chance.random() < 0.6, chance.choice((1.0, 6.0))), weight=1)
    mixes = {
        "processes": {
            "kill": Kind(kill, weight=5),
            "freeze": Kind(freeze, weight=4),
            "stutter": Kind(_stutter, weight=2),
            "crash loop": Kind(lambda chance: CrashLoop(chance.randint(2, 5), chance.choice((0.3, 1.0, 2.0, 3.5)))),
            "restart storm": Kind(lambda _: RestartStorm(), weight=1),
        },
        "network": {
            "partition": in_namespaces(_partition, weight=5),
            "loss": in_namespaces(_loss),
            "delay": in_namespaces(_delay),
            "cut ZooKeeper member": cut,
        },
        "zookeeper": {
            "ZooKeeper": Kind(_zookeeper, weight=4),
            "ZooKeeper emptied": Kind(lambda chance: EmptyMembers(chance.choice((1.0, 9.0))), weight=1),
            "cut ZooKeeper member": cut,
            # Takeovers may have to wait until ZooKeeper is back.
            "ZooKeeper + kill": Kind(lambda chance: Combined(_zookeeper(chance), kill(chance)), weight=2),
            "ZooKeeper + freeze": Kind(lambda chance: Combined(_zookeeper(chance), freeze(chance)), weight=1),
        },
        "shortages": {
            "full disk (ZooKeeper)": in_namespaces(lambda chance: FullMemberDisk(chance.random() < 0.5), weight=1),
            "full disk (logs)": in_namespaces(lambda chance: FullLogDisk(chance.choice((1.0, 5.0))), weight=1),
            "no descriptors": Kind(lambda chance: NoDescriptors(chance.choice((2.0, 8.0))), weight=1),
        },
    }
    mixes["all"] = {name: kind for mix in list(mixes.values()) for name, kind in mix.items()}
    return mixes
