"""A model of the clients of a `Cluster`, without client code: each moves to the broker to which it is asked to move, at
a random time within the request's period."""

from __future__ import annotations

from collections import Counter
from random import Random

from migratory_broker.core.logic.events import ClientCounts, DrainClients, MoveClients
from migratory_protocol.messages import Server

from migratory_testing.brokers import Cluster

CALM = 10.0
"""Seconds without a change of brokers before clients are moved."""

UP = 3.0
"""Seconds for which a cluster has been up when `up` returns."""


class ModelClient:
    """One client of a `Population`. `broker` is its broker, `moves` are the causes of its changes of broker so far.
    `planned_move` is its next move: time, broker and cause, None without one."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.moves: list[str] = []
        self.planned_move: tuple[float, str, str] | None = None  # (time, broker, cause)


class Population:
    """All clients of a cluster. The arguments `counts` are the number of clients of each broker at the start, by its
    name. While `stays` is true, clients ignore requests to move for balance."""

    def __init__(self, cluster: Cluster, seed: int = 1, **counts: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.clients = [ModelClient(name) for name, count in counts.items() for _ in range(count)]
        self.stays = False
        self._seen: Counter[str] = Counter()
        self.report_counts()

    def counts(self) -> dict[str, int]:
        """Return the number of clients of each broker."""
        found = Counter(client.broker for client in self.clients)
        return {name: found[name] for name in self.cluster.names}

    def report_counts(self) -> None:
        """Report to each broker's logic, as its edge would, how many of its clients have moved never, once, twice,
        three times or more."""
        for name, broker in self.cluster.brokers.items():
            if broker.running:
                moves = Counter(min(len(client.moves), 3) for client in self.clients if client.broker == name)
                self.cluster.give(name, ClientCounts(0, tuple(moves[level] for level in range(5))))
        self.cluster.settle()

    def run(self, seconds: float) -> None:
        """Run the cluster and its clients for `seconds` of its clock. Every 0.1 s, move the clients whose time has
        come, and report the counts to the brokers."""
        end = self.cluster.now + seconds - 1e-9
        while self.cluster.now < end:
            self.cluster.run(0.1)
            self._plan_moves()
            for client in self.clients:
                if client.planned_move is not None and client.planned_move[0] <= self.cluster.now:
                    _, client.broker, cause = client.planned_move
                    client.planned_move = None
                    client.moves.append(cause)
            self.report_counts()

    def run_until_stable(self, seconds: float, within: float) -> None:
        """Run until no client has moved for `seconds`. Raise AssertionError after `within` seconds."""
        quiet, moves = 0.0, -1
        while quiet < seconds:
            assert within > 0, f"clients never come to rest: {self.counts()}"
            self.run(1.0)
            within -= 1.0
            total = sum(len(client.moves) for client in self.clients)
            quiet, moves = (quiet + 1.0 if total == moves else 0.0), total

    def _plan_moves(self) -> None:
        """Read the brokers' new effects, and plan a move for each client that they ask: for balance the clients with
        the fewest moves that have no planned one, for a drain all clients of the broker."""
        for name, broker in self.cluster.brokers.items():
            for effect in broker.effects[self._seen[name] :]:
                here = [client for client in self.clients if client.broker == name]
                if isinstance(effect, MoveClients) and not self.stays:
                    fit = sorted(
                        (client for client in here if client.planned_move is None), key=lambda client: len(client.moves)
                    )
                    for client in fit[: effect.count]:
                        self._plan_move(client, (effect.server,), effect.period, "moved")
                elif isinstance(effect, DrainClients):
                    for client in here:
                        self._plan_move(client, effect.servers, effect.period, "drained")
            self._seen[name] = len(broker.effects)

    def _plan_move(self, client: ModelClient, servers: tuple[Server, ...], period: float, cause: str) -> None:
        """Plan the client's move to one of `servers`, chosen by weight, at a random time within 0.9 of `period`. It
        replaces a planned one."""
        server = self.random.choices(servers, [server.weight for server in servers])[0]
        when = self.cluster.now + self.random.random() * 0.9 * period
        client.planned_move = (when, server.url.removeprefix("ws://"), cause)

    def forget(self, name: str) -> None:
        """Read the effects of this broker from the first one on: it was restarted, and its list of effects is new."""
        self._seen[name] = 0


def uneven(**counts: int) -> tuple[Cluster, Population]:
    """Return a cluster that is up and its clients. The arguments are the number of clients at each broker, by its
    name."""
    cluster = Cluster(tuple(counts)).up()
    return cluster, Population(cluster, **counts)


def asked(cluster: Cluster, *names: str) -> int:
    """Return the number of clients that these brokers (all by default) asked so far to move for balance."""
    return sum(effect.count for name in names or cluster.names for effect in cluster[name].of(MoveClients))
