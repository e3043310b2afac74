"""Quantiles, mean and deviation from buckets, compared with exact values."""

from __future__ import annotations

import math
import random

import pytest
from migratory_loadtest.histogram import Histogram, bucket_bounds, nearest_rank
from migratory_spark.aggregate.distributions import Distribution
from migratory_spark.report.sections import summary

BOUNDS = bucket_bounds([0.25])


def observed(values: list[float]) -> Distribution:
    """Return the distribution that is read from the buckets and sums that a load generator exports for these values."""
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    below, cumulative = 0, {}
    for bound, count in zip([*histogram.bounds, math.inf], histogram.counts, strict=True):
        below += count
        cumulative[bound] = float(below)
    return Distribution.from_cumulative(cumulative, histogram.total, histogram.squares)


def drawn(source: random.Random) -> list[float]:
    """Return random values in seconds between 1 ms and 60 s, whose distribution is log-normal, uniform, long-tailed,
    bimodal or stepped, or which are only a few."""
    middle = 10 ** source.uniform(-2.7, 1.2)
    count = source.randint(20, 600)
    match source.randrange(6):
        case 0:
            values = [source.lognormvariate(math.log(middle), source.uniform(0.01, 1.5)) for _ in range(count)]
        case 1:
            values = [source.uniform(0.001, middle) for _ in range(count)]
        case 2:
            values = [middle * source.paretovariate(source.uniform(0.5, 3)) for _ in range(count)]
        case 3:
            values = [source.choice((middle, middle * 40)) * source.uniform(0.9, 1.1) for _ in range(count)]
        case 4:
            values = [middle * source.choice((1, 2, 5)) for _ in range(count)]
        case _:
            values = [source.uniform(0.001, 60) for _ in range(source.randint(1, 5))]
    return [min(60.0, max(0.001, value)) for value in values]


@pytest.mark.parametrize("seed", range(400))
def test_quantiles_are_within_five_percent_of_exact_ones(seed: int) -> None:
    values = drawn(random.Random(f"distribution {seed}"))
    distribution = observed(values)
    for share in (0.5, 0.9, 0.95, 0.99):
        exact = nearest_rank(values, share)
        assert exact is not None
        # Bounds are written with six digits: their ratio is 1.05 to five of them.
        assert distribution.quantile(share) == pytest.approx(exact, rel=0.0501)
    assert distribution.mean == pytest.approx(sum(values) / len(values))
    assert distribution.count == len(values)


def test_mean_and_deviation_are_exact() -> None:
    distribution = observed([0.010, 0.020, 0.030])
    assert distribution.mean == pytest.approx(0.020)
    assert distribution.deviation == pytest.approx(math.sqrt(2 / 3) * 0.010)


def test_without_observations_every_figure_is_none() -> None:
    for empty in (observed([]), Distribution()):
        assert empty.quantile(0.5) is None
        assert empty.mean is None
        assert empty.deviation is None
        columns = summary(empty, 1000.0)
        assert (columns.count, columns.median, columns.mean, columns.stdev, columns.p99, columns.max) == (0,) + 5 * (
            None,
        )


def test_above_every_bound_the_highest_bound_is_a_lower_limit() -> None:
    distribution = observed([100.0])
    assert distribution.quantile(0.5) == 60.0
    assert distribution.highest == 60.0
    assert summary(distribution, 1.0, whole=True).median_bucket == (60.0, None)


def test_thresholds_between_bounds_count_conservatively() -> None:
    distribution = Distribution.from_cumulative({0.1: 5, 0.25: 8, math.inf: 10}, 2.0, 1.0)
    assert distribution.at_most(0.25) == (8, True)
    assert distribution.at_most(0.2) == (5, False)
    assert distribution.at_most(0.01) == (0, False)


def test_buckets_of_different_scrapes_give_no_negative_count() -> None:
    distribution = Distribution.from_cumulative({0.1: 6, 0.25: 5, math.inf: 10}, 2.0, None)
    assert list(distribution.common.cumulative) == [6, 6]


def test_distributions_add_up() -> None:
    both = Distribution.merged([observed([0.01, 0.02]), observed([0.02])])
    assert both.count == 3
    assert both.sum == pytest.approx(0.05)
    assert both.note == ""


def test_without_a_counter_of_squares_there_is_no_deviation() -> None:
    unknown = Distribution.from_cumulative({0.1: 5, math.inf: 10}, 2.0, None)
    assert unknown.deviation is None
    assert Distribution.merged([unknown, observed([0.01])]).deviation is None
    assert summary(unknown, 1.0).stdev is None


class TestDifferentBuckets:
    """The merge of exporters of two releases whose histograms have different buckets (case A18)."""

    first = Distribution.from_cumulative({0.01: 600, 0.025: 900, 0.05: 980, 0.1: 1000, math.inf: 1000}, 20.0, None)
    second = Distribution.from_cumulative({0.01: 100, 0.05: 700, 0.1: 990, math.inf: 1000}, 40.0, None)
    third = Distribution.from_cumulative({math.inf: 1000}, 50.0, None)

    def test_different_buckets_are_merged_on_the_common_bounds(self) -> None:
        merged = Distribution.merged([self.first, self.second])
        assert merged.common.bounds == (0.01, 0.05, 0.1)
        assert list(merged.common.cumulative) == [700, 1680, 1990]
        assert merged.count == 2000
        for share, value in ((0.5, 0.0222449), (0.9, 0.0693548), (0.95, 0.0854839), (0.99, 0.0983871)):
            assert merged.quantile(share) == pytest.approx(value, abs=5e-8)
        assert merged.bucket(0.5) == (0.01, 0.05)
        assert "buckets differ: merged on the 3 bounds" in merged.note

    def test_quantiles_are_none_without_a_common_bound(self) -> None:
        merged = Distribution.merged([self.first, self.second, self.third])
        assert merged.count == 3000
        assert merged.quantile(0.5) is None
        assert merged.highest is None
        assert merged.mean == pytest.approx(110 / 3000)
        assert "can't be determined" in merged.note

    def test_threshold_is_counted_with_the_bounds_of_each_exporter(self) -> None:
        merged = Distribution.merged([self.first, self.second])
        assert merged.at_most(0.05) == (1680, True)
        assert merged.at_most(0.025) == (1000, False)

    def test_exporter_without_observations_is_left_out(self) -> None:
        silent = Distribution.from_cumulative({math.inf: 0}, 0.0, None)
        assert Distribution.merged([self.first, silent]).quantile(0.5) is not None
