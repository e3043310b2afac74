"""Scraped samples as a Spark table: metric string, labels map<string,string>, timestamp long (ms, UTC), value double.

That is the schema of the local recorder's Parquet files and of the Prometheus data source. Rows may come in any order
and more than once, and hold NaN: what they mean is settled in `catalogue.py` and `increases.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, LongType, MapType, StringType, StructField, StructType

SCHEMA = StructType(
    [
        StructField("metric", StringType(), nullable=False),
        StructField("labels", MapType(StringType(), StringType()), nullable=False),
        StructField("timestamp", LongType(), nullable=False),
        StructField("value", DoubleType(), nullable=False),
    ]
)

# Prometheus' stale marker is a signalling NaN; arithmetic on the way may have set the quiet bit.
_STALE = (0x7FF0000000000002, 0x7FF8000000000002)


class NoSamples(Exception):
    """There is nothing to read; the text names the folder."""


class BadSamples(ValueError):
    """A table that does not have the columns of samples; the text names the column and what it should be."""


def read_parquet(session: SparkSession, directory: Path) -> DataFrame:
    """All samples in the files named `*.parquet` of `directory`. Raises NoSamples."""
    if not any(directory.glob("*.parquet")):
        raise NoSamples(f"no *.parquet files in {directory}: nothing was recorded there")
    return session.read.schema(SCHEMA).parquet(str(directory))


def identified(samples: DataFrame, replica_labels: Sequence[str] = ()) -> DataFrame:
    """Adds `series`, a number that is equal for equal metric and labels in whatever order, and `source`, the server
    that a row came from.

    A 64-bit hash stands for the labels from here on: a shuffle of 100 million maps would cost ten times as much, and
    with a million series two share a hash in one of 30 million runs. A column `series` or `source` that is there is
    taken as it is. `replica_labels` tell servers apart that scrape the same targets; they are no part of a series.
    Raises BadSamples.
    """
    _check(samples)
    labels: Column = F.col("labels")
    if replica_labels:
        labels = F.map_filter(labels, lambda key, _: ~key.isin(*replica_labels))
    if "source" not in samples.columns:
        named = [F.coalesce(F.col("labels")[name], F.lit("")) for name in replica_labels]
        samples = samples.withColumn("source", F.concat_ws("/", *named) if named else F.lit(""))
    if replica_labels:
        samples = samples.withColumn("labels", labels).drop("series")
    if "series" not in samples.columns:
        samples = samples.withColumn("series", F.xxhash64("metric", F.sort_array(F.map_entries("labels"))))
    return samples


def is_stale(value: str = "value") -> Column:
    """Whether a sample is the stale marker, which other NaN are not. Spark compares all NaN as equal, so the bits are
    looked at, of NaN alone: it costs a call by reflection."""
    bits = F.expr(f"java_method('java.lang.Double', 'doubleToRawLongBits', {value})").cast("long")
    return F.when(F.isnan(value), bits.isin(*_STALE)).otherwise(F.lit(False))


def _check(samples: DataFrame) -> None:
    for field in SCHEMA.fields:
        if field.name not in samples.columns:
            raise BadSamples(f"samples have no column {field.name!r}; they have {', '.join(samples.columns) or 'none'}")
        found = samples.schema[field.name].dataType
        if not _same(found, field.dataType):
            raise BadSamples(
                f"the column {field.name!r} of samples is {found.simpleString()}, not {field.dataType.simpleString()}"
            )


def _same(found: DataType, wanted: DataType) -> bool:
    # Whether a map may hold nulls is no difference.
    return found.simpleString() == wanted.simpleString()
