"""Batch reads by a real Spark from a real Prometheus: every interface gives the same samples, and a read without
samples says why. Also the window, overlapping servers, filters, limits of a server, and wrong options."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from migratory_spark.prometheus import NoSamplesFound, OptionError, ServerError, read_samples, register
from migratory_spark.prometheus.source import PUSHDOWN
from migratory_testing.realprometheus import Prometheus, backfill
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

START = 1_767_225_600_000
END = START + 600 * 15_000


def load(
    session: SparkSession,
    server: Prometheus,
    matchers: str = "work_total idle_total",
    start: int = START,
    end: int = END,
    **options: Any,
) -> DataFrame:
    return read_samples(session, server.url, matchers, start, end, **options)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return (metric, labels, time, value) of each row, sorted. Fail if a row is there twice."""
    samples = [(row.metric, tuple(sorted(row.labels.items())), row.timestamp, row.value) for row in frame.collect()]
    assert len(set(samples)) == len(samples)
    return sorted(samples)


def expected(*external: tuple[str, str]) -> list[tuple[Any, ...]]:
    return sorted(
        (metric, tuple(sorted([("broker", f"b{broker}"), *external])), START + 15_000 * scrape, float(value))
        for scrape in range(600)
        for broker in range(3)
        for metric, value in (("work_total", 7 * scrape * (broker + 1)), ("idle_total", 0))
    )


@pytest.mark.parametrize("api", ["auto", "remote_read_samples", "range_selector"])
def test_every_interface_returns_the_same_samples(session: SparkSession, known: Prometheus, api: str) -> None:
    # Only remote read adds the server's external labels.
    external = [] if api == "range_selector" else [("replica", "a")]
    assert rows(load(session, known, api=api, partition="1h")) == expected(*external)
    assert rows(load(session, known, api=api, dropLabels="replica")) == expected()


def test_one_row_per_series_and_partition(session: SparkSession, known: Prometheus) -> None:
    frame = load(
        session, known, shape="series", partition="1h", columns="metric,labels,timestamps,values,series,source"
    )
    rows = frame.collect()
    assert len(rows) == 6 * 3
    assert {row.source for row in rows} == {known.url}
    by_series: dict[int, list[Any]] = {}
    for row in rows:
        assert list(row.timestamps) == sorted(row.timestamps)
        by_series.setdefault(row.series, []).extend(
            (row.metric, tuple(sorted(row.labels.items())), time, value)
            for time, value in zip(row.timestamps, row["values"], strict=True)
        )
    assert len(by_series) == 6
    assert sorted(sample for samples in by_series.values() for sample in samples) == expected(("replica", "a"))


def test_the_window_is_half_open(session: SparkSession, known: Prometheus) -> None:
    for api in ("auto", "range_selector"):
        times = load(
            session, known, matchers='work_total{broker="b1"}', start=START + 15_000, end=START + 45_000, api=api
        )
        assert sorted(row.timestamp for row in times.select("timestamp").collect()) == [START + 15_000, START + 30_000]


def test_servers_that_overlap_count_once(session: SparkSession, known: Prometheus) -> None:
    both = f"{known.url},{known.url.replace('127.0.0.1', 'localhost')}"
    frame = read_samples(session, both, "work_total", START, END)
    assert frame.count() == 1800
    by_source = read_samples(session, both, "work_total", START, END, columns="source,value")
    assert sorted(row["count"] for row in by_source.groupBy("source").count().collect()) == [1800, 1800]


def test_filters_are_pushed_down_if_spark_is_configured(session: SparkSession, known: Prometheus) -> None:
    register(session)
    options = {"url": known.url, "matchers": '{broker=~"b."}', "pushdown": "true"}
    with pytest.raises(PySparkException, match=PUSHDOWN):
        session.read.format("prometheus").options(**options, start="0", end="1").load().collect()
    session.conf.set(PUSHDOWN, "true")
    try:
        # Without start and end: that it works at all shows that the filters arrived.
        frame = session.read.format("prometheus").options(**options).load()
        selected = frame.where(
            (F.col("metric") == "work_total")
            & F.col("timestamp").between(START + 15_000, START + 30_000)
            & (F.col("labels")["broker"] == "b2")
        )
        assert [(row[2], row[3]) for row in rows(selected)] == [(START + 15_000, 21.0), (START + 30_000, 42.0)]
        # Spark keeps the reader of the last query. Once this fails, Spark is mended, and docs and default can change.
        assert frame.count() == 6
    finally:
        session.conf.set(PUSHDOWN, "false")


