"""Medians with spread, ratios within a round, slopes, and the order of interleaved rounds."""

from __future__ import annotations

import pytest

from benchmarks.comparison import interleaved
from benchmarks.stats import ratios, round_stats, slope


def test_round_stats_have_median_and_spread() -> None:
    stats = round_stats([3.0, 1.0, 2.0])
    assert (stats.median, stats.low, stats.high, stats.values) == (2.0, 1.0, 3.0, [3.0, 1.0, 2.0])
    assert round_stats([1.0, 2.0]).median == 1.5
    with pytest.raises(ValueError, match="no round"):
        round_stats([])


def test_ratios_are_taken_within_each_round() -> None:
    # one round in which the machine was ten times slower for both: between medians it would not cancel
    stats = ratios([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert stats is not None
    assert stats.values == [2.0, 2.0, 3.0]
    assert stats.median == 2.0
    assert ratios([1.0], [0.0]) is None


def test_slope_is_the_least_squares_slope() -> None:
    assert slope([1.0, 3.0, 5.0, 7.0]) == pytest.approx(2.0)
    assert slope([5.0, 5.0, 5.0]) == 0.0
    assert slope([4.0]) == 0.0


async def test_interleaved_rounds_rotate_the_order() -> None:
    order: list[str] = []

    def part(name: str):  # type: ignore[no-untyped-def]
        async def run() -> int:
            order.append(name)
            return len(order)

        return run

    rounds: list[tuple[int, list[str]]] = []
    results = await interleaved(
        3, {name: part(name) for name in "abc"}, lambda number, results: rounds.append((number, list(results)))
    )
    assert "".join(order) == "abcbcacab"
    assert results == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}
    assert rounds == [(1, ["a", "b", "c"]), (2, ["a", "b", "c"]), (3, ["a", "b", "c"])]
