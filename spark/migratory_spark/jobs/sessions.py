"""Spark as it was submitted: master, memory and executors are the submitter's to say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def submitted_session(name: str) -> Iterator[SparkSession]:
    """Ended with the block, so that executors go whatever happened. Without `spark-submit` it is a local one."""
    session = SparkSession.builder.appName(name).getOrCreate()
    try:
        # What results depend on is not the submitter's to say.
        session.conf.set("spark.sql.session.timeZone", "UTC")
        session.conf.set("spark.sql.ansi.enabled", "true")
        yield session
    finally:
        session.stop()
