"""Clients that brokers ask to move for balance (docs/concepts/replication.md, "Restarts, links and drains";
docs/decisions/0004-balance-of-clients.md)."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import (
    BrokersConfigured,
    ClientCounts,
    DrainRequest,
    MoveClients,
    Observe,
)
from migratory_protocol.messages import Server
from migratory_protocol.peer import ClientLoad, Heartbeat
from migratory_testing.brokers import Cluster
from migratory_testing.population import CALM, UP, Population, asked, uneven
from msgspec.structs import replace

ROUND = 5.0


def calls(cluster: Cluster, name: str) -> list[list[tuple[str, int]]]:
    """Return the clients that a broker requested from others, as a list of (other broker, number of clients) for
    each heartbeat that requested any."""
    peer = next(other for other in cluster.names if other != name)
    loads = [
        message.load
        for sender, receiver, message in cluster.sent
        if isinstance(message, Heartbeat) and (sender, receiver) == (name, peer)
    ]
    return [load.requests for load in loads if load is not None and load.requests]


# ---- balance ---------------------------------------------------------------------------------------------------


@pytest.mark.unmeasured
def test_clients_spread_evenly_and_then_rest() -> None:
    """RECEIVERS-CALL, GIVERS-CAP: after the calm time, clients of two full brokers move to an empty one until the
    counts are even within 10%; no client moves twice, and then none moves any more."""
    cluster, population = uneven(a=150, b=150, c=0)
    population.run(CALM - UP)
    assert asked(cluster) == 0
    population.run(30.0)
    counts = population.counts()
    assert max(counts.values()) <= 110
    assert asked(cluster) == sum(len(client.moves) for client in population.clients) <= 100
    assert {len(client.moves) for client in population.clients} <= {0, 1}
    before = asked(cluster)
    population.run(120.0)
    assert asked(cluster) == before
    assert [effect.value for name in "ab" for effect in cluster[name].of(Observe) if "moves" in effect.metric]


def test_round_is_bounded() -> None:
    """A round asks for 25 clients of each of two brokers that have 300, and for a hundredth of the share when a
    broker has 60,000, so that balancing takes about the same time at any size."""
    cluster, population = uneven(a=300, b=300, c=0)
    population.run(CALM + 1.0)
    assert calls(cluster, "c") == [[("a", 25), ("b", 25)]]
    (move,) = cluster["a"].of(MoveClients)
    assert move == MoveClients(0, 25, ROUND, Server("ws://c"))
    cluster.give("a", ClientCounts(0, (60_000,)))
    cluster.run(1.0)
    cluster.give("b", ClientCounts(0, (0,)))
    cluster.run(2.0)
    ((giver, count),) = calls(cluster, "b")[0]
    assert giver == "a"
    assert 1000 <= count <= 1010


def test_balanced_brokers_request_no_clients() -> None:
    cluster, population = uneven(a=109, b=100, c=91)
    population.run(60.0)
    assert (calls(cluster, "c"), asked(cluster)) == ([], 0)


@pytest.mark.unmeasured
@pytest.mark.parametrize("counts", [{"a": 2, "b": 1, "c": 0}, {"a": 0, "b": 1, "c": 1}, {"a": 5, "b": 0, "c": 0}])
def test_few_clients_are_spread_as_evenly_as_possible(counts: dict[str, int]) -> None:
    _, population = uneven(**counts)
    population.run_until_stable(60.0, 300.0)
    spread = population.counts().values()
    assert max(spread) - min(spread) <= 1


@pytest.mark.unmeasured
def test_weights_are_respected() -> None:
    cluster = Cluster()
    for name, weight in (("a", 100), ("b", 50), ("c", 0)):
        cluster.config["weight"] = weight
        cluster.start(name)
    cluster.run(UP)
    population = Population(cluster, a=0, b=0, c=300)
    population.run_until_stable(60.0, 300.0)
    counts = population.counts()
    assert counts["c"] == 0
    assert counts["a"] <= 1.1 * 200
    assert counts["b"] <= 1.1 * 100


@pytest.mark.unmeasured
def test_clients_that_moved_least_are_asked_first() -> None:
    _, population = uneven(a=150, b=150, c=0)
    for client in population.clients[:100]:
        client.moves.append("before")
    population.report_counts()
    population.run_until_stable(20.0, 120.0)
    assert max(len(client.moves) for client in population.clients) == 1


def test_clients_are_counted_and_asked_per_edge() -> None:
    cluster = Cluster().up()
    for name, edges in (("a", {0: (40, 60), 1: (50,)}), ("b", {0: (150,)}), ("c", {})):
        for edge, by_moves in edges.items():
            cluster.give(name, ClientCounts(edge, by_moves))
    cluster.run(CALM + 1.0)
    assert {(move.edge, move.count) for move in cluster["a"].of(MoveClients)} == {(0, 25)}
    cluster.give("a", ClientCounts(1))
    cluster.settle()
    assert cluster.logic("a").client_balancer.clients == 100


def test_requests_in_one_round_add_up() -> None:
    """GIVERS-CAP: a broker gives no more clients in a round than it has above its share, whatever several others
    request with old numbers; in the next round it may give again."""
    cluster, population = uneven(a=200, b=50, c=50)
    for name in "bc":
        cluster.logic(name).client_balancer._next_request = 1e9
    population.run(CALM)
    for peer in "bcbc":
        cluster.hears_load("a", peer, ClientLoad(50, False, "", [("a", 1000), ("b", 7)]))
    assert asked(cluster, "a") == 95
    cluster.run(ROUND + 0.1)
    cluster.hears_load(
        "a", "b", ClientLoad(50, False, "", [("a", 3)])
    )  # those asked had their time, and are here still
    assert asked(cluster, "a") == 98


def test_fruitless_rounds_back_off_and_balance_is_reached() -> None:
    cluster, population = uneven(a=150, b=150, c=0)
    population.stays = True
    population.run(300.0)
    assert 4 <= len(calls(cluster, "c")) <= 9
    population.stays = False
    population.run(120.0)
    assert max(population.counts().values()) <= 110
    before = asked(cluster)
    population.run(60.0)
    assert asked(cluster) == before


# ---- calm ------------------------------------------------------------------------------------------------------


@pytest.mark.unmeasured
def test_no_client_moves_while_a_broker_is_away_or_just_back() -> None:
    """CALM-FIRST: no client is asked to move while a broker is away, nor in the calm time after it has returned;
    afterwards clients are."""
    cluster, population = uneven(a=150, b=150, c=0, d=0)
    cluster.crash("d")
    population.run(40.0)
    assert asked(cluster) == 0
    assert "d" in cluster.logic("c").client_balancer.waits_for
    cluster.start("d")
    population.run(CALM)
    assert asked(cluster) == 0
    population.run(CALM + 20.0)
    assert asked(cluster) > 0


def test_no_client_moves_while_a_broker_drains() -> None:
    """CALM-FIRST: no client is asked to move while a broker drains."""
    cluster, _ = uneven(a=150, b=150, c=0)
    cluster.give("b", DrainRequest(60.0))
    cluster.run(CALM + 20.0)
    assert asked(cluster) == 0
    assert "b" in cluster.logic("c").client_balancer.waits_for


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (None, "does not say"),
        (ClientLoad(150, True, ""), "leaves"),
        (ClientLoad(150, False, "next"), "another revision"),
    ],
)
def test_no_client_moves_while_one_broker_differs(load: ClientLoad | None, reason: str) -> None:
    """CALM-FIRST: no client is asked to move while one broker reports no client numbers (an older version), leaves,
    or has another revision."""
    cluster, population = uneven(a=150, b=150, c=0)
    cluster.hold = lambda sender, receiver, message: sender == "b" and isinstance(message, Heartbeat)
    for _ in range(40):
        for name in "ac":
            cluster.hears_load(name, "b", load)
        cluster.run(0.5)
    assert asked(cluster) == 0
    assert reason in cluster.logic("c").client_balancer.waits_for
    assert population.counts()["c"] == 0


@pytest.mark.unmeasured
def test_no_client_moves_on_old_numbers_or_without_zookeeper() -> None:
    """CALM-FIRST: no client is asked to move while a broker's numbers are old or ZooKeeper is away, not even when
    another broker requests it. Once both are over, the counts become even within 10%."""
    cluster, population = uneven(a=150, b=150, c=0)
    population.run(CALM - UP - 3.0)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Heartbeat) and (sender, receiver) == ("b", "c")
    population.run(10.0)
    assert calls(cluster, "c") == []
    assert "does not say" in cluster.logic("c").client_balancer.waits_for
    cluster.hold = lambda sender, receiver, message: False
    cluster.zookeeper(False)
    population.run(30.0)
    assert calls(cluster, "c") == []
    cluster.hears_load("a", "c", ClientLoad(0, False, "", [("a", 10)]))  # the giver looks for himself
    assert asked(cluster) == 0
    cluster.zookeeper(True)
    population.run_until_stable(20.0, 120.0)
    assert max(population.counts().values()) <= 110


def test_request_of_a_broker_without_an_address_is_ignored() -> None:
    cluster, _ = uneven(a=150, b=150, c=0)
    live = cluster.logic("a").membership.live
    live["c"] = replace(live["c"], url="")
    cluster.hears_load("a", "c", ClientLoad(0, False, "", [("a", 10)]))
    assert asked(cluster) == 0


@pytest.mark.unmeasured
def test_unconfigured_broker_receives_no_clients() -> None:
    """CALM-FIRST: while a cluster shrinks, no client is asked to move for balance; the clients of the removed
    brokers go to the remaining ones, and each moves at most once."""
    cluster, population = uneven(a=60, b=60, c=60, d=60, e=60)
    for name in "abc":
        cluster.give(name, BrokersConfigured(("a", "b", "c")))
    for name in "de":
        cluster.give(name, BrokersConfigured(("a", "b", "c", name)))
    population.run(CALM + 10.0)
    assert asked(cluster) == 0
    for leaving in "ed":
        cluster.give(leaving, DrainRequest(10.0))
        population.run(12.0)
        cluster.crash(leaving)
        cluster.names = tuple(name for name in cluster.names if name != leaving)
    population.run_until_stable(20.0, 120.0)
    assert max(len(client.moves) for client in population.clients) == 1
    assert max(population.counts().values()) <= 110
