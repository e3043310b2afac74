"""A latency histogram: cheap to observe, exact at the thresholds of objectives, and fine enough for percentiles.

The bounds form a geometric series of ratio 1.05 from 1 ms to 60 s (quantiles by log interpolation are within 4.5%) and
a coarser one below 1 ms. Every objective's threshold is an exact bound, and so are the usual ones: alert rules that
were written before a run name buckets, which must exist. Mean and standard deviation are exact, from the sum and the
sum of squares. All values are in seconds.

prometheus_client's histogram is not used: it scans its bounds for every observation (here it is a `bisect`), and it has
no quantiles, no sum of squares and no merging of several workers' histograms. docs/dependencies.md has the figures.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

LOWEST, MILLISECOND, HIGHEST = 50e-6, 1e-3, 60.0
"""Seconds: the lowest bound, the start of the fine series, and the highest bound."""
RATIO, COARSE_RATIO = 1.05, 1.3
"""Ratio of neighbouring bounds from 1 ms on, and below it, where no objective looks."""
USUAL_THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds: the thresholds of the default objectives, and round ones that objectives often have."""


def bucket_bounds(thresholds: Iterable[float] = ()) -> tuple[float, ...]:
    """Return the upper bounds of the buckets in seconds, ascending and without +Inf.

    :param thresholds: seconds that must be exact bounds.
    :raises ValueError: a threshold is not above 0 and finite.
    """
    bounds: set[float] = set()
    steps = math.ceil(math.log(HIGHEST / MILLISECOND) / math.log(RATIO))
    bounds.update(float(f"{MILLISECOND * RATIO**step:.6g}") for step in range(steps))
    bounds.add(HIGHEST)
    steps = math.ceil(math.log(MILLISECOND / LOWEST) / math.log(COARSE_RATIO))
    bounds.update(float(f"{LOWEST * COARSE_RATIO**step:.6g}") for step in range(steps))
    for threshold in (*USUAL_THRESHOLDS, *thresholds):
        if not 0 < threshold < math.inf:
            raise ValueError(f"latency threshold: {threshold} is not allowed; use a finite number of seconds above 0")
        bounds.add(float(threshold))
    return tuple(sorted(bounds))


class Histogram:
    """A histogram of values in seconds.

    `counts[i]` is the number of values in (bounds[i-1], bounds[i]]; the last count is of those above every bound.
    `total` is the sum of the values, `squares` that of their squares, and `largest` the largest value, 0 without
    values.
    """

    __slots__ = ("bounds", "counts", "largest", "squares", "total")

    def __init__(self, upper: Sequence[float]) -> None:
        self.bounds = tuple(upper)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.squares = 0.0
        self.largest = 0.0

    def observe(self, value: float, times: int = 1) -> int:
        """Add a value in seconds `times` times. Return the index of its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += times
        self.total += value * times
        self.squares += value * value * times
        self.largest = max(self.largest, value)
        return bucket

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, other: Histogram) -> None:
        """Add the values of another histogram.

        :raises ValueError: the other histogram has different bounds.
        """
        if self.bounds != other.bounds:
            raise ValueError("histograms with different bounds cannot be added")
        self.counts = [own + added for own, added in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.squares += other.squares
        self.largest = max(self.largest, other.largest)

    def quantile(self, fraction: float) -> float | None:
        """Return the value in seconds that `fraction` (0 to 1) of the values do not exceed, by log interpolation within
        its bucket, and never above the largest value. Above every bound return the largest value. Return None if
        nothing was observed."""
        count = self.count
        if not count:
            return None
        rank = max(1.0, fraction * count)
        below = 0
        for bucket, inside in enumerate(self.counts):
            if inside and below + inside >= rank:
                if bucket == len(self.bounds):
                    return self.largest
                upper = min(self.bounds[bucket], self.largest)
                lower = self.bounds[bucket - 1] if bucket else LOWEST / 2
                if upper <= lower:
                    return upper
                return lower * math.exp(math.log(upper / lower) * (rank - below) / inside)
            below += inside
        return self.largest

    def mean(self) -> float | None:
        """Return the mean in seconds, or None if nothing was observed."""
        count = self.count
        return self.total / count if count else None

    def deviation(self) -> float | None:
        """Return the population standard deviation in seconds, or None if nothing was observed."""
        count = self.count
        if not count:
            return None
        return math.sqrt(max(0.0, self.squares / count - (self.total / count) ** 2))


def nearest_rank(values: Sequence[float], fraction: float) -> float | None:
    """Return the smallest of the values that at least `fraction` (0 to 1) of the values do not exceed, or None without
    values."""
    if not values:
        return None
    # Round first: 0.9 * 600 must give rank 540, not 541 because of the last binary digit.
    rank = max(1, math.ceil(round(fraction * len(values), 9)))
    return sorted(values)[rank - 1]
