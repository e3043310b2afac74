"""What a report works with once Spark has added everything up: sums by labels and cell, held in numpy.

Spark reads and sums the samples; from here on sizes depend on brokers, cells and buckets, not on traffic or on how long
was scraped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from migratory_spark.catalogue import GROUPED
from migratory_spark.cells import Cells
from migratory_spark.distributions import Distribution, Part
from migratory_spark.names import HISTOGRAMS, SQUARES, counters

MOST_NUMBERS = 5_000_000
"""Sums that a report holds at most: 120 MB on their way from Spark."""


class TooManySums(ValueError):
    """More brokers, buckets and rows than a report can hold; the text says what to ask for instead."""


@dataclass(slots=True, frozen=True)
class Group:
    """Series that are added up: a metric with these labels. `layout` numbers the set of bounds of a histogram."""

    metric: str
    broker: str
    clock: str
    phase: str
    layout: int | None
    reason: str
    receipt: str


Where = Callable[[Group], bool]
Span = tuple[int, int]
"""A stretch of time in ms, both ends edges of the cells."""


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
    _by_metric: dict[str, list[Group]] = field(init=False)

    def __post_init__(self) -> None:
        self._by_metric = {}
        for group in self.sums:
            self._by_metric.setdefault(group.metric, []).append(group)

    def groups(self, metric: str, where: Where = anything) -> list[Group]:
        return [group for group in self._by_metric.get(metric, ()) if where(group)]

    def has(self, metric: str) -> bool:
        """Whether any series of `metric` was scraped, be it at zero."""
        return metric in self._by_metric or f"{metric}_count" in self._by_metric

    def total(self, metric: str, where: Where = anything, span: Span | None = None) -> float:
        cells = self._cells(span)
        return math.fsum(float(self.sums[group][cells].sum()) for group in self.groups(metric, where))

    def count(self, metric: str, where: Where = anything, span: Span | None = None) -> int:
        """As `total`, of what is counted in whole numbers."""
        return round(self.total(metric, where, span))

    def distribution(self, histogram: str, where: Where = anything, span: Span | None = None) -> Distribution:
        cells = self._cells(span)
        by_layout: dict[int, npt.NDArray[np.float64]] = {}
        for group in self.groups(f"{histogram}_bucket", where):
            if group.layout is not None:
                found = self.sums[group][cells].sum(axis=0)
                by_layout[group.layout] = by_layout[group.layout] + found if group.layout in by_layout else found
        return Distribution(
            tuple(Part.of(self.bounds[layout], counts) for layout, counts in sorted(by_layout.items())),
            self.total(f"{histogram}_sum", where, span),
            self._squares(histogram, where, span),
        )

    def _squares(self, histogram: str, where: Where, span: Span | None) -> float | None:
        """None unless every exporter of the histogram counts them."""
        squares = SQUARES.get(histogram)
        if squares is None:
            return None
        counted = {(group.broker, group.clock, group.phase) for group in self.groups(squares, where)}
        wanted = {(group.broker, group.clock, group.phase) for group in self.groups(f"{histogram}_bucket", where)}
        return self.total(squares, where, span) if wanted <= counted else None

    def layouts(self, histogram: str) -> set[int | None]:
        """The sets of bounds that exporters of `histogram` have; None stands for a bucket that was not always there."""
        return {group.layout for group in self.groups(f"{histogram}_bucket")}

    def brokers(self, metric: str) -> list[str]:
        names = {group.broker for name in (metric, f"{metric}_bucket") for group in self.groups(name)}
        return sorted(names - {""})

    def _cells(self, span: Span | None) -> slice:
        return slice(None) if span is None else self.cells.within(*span)


def observe(line: DataFrame, table: DataFrame, cells: Cells, dense_from_ms: int | None = None) -> Observations:
    """Adds up the rises of every counter that a report reads.

    `line` is the timeline, `table` the catalogue, `dense_from_ms` as in `Cells.column`. Raises TooManySums.
    """
    first, last = cells.edges[0], cells.edges[-1]
    counted = table.where(F.col("metric").isin(counters()) & (F.col("samples") > 0))
    # A series that ended before is not there; one whose buckets are zero throughout is.
    present = counted.where((F.col("last") > first) & (F.col("first") <= last))
    groups, bounds, older = _groups(present)
    summed = (
        line.where((F.col("timestamp") > first) & (F.col("timestamp") <= last))
        .groupBy("series", cells.column(F.col("timestamp"), dense_from_ms).alias("cell"))
        .agg(F.sum("rise").alias("rise"))
        .where("rise <> 0")
        .join(counted.select("series", "group", "bound"), "series")
        .groupBy("group", "bound", "cell")
        # Seconds and their squares in decimals: in floating point the sum would depend on the order of its parts.
        .agg(F.sum(F.col("rise").cast("decimal(38,12)")).cast("double").alias("rise"))
    )
    found = summed.limit(MOST_NUMBERS + 1).toArrow()
    if found.num_rows > MOST_NUMBERS:
        raise TooManySums(f"more than {MOST_NUMBERS:,} sums: ask for longer rows or a shorter window")
    ids = found["group"].to_numpy()
    values = found["rise"].to_numpy()
    at = found["cell"].to_numpy()
    upper = found["bound"].to_numpy(zero_copy_only=False)
    sums: dict[Group, npt.NDArray[np.float64]] = {}
    order = np.argsort(ids, kind="stable")
    edges = np.flatnonzero(np.diff(ids[order])) + 1
    rows = {int(ids[chunk[0]]): chunk for chunk in np.split(order, edges) if len(chunk)}
    nothing = np.zeros(0, dtype=np.int64)
    for number, group in groups.items():
        chosen = rows.get(number, nothing)
        if group.layout is None:
            sums[group] = np.bincount(at[chosen], weights=values[chosen], minlength=len(cells)).astype(np.float64)
            continue
        columns = np.searchsorted(np.asarray(bounds[group.layout]), upper[chosen])
        matrix = np.zeros((len(cells), len(bounds[group.layout])))
        matrix[at[chosen], columns] = values[chosen]
        sums[group] = matrix
    return Observations(cells, bounds, sums, older)


def _groups(present: DataFrame) -> tuple[dict[int, Group], dict[int, tuple[float, ...]], int]:
    """The groups by their numbers, the bounds by layout, how many series are older than the window."""
    bounds = F.array_sort(F.collect_set("bound")).alias("bounds")
    rows = (
        present.groupBy("group", *GROUPED).agg(bounds, F.count_if("unborn").alias("older")).orderBy("group").collect()
    )
    groups = {row["group"]: Group(*(row[name] for name in GROUPED)) for row in rows}
    layouts = {row["layout"]: tuple(row["bounds"]) for row in rows if row["layout"] is not None}
    return groups, layouts, sum(row["older"] for row in rows)


def histograms_that_differ(seen: Observations) -> list[str]:
    return [name for name in HISTOGRAMS if len(seen.layouts(name)) > 1]