def test_pushed_filters_on_labels_give_the_rows_of_sparks_own(
    session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # The server adds region="eu" to series that have no region. Others have it as a label of their own.
    kinds = ['region="eu"', 'region="us"', 'region="e.u|"', "", 'job="web\\nb"', 'job="web"', 'job="Web-1",region="eu"']
    lines = [f"load{{{labels}}} 1 {START // 1000 + second}" for labels in kinds for second in range(2)]
    folder = backfill(tmp_path_factory.mktemp("labels"), lines)
    conditions = [
        "region = 'eu'", "region in ('eu', 'e.u|')", "region not in ('us', 'e')", "region is null",
        "job is null and region != 'us'", "job like 'web%'", "job not like '%b' and job rlike '^[Ww]eb'",
        "time = timestamp'2026-01-01T00:00:01Z' and job = 'web'",
    ]  # fmt: skip
    session.conf.set(PUSHDOWN, "true")
    try:
        with Prometheus(folder, external_labels={"region": "eu"}) as server:
            by_pushdown = {}
            for pushdown in ("true", "false"):
                frames = [
                    load(session, server, "load", columns="time,value", labelColumns="region,job", pushdown=pushdown)
                    .where(condition)
                    .withColumn("condition", F.lit(condition))
                    for condition in conditions
                ]
                by_pushdown[pushdown] = sorted(map(repr, reduce(DataFrame.unionAll, frames).collect()))
    finally:
        session.conf.set(PUSHDOWN, "false")
    assert by_pushdown["true"] == by_pushdown["false"]
    counts = [sum(repr(condition) in row for row in by_pushdown["false"]) for condition in conditions]
    assert counts == [10, 12, 12, 0, 6, 4, 2, 1]


def test_queries_are_split_for_a_server_that_limits_samples(
    session: SparkSession, known: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [f'work_total{{broker="b0"}} {scrape} {START // 1000 + scrape}' for scrape in range(3000)]
    folder = backfill(tmp_path_factory.mktemp("limited"), lines)
    limits = ["--storage.remote.read-sample-limit=500", "--query.max-samples=500"]
    with Prometheus(folder, options=limits) as server:
        for api in ("remote_read_samples", "range_selector"):
            frame = read_samples(session, server.url, "work_total", START, START + 3_000_000, api=api)
            assert frame.agg(F.count("*"), F.sum("value")).first() == (3000, 2999 * 1500)


def test_missing_samples_are_explained(session: SparkSession, known: Prometheus) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"matchers": "wörk_total"}, "option matchers"),
        ({"matchers": "work_totals"}, "it has no such series; did you mean work_total"),
        ({"matchers": 'work_total{broker="b9"}'}, "it has work_total with other labels"),
        ({"start": START - 9_000_000, "end": START}, "no sample of them in the window"),
        ({"start": 4_000_000_000_000, "end": 4_000_000_001_000}, "lies in the future"),
        ({"start": START, "end": START}, "the window is empty"),
    ]
    for given, words in cases:
        with pytest.raises((NoSamplesFound, OptionError), match=words):
            load(session, known, **given)


def test_without_samples_spark_reads_an_empty_table_or_fails(session: SparkSession, known: Prometheus) -> None:
    register(session)
    options = {
        "url": known.url,
        "matchers": "work_totals",
        "start": "2026-01-01T00:00:00Z",
        "end": "2026-01-01T01:00:00Z",
    }
    frame = session.read.format("prometheus").options(**options)
    assert frame.load().count() == 0
    with pytest.raises(
        PySparkException, match=r"NoSamplesFound: no samples from 2026-01-01T00:00:00\.000Z .* did you mean work_total"
    ):
        frame.option("whenEmpty", "fail").load().count()


def test_wrong_options_are_reported_before_reading(session: SparkSession, known: Prometheus) -> None:
    register(session)
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "option url is missing"),
        ({"url": known.url, "stars": "1"}, "there is no option 'stars'; did you mean start"),
        ({"url": known.url}, "option start is missing"),
    ]
    for options, words in cases:
        with pytest.raises(PySparkException, match=words):
            session.read.format("prometheus").options(matchers="up", **options).load().count()
    reader = session.read.format("prometheus").options(matchers="up", url=known.url)
    with pytest.raises(PySparkException, match="choose it by options shape, columns and labelColumns"):
        reader.schema("x int").load().count()


def test_a_server_that_is_down_is_named(session: SparkSession) -> None:
    with pytest.raises(ServerError, match=r"http://127.0.0.1:9: can't be reached \(1 tries\)|\(2 tries\)"):
        read_samples(session, "http://127.0.0.1:9", "up", START, END, retries=1)
