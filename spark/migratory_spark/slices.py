"""Slices of time that were good or bad, for objectives that count them. In Spark: a month has 43,200 minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
from migratory_resources.objectives import Objective
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from migratory_spark import names
from migratory_spark.cells import Cells
from migratory_spark.counting import Counts
from migratory_spark.observations import Span

MOST_BAD = 100
"""Bad slices that are named, the first ones."""


@dataclass(slots=True, frozen=True)
class SliceCounts:
    """By cell of `cells`; a slice belongs to the cell in which it ends. `silent` slices had no event: they are neither
    good nor bad. `exact`: the threshold is a bound of every histogram."""

    cells: Cells
    good: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    silent: int
    bad: tuple[int, ...]
    exact: bool

    def __call__(self, span: Span) -> Counts:
        inside = self.cells.within(*span)
        total = int(self.total[inside].sum())
        if not total:
            return Counts(None, None, "no slice had an event")
        note = "" if self.exact else "the threshold is not a bound of every histogram: its whole bucket counts as above"
        return Counts(int(self.good[inside].sum()), total, note)


def count_slices(
    line: DataFrame, table: DataFrame, objective: Objective, bounds: Mapping[int, tuple[float, ...]], cells: Cells
) -> SliceCounts:
    """`cells` begin and end with the objective's window. `line` is the timeline, `table` the catalogue, `bounds` are
    those of the layouts."""
    slices = objective.slices
    assert slices is not None
    start, end = cells.edges[0], cells.edges[-1]
    length = round(slices.length * 1000)
    if objective.type == "latency":
        chosen, exact = _latency_series(table, objective, bounds)
        needed = slices.percentile
    else:
        chosen, exact = _publication_series(table), True
        needed = slices.share
    assert needed is not None  # the objective's own rules see to it
    by_slice = (
        line.where((F.col("timestamp") > start) & (F.col("timestamp") <= end))
        .join(F.broadcast(chosen), "series")
        .groupBy(F.floor((F.col("timestamp") - start - 1) / length).alias("slice"))
        .agg(_sum("good"), _sum("total"))
        .where("total > 0")
        # P99 is at or below a threshold exactly when 99% of the slice's events are: no interpolation has a say.
        .withColumn("kept", F.col("good") * F.lit(Decimal(100)) >= F.col("total") * F.lit(needed))
        .withColumn("end", F.least(start + (F.col("slice") + 1) * length, F.lit(end)))
        .persist()
    )
    try:
        by_cell = (
            by_slice.groupBy(cells.column(F.col("end")).alias("cell")).agg(F.count_if("kept"), F.count("*")).collect()
        )
        bad = by_slice.where("NOT kept").orderBy("slice").limit(MOST_BAD).select("slice").collect()
    finally:
        by_slice.unpersist()
    good, total = np.zeros(len(cells), dtype=np.int64), np.zeros(len(cells), dtype=np.int64)
    for cell, kept, counted in by_cell:
        good[cell], total[cell] = kept, counted
    silent = -(-(end - start) // length) - int(total.sum())
    return SliceCounts(cells, good, total, silent, tuple(start + row[0] * length for row in bad), exact)


def _sum(which: str) -> Column:
    return F.sum(F.when(F.col(which), F.col("rise")).otherwise(0.0)).cast("decimal(18,0)").alias(which)


def _latency_series(
    table: DataFrame, objective: Objective, bounds: Mapping[int, tuple[float, ...]]
) -> tuple[DataFrame, bool]:
    """The buckets that hold what is within the threshold, by layout, and those that hold everything."""
    assert objective.slices is not None
    assert objective.slices.threshold is not None
    limit = objective.slices.threshold * (1 + 1e-9)
    good, total, exact = F.lit(False), F.lit(False), True
    for layout, upper in bounds.items():
        below = [bound for bound in upper if bound <= limit]
        exact = exact and bool(below) and below[-1] >= limit * (1 - 2e-9)
        here = F.col("layout") == layout
        if below:
            good = good | (here & (F.col("bound") == below[-1]))
        total = total | (here & (F.col("bound") == upper[-1]))
    buckets = table.where(
        (F.col("metric") == f"{names.LATENCY}_bucket")
        & F.col("clock").isin(*objective.clocks)
        & (F.col("phase") == "live")
        & (good | total)
    )
    return buckets.select("series", good.alias("good"), total.alias("total")), exact


def _publication_series(table: DataFrame) -> DataFrame:
    answered = F.col("metric") == f"{names.PUBLISH}_count"
    told = table.where(answered | (F.col("metric") == names.PUBLISH_ERRORS))
    return told.select("series", answered.alias("good"), F.lit(True).alias("total"))
