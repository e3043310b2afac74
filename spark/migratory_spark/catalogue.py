"""One row per series: its labels, how often and when it was scraped, and what tells when its counter began.

The labels are read here once. Everything that goes through all samples afterwards carries a series' number alone and
takes what it needs from this table, which is as large as there are series, however long they were scraped.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from migratory_spark.names import CLIENTS, PROCESS_START
from migratory_spark.samples import is_stale

LABELS = ("cluster", "broker", "clock", "phase", "le", "reason", "receipt", "job", "instance")
"""Labels that reports use; every other label only tells series apart."""
GROUPED = ("metric", "broker", "clock", "phase", "layout", "reason", "receipt")
"""What sums are kept apart by."""


SKEW_MS = 5000
"""`_created` is the exporter's clock, all else the scraper's: how far the two may be apart."""


@dataclass(slots=True, frozen=True)
class Facts:
    """What there is, in numbers. `several`: some series come from more than one server. `told`: samples of series that
    tell when others began. `clients`: the most that brokers had, all together."""

    series: int
    samples: int
    stale: int
    nan: int
    several: bool
    told: int
    clients: float
    clusters: tuple[str, ...]


def usable(value: str = "value") -> Column:
    """NaN has no place in a sum, and infinity neither: a difference of two is NaN."""
    return ~F.isnan(value) & (F.abs(F.col(value)) != float("inf"))


def _tells_a_beginning(metric: Column) -> Column:
    return metric.endswith("_created") | (metric == PROCESS_START)


def counted(samples: DataFrame) -> DataFrame:
    """Rows (series, metric, entries, LABELS, samples, stale, nan, several, first, last, least, most).

    What one pass over identified samples (`samples.identified`) tells of each series.
    """
    entries = F.sort_array(F.map_entries("labels"))
    source = F.xxhash64("source")
    return (
        samples.select(
            "series", "metric", entries.alias("entries"), source.alias("source"), "timestamp", "value",
            # Sums take no call by reflection: whether a sample is a marker is settled before.
            is_stale().alias("marker"),
        )
        # Grouped by labels rather than keeping the first of them: a string as an aggregate would sort all samples.
        .groupBy("series", "metric", "entries")
        .agg(
            F.count_if(usable()).alias("samples"),
            F.count_if("marker").alias("stale"),
            F.count_if(~usable() & ~F.col("marker")).alias("nan"),
            (F.min("source") != F.max("source")).alias("several"),
            F.min(F.when(usable(), F.col("timestamp"))).alias("first"),
            F.max(F.when(usable(), F.col("timestamp"))).alias("last"),
            F.min(F.when(usable(), F.col("value"))).alias("least"),
            F.max(F.when(usable(), F.col("value"))).alias("most"),
        )
        .select("*", *[F.coalesce(F.map_from_entries("entries")[name], F.lit("")).alias(name) for name in LABELS])
    )  # fmt: skip


def facts(table: DataFrame) -> Facts:
    """Of what `counted` answers."""
    clients = F.when(F.col("metric") == CLIENTS, F.col("most"))
    told = F.when(_tells_a_beginning(F.col("metric")), F.col("samples"))
    row = table.agg(
        F.count("*"),
        *[F.coalesce(F.sum(name), F.lit(0)) for name in ("samples", "stale", "nan")],
        F.coalesce(F.bool_or("several"), F.lit(False)),
        F.coalesce(F.sum(told), F.lit(0)),
        F.coalesce(F.sum(clients), F.lit(0.0)),
        F.array_sort(F.collect_set("cluster")),
    ).first()
    assert row is not None  # an aggregate without grouping always answers
    series, samples, stale, nan, several, told_samples, most, clusters = row
    named = tuple(name for name in clusters if name)
    return Facts(series, samples, stale, nan, several, told_samples, most, named)


def catalogue(table: DataFrame, start_ms: int, known: Facts) -> DataFrame:
    """Adds bound, layout, evidence, unborn, group to what `counted` answers.

    `bound` is a bucket's upper bound in seconds. `layout` numbers the set of bounds that an exporter has in every
    scrape, and is null for a bucket that came or went with a release. `evidence` is the series that tells when this one
    began, `_created` or the process's start. `unborn` says that by that evidence the counter was older than the
    window's start, where nobody scraped it: how much of its first value lies in the window is unknown. `group` numbers
    the values of GROUPED.
    """
    siblings = F.filter("entries", lambda entry: entry["key"] != "le")
    table = _with_layout(table.withColumn("siblings", siblings))
    if known.told:
        table = _with_evidence(table, start_ms)
    else:
        table = table.withColumns({"evidence": F.lit(None).cast("bigint"), "unborn": F.lit(False)})
    group = F.xxhash64(*[F.coalesce(F.col(name).cast("string"), F.lit("")) for name in GROUPED])
    return table.withColumn("group", group).drop("entries", "siblings")


def _with_layout(table: DataFrame) -> DataFrame:
    """All buckets of a scrape come together: one that came later than its siblings, or went earlier, belongs to another
    release of the exporter. (How often each was seen tells nothing: samples may be repeated, in parts.) The one without
    an upper bound holds everything and is always there."""
    is_bucket = F.col("metric").endswith("_bucket")
    bound = F.when(F.lower("le").isin("+inf", "inf"), float("inf")).otherwise(F.expr("try_cast(le AS double)"))
    histogram = Window.partitionBy("metric", "siblings")
    since, until = F.min("first").over(histogram), F.max("last").over(histogram)
    always = (F.col("bound") == float("inf")) | ((F.col("first") == since) & (F.col("last") == until))
    bounds = F.array_sort(F.collect_set(F.when(F.col("always"), F.col("bound"))).over(histogram))
    return (
        table.withColumn("bound", F.when(is_bucket, bound))
        .withColumn("always", always)
        .withColumn("layout", F.when(is_bucket & F.col("always"), F.xxhash64(bounds)))
        .drop("always")
    )


def _with_evidence(table: DataFrame, start_ms: int) -> DataFrame:
    """`_created` of the same family and labels, else the start of the process that the series is scraped from."""
    family = F.regexp_replace("metric", "_(total|bucket|count|sum|created)$", "")
    table = table.withColumn("family", F.xxhash64(family, "siblings")).withColumn(
        "process", F.xxhash64("job", "instance")
    )

    def evidence(key: str, told: Column) -> DataFrame:
        return (
            table.where(told & (F.col("samples") > 0))
            .groupBy(key)
            .agg(
                F.min("series").alias(f"{key}_series"),
                F.min("first").alias(f"{key}_first"),
                F.min("least").alias(f"{key}_began"),
            )
        )

    is_counter = F.col("metric").rlike("_(total|bucket|count|sum)$")
    joined = table.join(evidence("family", F.col("metric").endswith("_created")), "family", "left").join(
        evidence("process", F.col("metric") == PROCESS_START), "process", "left"
    )

    def either(what: str) -> Column:
        return F.coalesce(F.col(f"family_{what}"), F.col(f"process_{what}"))

    seen_late = (F.col("first") > start_ms) & (either("first") == F.col("first"))
    unborn = is_counter & seen_late & (either("began") * 1000 + SKEW_MS < start_ms)
    return joined.select(
        *table.columns,
        F.when(is_counter, either("series")).alias("evidence"),
        F.coalesce(unborn, F.lit(False)).alias("unborn"),
    ).drop("family", "process")
