"""Gauges: what was there at a moment, such as the clients of a broker.

A value holds for its scrape alone; nothing is carried over a gap or a stale marker. Stale markers end a series until
its next sample; any other NaN is a sample without a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from migratory_spark.catalogue import usable
from migratory_spark.cells import Cells
from migratory_spark.samples import is_stale


@dataclass(slots=True, frozen=True)
class Gauge:
    """One series in [start, end). `mean` and `max` of the samples that hold a number; `absent` are the stretches from a
    stale marker to the next sample, or to the end, in ms."""

    labels: dict[str, str]
    samples: int
    stale: int
    nan: int
    mean: float | None
    max: float | None
    absent: tuple[tuple[int, int], ...]


def gauges(samples: DataFrame, metric: str, start_ms: int, end_ms: int) -> list[Gauge]:
    """Every series of `metric`, by its labels. `samples` are identified."""
    number = F.when(usable(), F.col("value"))
    inside = (F.col("timestamp") >= start_ms) & (F.col("timestamp") < end_ms)
    following = F.lead("timestamp", 1, end_ms).over(Window.partitionBy("series").orderBy("timestamp"))
    rows = (
        samples.where((F.col("metric") == metric) & inside)
        .withColumn("marker", is_stale())
        .groupBy("series", F.sort_array(F.map_entries("labels")).alias("entries"), "timestamp")
        # Of a number and a marker at the same time, told by two servers, the number holds.
        .agg(F.max(number).alias("number"), F.min("marker").alias("stale"))
        .withColumn("stale", F.col("stale") & F.col("number").isNull())
        .withColumn("following", following)
        .groupBy("series", "entries")
        .agg(
            F.count("number"),
            F.count_if("stale"),
            F.count_if(F.col("number").isNull() & ~F.col("stale")),
            F.avg("number"),
            F.max("number"),
            F.array_sort(F.collect_list(F.when(F.col("stale"), F.struct("timestamp", "following")))),
        )
        .collect()
    )
    found = [
        Gauge(dict(entries), count, stale, nan, mean, highest, tuple((one, other) for one, other in absent))
        for _, entries, count, stale, nan, mean, highest, absent in rows
    ]
    return sorted(found, key=lambda gauge: sorted(gauge.labels.items()))


@dataclass(slots=True, frozen=True)
class Reading:
    """A broker's gauge in one cell."""

    samples: int
    mean: float
    max: float
    last: float
    last_ms: int


def by_broker(line: DataFrame, table: DataFrame, metric: str, cells: Cells) -> dict[str, dict[int, Reading]]:
    """By broker and cell; cells without a scrape are missing. `line` is the timeline, `table` the catalogue."""
    first, last = cells.edges[0], cells.edges[-1]
    rows = (
        line.where((F.col("timestamp") > first) & (F.col("timestamp") <= last))
        .join(F.broadcast(table.where(F.col("metric") == metric).select("series", "broker")), "series")
        .groupBy("broker", cells.column(F.col("timestamp")).alias("cell"))
        .agg(F.count("*"), F.avg("value"), F.max("value"), F.max_by("value", "timestamp"), F.max("timestamp"))
        .collect()
    )
    found: dict[str, dict[int, Reading]] = {}
    for broker, cell, *reading in sorted(rows):
        found.setdefault(broker, {})[cell] = Reading(*reading)
    return found
