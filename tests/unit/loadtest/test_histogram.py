"""Histogram: bounds, exactness of thresholds, quantiles, mean and deviation."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from migratory_loadtest.histogram import Histogram, bounds, nearest_rank
from migratory_resources.objectives import DEFAULT_OBJECTIVES


def test_bounds_are_a_series_of_ratio_1_05_from_1_ms_to_60_s_with_some_below() -> None:
    found = bounds()
    fine = [bound for bound in found if bound >= 1e-3]
    assert fine[0] == 1e-3
    assert fine[-1] == 60.0
    assert 227 <= len(fine) <= 236
    assert all(after / before < 1.0501 for before, after in itertools.pairwise(fine))
    assert 5 < len(found) - len(fine) < 20
    assert list(found) == sorted(set(found))


def test_a_threshold_is_a_bound_of_its_own_and_counts_exactly() -> None:
    histogram = Histogram(bounds([0.2, 75.0]))
    assert {0.2, 75.0} <= set(histogram.bounds)
    for value in (0.2, 0.2000001, 0.1999999, 70.0, 80.0):
        histogram.observe(value)
    place = histogram.bounds.index(0.2)
    assert sum(histogram.counts[: place + 1]) == 2
    assert sum(histogram.counts[: histogram.bounds.index(75.0) + 1]) == 4


def test_the_default_objectives_find_their_bounds_without_being_named() -> None:
    wanted = {bound for objective in DEFAULT_OBJECTIVES for bound in objective.thresholds}
    assert wanted
    assert wanted <= set(bounds())


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_a_threshold_that_is_no_duration_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        bounds([threshold])


def test_quantiles_are_within_four_and_a_half_per_cent_and_mean_and_deviation_are_exact() -> None:
    chance = random.Random(7)
    values = [min(59.0, 0.002 * math.exp(chance.gauss(2, 1.4))) for _ in range(20_000)]
    histogram = Histogram(bounds())
    for value in values:
        histogram.observe(value)
    for fraction in (0.5, 0.9, 0.95, 0.99):
        exact = nearest_rank(values, fraction)
        found = histogram.quantile(fraction)
        assert exact is not None
        assert found is not None
        assert abs(found / exact - 1) < 0.045
    assert histogram.mean() == pytest.approx(statistics.fmean(values))
    assert histogram.deviation() == pytest.approx(statistics.pstdev(values))
    assert histogram.largest == max(values)


def test_of_nothing_there_is_no_quantile_mean_or_deviation() -> None:
    histogram = Histogram(bounds())
    assert (histogram.quantile(0.5), histogram.mean(), histogram.deviation()) == (None, None, None)
    assert nearest_rank([], 0.5) is None


def test_above_the_last_bound_the_largest_value_answers() -> None:
    histogram = Histogram(bounds())
    histogram.observe(100.0, 3)
    assert histogram.quantile(0.99) == 100.0
    assert histogram.counts[-1] == 3


def test_no_quantile_exceeds_the_largest_value() -> None:
    histogram = Histogram(bounds())
    histogram.observe(0.010001, 10)
    assert histogram.quantile(0.99) == pytest.approx(0.010001, rel=0.045)
    quantile = histogram.quantile(1.0)
    assert quantile is not None
    assert quantile <= 0.010001


def test_addition_adds_everything_and_refuses_other_bounds() -> None:
    one, two = Histogram(bounds()), Histogram(bounds())
    one.observe(0.01)
    two.observe(0.5, 2)
    one.add(two)
    assert (one.count, one.total, one.largest) == (3, pytest.approx(1.01), 0.5)
    with pytest.raises(ValueError, match="different bounds"):
        one.add(Histogram(bounds([0.3])))


@pytest.mark.parametrize(("count", "fraction", "rank"), [(600, 0.9, 540), (600, 0.99, 594), (1, 0.5, 1), (10, 1.0, 10)])
def test_nearest_rank(count: int, fraction: float, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    random.Random(1).shuffle(values)
    assert nearest_rank(values, fraction) == rank
