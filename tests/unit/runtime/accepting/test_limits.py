"""The limits of accepting: few connections per turn, more only when turns are long for other reasons, and eviction
of unidentified connections."""

from __future__ import annotations

import pytest
from migratory_broker.runtime.accepting.limits import (
    CONNECTION_COST,
    MAX_ACCEPTS,
    MIN_ACCEPTS,
    AcceptBudget,
    UnidentifiedConnections,
    host_of,
)


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def turns(other: float, count: int, cost: float = CONNECTION_COST) -> list[int]:
    """Return the number of connections accepted in each of `count` turns. Each turn also has `other` seconds of
    other work; a connection costs `cost` seconds, and there are always more waiting."""
    clock = Clock()
    intake = AcceptBudget(clock)
    taken = []
    for _ in range(count):
        taken.append(intake.allowance())
        intake.end_turn(True)
        clock.now += other + taken[-1] * cost
    return taken


def test_the_budget_keeps_turns_short_without_other_work() -> None:
    assert turns(0.0001, 50) == [MIN_ACCEPTS] * 50


@pytest.mark.parametrize("cost", [CONNECTION_COST / 2, CONNECTION_COST, 2 * CONNECTION_COST])
@pytest.mark.parametrize("other", [0.01, 0.02, 0.1, 1.0])
def test_the_budget_is_at_most_half_of_a_turn_beside_other_work(other: float, cost: float) -> None:
    *_, taken = turns(other, 100, cost)
    assert min(MAX_ACCEPTS, int(other / 16 / cost)) <= taken <= MAX_ACCEPTS
    assert taken <= max(MIN_ACCEPTS, other / cost)


def test_the_budget_ignores_time_without_waiting_connections() -> None:
    clock = Clock()
    intake = AcceptBudget(clock)
    intake.end_turn(True)
    clock.now += 1.0
    assert intake.allowance() == MAX_ACCEPTS
    intake.end_turn(False)
    clock.now += 1.0
    assert intake.allowance() == MIN_ACCEPTS


def test_the_oldest_connection_is_evicted_at_the_limit() -> None:
    unidentified: UnidentifiedConnections[int] = UnidentifiedConnections(3)
    assert [unidentified.add(number, "here") for number in range(5)] == [None, None, None, 0, 1]
    assert list(unidentified) == [2, 3, 4]


def test_a_discarded_connection_frees_its_place() -> None:
    unidentified: UnidentifiedConnections[int] = UnidentifiedConnections(2)
    unidentified.add(1, "here")
    unidentified.add(2, "here")
    assert unidentified.discard(1)
    assert not unidentified.discard(1)
    assert unidentified.add(3, "here") is None
    assert len(unidentified) == 2


def test_the_host_with_the_most_connections_is_evicted_from() -> None:
    unidentified: UnidentifiedConnections[int] = UnidentifiedConnections(4)
    unidentified.add(1, "a broker's")
    for number in (2, 3, 4):
        unidentified.add(number, "somebody's")
    assert unidentified.add(5, "another broker's") == 2
    assert unidentified.add(6, "somebody's") == 3
    assert list(unidentified) == [1, 4, 5, 6]


def test_connections_without_an_address_count_as_one_host() -> None:
    assert host_of(None) == "unknown"
