"""The accept budget: few connections a turn, and more only when turns are long for other reasons."""

from __future__ import annotations

import pytest
from migratory_broker.runtime.accepting.limits import CONNECTION_COST, MAX_ACCEPTS, MIN_ACCEPTS, AcceptBudget


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def turns(other: float, count: int, cost: float = CONNECTION_COST) -> list[int]:
    """Return the connections accepted in each turn, with these seconds of other work in each; more always wait."""
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
