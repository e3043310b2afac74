"""What a report works with once Spark has added everything up: a few thousand numbers, held in plain Python.

Spark reads and sums the samples; from here on sizes depend on brokers, windows and buckets, not on traffic.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from migratory_spark.distributions import Distribution
from migratory_spark.increases import LABELS, increases

HISTOGRAMS = {
    "migratory_delivery_latency_seconds": "migratory_delivery_latency_seconds_squared_total",
    "migratory_resume_seconds": None,
    "migratory_publish_gap_seconds": None,
    "migratory_publish_seconds": None,
}
COUNTERS = (
    "migratory_expected_total",
    "migratory_received_total",
    "migratory_lost_total",
    "migratory_duplicates_total",
    "migratory_reordered_total",
    "migratory_gaps_total",
    "migratory_reconnects_total",
    "migratory_publish_errors_total",
)


def metric_names() -> list[str]:
    """Every metric that a report reads, by its name in samples."""
    names = list(COUNTERS)
    for histogram, squares in HISTOGRAMS.items():
        names += [f"{histogram}_bucket", f"{histogram}_sum", f"{histogram}_count"]
        if squares:
            names.append(squares)
    return names


@dataclass(slots=True, frozen=True)
class Row:
    """A sum of rises: `metric` with these labels, in time window `window` (counted from the start) and `segment`."""

    metric: str
    broker: str
    clock: str
    phase: str
    le: str
    reason: str
    receipt: str
    window: int
    segment: int
    increase: float


Where = Callable[[Row], bool]


def anything(_: Row) -> bool:
    return True


@dataclass(slots=True)
class Observations:
    """`window_ms` is the length of a window; segments are the stretches between the moments that were given."""

    rows: list[Row]
    start_ms: int
    end_ms: int
    window_ms: int
    by_metric: dict[str, list[Row]] = field(init=False)

    def __post_init__(self) -> None:
        grouped: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            grouped[row.metric].append(row)
        self.by_metric = dict(grouped)

    def has(self, metric: str) -> bool:
        """Whether any series of `metric` was scraped in the window, be it at zero."""
        return metric in self.by_metric or f"{metric}_count" in self.by_metric

    def total(self, metric: str, where: Where = anything) -> float:
        return sum(row.increase for row in self.by_metric.get(metric, ()) if where(row))

    def bounds(self, histogram: str) -> list[float]:
        """The bucket bounds that every exporter of `histogram` shares, in seconds, ascending.

        Exporters of different releases may differ; only common bounds can be added up.
        """
        by_broker: dict[str, set[float]] = defaultdict(set)
        for row in self.by_metric.get(f"{histogram}_bucket", ()):
            by_broker[row.broker].add(_bound(row.le))
        return sorted(set.intersection(*by_broker.values())) if by_broker else []

    def distribution(self, histogram: str, where: Where = anything) -> Distribution:
        bounds = set(self.bounds(histogram))
        cumulative: dict[float, float] = defaultdict(float)
        for row in self.by_metric.get(f"{histogram}_bucket", ()):
            if (bound := _bound(row.le)) in bounds and where(row):
                cumulative[bound] += row.increase
        squares = HISTOGRAMS[histogram]
        return Distribution.from_cumulative(
            cumulative,
            total=self.total(f"{histogram}_sum", where),
            squares=self.total(squares, where) if squares else None,
        )

    def brokers(self, metric: str) -> list[str]:
        names = {row.broker for name in (metric, f"{metric}_bucket") for row in self.by_metric.get(name, ())}
        return sorted(names - {""})

    @property
    def windows(self) -> range:
        return range(math.ceil((self.end_ms - self.start_ms) / self.window_ms))


def _bound(le: str) -> float:
    return math.inf if le in ("+Inf", "inf") else float(le)


def observe(samples: DataFrame, start_ms: int, end_ms: int, window_ms: int, moments_ms: Iterable[int]) -> Observations:
    """Adds up the rises of every metric a report reads, per labels, window and segment.

    `moments_ms` cut the time into segments: 0 before the first, 1 from it on, and so forth.
    """
    rises = increases(samples, start_ms, end_ms, metric_names())
    segment = F.lit(0)
    for moment in sorted(moments_ms):
        segment = segment + F.when(F.col("timestamp") > moment, 1).otherwise(0)
    summed = (
        # A rise is dated by its later sample: exactly on a boundary it still belongs to the window that ends there.
        rises.withColumn("window", F.floor((F.col("timestamp") - start_ms - 1) / F.lit(window_ms)).cast("int"))
        .withColumn("segment", segment)
        .groupBy("metric", *LABELS, "window", "segment")
        .agg(F.sum("increase").alias("increase"))
        .select("metric", "broker", "clock", "phase", "le", "reason", "receipt", "window", "segment", "increase")
    )
    return Observations([Row(*row) for row in summed.collect()], start_ms, end_ms, window_ms)


@dataclass(slots=True, frozen=True)
class Coverage:
    """How much of the window the scrapes cover: `share` of it lies within two and a half scrape intervals of a scrape
    that saw deliveries counted. Seconds."""

    share: float
    interval: float
    longest_gap: float
    scrapes: int


def coverage(samples: DataFrame, start_ms: int, end_ms: int, metric: str = "migratory_received_total") -> Coverage:
    times = [
        row[0]
        for row in samples.where(F.col("metric") == metric)
        .where((F.col("timestamp") >= start_ms) & (F.col("timestamp") <= end_ms))
        .select("timestamp")
        .distinct()
        .orderBy("timestamp")
        .collect()
    ]
    if not times or end_ms <= start_ms:
        return Coverage(0.0, math.nan, (end_ms - start_ms) / 1000, 0)
    # Several targets are scraped at slightly different moments: the interval is that of one series.
    interval = _interval_ms(samples, start_ms, end_ms, metric) or (end_ms - start_ms)
    allowed = 2.5 * interval
    gaps = [later - earlier for earlier, later in zip([start_ms, *times], [*times, end_ms], strict=True)]
    uncovered = sum(gap for gap in gaps if gap > allowed)
    return Coverage(1 - uncovered / (end_ms - start_ms), interval / 1000, max(gaps) / 1000, len(times))


def _interval_ms(samples: DataFrame, start_ms: int, end_ms: int, metric: str) -> float | None:

    earlier = F.lag("timestamp").over(Window.partitionBy("series").orderBy("timestamp"))
    row = (
        samples.where(F.col("metric") == metric)
        .where((F.col("timestamp") >= start_ms) & (F.col("timestamp") <= end_ms))
        .withColumn("step", F.col("timestamp") - earlier)
        .agg(F.percentile_approx("step", 0.5).alias("median"))
        .first()
    )
    return float(row["median"]) if row and row["median"] else None
