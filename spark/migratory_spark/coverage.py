"""Who was scraped, and when nobody was: the time of which nothing is known.

A counter keeps its sum across a gap, so a gap of one exporter costs nothing but the moment of what it counted. What
can't be made up for is time in which nobody was scraped, and the last interval of an exporter that ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from migratory_spark.names import BROKER_COUNTERS, CLIENT_METRICS, CLIENTS, PUBLISHER_METRICS

ALLOWED_INTERVALS = 2.5
"""A stretch without a scrape is a gap when it is longer than so many scrape intervals: one missed scrape is none."""
MOST_GAPS = 1000
"""Of one exporter, the first ones."""

Role = Literal["clients", "publishers", "brokers"]
Stretch = tuple[int, int]


@dataclass(slots=True, frozen=True)
class Exporter:
    """One scraped target in one role, in ms. A broker is named by its label, others by job and instance. `gaps` are
    stretches between its scrapes that are too long; `restarts` the scrapes that saw a counter begin again."""

    role: Role
    name: str
    first: int
    last: int
    scrapes: int
    interval: float
    longest: int
    gaps: tuple[Stretch, ...]
    restarts: tuple[int, ...]

    @property
    def allowed(self) -> float:
        return ALLOWED_INTERVALS * self.interval

    def missing(self, start: int, end: int) -> list[Stretch]:
        """Stretches of [start, end] without it, its time before the first and after the last scrape included."""
        edges = [(start, self.first), *self.gaps, (self.last, end)]
        clipped = [(max(one, start), min(other, end)) for one, other in edges]
        return [(one, other) for one, other in clipped if other - one > self.allowed]


@dataclass(slots=True, frozen=True)
class Covered:
    """Of a stretch of time: the `share` that scrapes cover, the longest time without one, how many there were."""

    share: float
    longest: int
    scrapes: int
    interval: float | None


@dataclass(slots=True, frozen=True)
class Exporters:
    found: tuple[Exporter, ...]

    def of(self, *roles: Role) -> list[Exporter]:
        return [exporter for exporter in self.found if exporter.role in roles]

    def covered(self, start: int, end: int, *roles: Role) -> Covered:
        """Time counts as covered while any exporter of these roles was scraped."""
        seen = [one for one in self.of(*roles) if one.first <= end and one.last >= start]
        if not seen or end <= start:
            return Covered(0.0, max(0, end - start), 0, None)
        nobody = intersection([one.missing(start, end) for one in seen])
        uncovered = sum(other - one for one, other in nobody)
        interval = sorted(one.interval for one in seen)[len(seen) // 2]
        longest = max([other - one for one, other in nobody], default=round(interval))
        return Covered(1 - uncovered / (end - start), longest, max(one.scrapes for one in seen), interval)


def intersection(sets: Sequence[Iterable[Stretch]]) -> list[Stretch]:
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


def _role(metric: Column) -> Column:
    return (
        F.when(metric.isin(*CLIENT_METRICS), "clients")
        .when(metric.isin(*PUBLISHER_METRICS), "publishers")
        .when(metric.isin(CLIENTS, *BROKER_COUNTERS), "brokers")
    )


def exporters(line: DataFrame, table: DataFrame, start_ms: int, end_ms: int) -> Exporters:
    """`line` is the timeline, `table` the catalogue. Looks at a few series of each target, within [start, end]."""
    address = F.concat_ws("/", F.nullif("job", F.lit("")), F.nullif("instance", F.lit("")))
    role = _role(F.col("metric"))
    told = table.where(role.isNotNull()).select(
        "series", role.alias("role"), F.when(role == "brokers", F.col("broker")).otherwise(address).alias("name")
    )
    of_one = Window.partitionBy("role", "name")
    scrapes = (
        line.where((F.col("timestamp") >= start_ms) & (F.col("timestamp") <= end_ms))
        .join(F.broadcast(told), "series")
        .groupBy("role", "name", "timestamp")
        .agg(F.max("restart").alias("restart"))
        .withColumn("before", F.lag("timestamp").over(of_one.orderBy("timestamp")))
        .withColumn("step", F.col("timestamp") - F.col("before"))
        # Of a target that was scraped once no interval is known.
        .withColumn("interval", F.coalesce(F.percentile_approx("step", 0.5).over(of_one), F.lit(end_ms - start_ms)))
    )
    gap = F.when(F.col("step") > ALLOWED_INTERVALS * F.col("interval"), F.struct("before", "timestamp"))
    rows = (
        scrapes.groupBy("role", "name", "interval")
        .agg(
            F.min("timestamp"), F.max("timestamp"), F.count("*"), F.coalesce(F.max("step"), F.lit(0)),
            F.slice(F.array_sort(F.collect_list(gap)), 1, MOST_GAPS),
            F.slice(F.array_sort(F.collect_list(F.when(F.col("restart"), F.col("timestamp")))), 1, MOST_GAPS),
        )
        .collect()
    )  # fmt: skip
    return Exporters(
        tuple(
            Exporter(
                role, name, first, last, count, float(interval), longest,
                tuple((one, other) for one, other in gaps), tuple(restarts),
            )
            for role, name, interval, first, last, count, longest, gaps, restarts in sorted(rows)
        )
    )  # fmt: skip
