"""Time cut into cells at every moment that a report asks about, so that one pass over all samples answers all of it.

Cell i is (edges[i], edges[i + 1]] in milliseconds: a rise is dated by its later sample, so one exactly on an edge
belongs to the time that ends there.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

MOST_EDGES = 5000
_SLOTS = 4096
_NEVER = 2**62


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

    def column(self, timestamp: Column, dense_from_ms: int | None = None) -> Column:
        """The number of the cell of a `timestamp` within (first edge, last edge].

        A look-up and a comparison or two per row, whatever the number of edges: time is cut into equal slots, and a
        table holds how many edges lie before each and which lie in it. Where edges are much denser from some moment on
        (a short report of an objective over a month), `dense_from_ms` gives that part slots of its own.
        """
        first, last = self.edges[0], self.edges[-1]
        if dense_from_ms is None or not first < dense_from_ms < last:
            return self._looked_up(timestamp, first, last)
        return F.when(timestamp > dense_from_ms, self._looked_up(timestamp, dense_from_ms, last)).otherwise(
            self._looked_up(timestamp, first, dense_from_ms)
        )

    def _looked_up(self, timestamp: Column, start: int, end: int) -> Column:
        width = -(-(end - start) // _SLOTS)
        slots = -(-(end - start) // width)
        inside: list[list[int]] = [[] for _ in range(slots)]
        for edge in self.edges:
            if start < edge < end:
                # An edge parts the slot's times into those at most it and those above it.
                inside[(edge - start) // width].append(edge)
        before, tables = bisect_left(self.edges, start), []
        base = []
        for edges in inside:
            base.append(before)
            before += len(edges)
        for nth in range(max(len(edges) for edges in inside)):
            tables.append([edges[nth] if nth < len(edges) else _NEVER for edges in inside])
        # The slot of (start + n * width, start + (n + 1) * width]; an edge on a slot's end is that slot's no more, and
        # times at most it are all of the slot: so it counts for the next one.
        slot = F.floor((timestamp - start - 1) / width).cast("int")
        cell = _table(base)[slot]
        for table in tables:
            cell = cell + F.when(timestamp > _table(table)[slot], 1).otherwise(0)
        return cell.cast("int")


def _table(numbers: list[int]) -> Column:
    """A constant array. As JSON, because thousands of literals would be thousands of calls into the JVM."""
    return F.from_json(F.lit(json.dumps(numbers)), "array<bigint>")
