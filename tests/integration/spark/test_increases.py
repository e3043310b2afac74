"""The increase of counters, computed by a real Spark session from real Parquet files.

One file holds all series of a test module. Each case is a metric of its own, and one job computes all of them. A report
computes few samples in one process and many in Spark; both must give the same.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from migratory_spark.aggregate.series_catalog import NO_LAYOUT, build_catalog, sample_statistics
from migratory_spark.aggregate.totals import AggregatePass, TotalsPlan, combine_results
from migratory_spark.errors import BadSamples, NoSamples
from migratory_spark.read.samples import SCHEMA, SampleSource, parquet_source, table_source
from migratory_spark.read.series_pack import SampleQuery
from migratory_spark.read.series_store import MAX_LOCAL_SAMPLES, open_store
from migratory_testing.counter_increases import increases
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
Sample = tuple[str, dict[str, str], int, float]
Write = Callable[[list[Sample]], Path]

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
START, END = 1000, 5000


def series(metric: str, values: dict[int, float], **labels: str) -> list[Sample]:
    return [(metric, labels, moment, value) for moment, value in values.items()]


# Each case: its samples, and what they are worth in (START, END].
CASES: dict[str, tuple[list[Sample], list[tuple[int, float]]]] = {
    "before_total": (
        series("before_total", {900: 50.0, 1900: 60.0, 2900: 75.0}), [(1900, 10.0), (2900, 15.0)],
    ),
    "at_start_total": (
        # Open at the start, closed at the end.
        series("at_start_total", {1000: 5.0, 2000: 8.0, 5000: 20.0, 5001: 90.0}), [(2000, 3.0), (5000, 12.0)],
    ),
    "born_and_restarted_total": (
        series("born_and_restarted_total", {1500: 7.0, 2500: 9.0, 3500: 4.0, 4500: 6.0}),
        [(1500, 7.0), (2500, 2.0), (3500, 4.0), (4500, 2.0)],
    ),
    "flat_total": (series("flat_total", {900: 3.0, 2000: 3.0, 3000: 3.0}), [(2000, 0.0), (3000, 0.0)]),
    "repeated_total": (
        # The same samples again, labels in another order; of two values at one time the higher.
        series("repeated_total", {1500: 1.0, 2500: 3.0}, a="1", b="2")
        + series("repeated_total", {1500: 1.0, 2500: 2.5}, b="2", a="1"),
        [(1500, 1.0), (2500, 2.0)],
    ),
    "stale_total": (
        # The series ended and came back, not having restarted; NaN is no sample.
        series("stale_total", {900: 5.0, 1900: 6.0, 2900: STALE, 3900: OTHER_NAN, 4900: 9.0}),
        [(1900, 1.0), (4900, 3.0)],
    ),
    "infinite_total": (series("infinite_total", {900: 5.0, 1900: math.inf, 2900: 7.0}), [(2900, 2.0)]),
    "quick_restart_total": (
        # Higher than before, and yet another life: `_created` changed.
        series("quick_restart_total", {900: 5.0, 1900: 6.0, 2900: 8.0, 3900: 9.0})
        + series("quick_restart_created", {900: 0.5, 1900: 0.5, 2900: 2.5, 3900: 2.5}),
        [(1900, 1.0), (2900, 8.0), (3900, 1.0)],
    ),
    "late_total": (
        # A lower sample without a restart is one that came late.
        series("late_total", {900: 10.0, 1900: 12.0, 2900: 11.0, 3900: 13.0})
        + series("late_created", {900: 0.5, 1900: 0.5, 2900: 0.5, 3900: 0.5}),
        [(1900, 2.0), (2900, 0.0), (3900, 1.0)],
    ),
    "older_total": (
        # Not scraped before the window, and older than it: what it held at first is not known to be of the window.
        series("older_total", {2000: 900.0, 3000: 901.0})
        + series("older_created", {2000: -60.0, 3000: -60.0}),
        [(2000, 0.0), (3000, 1.0)],
    ),
    "skewed_total": (
        # Born in the window; its own clock is three seconds behind and says that it was before.
        series("skewed_total", {2000: 4.0, 3000: 6.0}) + series("skewed_created", {2000: -2.0, 3000: -2.0}),
        [(2000, 4.0), (3000, 2.0)],
    ),
    "process_total": (
        series("process_total", {900: 5.0, 1900: 9.0, 2900: 9.5}, job="load", instance="w1")
        + series("process_start_time_seconds", {900: 0.1, 1900: 1.2, 2900: 1.2}, job="load", instance="w1"),
        [(1900, 9.0), (2900, 0.5)],
    ),
    "bounded_bucket": (
        series("bounded_bucket", {900: 0.0, 1900: 4.0}, le="0.1")
        + series("bounded_bucket", {900: 1.0, 1900: 7.0}, le="+Inf"),
        [(1900, 4.0), (1900, 6.0)],
    ),
}  # fmt: skip


def everything(metrics: set[str], *replica_labels: str) -> SampleQuery:
    return SampleQuery(frozenset(metrics), -(2**62), 2**62, replica_labels)


@pytest.mark.parametrize("few", [MAX_LOCAL_SAMPLES, 0])
def test_counters_of_every_case_have_the_expected_increases(session: SparkSession, write: Write, few: int) -> None:
    samples = [sample for each, _ in CASES.values() for sample in each]
    random.Random(3).shuffle(samples)
    by_metric: dict[str, list[tuple[int, float]]] = {}
    for metric, _, moment, rise in increases(session, parquet_source(session, write(samples)), START, END, CASES, few):
        by_metric.setdefault(metric, []).append((moment, rise))
    assert {name: sorted(rises) for name, rises in by_metric.items()} == {
        name: rises for name, (_, rises) in CASES.items()
    }


def test_samples_of_two_servers_with_different_clocks_count_once(session: SparkSession) -> None:
    """Samples that two servers with clocks 700 ms apart scraped from one counter give its true increase, within 10.
    If both servers' samples were merged, they would look like a restart each time."""
    rows: list[tuple[object, ...]] = []
    truth = {moment: float(moment // 100) for moment in range(0, 300_000, 50)}
    restarted = {moment: value if moment < 150_000 else value - 1500 for moment, value in truth.items()}
    for source, first, skew, gone in (("a", 500, 0, range(200_000, 240_000)), ("b", 250, -700, range(0, 90_000))):
        for moment in range(first, 300_000, 1000):
            if moment not in gone:
                rows.append(("c_total", {"x": "1"}, moment + skew, restarted[moment], source))
    schema = "metric string, labels map<string,string>, timestamp long, value double, source string"
    known = table_source(session.createDataFrame(rows, schema))
    total = sum(each.increase for each in increases(session, known, -1000, 300_000, ["c_total"]))
    last = restarted[299_500]
    # What the first life counted after its last scrape is not known: at most one interval of ten a second.
    assert 1500 + last - 10 <= total <= 1500 + last


def test_samples_of_replicas_are_one_series(session: SparkSession) -> None:
    rows = [
        ("c_total", {"x": "1", "replica": replica}, moment, value)
        for replica, shift in (("r1", 0), ("r2", 400))
        for moment, value in ((1000 + shift, 1.0), (2000 + shift, 5.0), (3000 + shift, 9.0))
    ]
    source = table_source(session.createDataFrame(rows, SCHEMA))
    store = open_store(session, source, everything({"c_total"}, "replica"))
    store.close()
    statistics = sample_statistics(store.stats)
    assert (statistics.series, statistics.samples, statistics.several_servers) == (1, 6, True)


def test_buckets_that_come_with_a_release_have_no_layout(session: SparkSession, write: Write) -> None:
    """When the exporter w1 replaces its bucket 0.2 by 0.25, these two buckets have no layout, its other buckets have
    one, and those of w2 are not affected."""
    samples = [
        ("h_bucket", {"instance": instance, "le": le}, moment, 1.0)
        for instance in ("w1", "w2")
        for le, moments in (("0.1", (1, 2, 3)), ("0.2", (1,)), ("0.25", (2, 3)), ("+Inf", (1, 2, 3)))
        for moment in (moments if instance == "w1" else (1, 2, 3))
    ]
    store = open_store(session, parquet_source(session, write(samples)), everything({"h_bucket"}))
    layouts = {
        (entry.stats.labels["instance"], entry.stats.labels["le"]): entry.group.layout
        for entry in build_catalog(store.stats, 0).entries
    }
    assert layouts["w1", "0.2"] == layouts["w1", "0.25"] == NO_LAYOUT
    assert layouts["w1", "0.1"] == layouts["w1", "+Inf"] != NO_LAYOUT
    assert len({layouts["w2", le] for le in ("0.1", "0.2", "0.25", "+Inf")}) == 1
    assert layouts["w2", "0.1"] != layouts["w1", "0.1"]


def test_stale_markers_and_nan_of_a_gauge_are_counted_and_left_out(
    session: SparkSession, write: Write, tmp_path: Path
) -> None:
    """Case A19: a stale marker and a NaN of a gauge are counted as such and left out of its mean and maximum, in one
    process and in Spark, whatever the order of the samples. The file is not written by Spark, which writes every NaN
    with the same bits."""
    values = {0: 100.0, 15: 100.0, 30: STALE, 60: 200.0, 75: OTHER_NAN, 90: 200.0}
    samples = series("g", {second * 1000: value for second, value in values.items()}, x="1")
    random.Random(5).shuffle(samples)
    folder, again = write(samples), tmp_path / "again"
    again.mkdir()
    pq.write_table(pq.read_table(folder / "samples-0.parquet").sort_by("timestamp"), again / "samples-0.parquet")
    by_spark = table_source(session.read.schema(SCHEMA).parquet(str(folder)))
    sources = (by_spark, SampleSource(by_spark.frame, len(samples)), parquet_source(session, again))
    for source in sources:
        store = open_store(session, source, everything({"g"}))
        statistics = sample_statistics(store.stats)
        plan = TotalsPlan(np.array([-1, 105_000], dtype=np.int64), np.array([-1], dtype=np.int64))
        read_gauge = AggregatePass(build_catalog(store.stats, 0).index, (plan,), np.array([0], dtype=np.int64))
        (gauge,) = combine_results(store.run(read_gauge)).readings.values()
        store.close()
        assert (statistics.samples, statistics.stale, statistics.nan) == (4, 1, 1)
        assert (gauge.samples, gauge.mean, gauge.max, gauge.last_ms) == (4, 150.0, 200.0, 90_000)


def test_an_empty_folder_is_an_error(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoSamples, match=str(tmp_path)):
        parquet_source(session, tmp_path)


def test_a_table_with_other_columns_is_rejected(session: SparkSession) -> None:
    with pytest.raises(BadSamples, match="no column 'labels'"):
        table_source(session.createDataFrame([("m", 1, 1.0)], "metric string, timestamp long, value double"))
    text = session.createDataFrame([("m", {"a": "b"}, "now", 1.0)], "metric string, labels map<string,string>, "
                                   "timestamp string, value double")  # fmt: skip
    with pytest.raises(BadSamples, match="'timestamp' of samples is string, not bigint"):
        table_source(text)
