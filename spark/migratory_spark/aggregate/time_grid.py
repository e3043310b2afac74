"""Time cut into cells at every moment that a report asks about, so that one pass over all samples answers all of it.

Cell i is (edges[i], edges[i + 1]] in milliseconds: a rise is dated by its later sample, so one exactly on an edge
belongs to the time that ends there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Interval = tuple[int, int]
"""A stretch of time in ms, from the first to the second."""

MOST_EDGES = 5000


class TooManyCells(ValueError):
    """More moments than a report can hold; the text says what to ask for instead."""


@dataclass(slots=True, frozen=True)
class Cells:
    """`edges` rise; the first and the last are the ends of what is looked at."""

    edges: tuple[int, ...]

    @classmethod
    def at(cls, moments: Iterable[int]) -> Cells:
        """Raises TooManyCells."""
        edges = tuple(sorted(set(moments)))
        if len(edges) < 2:
            raise ValueError("a stretch of time needs two different ends")
        if len(edges) > MOST_EDGES:
            raise TooManyCells(
                f"{len(edges) - 1} stretches of time are more than {MOST_EDGES - 1}: ask for longer rows or a shorter "
                "window"
            )
        return cls(edges)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def within(self, start_ms: int, end_ms: int) -> slice:
        """The cells of (start, end]. Raises ValueError unless both are edges."""
        first, last = bisect_left(self.edges, start_ms), bisect_left(self.edges, end_ms)
        for place, moment in ((first, start_ms), (last, end_ms)):
            if place == len(self.edges) or self.edges[place] != moment:
                raise ValueError(f"{moment} is not an edge")
        return slice(first, last)


def intersection(sets: Sequence[Iterable[Interval]]) -> list[Interval]:
    """The time that lies in a stretch of every set. Each set's stretches are disjoint and rise."""
    found = list(sets[0]) if sets else []
    for other in sets[1:]:
        stretches = list(other)
        found = [
            (max(one[0], two[0]), min(one[1], two[1]))
            for one in found
            for two in stretches
            if max(one[0], two[0]) < min(one[1], two[1])
        ]
        if not found:
            break
    return found
