"""Counters to rises and samples to a report, on a real Spark session over real Parquet files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from migratory_local.java import find_java, spark_home
from migratory_spark.increases import increases
from migratory_spark.observations import coverage, observe
from migratory_spark.samples import NoSamples, read_parquet
from migratory_spark.session import local_session
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.int64()),
        ("value", pa.float64()),
    ]
)
Sample = tuple[str, dict[str, str], int, float]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work = tmp_path_factory.mktemp("spark")
    with local_session(spark_home(find_java(), work), work, cores=2) as spark:
        yield spark


def write(directory: Path, samples: list[Sample]) -> Path:
    columns = list(zip(*samples, strict=True))
    table = pa.table(
        [columns[0], [list(labels.items()) for labels in columns[1]], columns[2], columns[3]], schema=SCHEMA
    )
    pq.write_table(table, directory / "samples-0.parquet")
    return directory


def rises(
    session: SparkSession, directory: Path, start: int, end: int, metric: str = "c_total"
) -> list[tuple[int, float]]:
    table = increases(read_parquet(session, directory), start, end, [metric])
    return sorted((row["timestamp"], row["increase"]) for row in table.collect())


def series(values: dict[int, float], **labels: str) -> list[Sample]:
    return [("c_total", labels, moment, value) for moment, value in values.items()]


def test_a_series_that_was_there_before_counts_from_its_last_sample(session: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, series({900: 50.0, 1900: 60.0, 2900: 75.0}))
    assert rises(session, tmp_path, 1000, 3000) == [(1900, 10.0), (2900, 15.0)]


def test_a_series_born_inside_counts_from_zero_and_a_restart_begins_again(
    session: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path, series({1500: 7.0, 2500: 9.0, 3500: 4.0, 4500: 6.0}))
    assert rises(session, tmp_path, 1000, 5000) == [(1500, 7.0), (2500, 2.0), (3500, 4.0), (4500, 2.0)]


def test_label_order_duplicates_and_stale_markers_do_not_count_twice(session: SparkSession, tmp_path: Path) -> None:
    first = series({1500: 1.0, 2500: 3.0, 3000: math.nan}, broker="b0", instance="x")
    again = [(name, dict(reversed(labels.items())), moment, value) for name, labels, moment, value in first]
    write(tmp_path, first + again)
    assert rises(session, tmp_path, 1000, 5000) == [(1500, 1.0), (2500, 2.0)]


def test_the_window_is_open_at_its_start_and_closed_at_its_end(session: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, series({1000: 5.0, 2000: 8.0, 3000: 20.0}))
    assert rises(session, tmp_path, 1000, 2000) == [(2000, 3.0)]


def test_rises_are_added_per_window_segment_and_label(session: SparkSession, tmp_path: Path) -> None:
    samples = [
        ("migratory_received_total", {"broker": "b0", "instance": str(worker)}, moment, moment / 1000)
        for worker in (1, 2)
        for moment in range(1000, 11001, 1000)
    ]
    seen = observe(read_parquet(session, write(tmp_path, samples)), 1000, 11000, 5000, [4000])
    assert seen.total("migratory_received_total") == 20
    assert seen.total("migratory_received_total", lambda row: row.window == 0) == 10
    assert seen.total("migratory_received_total", lambda row: row.segment == 0) == 6
    assert seen.has("migratory_received_total")
    assert not seen.has("migratory_lost_total")
    assert list(seen.windows) == [0, 1]


def test_coverage_tells_a_hole_in_the_scrapes(session: SparkSession, tmp_path: Path) -> None:
    moments = [moment for moment in range(0, 101_000, 1000) if not 40_000 < moment < 60_000]
    samples = [("migratory_received_total", {"broker": "b0"}, moment, 1.0) for moment in moments]
    covered = coverage(read_parquet(session, write(tmp_path, samples)), 0, 100_000)
    assert covered.interval == 1.0
    assert covered.longest_gap == 20.0
    assert covered.share == pytest.approx(0.8)


def test_nothing_recorded_is_said(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoSamples, match=str(tmp_path)):
        read_parquet(session, tmp_path)
