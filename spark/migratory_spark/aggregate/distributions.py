"""Distributions of times, from histogram buckets: quantiles, mean and standard deviation.

A quantile is interpolated linearly in its bucket, as Prometheus' `histogram_quantile` does, so that reports and
dashboards agree. With bounds that rise by 5% it is off by at most 5%, whatever the distribution. Mean and deviation are
computed from exact sums. Exporters with different bounds are merged on the bounds that all of them have, without
interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

EventCounts = npt.NDArray[np.float64]
_EQUAL_SHARE = 1e-9
"""Relative difference up to which two bounds are equal: some are decimals in text, others products."""


@dataclass(slots=True, frozen=True)
class BucketCounts:
    """Cumulative buckets of exporters with the same bounds: `cumulative[i]` of `count` observations are at most
    `bounds[i]` (seconds, finite, sorted). `count` includes the observations above the highest bound."""

    bounds: tuple[float, ...]  # finite and sorted
    cumulative: EventCounts
    count: float

    @classmethod
    def from_increases(cls, bounds: tuple[float, ...], counts: EventCounts) -> BucketCounts:
        """Return the counts from the increases of cumulative buckets in the order of `bounds`, of which the last may be
        infinite.

        Increases of one scrape are consistent. Across a restart one bucket may be a scrape ahead of another, so a count
        is raised where a lower bucket holds more. `count` is the last bucket's, 0 without buckets.
        """
        rising = np.maximum.accumulate(counts) if len(counts) else counts
        finite = bounds[:-1] if bounds and math.isinf(bounds[-1]) else bounds
        return cls(finite, rising[: len(finite)], float(rising[-1]) if len(rising) else 0.0)

    def at_most(self, threshold: float) -> tuple[float, bool]:
        """Return the number of observations that are surely at or below `threshold` seconds, and whether the threshold
        is one of the bounds. If it is not, the bucket in which it lies counts as above."""
        index = int(np.searchsorted(np.asarray(self.bounds), threshold * (1 + _EQUAL_SHARE), side="right")) - 1
        if index < 0:
            return 0.0, False
        return float(self.cumulative[index]), math.isclose(self.bounds[index], threshold, rel_tol=_EQUAL_SHARE)

    def possibly_at_most(self, threshold: float) -> float:
        """Return the number of observations that may be at or below `threshold` seconds: the bucket in which the
        threshold lies counts as below. Above the highest bound these are all observations."""
        index = int(np.searchsorted(np.asarray(self.bounds), threshold * (1 - _EQUAL_SHARE), side="left"))
        return self.count if index == len(self.bounds) else float(self.cumulative[index])


@dataclass(frozen=True)
class Distribution:
    """A distribution of observations in seconds, from the buckets and sums of one or more exporters. `parts` has the
    buckets, one entry for each set of bounds or for each exporter.

    `sum` is the sum of the observations, `squares` the sum of their squares. Each is None if an exporter has no counter
    of it; then mean or deviation is unknown.
    """

    parts: tuple[BucketCounts, ...] = ()
    sum: float | None = 0.0
    squares: float | None = None

    @classmethod
    def from_cumulative(cls, cumulative: Mapping[float, float], total: float, squares: float | None) -> Distribution:
        """Return the distribution of one exporter's histogram: the number of observations by upper bound (`le`,
        seconds), their sum, and the sum of their squares."""
        bounds = tuple(sorted(cumulative))
        return cls(
            (BucketCounts.from_increases(bounds, np.array([cumulative[bound] for bound in bounds])),), total, squares
        )

    @classmethod
    def merged(cls, parts: Iterable[Distribution]) -> Distribution:
        """Return the distribution of all observations of `parts`. If a part has no sum or no sum of squares, the result
        has none. It has no sum of squares if there is no part."""
        distributions = list(parts)
        sums = [distribution.sum for distribution in distributions if distribution.sum is not None]
        squares = [distribution.squares for distribution in distributions if distribution.squares is not None]
        return cls(
            tuple(part for distribution in distributions for part in distribution.parts),
            math.fsum(sums) if len(sums) == len(distributions) else None,
            math.fsum(squares) if distributions and len(squares) == len(distributions) else None,
        )

    @property
    def count(self) -> float:
        """The number of observations that are in a bucket."""
        return sum(part.count for part in self.parts)

    @property
    def mean(self) -> float | None:
        """The mean in seconds, or None without observations or without a sum."""
        return self.sum / self.count if self.count and self.sum is not None else None

    @property
    def deviation(self) -> float | None:
        """The population standard deviation in seconds, exact up to rounding; None without observations, without a sum
        or without a sum of squares."""
        mean = self.mean
        if mean is None or self.squares is None:
            return None
        return math.sqrt(max(0.0, self.squares / self.count - mean**2))

    @cached_property
    def common(self) -> BucketCounts:
        """The counts of all parts together, on the finite bounds that each of them has. Parts without observations are
        left out. There may be no such bound; `count` is complete in any case."""
        counted = [part for part in self.parts if part.count]
        if not counted:
            return BucketCounts((), np.zeros(0), 0.0)
        shared = set.intersection(*(set(part.bounds) for part in counted))
        bounds = tuple(sorted(shared))
        total = np.zeros(len(bounds))
        for part in counted:
            indexes = [index for index, bound in enumerate(part.bounds) if bound in shared]
            total = total + part.cumulative[indexes]
        return BucketCounts(bounds, total, sum(part.count for part in counted))

    @property
    def note(self) -> str:
        """A sentence on how quantiles are computed if the exporters' buckets differ, else ""."""
        layouts = {part.bounds for part in self.parts if part.count}
        if len(layouts) < 2:
            return ""
        shared = len(self.common.bounds)
        if not shared:
            return "buckets differ and have no bound in common: quantiles can't be determined"
        return f"buckets differ: merged on the {shared} bound{'s' if shared > 1 else ''} that all exporters have"

    def at_most(self, threshold: float) -> tuple[float, bool]:
        """Return the number of observations that are surely at or below `threshold` seconds, and whether that is exact.

        It is exact if the threshold is a bound of every part that has observations, and if there are no observations.
        Otherwise the bucket in which the threshold lies counts as above.
        """
        counts = [part.at_most(threshold) for part in self.parts if part.count]
        return sum(count for count, _ in counts), all(exact for _, exact in counts)

    def possibly_at_most(self, threshold: float) -> float:
        """Return the number of observations that may be at or below `threshold` seconds; the same as `at_most` if that
        is exact."""
        return sum(part.possibly_at_most(threshold) for part in self.parts if part.count)

    def quantile(self, share: float) -> float | None:
        """Return the value in seconds that `share` (0 to 1) of the observations do not exceed.

        Return None without observations or without a common bound. Above the highest finite bound nothing is known;
        then that bound is returned, as a lower limit.
        """
        bucket = self._bucket(share)
        if bucket is None:
            return None
        lower, upper, part = bucket
        return lower if math.isinf(upper) else lower + (upper - lower) * part

    def bucket(self, share: float) -> tuple[float, float] | None:
        """Return lower and upper bound, in seconds, of the bucket that holds the quantile of `share` (0 to 1). The
        upper bound may be infinite. Return None if `quantile` does."""
        bucket = self._bucket(share)
        return None if bucket is None else bucket[:2]

    def _bucket(self, share: float) -> tuple[float, float, float] | None:
        """Return lower and upper bound, in seconds, of the bucket that holds the quantile of `share` (0 to 1), and how
        far the quantile lies from the lower to the upper one (0 to 1, assuming that observations are spread evenly). In
        the infinite bucket the lower bound is the highest finite one. Return None without observations or without a
        common bound."""
        common = self.common
        if not common.count or not common.bounds:
            return None
        rank = share * common.count
        # Rounded: 0.95 * 20 is a little more than 19.
        index = int(np.searchsorted(common.cumulative, round(rank, 9)))
        if index == len(common.bounds):
            return common.bounds[-1], math.inf, 0.0
        below = float(common.cumulative[index - 1]) if index else 0.0
        inside = float(common.cumulative[index]) - below
        lower = common.bounds[index - 1] if index else 0.0
        return lower, common.bounds[index], (rank - below) / inside if inside else 1.0

    @property
    def highest(self) -> float | None:
        """The upper bound in seconds of the highest bucket that is not empty. If that is the infinite bucket, the
        highest finite bound. None without observations or without a common bound."""
        common = self.common
        if not common.count or not common.bounds:
            return None
        index = int(np.searchsorted(common.cumulative, common.cumulative[-1]))
        return common.bounds[-1] if common.count > common.cumulative[-1] else common.bounds[index]


NOTHING = Distribution()
