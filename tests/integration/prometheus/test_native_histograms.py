"""Native histograms in a real Prometheus: Spark gets the histograms that were written, as PromQL shows them. The
Prometheus of tests/cluster has custom buckets as well."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migratory_spark.prometheus import read_samples
from migratory_testing import prometheus_wire as made
from migratory_testing.prometheus_wire import Native, Shape
from migratory_testing.realprometheus import Prometheus
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "prometheus-source.md"
START, STEP, SAMPLES = 1_767_225_600_000, 15_000, 200
END = START + SAMPLES * STEP


def written() -> dict[str, tuple[Shape, list[Native], bool]]:
    """Return by metric the buckets, samples, and whether counts are floating-point numbers. `requests` rises, is
    restarted and ends with a stale marker."""
    few = Shape(schema=3, positive=[(-2, 3), (2, 1)], negative=[(0, 2)], zero_threshold=0.001)
    rising = []
    for number in range(SAMPLES - 1):
        life = number % 120 + 1
        positive, negative = [life, 2.0 * life, life // 3, 5.0], [3.0 * life, life]
        rising.append(
            Native(
                time=START + STEP * number, count=sum(positive) + sum(negative) + life, sum=life * 0.1, zero_count=life,
                positive=positive, negative=negative,
            )
        )  # fmt: skip
    rising.append(Native(time=START + STEP * (SAMPLES - 1), count=0, sum=made.of_bits(made.STALE_BITS)))
    floats = [
        Native(time=START + STEP * number, count=1.5 + number, sum=0.25 * number, positive=[0.5, 1.0 + number])
        for number in range(SAMPLES)
    ]
    return {
        "requests": (few, rising, False),
        "size": (Shape(schema=0, positive=[(0, 2)]), floats, True),
    }


@pytest.fixture(scope="module")
def server(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run a Prometheus to which the histograms were written, and yield it."""
    options = ["--enable-feature=native-histograms", "--web.enable-remote-write-receiver"]
    with Prometheus(tmp_path_factory.mktemp("native"), options=options) as running:
        series = b"".join(
            made.message(
                1,
                made.labels({"__name__": metric, "job": "web"})
                + b"".join(made.plain_histogram(shape, sample, floats=floats) for sample in samples),
            )
            for metric, (shape, samples, floats) in written().items()
        )
        headers = {
            "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }  # fmt: skip
        request = urllib.request.Request(f"{running.url}/api/v1/write", made.snappy(series), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 204
        yield running


def test_histograms_are_read_as_they_were_written(session: SparkSession, server: Prometheus) -> None:
    columns = "metric,timestamp,value,histogram"
    rows = read_samples(session, server.url, "requests size", START, END, columns=columns, partition="1h").collect()
    by_metric: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_metric.setdefault(row.metric, {})[row.timestamp] = row
    for metric, (shape, samples, _) in written().items():
        assert len(by_metric[metric]) == len(samples)
        for sample in samples:
            row = by_metric[metric][sample.time]
            if made.bits_of(sample.sum) == made.STALE_BITS:
                assert (made.bits_of(row.value), row.histogram) == (made.STALE_BITS, None)
                continue
            assert row.value is None
            histogram = row.histogram
            assert (histogram.schema, histogram["count"], histogram.sum) == (shape.schema, sample.count, sample.sum)
            assert (histogram.zero_count, histogram.zero_threshold) == (sample.zero_count, shape.zero_threshold)
            filled = [count for count in (*sample.negative[::-1], sample.zero_count, *sample.positive) if count]
            assert [bucket["count"] for bucket in histogram.buckets] == filled
            assert histogram.reset_hint in ("no", "unknown")
    # What PromQL says of one of them, bounds and all.
    moment = START + 77 * STEP
    query = urllib.parse.urlencode({"query": "requests", "time": moment / 1000})
    with urllib.request.urlopen(f"{server.url}/api/v1/query?{query}", timeout=30) as answer:
        (result,) = json.load(answer)["data"]["result"]
    _, promql = result["histogram"]
    histogram = by_metric["requests"][moment].histogram
    assert (float(promql["count"]), float(promql["sum"])) == (histogram["count"], histogram.sum)
    assert [tuple(map(float, bucket[1:])) for bucket in promql["buckets"]] == [
        pytest.approx((bucket.lower, bucket.upper, bucket["count"]), rel=1e-12) for bucket in histogram.buckets
    ]


def test_without_a_column_histograms_are_an_error_or_classic(session: SparkSession, server: Prometheus) -> None:
    with pytest.raises(PySparkException, match="is a native histogram: name the column histogram in option columns"):
        read_samples(session, server.url, "requests", START, END, partition="1h").collect()
    moment = START + 99 * STEP
    classic = read_samples(session, server.url, "requests", moment, moment + 1, histograms="classic").collect()
    by_bound = {row.labels.get("le"): row.value for row in classic if row.metric == "requests_bucket"}
    # 400 negative observations, 100 in the zero bucket, 100 up to 2^(-2/8), 200 up to 2^(-1/8), 33 up to 1, and five up
    # to 2^(3/8).
    assert by_bound["0.0009765625"] == 400  # less than the zero threshold
    assert (by_bound["0.5"], by_bound["1.0"], by_bound["2.0"], by_bound["+Inf"]) == (500, 833, 838, 838)
    assert [row.value for row in classic if row.metric == "requests_sum"] == [100 * 0.1]


def test_documented_example_finds_the_buckets(session: SparkSession, server: Prometheus) -> None:
    (example,) = (
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "histogram" in block
    )
    for documented, here in (
        ("http://prometheus:9090", server.url), ("rpc_latency_seconds", "requests"),
        ("2026-11-01T00", "2026-01-01T00"), ("2026-11-08T00", "2026-01-01T01"),
    ):  # fmt: skip
        assert documented in example
        example = example.replace(documented, here)
    variables: dict[str, Any] = {"spark": session, "F": F}
    exec(compile(example, str(PAGE), "exec"), variables)
    # Four positive buckets of each sample, of which the third is empty in the first two samples of each life.
    assert variables["slow"].count() == 4 * (SAMPLES - 1) - 4
