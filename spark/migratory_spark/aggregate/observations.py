"""What a report works with once everything is added up: sums by labels and cell, held in numpy.

From here on sizes depend on brokers, cells and buckets, not on traffic or on how long was scraped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from migratory_spark.aggregate.distributions import Distribution, Part
from migratory_spark.aggregate.series_catalog import NO_LAYOUT, Catalogue, Group
from migratory_spark.aggregate.time_grid import Cells, Interval
from migratory_spark.aggregate.totals import Sums, Tally
from migratory_spark.metrics import HISTOGRAMS, SQUARES

Where = Callable[[Group], bool]


def anything(_: Group) -> bool:
    return True


@dataclass(slots=True)
class Observations:
    """`sums` has for each group a value per cell: of a bucket group a row per cell and a column per bound."""

    cells: Cells
    bounds: dict[int, tuple[float, ...]]
    """By layout, rising, the last one infinite unless somebody left it out."""
    sums: dict[Group, npt.NDArray[np.float64]]
    older: int = 0
    """Series whose first value is left out, because it is older than the window."""
    scraped: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    """Of each metric the stretches of time between the first and the last sample of its series, apart and in order."""
    _by_metric: dict[str, list[Group]] = field(init=False)

    def __post_init__(self) -> None:
        self._by_metric = {}
        for group in self.sums:
            self._by_metric.setdefault(group.metric, []).append(group)

    def groups(self, metric: str, where: Where = anything) -> list[Group]:
        return [group for group in self._by_metric.get(metric, ()) if where(group)]

    def has(self, metric: str, span: Interval | None = None) -> bool:
        """Whether any series of `metric` was scraped, be it at zero."""
        there = [name for name in (metric, f"{metric}_count") if name in self._by_metric]
        if span is None:
            return bool(there)
        # What nothing is told of was made by hand, in tests.
        return any(
            name not in self.scraped or any(first <= span[1] and last > span[0] for first, last in self.scraped[name])
            for name in there
        )

    def share(self, metric: str, span: Interval, slack_ms: float) -> float:
        """Of a stretch of time, how much of it somebody told of `metric`. `slack_ms`: for how long a sample tells."""
        if not self.has(metric, span):
            return 0.0
        after, covered = float(span[0]), 0.0
        for first, last in self.scraped.get(metric, [span]):
            begin, end = max(first - slack_ms, after), min(last + slack_ms, span[1])
            covered, after = covered + max(0.0, end - begin), max(after, end)
        return covered / (span[1] - span[0]) if span[1] > span[0] else 1.0

    def total(self, metric: str, where: Where = anything, span: Interval | None = None) -> float:
        cells = self._cells(span)
        return math.fsum(float(self.sums[group][cells].sum()) for group in self.groups(metric, where))

    def count(self, metric: str, where: Where = anything, span: Interval | None = None) -> int:
        """As `total`, of what is counted in whole numbers."""
        return round(self.total(metric, where, span))

    def distribution(self, histogram: str, where: Where = anything, span: Interval | None = None) -> Distribution:
        cells = self._cells(span)
        by_layout: dict[int, npt.NDArray[np.float64]] = {}
        for group in self.groups(f"{histogram}_bucket", where):
            if group.layout != NO_LAYOUT:
                found = self.sums[group][cells].sum(axis=0)
                by_layout[group.layout] = by_layout[group.layout] + found if group.layout in by_layout else found
        return Distribution(
            tuple(Part.of(self.bounds[layout], counts) for layout, counts in sorted(by_layout.items())),
            self.total(f"{histogram}_sum", where, span),
            self._squares(histogram, where, span),
        )

    def _squares(self, histogram: str, where: Where, span: Interval | None) -> float | None:
        """None unless every exporter of the histogram counts them."""
        squares = SQUARES.get(histogram)
        if squares is None:
            return None
        counted = {(group.broker, group.clock, group.phase) for group in self.groups(squares, where)}
        wanted = {(group.broker, group.clock, group.phase) for group in self.groups(f"{histogram}_bucket", where)}
        return self.total(squares, where, span) if wanted <= counted else None

    def layouts(self, histogram: str) -> set[int]:
        """The sets of bounds that exporters of `histogram` have; NO_LAYOUT stands for a bucket that was not always
        there."""
        return {group.layout for group in self.groups(f"{histogram}_bucket")}

    def brokers(self, metric: str) -> list[str]:
        names = {group.broker for name in (metric, f"{metric}_bucket") for group in self.groups(name)}
        return sorted(names - {""})

    def _cells(self, span: Interval | None) -> slice:
        return slice(None) if span is None else self.cells.within(*span)


def to_add(known: Catalogue, cells: Cells) -> tuple[Tally, dict[Group, tuple[int, int]]]:
    """The tally of every counter that a report reads, and the lines of each group: first and number, one for each
    bound of a bucket."""
    there = [entry for entry in known.counters if entry.there(cells.edges[0], cells.edges[-1])]
    lines: dict[Group, tuple[int, int]] = {}
    count = 0
    for group in sorted({entry.group for entry in there}):
        wide = 1 if group.layout == NO_LAYOUT else len(known.layouts[group.layout])
        lines[group] = count, wide
        count += wide
    chosen = {
        entry.about.series: lines[entry.group][0]
        + (0 if entry.group.layout == NO_LAYOUT else known.layouts[entry.group.layout].index(entry.bound or 0.0))
        for entry in there
    }
    by_place = [chosen.get(entry.about.series, -1) for entry in known.entries]
    return Tally(np.array(cells.edges, dtype=np.int64), np.array(by_place, dtype=np.int64)), lines


def observed(known: Catalogue, cells: Cells, lines: Mapping[Group, tuple[int, int]], sums: Sums) -> Observations:
    """What `to_add` asked for, as a report reads it."""
    values = sums.values
    found: dict[Group, npt.NDArray[np.float64]] = {}
    for group, (first, wide) in lines.items():
        inside = slice(*np.searchsorted(sums.keys, (first * len(cells), (first + wide) * len(cells))).tolist())
        table = np.zeros((wide, len(cells)))
        table[np.divmod(sums.keys[inside] - first * len(cells), len(cells))] = values[inside]
        found[group] = table[0] if group.layout == NO_LAYOUT else np.ascontiguousarray(table.T)
    older = sum(entry.unborn for entry in known.counters if entry.there(cells.edges[0], cells.edges[-1]))
    return Observations(cells, dict(enumerate(known.layouts)), found, older, _scraped(known))


def _scraped(known: Catalogue) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {}
    for about in sorted((entry.about for entry in known.counters), key=lambda about: about.first or 0):
        if about.first is None or about.last is None:
            continue
        spans = found.setdefault(about.metric, [])
        if spans and about.first <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], about.last)
        else:
            spans.append((about.first, about.last))
    return found


def histograms_that_differ(seen: Observations) -> list[str]:
    return [name for name in HISTOGRAMS if len(seen.layouts(name)) > 1]
