"""The arithmetic of client balance: from any distribution, with numbers of any age, clients end up even, and then
none moves."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest
from migratory_broker.core.logic.balancing.shares import (
    HIGH,
    BrokerLoad,
    least_moved,
    requests,
    room,
    shares,
    surplus,
    targets,
)

MANY = 10**9


def loads(**clients: int) -> dict[str, BrokerLoad]:
    return {name: BrokerLoad(100, count) for name, count in clients.items()}


def test_shares_follow_the_weights() -> None:
    assert shares({"a": BrokerLoad(100, 60), "b": BrokerLoad(50, 0), "c": BrokerLoad(0, 30)}) == {
        "a": 60.0,
        "b": 30.0,
        "c": 0.0,
    }
    assert shares({"a": BrokerLoad(0, 5), "b": BrokerLoad(0, 7)}) == {"a": 0.0, "b": 0.0}
    assert shares(loads(a=0, b=0)) == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize(
    ("clients", "share", "gives"),
    [(110, 100.0, 0), (111, 100.0, 6), (150, 100.0, 45), (100, 100.0, 0),
     (2, 1.0, 1), (2, 4 / 3, 0), (3, 4 / 3, 1), (5, 0.0, 5)],
)  # fmt: skip
def test_broker_far_above_its_share_gives_down_to_slightly_above(clients: int, share: float, gives: int) -> None:
    assert surplus(clients, share) == gives


def test_room_ends_at_the_share_rounded_up() -> None:
    assert [room(clients, 4 / 3) for clients in range(4)] == [2, 1, 0, 0]


def test_requests_divide_the_surplus() -> None:
    """An empty broker requests from each other broker a part of the surplus, up to the limit of a round; brokers
    with their share or more, or nearly, request nothing."""
    three = loads(a=150, b=150, c=0)
    assert requests("c", three, MANY) == [("a", 45), ("b", 45)]
    assert requests("c", three, 50) == [("a", 25), ("b", 25)]
    assert requests("a", three, MANY) == []
    five = loads(a=100, b=100, c=100, d=0, e=0)
    for name in "de":
        assert requests(name, five, MANY) == [("a", 19), ("b", 19), ("c", 18)]
    assert requests("c", loads(a=100, b=105, c=95), MANY) == []


def test_requests_go_to_the_largest_surplus_first() -> None:
    assert requests("c", loads(a=400, b=900, c=0, d=100), 100) == [("b", 95), ("a", 5)]
    assert requests("c", loads(a=400, b=900, c=0, d=100), 10) == [("b", 10)]


def test_targets_make_the_receivers_even() -> None:
    """The clients of a draining broker are divided so that the remaining brokers become even, by their weights; a
    broker that is too full gets none, and without clients nobody gets any."""
    assert targets(100, loads(a=100, b=100)) == {"a": 50, "b": 50}
    assert targets(150, loads(b=0, c=150)) == {"b": 150}
    assert targets(140, loads(b=10, c=150)) == {"b": 140}
    assert targets(0, loads(a=10, b=10)) == {}
    assert targets(90, {"a": BrokerLoad(100, 0), "b": BrokerLoad(50, 0), "c": BrokerLoad(0, 0)}) == {"a": 60, "b": 30}


def test_least_moved_clients_are_chosen_over_all_edges() -> None:
    edges = {2: (3, 1, 0), 0: (1, 5), 7: ()}
    assert least_moved(edges, 4) == {0: 1, 2: 3}
    assert least_moved(edges, 6) == {0: 3, 2: 3}
    assert least_moved(edges, 100) == {0: 6, 2: 4}
    assert least_moved({}, 5) == {}


def play(random: Random, counts: dict[str, int], weights: dict[str, int], age: int) -> int:
    """Run rounds until no broker requests clients, and fail after 300. Each broker knows the numbers of the others
    from up to `age` rounds ago. Return the number of moves, and leave the last counts in `counts`."""
    history = [dict(counts)]
    moved = quiet = rounds = 0
    while quiet <= age:
        rounds += 1
        assert rounds < 300, f"never at rest: {counts}"
        called = []
        for name, own in counts.items():
            news = random.choice(history[-1 - age :])
            loads = {other: BrokerLoad(weights[other], news[other]) for other in counts}
            loads[name] = BrokerLoad(weights[name], own)
            called += [(name, other, count) for other, count in requests(name, loads, random.choice((MANY, 7)))]
        random.shuffle(called)
        before = dict(counts)
        for receiver, giver, count in called:
            news = random.choice(history[-1 - age :])
            loads = {other: BrokerLoad(weights[other], news[other]) for other in counts}
            loads[giver] = BrokerLoad(weights[giver], counts[giver])
            given = min(count, surplus(counts[giver], shares(loads)[giver]))
            counts[giver] -= given
            counts[receiver] += given
            moved += given
        quiet = quiet + 1 if before == counts else 0
        history.append(dict(counts))
    return moved


@pytest.mark.unmeasured
@pytest.mark.parametrize("age", [0, 1, 4])
def test_any_cluster_comes_to_rest_and_stays_even(age: int) -> None:
    for seed in range(300):
        random = Random(seed)
        names = [f"b{number}" for number in range(random.randint(2, 9))]
        weights = {name: random.choice((100, 100, 100, 50, 10, 0)) for name in names}
        most = random.choice((3, 30, 3000))
        counts = {name: random.randint(0, most) * random.choice((0, 1)) for name in names}
        total = sum(counts.values())
        play(random, counts, weights, age)
        assert sum(counts.values()) == total
        if any(weights.values()):
            wanted = shares({name: BrokerLoad(weights[name], counts[name]) for name in names})
            for name in names:
                assert counts[name] <= max(HIGH * wanted[name], ceil(wanted[name])), (seed, counts, wanted)
        assert play(random, counts, weights, 0) == 0


def test_no_needless_moves_with_fresh_numbers() -> None:
    """With current numbers, clients only move from brokers above their share: no more moves happen than there are
    clients above the shares at the start."""
    for seed in range(200):
        random = Random(seed)
        counts = {f"b{number}": random.randint(0, 500) for number in range(random.randint(2, 9))}
        weights = dict.fromkeys(counts, 100)
        share = sum(counts.values()) / len(counts)
        too_many = sum(max(0, count - int(share)) for count in counts.values())
        assert play(random, counts, weights, 0) <= too_many
