"""Histogram buckets to quantiles, mean and deviation.

A quantile is placed in its bucket in proportion, as Prometheus' `histogram_quantile` does, so that reports and
dashboards agree. With bounds that rise by 5% it is off by at most 5%, whatever the distribution. Mean and deviation
come from exact sums. Exporters with different bounds are merged on those that all of them have; nothing is made up
between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]
_SAME = 1e-9
"""Bounds are decimals in text on one side and products on the other: equal within this share."""


@dataclass(slots=True, frozen=True)
class Part:
    """What exporters with the same bounds counted: `cumulative[i]` observations at or below `bounds[i]`, of `count`."""

    bounds: tuple[float, ...]  # finite ones, rising
    cumulative: Counts
    count: float

    @classmethod
    def of(cls, bounds: tuple[float, ...], counts: Counts) -> Part:
        """From the rises of buckets in the order of `bounds`, of which the last may be infinite.

        Rises of one scrape are consistent. Across a restart one bucket may be a scrape ahead of another: a higher
        bucket never holds less.
        """
        rising = np.maximum.accumulate(counts) if len(counts) else counts
        finite = bounds[:-1] if bounds and math.isinf(bounds[-1]) else bounds
        return cls(finite, rising[: len(finite)], float(rising[-1]) if len(rising) else 0.0)

    def at_most(self, threshold: float) -> tuple[float, bool]:
        place = int(np.searchsorted(np.asarray(self.bounds), threshold * (1 + _SAME), side="right")) - 1
        if place < 0:
            return 0.0, False
        return float(self.cumulative[place]), math.isclose(self.bounds[place], threshold, rel_tol=_SAME)

    def at_best(self, threshold: float) -> float:
        """Those that may be at or below `threshold`: the bucket that holds it counts as below."""
        place = int(np.searchsorted(np.asarray(self.bounds), threshold * (1 - _SAME), side="left"))
        return self.count if place == len(self.bounds) else float(self.cumulative[place])


@dataclass(frozen=True)
class Distribution:
    """Observations in seconds. `squares` is None where no counter of squares is exported: the deviation is unknown
    then."""

    parts: tuple[Part, ...] = ()
    sum: float = 0.0
    squares: float | None = None

    @classmethod
    def from_cumulative(cls, cumulative: Mapping[float, float], total: float, squares: float | None) -> Distribution:
        """From one exporter's `le` buckets, each of which counts all observations at or below its bound."""
        bounds = tuple(sorted(cumulative))
        return cls((Part.of(bounds, np.array([cumulative[bound] for bound in bounds])),), total, squares)

    @classmethod
    def merged(cls, several: Iterable[Distribution]) -> Distribution:
        found = list(several)
        known = [each.squares for each in found if each.squares is not None]
        return cls(
            tuple(part for each in found for part in each.parts),
            math.fsum(each.sum for each in found),
            math.fsum(known) if found and len(known) == len(found) else None,
        )

    @property
    def count(self) -> float:
        return sum(part.count for part in self.parts)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    @property
    def deviation(self) -> float | None:
        """Population standard deviation; the squares' counter makes it exact up to rounding, and without it there is
        none."""
        count = self.count
        if not count or self.squares is None:
            return None
        return math.sqrt(max(0.0, self.squares / count - (self.sum / count) ** 2))

    @cached_property
    def common(self) -> Part:
        """All parts on the finite bounds that each of them has."""
        counted = [part for part in self.parts if part.count]
        if not counted:
            return Part((), np.zeros(0), 0.0)
        shared = set.intersection(*(set(part.bounds) for part in counted))
        bounds = tuple(sorted(shared))
        total = np.zeros(len(bounds))
        for part in counted:
            places = [place for place, bound in enumerate(part.bounds) if bound in shared]
            total = total + part.cumulative[places]
        return Part(bounds, total, sum(part.count for part in counted))

    @property
    def note(self) -> str:
        """What quantiles rest on, where exporters' buckets differ."""
        layouts = {part.bounds for part in self.parts if part.count}
        if len(layouts) < 2:
            return ""
        shared = len(self.common.bounds)
        if not shared:
            return "buckets differ and have no bound in common: quantiles can't be determined"
        return f"buckets differ: merged on the {shared} bound{'s' if shared > 1 else ''} that all exporters have"

    def at_most(self, threshold: float) -> tuple[float, bool]:
        """Observations at or below `threshold`, and whether that is exact: it is where the threshold is a bound of
        every exporter's histogram; otherwise the bucket that holds it counts as above it."""
        found = [part.at_most(threshold) for part in self.parts if part.count]
        return sum(count for count, _ in found), all(exact for _, exact in found)

    def at_best(self, threshold: float) -> float:
        """Observations that may be at or below `threshold`: as many as `at_most` where that is exact."""
        return sum(part.at_best(threshold) for part in self.parts if part.count)

    def quantile(self, share: float) -> float | None:
        """The value that `share` (0..1) of the observations do not exceed, in seconds.

        None without observations and without a common bound. Above the highest finite bound nothing is known: the
        answer is that bound, a lower limit.
        """
        found = self._bucket(share)
        if found is None:
            return None
        lower, upper, part = found
        return lower if math.isinf(upper) else lower + (upper - lower) * part

    def bucket(self, share: float) -> tuple[float, float] | None:
        """The bucket (above, at most] that holds the quantile."""
        found = self._bucket(share)
        return None if found is None else found[:2]

    def _bucket(self, share: float) -> tuple[float, float, float] | None:
        common = self.common
        if not common.count or not common.bounds:
            return None
        rank = share * common.count
        # Rounded: 0.95 * 20 is a little more than 19.
        place = int(np.searchsorted(common.cumulative, round(rank, 9)))
        if place == len(common.bounds):
            return common.bounds[-1], math.inf, 0.0
        below = float(common.cumulative[place - 1]) if place else 0.0
        inside = float(common.cumulative[place]) - below
        lower = common.bounds[place - 1] if place else 0.0
        return lower, common.bounds[place], (rank - below) / inside if inside else 1.0

    @property
    def highest(self) -> float | None:
        """The upper bound of the highest bucket that holds something; the highest finite bound where that has none."""
        common = self.common
        if not common.count or not common.bounds:
            return None
        full = int(np.searchsorted(common.cumulative, common.cumulative[-1]))
        return common.bounds[-1] if common.count > common.cumulative[-1] else common.bounds[full]


NOTHING = Distribution()
