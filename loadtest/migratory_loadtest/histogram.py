"""A classic histogram that is cheap to observe, exact where an objective asks, and tight enough for percentiles.

Bounds form a geometric series of ratio 1.05 from 1 ms to 60 s (quantiles by log interpolation are within 4.5%), a
coarser one below 1 ms, and every objective's threshold as an exact bound, with those that objectives usually have:
alert rules written before a run name buckets that must be there. Finding the bucket is a `bisect`;
prometheus-client's own histogram scans its bounds. Sum and sum of squares make mean and deviation exact. All values
are seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

LOWEST, MILLISECOND, HIGHEST = 50e-6, 1e-3, 60.0
RATIO, COARSE_RATIO = 1.05, 1.3
USUAL_THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Those of the default objectives, and round ones."""


def bounds(thresholds: Iterable[float] = ()) -> tuple[float, ...]:
    """Upper bounds, rising, without +Inf. Raises ValueError for a threshold that is not above 0 and finite."""
    found: set[float] = set()
    steps = math.ceil(math.log(HIGHEST / MILLISECOND) / math.log(RATIO))
    found.update(float(f"{MILLISECOND * RATIO**step:.6g}") for step in range(steps))
    found.add(HIGHEST)
    steps = math.ceil(math.log(MILLISECOND / LOWEST) / math.log(COARSE_RATIO))
    found.update(float(f"{LOWEST * COARSE_RATIO**step:.6g}") for step in range(steps))
    for threshold in (*USUAL_THRESHOLDS, *thresholds):
        if not 0 < threshold < math.inf:
            raise ValueError(f"latency threshold {threshold} is not a number of seconds above 0")
        found.add(float(threshold))
    return tuple(sorted(found))


class Histogram:
    """`counts[i]` are the values in (bounds[i-1], bounds[i]]; the last are those above every bound."""

    __slots__ = ("bounds", "counts", "largest", "squares", "total")

    def __init__(self, upper: Sequence[float]) -> None:
        self.bounds = tuple(upper)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.squares = 0.0
        self.largest = 0.0

    def observe(self, value: float, times: int = 1) -> int:
        """Returns the number of the bucket."""
        place = bisect_left(self.bounds, value)
        self.counts[place] += times
        self.total += value * times
        self.squares += value * value * times
        self.largest = max(self.largest, value)
        return place

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, other: Histogram) -> None:
        """Raises ValueError unless both have the same bounds."""
        if self.bounds != other.bounds:
            raise ValueError("histograms with different bounds can't be added")
        self.counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.squares += other.squares
        self.largest = max(self.largest, other.largest)

    def quantile(self, fraction: float) -> float | None:
        """None when nothing was observed."""
        count = self.count
        if not count:
            return None
        rank = max(1.0, fraction * count)
        below = 0
        for place, inside in enumerate(self.counts):
            if inside and below + inside >= rank:
                if place == len(self.bounds):
                    return self.largest
                upper = min(self.bounds[place], self.largest)
                lower = self.bounds[place - 1] if place else LOWEST / 2
                if upper <= lower:
                    return upper
                return lower * math.exp(math.log(upper / lower) * (rank - below) / inside)
            below += inside
        return self.largest

    def mean(self) -> float | None:
        count = self.count
        return self.total / count if count else None

    def deviation(self) -> float | None:
        """Of the whole population; None when nothing was observed."""
        count = self.count
        if not count:
            return None
        return math.sqrt(max(0.0, self.squares / count - (self.total / count) ** 2))


def nearest_rank(values: Sequence[float], fraction: float) -> float | None:
    """The smallest value that at least `fraction` of `values` do not exceed; None of nothing."""
    if not values:
        return None
    # Rounded first: 0.9 * 600 must be rank 540, not 541 for the sake of a last binary digit.
    rank = max(1, math.ceil(round(fraction * len(values), 9)))
    return sorted(values)[rank - 1]
