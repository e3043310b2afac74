"""Counters to rises and samples to a report, on a real Spark session over real Parquet files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from migratory_spark.increases import increases
from migratory_spark.observations import coverage, observe
from migratory_spark.samples import NoSamples, read_parquet
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
Sample = tuple[str, dict[str, str], int, float]
Write = Callable[[list[Sample]], Path]


def rises(
    session: SparkSession, directory: Path, start: int, end: int, metric: str = "c_total"
) -> list[tuple[int, float]]:
    table = increases(read_parquet(session, directory), start, end, [metric])
    return sorted((row["timestamp"], row["increase"]) for row in table.collect())


def series(values: dict[int, float], **labels: str) -> list[Sample]:
    return [("c_total", labels, moment, value) for moment, value in values.items()]


def test_a_series_that_was_there_before_counts_from_its_last_sample(session: SparkSession, write: Write) -> None:
    directory = write(series({900: 50.0, 1900: 60.0, 2900: 75.0}))
    assert rises(session, directory, 1000, 3000) == [(1900, 10.0), (2900, 15.0)]


def test_a_series_born_inside_counts_from_zero_and_a_restart_begins_again(session: SparkSession, write: Write) -> None:
    directory = write(series({1500: 7.0, 2500: 9.0, 3500: 4.0, 4500: 6.0}))
    assert rises(session, directory, 1000, 5000) == [(1500, 7.0), (2500, 2.0), (3500, 4.0), (4500, 2.0)]


def test_label_order_duplicates_and_stale_markers_do_not_count_twice(session: SparkSession, write: Write) -> None:
    first = series({1500: 1.0, 2500: 3.0, 3000: math.nan}, broker="b0", instance="x")
    again = [(name, dict(reversed(labels.items())), moment, value) for name, labels, moment, value in first]
    directory = write(first + again)
    assert rises(session, directory, 1000, 5000) == [(1500, 1.0), (2500, 2.0)]


def test_the_window_is_open_at_its_start_and_closed_at_its_end(session: SparkSession, write: Write) -> None:
    directory = write(series({1000: 5.0, 2000: 8.0, 3000: 20.0}))
    assert rises(session, directory, 1000, 2000) == [(2000, 3.0)]


def test_rises_are_added_per_window_segment_and_label(session: SparkSession, write: Write) -> None:
    samples = [
        ("migratory_received_total", {"broker": "b0", "instance": str(worker)}, moment, moment / 1000)
        for worker in (1, 2)
        for moment in range(1000, 11001, 1000)
    ]
    seen = observe(read_parquet(session, write(samples)), 1000, 11000, 5000, [4000])
    assert seen.total("migratory_received_total") == 20
    assert seen.total("migratory_received_total", lambda row: row.window == 0) == 10
    assert seen.total("migratory_received_total", lambda row: row.segment == 0) == 6
    assert seen.has("migratory_received_total")
    assert not seen.has("migratory_lost_total")
    assert list(seen.windows) == [0, 1]


def test_coverage_tells_a_hole_in_the_scrapes(session: SparkSession, write: Write) -> None:
    moments = [moment for moment in range(0, 101_000, 1000) if not 40_000 < moment < 60_000]
    samples = [("migratory_received_total", {"broker": "b0"}, moment, 1.0) for moment in moments]
    covered = coverage(read_parquet(session, write(samples)), 0, 100_000)
    assert covered.interval == 1.0
    assert covered.longest_gap == 20.0
    assert covered.share == pytest.approx(0.8)


def test_nothing_recorded_is_said(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoSamples, match=str(tmp_path)):
        read_parquet(session, tmp_path)
