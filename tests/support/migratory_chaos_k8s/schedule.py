"""Which faults there are, by the names that `FAULTS=` takes, and what a seed draws of them. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from migratory_chaos_k8s import changes, machine, pods
from migratory_chaos_k8s.faults import Fault
from migratory_chaos_k8s.target import BROKER, ZOOKEEPER

Need = Literal["machine", "operator", "zookeeper"]
"""`machine`: the node is this machine's own; `operator`: the operator runs in a pod that may be struck; `zookeeper`:
the ensemble is the cluster's own, of three members or more."""
WHY: dict[Need, str] = {
    "machine": "needs the processes of a node of this machine (docs/kubernetes.md), and root",
    "operator": "the operator does not run in a pod",
    "zookeeper": "needs an ensemble of the cluster's own with three members",
}


@dataclass(frozen=True)
class Kind:
    """`weight`: how often it is drawn behind the first round, beside the others."""

    draw: Callable[[random.Random], Fault]
    needs: Need | None = None
    weight: int = 3


KINDS: dict[str, Kind] = {
    "kill": Kind(lambda _: pods.Kill()),
    "kill-forced": Kind(lambda _: pods.KillNow()),
    "coordinator": Kind(lambda _: pods.Coordinator(), weight=4),
    "crash": Kind(lambda _: machine.Crash(), "machine"),
    "evict": Kind(lambda _: pods.Evict()),
    "zookeeper-member": Kind(lambda _: pods.ZooKeeper("member"), "zookeeper"),
    "zookeeper-leader": Kind(lambda _: pods.ZooKeeper("leader"), "zookeeper"),
    "zookeeper-all": Kind(lambda _: pods.ZooKeeper("all"), "zookeeper"),
    "operator": Kind(lambda _: pods.OperatorDies(0.0), "operator", 2),
    "operator-away": Kind(lambda chance: pods.OperatorDies(chance.choice((10.0, 20.0))), "operator", 2),
    "partition": Kind(lambda chance: machine.Partition(chance.choice((4.0, 9.0, 16.0, 25.0))), "machine", 4),
    "node-restart": Kind(lambda chance: machine.NodeRestart(chance.choice((2.0, 8.0, 15.0))), "machine", 2),
    "bad-image": Kind(lambda _: changes.BadImage(), weight=1),
    "configuration": Kind(lambda _: changes.Configuration(), weight=1),
    "roll": Kind(lambda _: changes.Roll(BROKER), weight=1),
    "roll-zookeeper": Kind(lambda _: changes.Roll(ZOOKEEPER), "zookeeper", 1),
    "scale": Kind(lambda chance: changes.Scale(chance.choice((1, 2))), weight=1),
}


class NoSuchKind(ValueError):
    """Names what was asked for and what there is."""


def parse(text: str) -> list[str]:
    """`kill,scale`; nothing: all of them. :raises NoSuchKind:"""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise NoSuchKind(f"no such fault: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return list(dict.fromkeys(names)) or list(KINDS)


@dataclass(frozen=True)
class Schedule:
    """The faults of one run: each kind once, in an order by chance; then, if `endless`, ever more of them by weight."""

    kinds: Sequence[str]
    seed: int
    offered: frozenset[Need]
    endless: bool

    def __iter__(self) -> Iterator[tuple[str, Fault]]:
        chance = random.Random(f"faults {self.seed}")
        possible = [name for name in self.kinds if self.possible(name)]
        first = list(possible)
        chance.shuffle(first)
        for name in first:
            yield name, KINDS[name].draw(chance)
        weights = [KINDS[name].weight for name in possible]
        while self.endless and possible:
            name = chance.choices(possible, weights)[0]
            yield name, KINDS[name].draw(chance)

    def possible(self, name: str) -> bool:
        need = KINDS[name].needs
        return need is None or need in self.offered

    def left_out(self) -> list[str]:
        """Each with the reason."""
        return [
            f"{name}: {WHY[need]}" for name in self.kinds if (need := KINDS[name].needs) and not self.possible(name)
        ]
