"""Counters to what happened: how much each series rose, sample by sample.

Raw differences, not PromQL's `increase`, which extrapolates and loses what happens at restarts.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

LABELS = ("broker", "clock", "phase", "le", "reason", "receipt")
"""Labels that reports group by; every other label only tells series apart."""


def increases(samples: DataFrame, start_ms: int, end_ms: int, metrics: list[str]) -> DataFrame:
    """Rows (metric, broker, clock, phase, le, reason, receipt, timestamp, increase) with start < timestamp <= end.

    A rise belongs to the moment of the later of its two samples. A sample lower than the one before is a restart: the
    counter began again at zero. A series born inside the window counts from zero; one that was there before counts
    from its last sample at or before the start. Zero rises are kept: they show that the series was there.
    """
    by_series = Window.partitionBy("metric", "series").orderBy("timestamp")
    before = F.lag("value").over(by_series)
    rise = (
        F.when(before.isNull(), F.col("value"))
        .when(F.col("value") < before, F.col("value"))
        .otherwise(F.col("value") - before)
    )
    wanted = samples.where(F.col("metric").isin(metrics)).where(F.col("timestamp") <= end_ms)
    return (
        wanted.withColumn("increase", rise)
        .where(F.col("timestamp") > start_ms)
        .select(
            "metric",
            *[F.coalesce(F.col("labels")[name], F.lit("")).alias(name) for name in LABELS],
            "timestamp",
            "increase",
        )
    )
