"""A real Prometheus 3 that keeps histograms as native ones with custom buckets: a report from it equals one from a
Prometheus that keeps the classic form. Needs the Prometheus that is built for the tests on Kubernetes, and no cluster.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from migratory_node.monitoring import build_server
from migratory_node.paths import NodePaths
from migratory_spark.jobs.inputs import PrometheusServers
from migratory_spark.metrics import HISTOGRAMS
from migratory_spark.prometheus.errors import ServerError
from migratory_spark.report.build import LOOKBACK_MS, as_plain
from migratory_testing.fakeprometheus import FakePrometheus, Reply, Request
from migratory_testing.realprometheus import Prometheus
from migratory_testing.recordings import DELIVERIES, SECONDS, Sample, recording
from migratory_testing.reports import EVERY_KIND, of_packs
from migratory_testing.waiting import poll

pytestmark = pytest.mark.timeout(300)

CONVERT = {"convert_classic_histograms_to_nhcb": True}
BOTH = {**CONVERT, "always_scrape_classic_histograms": True}


def pages(samples: Sequence[Sample]) -> list[bytes]:
    """Return a page in the text format for each moment of the samples, which have their times on it."""
    by_moment: dict[int, list[str]] = {}
    for metric, labels, at, value in samples:
        lines = by_moment.setdefault(at, [])
        if metric.endswith("_bucket") and (kind := f"# TYPE {metric.removesuffix('_bucket')} histogram") not in lines:
            lines.append(kind)
        pairs = ",".join(f'{name}="{text}"' for name, text in labels.items())
        lines.append(f"{metric}{{{pairs}}} {value!r} {at}")
    return ["".join(f"{line}\n" for line in lines).encode() for lines in by_moment.values()]


def read_pages(server: Prometheus) -> int:
    """Return the number of pages that the server has read: `expected` is on each."""
    return int(server.value("count_over_time(migratory_expected_total[1h])") or 0)


def has_read(server: Prometheus, count: int) -> bool:
    return read_pages(server) == count


def reported(server: Prometheus, start: int, **settings: str) -> dict[str, Any]:
    """Return the report on the recording that began at `start` (seconds), from a server. Its tasks run here, without
    Spark."""
    servers = PrometheusServers(
        server.url, None, start * 1000 - LOOKBACK_MS, (start + SECONDS) * 1000, {"partition": "30s", **settings}
    )
    source = servers.samples(mock.Mock())
    assert source.tasks is not None
    tasks = pa.record_batch([pa.array(range(source.tasks))], names=["id"])
    report = of_packs(
        lambda query: source.pack(iter([tasks]), query), start, start + SECONDS, EVERY_KIND, by=["broker"]
    )
    return as_plain(report)


def test_reports_from_custom_buckets_equal_those_of_the_classic_form(tmp_path: Path) -> None:
    start = int(time.time()) - 600
    # A delivery's latency lies in another bucket each second, and in none of the buckets for long.
    samples = recording(start=start, lost=1, latency=lambda second: (0.0009, 0.009, 0.03, 0.2, 7.0)[second // 7 % 5])
    content = pages(samples)
    servers: dict[str, Prometheus] = {}

    def answer(request: Request) -> Reply:
        # The next page, or once more one whose scrape timed out.
        number = min(read_pages(servers[request.path]), len(content) - 1)
        return Reply(content[number], kind="text/plain; version=0.0.4; charset=utf-8")

    with FakePrometheus(answer) as target, ExitStack() as stack:
        for path, scrape in {"/classic": {}, "/native": CONVERT, "/both": BOTH}.items():
            servers[path] = Prometheus(
                tmp_path / path[1:], [target.url.removeprefix("http://")], 100,
                scrape={"metrics_path": path, "honor_labels": True, **scrape},
                options=["--enable-feature=native-histograms"], program=str(build_server(NodePaths.default())),
            )  # fmt: skip
        classic, native, both = (stack.enter_context(server) for server in servers.values())
        for server in servers.values():
            poll(partial(has_read, server, len(content)), f"{server.url} has read all pages", 120)
        for name in HISTOGRAMS:
            assert native.value(f"count(count_over_time({name}_bucket[1h]))") is None
            assert native.value(f"count(count_over_time({name}[1h]))")
        reports = {server: reported(server, start) for server in servers.values()}
        whole = reports[classic]
        assert whole["latency_ms"]["all"]["count"] == DELIVERIES
        verdicts = {result["verdict"] for result in whole["objectives"]}
        assert verdicts >= {"met", "missed"}
        # Plain responses of Prometheus leave the bounds out.
        with pytest.raises(ServerError, match="set option api to remote_read"):
            reported(native, start, api="remote_read_samples")
    samples_of = {server: report.pop("samples") for server, report in reports.items()}
    assert reports[native] == whole
    assert reports[both] == whole
    assert samples_of[native] == samples_of[classic]
    # The server has each histogram twice.
    assert samples_of[both]["repeated"] > samples_of[classic]["repeated"]
    assert samples_of[both]["samples"] - samples_of[both]["repeated"] == samples_of[classic]["samples"]
