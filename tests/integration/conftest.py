"""What integration tests share: one Spark session, for starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from migratory_local.java import find_java, spark_home
from migratory_spark.session import local_session
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work = tmp_path_factory.mktemp("spark")
    with local_session(spark_home(find_java(), work), work, cores=2) as spark:
        yield spark
