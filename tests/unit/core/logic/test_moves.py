"""docs/replication.md, "A broker's lives": clients that are asked to go elsewhere, for balance and by a broker that
leaves; and docs/decisions/0004-balance-of-clients.md."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import (
    Clients,
    Configured,
    DrainClients,
    DrainRequest,
    MoveClients,
    Observe,
    SendPeer,
)
from migratory_protocol.messages import Server
from migratory_protocol.peer import Heartbeat, Load
from migratory_testing.brokers import Cluster
from migratory_testing.population import Population
from msgspec.structs import replace

CALM, ROUND = 10.0, 5.0
UP = 3.0  # seconds that a cluster is up already


def asked(cluster: Cluster, *names: str) -> int:
    return sum(effect.count for name in names or cluster.names for effect in cluster[name].of(MoveClients))


def calls(cluster: Cluster, name: str) -> list[list[tuple[str, int]]]:
    """What a broker asked the others for, heartbeat by heartbeat."""
    peer = next(other for other in cluster.names if other != name)
    loads = [
        message.load
        for sender, receiver, message in cluster.sent
        if isinstance(message, Heartbeat) and (sender, receiver) == (name, peer)
    ]
    return [load.calls for load in loads if load is not None and load.calls]


def uneven(**counts: int) -> tuple[Cluster, Population]:
    cluster = Cluster(tuple(counts)).up()
    return cluster, Population(cluster, **counts)


def hear(cluster: Cluster, name: str, peer: str, load: Load | None) -> None:
    """A heartbeat of `peer`, also while its own are held back."""
    hold, cluster.hold = cluster.hold, lambda sender, receiver, message: False
    cluster._carry_out(cluster[peer], SendPeer(name, Heartbeat(0.0, [], [], True, True, load)))
    cluster.settle()
    cluster.hold = hold


# ---- balance ---------------------------------------------------------------------------------------------------


def test_clients_come_out_even_and_then_nobody_moves() -> None:
    """RECEIVERS-CALL, GIVERS-CAP"""
    cluster, population = uneven(a=150, b=150, c=0)
    population.run(CALM - UP)
    assert asked(cluster) == 0
    population.run(30.0)
    counts = population.counts()
    assert max(counts.values()) <= 110
    assert asked(cluster) == sum(len(person.moves) for person in population.people) <= 100
    assert {len(person.moves) for person in population.people} <= {0, 1}
    before = asked(cluster)
    population.run(120.0)
    assert asked(cluster) == before
    assert [effect.value for name in "ab" for effect in cluster[name].of(Observe) if "moves" in effect.metric]


def test_a_round_is_bounded() -> None:
    """Ten clients a second are taken, or a hundredth of the share: an even pace at any size."""
    cluster, population = uneven(a=300, b=300, c=0)
    population.run(CALM + 1.0)
    assert calls(cluster, "c") == [[("a", 25), ("b", 25)]]
    (move,) = cluster["a"].of(MoveClients)
    assert move == MoveClients(0, 25, ROUND, Server("ws://c"))
    cluster.give("a", Clients(0, (60_000,)))
    cluster.run(1.0)
    cluster.give("b", Clients(0, (0,)))
    cluster.run(2.0)
    ((giver, count),) = calls(cluster, "b")[0]
    assert giver == "a"
    assert 1000 <= count <= 1010


def test_nobody_calls_without_need() -> None:
    cluster, population = uneven(a=109, b=100, c=91)
    population.run(60.0)
    assert (calls(cluster, "c"), asked(cluster)) == ([], 0)


@pytest.mark.parametrize("counts", [{"a": 2, "b": 1, "c": 0}, {"a": 0, "b": 1, "c": 1}, {"a": 5, "b": 0, "c": 0}])
def test_a_handful_is_spread_as_well_as_can_be(counts: dict[str, int]) -> None:
    _, population = uneven(**counts)
    population.until_rest(60.0, 300.0)
    spread = population.counts().values()
    assert max(spread) - min(spread) <= 1


def test_weights_are_respected() -> None:
    cluster = Cluster()
    for name, weight in (("a", 100), ("b", 50), ("c", 0)):
        cluster.config["weight"] = weight
        cluster.start(name)
    cluster.run(UP)
    population = Population(cluster, a=0, b=0, c=300)
    population.until_rest(60.0, 300.0)
    counts = population.counts()
    assert counts["c"] == 0
    assert counts["a"] <= 1.1 * 200
    assert counts["b"] <= 1.1 * 100


def test_those_that_moved_least_are_asked_first() -> None:
    _, population = uneven(a=150, b=150, c=0)
    for person in population.people[:100]:
        person.moves.append("before")
    population.tell()
    population.until_rest(20.0, 120.0)
    assert max(len(person.moves) for person in population.people) == 1


def test_what_an_edge_of_several_has_is_counted_and_asked_for_there() -> None:
    cluster = Cluster().up()
    for name, edges in (("a", {0: (40, 60), 1: (50,)}), ("b", {0: (150,)}), ("c", {})):
        for edge, by_moves in edges.items():
            cluster.give(name, Clients(edge, by_moves))
    cluster.run(CALM + 1.0)
    assert {(move.edge, move.count) for move in cluster["a"].of(MoveClients)} == {(0, 25)}
    cluster.give("a", Clients(1))
    cluster.settle()
    assert cluster.logic("a").moves.clients == 100


def test_several_calls_in_one_round_are_added_up() -> None:
    """GIVERS-CAP: whoever else gave, and how old the news were that they called by: it keeps its share."""
    cluster, population = uneven(a=200, b=50, c=50)
    for name in "bc":
        cluster.logic(name).moves._next_call = 1e9
    population.run(CALM)
    for peer in "bcbc":
        hear(cluster, "a", peer, Load(50, False, "", [("a", 1000), ("b", 7)]))
    assert asked(cluster, "a") == 95
    cluster.run(ROUND + 0.1)
    hear(cluster, "a", "b", Load(50, False, "", [("a", 3)]))  # those asked had their time, and are here still
    assert asked(cluster, "a") == 98


def test_rounds_that_bring_nobody_become_rare_and_balance_comes_all_the_same() -> None:
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


def test_nobody_moves_while_a_broker_is_away_and_then_not_at_once() -> None:
    """CALM-FIRST"""
    cluster, population = uneven(a=150, b=150, c=0, d=0)
    cluster.crash("d")
    population.run(40.0)
    assert asked(cluster) == 0
    assert "d" in cluster.logic("c").moves.waits_for
    cluster.start("d")
    population.run(CALM)
    assert asked(cluster) == 0
    population.run(CALM + 20.0)
    assert asked(cluster) > 0


def test_nobody_moves_while_one_leaves() -> None:
    """CALM-FIRST"""
    cluster, _ = uneven(a=150, b=150, c=0)
    cluster.give("b", DrainRequest(60.0))
    cluster.run(CALM + 20.0)
    assert asked(cluster) == 0
    assert "b" in cluster.logic("c").moves.waits_for


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (None, "says nothing"),
        (Load(150, True, ""), "leaves"),
        (Load(150, False, "next"), "another revision"),
    ],
)
def test_nobody_moves_while_one_is_other_than_the_rest(load: Load | None, why: str) -> None:
    """CALM-FIRST: an older broker, that says nothing of its clients, among them."""
    cluster, population = uneven(a=150, b=150, c=0)
    cluster.hold = lambda sender, receiver, message: sender == "b" and isinstance(message, Heartbeat)
    for _ in range(40):
        for name in "ac":
            hear(cluster, name, "b", load)
        cluster.run(0.5)
    assert asked(cluster) == 0
    assert why in cluster.logic("c").moves.waits_for
    assert population.counts()["c"] == 0


def test_nobody_moves_on_old_news_or_without_zookeeper() -> None:
    """CALM-FIRST"""
    cluster, population = uneven(a=150, b=150, c=0)
    population.run(CALM - UP - 3.0)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Heartbeat) and (sender, receiver) == ("b", "c")
    population.run(10.0)
    assert calls(cluster, "c") == []
    assert "says nothing" in cluster.logic("c").moves.waits_for
    cluster.hold = lambda sender, receiver, message: False
    cluster.zookeeper(False)
    population.run(30.0)
    assert calls(cluster, "c") == []
    hear(cluster, "a", "c", Load(0, False, "", [("a", 10)]))  # who is called looks for himself
    assert asked(cluster) == 0
    cluster.zookeeper(True)
    population.until_rest(20.0, 120.0)
    assert max(population.counts().values()) <= 110


def test_a_call_of_a_broker_without_an_address_is_not_heard() -> None:
    cluster, _ = uneven(a=150, b=150, c=0)
    live = cluster.logic("a").membership.live
    live["c"] = replace(live["c"], url="")
    hear(cluster, "a", "c", Load(0, False, "", [("a", 10)]))
    assert asked(cluster) == 0


def test_a_broker_that_is_not_configured_waits_to_leave() -> None:
    """CALM-FIRST: a cluster that shrinks. The others wait for it, and its clients go to those that stay."""
    cluster, population = uneven(a=60, b=60, c=60, d=60, e=60)
    for name in "abc":
        cluster.give(name, Configured(("a", "b", "c")))
    for name in "de":
        cluster.give(name, Configured(("a", "b", "c", name)))
    population.run(CALM + 10.0)
    assert asked(cluster) == 0
    for leaving in "ed":
        cluster.give(leaving, DrainRequest(10.0))
        population.run(12.0)
        cluster.crash(leaving)
        cluster.names = tuple(name for name in cluster.names if name != leaving)
    population.until_rest(20.0, 120.0)
    assert max(len(person.moves) for person in population.people) == 1
    assert max(population.counts().values()) <= 110


# ---- leaving ---------------------------------------------------------------------------------------------------


def drain(cluster: Cluster, name: str) -> tuple[Server, ...]:
    cluster.give(name, DrainRequest(20.0))
    cluster.run(3.0)
    (told,) = cluster[name].of(DrainClients)
    return told.servers


def test_clients_of_a_leaver_come_out_even() -> None:
    """UPDATED-FIRST: without revisions, to all that stay, by the room that they have."""
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
def test_a_leaver_sends_its_clients_to_those_of_another_revision(
    mine: str, theirs: dict[str, str], named: dict[str, int]
) -> None:
    """UPDATED-FIRST: even if the others had more room; those are drained next."""
    cluster = Cluster()
    for name, revision in {**theirs, "c": mine}.items():
        cluster.config["revision"] = revision
        cluster.start(name)
    cluster.run(UP)
    Population(cluster, a=80, b=20, c=100)
    cluster.run(1.0)
    assert {server.url: server.weight for server in drain(cluster, "c")} == named


def test_while_counts_are_unknown_weights_decide() -> None:
    cluster, _ = uneven(a=80, b=20, c=100)
    cluster.logic("c").membership.news.pop("a")
    cluster.hold = lambda sender, receiver, message: sender == "a" and isinstance(message, Heartbeat)
    assert drain(cluster, "c") == (Server("ws://a", 100), Server("ws://b", 100))


def test_a_leaver_without_clients_names_who_stays() -> None:
    cluster, _ = uneven(a=80, b=20, c=0)
    assert drain(cluster, "c") == (Server("ws://a", 100), Server("ws://b", 100))


@pytest.mark.parametrize("comes", [True, False])
def test_who_became_ready_just_now_is_waited_for_a_moment(comes: bool) -> None:
    """DRAIN-ORDER: whoever drains brokers one after the other knows sooner than ZooKeeper tells."""
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
    (told,) = cluster["c"].of(DrainClients)
    assert [server.url for server in told.servers] == ["ws://a", "ws://b"][: 1 + comes]


def test_those_that_leave_as_well_are_not_named() -> None:
    cluster, _ = uneven(a=60, b=60, c=60, d=60)
    cluster.hold = lambda sender, receiver, message: sender == "d" and isinstance(message, Heartbeat)
    hear(cluster, "c", "d", Load(60, True))  # its heartbeat is faster than ZooKeeper
    assert [server.url for server in drain(cluster, "c")] == ["ws://a", "ws://b"]


def rolled(cluster: Cluster, population: Population, name: str, revision: str) -> None:
    """Drained, and started again under another revision."""
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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("order", ["cba", "abc", "bca"])
def test_a_rolling_update_moves_nobody_more_than_twice(order: str, seed: int) -> None:
    """UPDATED-FIRST: 1/3 move, then 1/2 twice, then 1/3 come back: 5/3 of a move for each client. What is kept above
    the share, within the bound, saves some of it."""
    cluster = Cluster(revision="r1").up()
    population = Population(cluster, seed, a=60, b=60, c=60)
    for name in order:
        rolled(cluster, population, name, "r2")
        assert asked(cluster) == 0  # of this life; nobody is moved for balance in between
    population.until_rest(30.0, 200.0)
    moves = [len(person.moves) for person in population.people]
    assert max(moves) <= 2
    assert sum(moves) / len(moves) <= 1.7
    assert max(population.counts().values()) <= 1.15 * 60
    before = list(moves)
    population.run(60.0)
    assert [len(person.moves) for person in population.people] == before


def test_scaling_up_moves_nobody_twice() -> None:
    cluster, population = uneven(a=100, b=100, c=100)
    population.run(CALM)
    cluster.names = ("a", "b", "c", "d", "e")
    for name in "abc":
        cluster.give(name, Configured(cluster.names))
    cluster.start("d")
    population.run(25.0)
    assert asked(cluster, "a", "b", "c") == 0  # the fifth is on its way
    cluster.start("e")
    population.until_rest(30.0, 200.0)
    assert max(len(person.moves) for person in population.people) == 1
    assert max(population.counts().values()) <= 1.15 * 60
