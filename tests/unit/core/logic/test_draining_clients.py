"""Where the clients of a draining broker are sent, and how often clients move during an update or scaling
(docs/decisions/0004-balance-of-clients.md)."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import (
    BrokersConfigured,
    DrainClients,
    DrainRequest,
)
from migratory_protocol.messages import Server
from migratory_protocol.peer import ClientLoad, Heartbeat
from migratory_testing.brokers import Cluster
from migratory_testing.population import CALM, UP, Population, asked, uneven
from msgspec.structs import replace


def drain(cluster: Cluster, name: str) -> tuple[Server, ...]:
    cluster.give(name, DrainRequest(20.0))
    cluster.run(3.0)
    (request,) = cluster[name].of(DrainClients)
    return request.servers


def test_clients_of_a_draining_broker_spread_evenly() -> None:
    """UPDATED-FIRST: without revisions, a draining broker names all remaining brokers to its clients, with the
    clients that each has room for as weights."""
    cluster, _ = uneven(a=80, b=20, c=100)
    cluster.run(1.0)
    assert drain(cluster, "c") == (Server("ws://a", 20), Server("ws://b", 80))


@pytest.mark.parametrize(
    ("mine", "theirs", "named"),
    [
        ("r1", {"a": "r1", "b": "r2"}, {"ws://b": 100}),
        ("r2", {"a": "r1", "b": "r2"}, {"ws://a": 100}),  # the update is taken back
        ("r2", {"a": "r1", "b": "r1"}, {"ws://a": 20, "ws://b": 80}),
        ("", {"a": "r1", "b": ""}, {"ws://a": 100}),
    ],
)
def test_draining_broker_prefers_brokers_of_another_revision(
    mine: str, theirs: dict[str, str], named: dict[str, int]
) -> None:
    """UPDATED-FIRST: a draining broker names only brokers of another revision to its clients, even if the others
    have more room, because those are drained next. If there are none, it names all."""
    cluster = Cluster()
    for name, revision in {**theirs, "c": mine}.items():
        cluster.config["revision"] = revision
        cluster.start(name)
    cluster.run(UP)
    Population(cluster, a=80, b=20, c=100)
    cluster.run(1.0)
    assert {server.url: server.weight for server in drain(cluster, "c")} == named


def test_weights_decide_while_counts_are_unknown() -> None:
    cluster, _ = uneven(a=80, b=20, c=100)
    cluster.logic("c").membership.peers.pop("a")
    cluster.hold = lambda sender, receiver, message: sender == "a" and isinstance(message, Heartbeat)
    assert drain(cluster, "c") == (Server("ws://a", 100), Server("ws://b", 100))


def test_draining_broker_without_clients_names_the_remaining_brokers() -> None:
    cluster, _ = uneven(a=80, b=20, c=0)
    assert drain(cluster, "c") == (Server("ws://a", 100), Server("ws://b", 100))


@pytest.mark.parametrize("comes", [True, False])
def test_drain_waits_a_moment_for_news_of_ready_brokers(comes: bool) -> None:
    """DRAIN-ORDER: while some other broker is not ready, a draining broker waits for it, up to two seconds, and then
    sends its clients to those that are ready. The process that drains brokers may know of readiness earlier than
    ZooKeeper reports it."""
    cluster, _ = uneven(a=60, b=60, c=60)
    known = cluster.logic("c").membership.known
    ready = known["b"]
    known["b"] = replace(ready, ready=False)
    cluster.give("c", DrainRequest(20.0))
    cluster.run(1.5)
    assert not cluster["c"].of(DrainClients)
    if comes:
        known["b"] = ready
    cluster.run(0.7)
    (request,) = cluster["c"].of(DrainClients)
    assert [server.url for server in request.servers] == ["ws://a", "ws://b"][: 1 + comes]


def test_other_draining_brokers_are_not_named() -> None:
    cluster, _ = uneven(a=60, b=60, c=60, d=60)
    cluster.hold = lambda sender, receiver, message: sender == "d" and isinstance(message, Heartbeat)
    cluster.hears_load("c", "d", ClientLoad(60, True))  # its heartbeat is faster than ZooKeeper
    assert [server.url for server in drain(cluster, "c")] == ["ws://a", "ws://b"]


def rolled(cluster: Cluster, population: Population, name: str, revision: str) -> None:
    """Drain a broker, check that it has no clients left, and start it again under another revision until it is
    ready."""
    cluster.give(name, DrainRequest(10.0))
    population.run(11.0)
    assert population.counts()[name] == 0
    cluster.crash(name)
    population.forget(name)
    before, cluster.config = cluster.config, {**cluster.config, "revision": revision}
    cluster.start(name)
    cluster.config = before
    population.run(4.0)
    assert cluster.logic(name).membership.ready


@pytest.mark.unmeasured
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("order", ["cba", "abc", "bca"])
def test_rolling_update_moves_no_client_more_than_twice(order: str, seed: int) -> None:
    """UPDATED-FIRST: in a rolling update of three brokers no client moves more than twice, and each 1.7 times on
    average at most; afterwards the counts are within 15% of the mean and no client moves any more."""
    cluster = Cluster(revision="r1").up()
    population = Population(cluster, seed, a=60, b=60, c=60)
    for name in order:
        rolled(cluster, population, name, "r2")
        assert asked(cluster) == 0  # of this incarnation; no client is moved for balance in between
    population.run_until_stable(30.0, 200.0)
    moves = [len(client.moves) for client in population.clients]
    assert max(moves) <= 2
    assert sum(moves) / len(moves) <= 1.7
    assert max(population.counts().values()) <= 1.15 * 60
    before = list(moves)
    population.run(60.0)
    assert [len(client.moves) for client in population.clients] == before


@pytest.mark.unmeasured
def test_scaling_up_moves_no_client_twice() -> None:
    cluster, population = uneven(a=100, b=100, c=100)
    population.run(CALM)
    cluster.names = ("a", "b", "c", "d", "e")
    for name in "abc":
        cluster.give(name, BrokersConfigured(cluster.names))
    cluster.start("d")
    population.run(25.0)
    assert asked(cluster, "a", "b", "c") == 0  # the fifth is on its way
    cluster.start("e")
    population.run_until_stable(30.0, 200.0)
    assert max(len(client.moves) for client in population.clients) == 1
    assert max(population.counts().values()) <= 1.15 * 60
