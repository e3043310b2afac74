"""Clients of a `Cluster` as mere numbers: they go where brokers ask them to, a while later."""

from __future__ import annotations

from collections import Counter
from random import Random

from migratory_broker.core.logic.events import ClientCounts, DrainClients, MoveClients
from migratory_protocol.messages import Server

from migratory_testing.brokers import Cluster

CALM = 10.0  # seconds without a change of brokers, before clients are moved
UP = 3.0  # seconds that a cluster is up already when `up` returns


class Person:
    """`moves`: by which causes it changed its broker."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.moves: list[str] = []
        self.goes: tuple[float, str, str] | None = None  # (when, to whom, why)


class Population:
    """`counts` at the begin. `stays` is who would not go when asked for balance."""

    def __init__(self, cluster: Cluster, seed: int = 1, **counts: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.people = [Person(name) for name, count in counts.items() for _ in range(count)]
        self.stays = False
        self._seen: Counter[str] = Counter()
        self.tell()

    def counts(self) -> dict[str, int]:
        found = Counter(person.home for person in self.people)
        return {name: found[name] for name in self.cluster.names}

    def tell(self) -> None:
        """Each broker's edge says how many clients it has, by how often they moved."""
        for name, broker in self.cluster.brokers.items():
            if broker.running:
                moves = Counter(min(len(person.moves), 3) for person in self.people if person.home == name)
                self.cluster.give(name, ClientCounts(0, tuple(moves[level] for level in range(5))))
        self.cluster.settle()

    def run(self, seconds: float) -> None:
        end = self.cluster.now + seconds - 1e-9
        while self.cluster.now < end:
            self.cluster.run(0.1)
            self._hear()
            for person in self.people:
                if person.goes is not None and person.goes[0] <= self.cluster.now:
                    _, person.home, why = person.goes
                    person.goes = None
                    person.moves.append(why)
            self.tell()

    def until_rest(self, seconds: float, within: float) -> None:
        """Nobody moves for so long."""
        quiet, moves = 0.0, -1
        while quiet < seconds:
            assert within > 0, f"clients never come to rest: {self.counts()}"
            self.run(1.0)
            within -= 1.0
            total = sum(len(person.moves) for person in self.people)
            quiet, moves = (quiet + 1.0 if total == moves else 0.0), total

    def _hear(self) -> None:
        for name, broker in self.cluster.brokers.items():
            for effect in broker.effects[self._seen[name] :]:
                here = [person for person in self.people if person.home == name]
                if isinstance(effect, MoveClients) and not self.stays:
                    fit = sorted(
                        (person for person in here if person.goes is None), key=lambda person: len(person.moves)
                    )
                    for person in fit[: effect.count]:
                        self._send(person, (effect.server,), effect.period, "moved")
                elif isinstance(effect, DrainClients):
                    for person in here:
                        self._send(person, effect.servers, effect.period, "drained")
            self._seen[name] = len(broker.effects)

    def _send(self, person: Person, servers: tuple[Server, ...], period: float, why: str) -> None:
        server = self.random.choices(servers, [server.weight for server in servers])[0]
        when = self.cluster.now + self.random.random() * 0.9 * period
        person.goes = (when, server.url.removeprefix("ws://"), why)

    def forget(self, name: str) -> None:
        """What a broker of this name said in the life before is over."""
        self._seen[name] = 0


def uneven(**counts: int) -> tuple[Cluster, Population]:
    """A cluster that is up, with so many clients at each broker."""
    cluster = Cluster(tuple(counts)).up()
    return cluster, Population(cluster, **counts)


def asked(cluster: Cluster, *names: str) -> int:
    """How many clients these brokers asked to move so far; all of them, when none is named."""
    return sum(effect.count for name in names or cluster.names for effect in cluster[name].of(MoveClients))
