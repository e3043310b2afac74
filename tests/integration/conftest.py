"""Fixture: the Spark session that all integration tests share. A process can have only one, and it takes seconds to
start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from migratory_local.demo.report_job import JAVA_OPTIONS
from migratory_local.processes.java import find_java, spark_home
from migratory_spark.session import local_session
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work = tmp_path_factory.mktemp("spark")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            # Of many small reports most of the time is compiling: the second compiler would not pay.
            patch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
            spark = stack.enter_context(local_session(spark_home(find_java(), work), work, cores=2))
        yield spark
