"""Scraped samples as a Spark table: metric string, labels map<string,string>, timestamp long (ms, UTC), value double.

That is the schema of the local recorder's Parquet files and, later, of the Prometheus data source.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, MapType, StringType, StructField, StructType

SCHEMA = StructType(
    [
        StructField("metric", StringType(), nullable=False),
        StructField("labels", MapType(StringType(), StringType()), nullable=False),
        StructField("timestamp", LongType(), nullable=False),
        StructField("value", DoubleType(), nullable=False),
    ]
)


class NoSamples(Exception):
    """There is nothing to read; the text names the folder."""


def read_parquet(session: SparkSession, directory: Path) -> DataFrame:
    """All samples below `directory` (files named `*.parquet`), each (series, time) once.

    Adds the column `series`: the sorted labels, which can be grouped by where a map can't. Raises NoSamples.
    """
    if not any(directory.glob("*.parquet")):
        raise NoSamples(f"no *.parquet files in {directory}: nothing was recorded there")
    return with_series(session.read.schema(SCHEMA).parquet(str(directory)))


def with_series(samples: DataFrame) -> DataFrame:
    """Drops stale markers and other NaN, and rows that tell the same (series, time) again: two recorders may have
    seen one target. Of values that differ the higher is kept: counters only rise between two readings of a moment."""
    return (
        samples.where(~F.isnan("value"))
        .withColumn("series", F.array_sort(F.map_entries("labels")))
        .groupBy("metric", "series", "timestamp")
        .agg(F.max("value").alias("value"), F.first("labels").alias("labels"))
    )
