"""Counters to what happened: how much each series rose, sample by sample.

Raw differences, not PromQL's `increase`, which extrapolates and loses what happens at restarts.

- A rise belongs to the moment of the later of its two samples.
- A series that was there before a window counts from its last sample at or before the window's start; one that is born
  inside it counts from zero, unless its `_created` (or its process's start) says that it is older.
- A sample lower than the one before is a restart: the counter began again at zero. Where `_created` or the process's
  start is scraped, that decides: it shows a restart that was too quick to be seen as a fall, and that a lower sample
  without a restart is a late one.
- (series, time) counts once, with the highest value. Of two servers that scrape one target, one is believed at a time.
- Stale markers and other NaN are no samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from migratory_spark.catalogue import LABELS, catalogue, counted, facts, usable
from migratory_spark.names import PROCESS_START, family
from migratory_spark.samples import identified

SLOT_MS = 60_000
"""How long one of several servers is believed before the choice is made again."""


def _in_order() -> WindowSpec:
    """Of the rows of one series. No constant: a window can only be made while there is a session."""
    return Window.partitionBy("series").orderBy("timestamp")


def increases(samples: DataFrame, start_ms: int, end_ms: int, metrics: Sequence[str]) -> DataFrame:
    """Rows (metric, LABELS, timestamp, increase) with start < timestamp <= end, of the counters named in `metrics`.

    Zero rises are kept: they show that the series was there. For a few metrics; a report goes by `timeline`.
    """
    known = identified(samples.where(F.col("timestamp") <= end_ms))
    beginnings = {PROCESS_START, *(f"{family(metric)}_created" for metric in metrics)}
    told = counted(known.where(F.col("metric").isin(*metrics, *beginnings)))
    found = facts(told)
    table = catalogue(told, start_ms, found)
    wanted = known.where(F.col("metric").isin(*metrics))
    line = timeline(wanted, table, known if found.told else None, found.several)
    return (
        line.where(F.col("timestamp") > start_ms)
        .join(table, "series")
        .select("metric", *LABELS, "timestamp", F.col("rise").alias("increase"))
    )


def timeline(samples: DataFrame, table: DataFrame, evidence: DataFrame | None, several: bool) -> DataFrame:
    """Rows (series, timestamp, value, rise, restart): each series' samples in order, each time once. Partitioned by
    series.

    `samples` are identified, `table` is their catalogue. `evidence`: identified samples among which the series are
    that tell when a counter began; None where the catalogue knows of none. `several`: some series come from several
    servers.
    """
    line = (
        samples.where(usable())
        .select("series", *(["source"] if several else []), "timestamp", "value")
        .repartition("series")
        .sortWithinPartitions("series", "timestamp", "value")
    )
    if several:
        line = _one_server_at_a_time(line)
    # Equal times follow one another, the highest value last.
    following = F.lead("timestamp").over(Window.partitionBy("series").orderBy("timestamp", "value"))
    line = line.withColumn("following", following).where("following IS NULL OR following <> timestamp")
    if evidence is None and not several:
        before = F.lag("value").over(_in_order())
        restart = F.coalesce(F.col("value") < before, F.lit(False))
        rise = F.when(before.isNull() | restart, F.col("value")).otherwise(F.col("value") - before)
        return line.select("series", "timestamp", "value", rise.alias("rise"), restart.alias("restart"))
    return _by_lives(line, table, evidence)


def _one_server_at_a_time(line: DataFrame) -> DataFrame:
    """Two servers read a counter at different moments of clocks that differ: put together, their samples would fall
    where nothing restarted. So in each slot of time the one with more samples is believed. Adds `own`, the sample
    before from the same server, which tells a restart from a change of servers."""
    own = F.lag("value").over(Window.partitionBy("series", "source").orderBy("timestamp"))
    slot = F.floor(F.col("timestamp") / SLOT_MS)
    told = F.count("*").over(Window.partitionBy("series", "slot", "source"))
    best = F.max(F.struct("told", "source")).over(Window.partitionBy("series", "slot"))
    return (
        line.withColumn("own", own)
        .withColumn("slot", slot)
        .withColumn("told", told)
        .withColumn("best", best)
        .where(F.col("source") == F.col("best.source"))
        .select("series", "timestamp", "value", "own")
    )


def _by_lives(line: DataFrame, table: DataFrame, evidence: DataFrame | None) -> DataFrame:
    """The careful way: a counter's lives are numbered, and within one only what exceeds the highest sample so far is a
    rise."""
    known = table.where("evidence IS NOT NULL").select("series", "evidence", "unborn")
    line = line.join(F.broadcast(known), "series", "left")
    if evidence is None:
        line = line.withColumn("began", F.lit(None).cast("boolean"))
    else:
        line = line.join(F.broadcast(_beginnings(evidence)), ["evidence", "timestamp"], "left")
    before = F.lag("value").over(_in_order())
    fell = F.col("value") < before
    if "own" in line.columns:
        fell = fell & (F.col("value") < F.col("own"))
    begins: Column = F.when(F.col("evidence").isNotNull(), F.coalesce("began", F.lit(False))).otherwise(fell)
    so_far = _in_order().rowsBetween(Window.unboundedPreceding, -1)
    line = (
        line.withColumn("restart", F.coalesce(begins & before.isNotNull(), F.lit(False)))
        .withColumn("life", F.sum(F.col("restart").cast("int")).over(_in_order()))
        .withColumn("top", F.max(F.struct("life", "value")).over(so_far))
    )
    rise = (
        F.when(F.col("top").isNull(), F.when(F.col("unborn"), 0.0).otherwise(F.col("value")))
        .when(F.col("top.life") < F.col("life"), F.col("value"))
        .otherwise(F.greatest(F.col("value") - F.col("top.value"), F.lit(0.0)))
    )
    return line.select("series", "timestamp", "value", rise.alias("rise"), "restart")


def _beginnings(evidence: DataFrame) -> DataFrame:
    """Rows (evidence, timestamp, began): scrapes that found a counter to have begun anew. As few as restarts."""
    before = F.lag("value").over(_in_order())
    return (
        evidence.where(F.col("metric").endswith("_created") | (F.col("metric") == PROCESS_START))
        .where(usable())
        .withColumn("before", before)
        .where(F.col("value") != F.col("before"))
        .select(F.col("series").alias("evidence"), "timestamp", F.lit(True).alias("began"))
        .distinct()
    )
