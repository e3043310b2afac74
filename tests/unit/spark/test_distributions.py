"""Quantiles, mean and deviation from buckets, against exact values."""

from __future__ import annotations

import math
import random
from bisect import bisect_left

import pytest
from migratory_spark.distributions import Distribution, summary

BOUNDS = [0.001 * 1.05**step for step in range(227)] + [math.inf]


def observed(values: list[float]) -> Distribution:
    cumulative = dict.fromkeys(BOUNDS, 0.0)
    for value in values:
        for bound in BOUNDS[bisect_left(BOUNDS, value) :]:
            cumulative[bound] += 1
    return Distribution.from_cumulative(cumulative, sum(values), sum(value * value for value in values))


@pytest.mark.parametrize("seed", range(40))
def test_quantiles_are_within_five_percent_of_exact_ones(seed: int) -> None:
    random_source = random.Random(seed)
    middle = 10 ** random_source.uniform(-2.5, 1)
    values = [min(59.0, max(0.001, random_source.lognormvariate(math.log(middle), 0.7))) for _ in range(500)]
    distribution = observed(values)
    ordered = sorted(values)
    for share in (0.5, 0.9, 0.95, 0.99):
        exact = ordered[math.ceil(share * len(ordered)) - 1]
        assert distribution.quantile(share, BOUNDS) == pytest.approx(exact, rel=0.05)


def test_mean_and_deviation_are_exact() -> None:
    distribution = observed([0.010, 0.020, 0.030])
    assert distribution.mean == pytest.approx(0.020)
    assert distribution.deviation == pytest.approx(math.sqrt(2 / 3) * 0.010)


def test_nothing_observed_is_none_and_never_nan() -> None:
    empty = observed([])
    assert empty.quantile(0.5, BOUNDS) is None
    assert empty.mean is None
    assert empty.deviation is None
    assert summary(empty, BOUNDS, 1000.0) == {
        "count": 0, "median": None, "mean": None, "stdev": None, "p90": None, "p95": None, "p99": None, "max": None,
    }  # fmt: skip


def test_above_every_bound_the_highest_bound_is_a_lower_limit() -> None:
    assert observed([100.0]).quantile(0.5, BOUNDS) == pytest.approx(BOUNDS[-2])


def test_a_threshold_that_is_a_bound_is_counted_exactly_and_another_conservatively() -> None:
    distribution = Distribution.from_cumulative({0.1: 5, 0.25: 8, math.inf: 10}, 2.0, 1.0)
    assert distribution.at_most(0.25, [0.1, 0.25, math.inf]) == (8, True)
    assert distribution.at_most(0.2, [0.1, 0.25, math.inf]) == (5, False)


def test_distributions_add_up() -> None:
    both = observed([0.01, 0.02]) + observed([0.02])
    assert both.count == 3
    assert both.sum == pytest.approx(0.05)


def test_without_a_counter_of_squares_there_is_no_deviation() -> None:
    unknown = Distribution.from_cumulative({0.1: 5, math.inf: 10}, 2.0, None)
    assert unknown.deviation is None
    assert (unknown + observed([0.01])).deviation is None
    assert summary(unknown, [0.1, math.inf], 1.0)["stdev"] is None
