"""What a seed draws: a sequence of faults, by the mix's weights, never more at once than the cluster's promise allows.

Of a member list `minCopies - 1` brokers may be away at a time; each fault here takes so many at most, and `runner.py`
waits between faults until the cluster is whole. ZooKeeper may lose what it likes, also together with brokers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from migratory_chaos.crashes import CrashLoop, FreezeBrokers, KillBrokers, RestartStorm, Stutter
from migratory_chaos.faults import Fault, Together
from migratory_chaos.keepers import WHICH, LoseMembers
from migratory_chaos.links import DIRECTIONS, SIDES, CutMember, Delay, Loss, Partition
from migratory_chaos.shortages import FullLogDisk, FullMemberDisk, NoDescriptors

Draw = Callable[[random.Random, int], Fault]
"""The second argument is the number of brokers that may be away at once."""


def _some(chance: random.Random, most: int) -> int:
    return chance.randint(1, most)


def kill(chance: random.Random, most: int) -> Fault:
    return KillBrokers(_some(chance, most), chance.random() < 0.7, chance.choice((0.0, 1.0, 5.0, 12.0)))


def freeze(chance: random.Random, most: int) -> Fault:
    return FreezeBrokers(_some(chance, most), chance.random() < 0.7, chance.choice((0.5, 2.0, 3.5, 4.5, 7.0, 15.0)))


def stutter(chance: random.Random, _: int) -> Fault:
    return Stutter(chance.randint(5, 25), chance.choice((0.05, 0.2, 0.6, 1.5)), chance.choice((0.02, 0.1, 0.3)))


def crash_loop(chance: random.Random, _: int) -> Fault:
    return CrashLoop(chance.randint(2, 5), chance.choice((0.3, 1.0, 2.0, 3.5)))


def restart_storm(_: random.Random, __: int) -> Fault:
    return RestartStorm()


def partition(chance: random.Random, _: int) -> Fault:
    seconds = chance.choice((1.0, 3.0, 5.0, 9.0, 16.0))
    return Partition(chance.choice(SIDES), chance.choice(DIRECTIONS), chance.random() < 0.7, seconds)


def loss(chance: random.Random, _: int) -> Fault:
    side, probability = chance.choice(SIDES), chance.choice((0.02, 0.1, 0.3))
    if side == "zookeeper":
        probability = 0.3  # a broker asks it twice a second: of so few packets less may hit none
    return Loss(side, probability, chance.choice((5.0, 12.0)))


def delay(chance: random.Random, _: int) -> Fault:
    seconds, jitter = chance.choice(((0.02, 0.02), (0.1, 0.1), (0.3, 0.3)))
    return Delay(chance.choice(("brokers", "zookeeper", "clients")), seconds, jitter, chance.choice((6.0, 12.0)))


def zookeeper(chance: random.Random, _: int) -> Fault:
    return LoseMembers(chance.choice(WHICH), chance.random() < 0.4, chance.choice((1.0, 4.0, 9.0, 15.0)))


def cut_member(chance: random.Random, _: int) -> Fault:
    return CutMember(chance.random() < 0.6, chance.choice((1.0, 6.0)))


def full_member_disk(chance: random.Random, _: int) -> Fault:
    return FullMemberDisk(chance.random() < 0.5)


def full_log_disk(chance: random.Random, _: int) -> Fault:
    return FullLogDisk(chance.choice((1.0, 5.0)))


def no_descriptors(chance: random.Random, _: int) -> Fault:
    return NoDescriptors(chance.choice((2.0, 8.0)))


def both_away(chance: random.Random, most: int) -> Fault:
    """ZooKeeper loses members while a broker dies or hangs: the groups may have to wait until it is back."""
    return Together(zookeeper(chance, most), chance.choice((kill, freeze))(chance, most))


MIXES: dict[str, dict[Draw, int]] = {
    "processes": {kill: 5, freeze: 4, stutter: 2, crash_loop: 2, restart_storm: 1},
    "network": {partition: 5, loss: 3, delay: 3, cut_member: 1},
    "zookeeper": {zookeeper: 4, cut_member: 2, both_away: 3},
    "shortages": {full_member_disk: 1, full_log_disk: 1, no_descriptors: 1},
}
MIXES["all"] = {
    draw: weight for mix in ("processes", "network", "zookeeper", "shortages") for draw, weight in MIXES[mix].items()
}


@dataclass(frozen=True)
class Faults:
    """The faults of one run, without end. The first ones are one of each kind of the mix, so that a short run is no
    matter of luck; what comes then is drawn by weight."""

    mix: str
    seed: int
    most: int
    network: bool

    def __iter__(self) -> Iterator[Fault]:
        chance = random.Random(f"faults {self.seed}")
        draws = MIXES[self.mix]
        first = list(draws)
        chance.shuffle(first)
        for draw in first:
            if self.possible(fault := draw(chance, self.most)):
                yield fault
        while True:
            draw = chance.choices(list(draws), weights=list(draws.values()))[0]
            if self.possible(fault := draw(chance, self.most)):
                yield fault

    def possible(self, fault: Fault) -> bool:
        return self.network or not fault.needs_network

    def left_out(self) -> list[str]:
        """The kinds that can't be where there are no networks."""
        if self.network:
            return []
        chance = random.Random(0)
        return sorted({fault.kind for draw in MIXES[self.mix] if not self.possible(fault := draw(chance, self.most))})
