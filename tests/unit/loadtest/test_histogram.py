"""The latency histogram: bounds, exact thresholds, quantiles, mean and deviation."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from migratory_loadtest.histogram import Histogram, bucket_bounds, nearest_rank
from migratory_resources.objectives import DEFAULT_OBJECTIVES


def test_bounds_are_a_series_of_ratio_1_05_from_1_ms_to_60_s_with_some_below() -> None:
    bounds = bucket_bounds()
    fine = [bound for bound in bounds if bound >= 1e-3]
    assert fine[0] == 1e-3
    assert fine[-1] == 60.0
    assert 227 <= len(fine) <= 236
    assert all(after / before < 1.0501 for before, after in itertools.pairwise(fine))
    assert 5 < len(bounds) - len(fine) < 20
    assert list(bounds) == sorted(set(bounds))


def test_threshold_is_an_exact_bound() -> None:
    histogram = Histogram(bucket_bounds([0.2, 75.0]))
    assert {0.2, 75.0} <= set(histogram.bounds)
    for value in (0.2, 0.2000001, 0.1999999, 70.0, 80.0):
        histogram.observe(value)
    bucket = histogram.bounds.index(0.2)
    assert sum(histogram.counts[: bucket + 1]) == 2
    assert sum(histogram.counts[: histogram.bounds.index(75.0) + 1]) == 4


def test_thresholds_of_the_default_objectives_are_bounds() -> None:
    thresholds = {bound for objective in DEFAULT_OBJECTIVES for bound in objective.thresholds}
    assert thresholds
    assert thresholds <= set(bucket_bounds())


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_threshold_that_is_not_positive_and_finite_is_an_error(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        bucket_bounds([threshold])


def test_quantiles_are_within_four_and_a_half_per_cent_and_mean_and_deviation_are_exact() -> None:
    rng = random.Random(7)
    values = [min(59.0, 0.002 * math.exp(rng.gauss(2, 1.4))) for _ in range(20_000)]
    histogram = Histogram(bucket_bounds())
    for value in values:
        histogram.observe(value)
    for fraction in (0.5, 0.9, 0.95, 0.99):
        exact = nearest_rank(values, fraction)
        quantile = histogram.quantile(fraction)
        assert exact is not None
        assert quantile is not None
        assert abs(quantile / exact - 1) < 0.045
    assert histogram.mean() == pytest.approx(statistics.fmean(values))
    assert histogram.deviation() == pytest.approx(statistics.pstdev(values))
    assert histogram.largest == max(values)


def test_empty_histogram_has_no_quantile_mean_or_deviation() -> None:
    histogram = Histogram(bucket_bounds())
    assert (histogram.quantile(0.5), histogram.mean(), histogram.deviation()) == (None, None, None)
    assert nearest_rank([], 0.5) is None


def test_quantile_above_the_last_bound_is_the_largest_value() -> None:
    histogram = Histogram(bucket_bounds())
    histogram.observe(100.0, 3)
    assert histogram.quantile(0.99) == 100.0
    assert histogram.counts[-1] == 3


def test_no_quantile_exceeds_the_largest_value() -> None:
    histogram = Histogram(bucket_bounds())
    histogram.observe(0.010001, 10)
    assert histogram.quantile(0.99) == pytest.approx(0.010001, rel=0.045)
    quantile = histogram.quantile(1.0)
    assert quantile is not None
    assert quantile <= 0.010001


def test_add_needs_the_same_bounds() -> None:
    first, second = Histogram(bucket_bounds()), Histogram(bucket_bounds())
    first.observe(0.01)
    second.observe(0.5, 2)
    first.add(second)
    assert (first.count, first.total, first.largest) == (3, pytest.approx(1.01), 0.5)
    with pytest.raises(ValueError, match="different bounds"):
        first.add(Histogram(bucket_bounds([0.3])))


@pytest.mark.parametrize(("count", "fraction", "rank"), [(600, 0.9, 540), (600, 0.99, 594), (1, 0.5, 1), (10, 1.0, 10)])
def test_nearest_rank_rounds_before_it_takes_the_ceiling(count: int, fraction: float, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    random.Random(1).shuffle(values)
    assert nearest_rank(values, fraction) == rank
