"""Intervals of time, and the grid of adjacent intervals into which a report cuts time.

The grid has an edge, a boundary between intervals, at every moment that a report asks about. So one pass over all
samples answers every question.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Interval = tuple[int, int]
"""Start and end in ms."""

MAX_EDGES = 5000
"""The largest number of edges of a grid. Each broker, label and bucket has a total for every interval between them."""


class TooManyIntervals(ValueError):
    """Raised for a report with at least MAX_EDGES intervals of one kind, which are more than it can hold. The message
    says what to ask for instead."""


def check_count(intervals: int) -> None:
    """Raise TooManyIntervals if the number of intervals is MAX_EDGES or more. Call this before the moments of a grid
    are computed, because the moments of a wrong window may take gigabytes."""
    if intervals >= MAX_EDGES:
        raise TooManyIntervals(
            f"{intervals:,} intervals are more than {MAX_EDGES - 1:,}: ask for longer rows or a shorter window"
        )


@dataclass(slots=True, frozen=True)
class TimeGrid:
    """Adjacent intervals: interval i is (edges[i], edges[i + 1]] in ms since 1970.

    An increase has the time of its later sample, so an increase exactly on an edge belongs to the interval that ends
    there.
    """

    edges: tuple[int, ...]

    @classmethod
    def from_moments(cls, moments: Iterable[int]) -> TimeGrid:
        """Return the grid with an edge at each moment (ms since 1970, in any order).

        :raises TooManyIntervals: there are more than MAX_EDGES different moments.
        :raises ValueError: there are fewer than two.
        """
        edges = tuple(sorted(set(moments)))
        if len(edges) < 2:
            raise ValueError("a stretch of time needs two different ends")
        check_count(len(edges) - 1)
        return cls(edges)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def within(self, start_ms: int, end_ms: int) -> slice:
        """Return the slice of the intervals between start and end (ms since 1970), by index. Raises ValueError unless
        both are edges."""
        first, last = bisect_left(self.edges, start_ms), bisect_left(self.edges, end_ms)
        for place, moment in ((first, start_ms), (last, end_ms)):
            if place == len(self.edges) or self.edges[place] != moment:
                raise ValueError(f"{moment} is not an edge")
        return slice(first, last)


def intersection(sets: Sequence[Iterable[Interval]]) -> list[Interval]:
    """Return the intervals of time that all sets have in common, sorted; none for no sets. The intervals of each set
    are disjoint and sorted."""
    common = list(sets[0]) if sets else []
    for others in sets[1:]:
        intervals = list(others)
        common = [
            (max(one[0], other[0]), min(one[1], other[1]))
            for one in common
            for other in intervals
            if max(one[0], other[0]) < min(one[1], other[1])
        ]
        if not common:
            break
    return common
