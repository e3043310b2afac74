"""One real Spark session for all of these tests, and a writer of the recorder's Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from migratory_local.demo import JAVA_OPTIONS
from migratory_local.java import find_java, spark_home
from migratory_spark.session import local_session
from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.int64()),
        ("value", pa.float64()),
    ]
)
Sample = tuple[str, dict[str, str], int, float]
Write = Callable[[list[Sample]], Path]


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        # Of many small reports most of the time is compiling: the second compiler would not pay.
        patch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
        with local_session(spark_home(find_java(), work), work, cores=2) as spark:
            yield spark


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes samples as one file of the recorder; returns the folder."""

    def write_samples(samples: list[Sample]) -> Path:
        columns = list(zip(*samples, strict=True))
        labels = [list(found.items()) for found in columns[1]]
        table = pa.table([columns[0], labels, columns[2], columns[3]], schema=SCHEMA)
        pq.write_table(table, tmp_path / "samples-0.parquet")
        return tmp_path

    return write_samples
