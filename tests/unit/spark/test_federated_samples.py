"""Objectives over clusters that one server federates, compared with a truth that is known when the samples are made.

The clients of all clusters have equal jobs and instances. A label of the scraper, `region`, distinguishes them, also at
the start times of their processes, which have no label `cluster`. Exporters restart, start late and end early, and
objectives have windows of their own. Samples are read as rows of the recorder's files, and as a Prometheus sends them:
by the report's own tasks, and as a table of the data source.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from migratory_resources.objectives import Objective
from migratory_spark.prometheus import chunk_stream
from migratory_spark.prometheus.arrow import ArrowBatches
from migratory_spark.prometheus.blocks import SampleBlock
from migratory_spark.read.series_pack import SampleQuery, SeriesPack, pack_batches, pack_blocks
from migratory_spark.report.build import LOOKBACK_MS
from migratory_testing import prometheus_wire
from migratory_testing.reports import Sample, batches, objective, of_packs

SEEDS = int(os.environ.get("MIGRATORY_SLA_SEEDS", "20"))
"""Random data sets to try."""
SKEW_MS = 5000
HOUR_MS = 3_600_000
NOW = 1_700_000_000_000


class Scrape(NamedTuple):
    at: int
    acknowledged: int
    failed: int
    began: float


Exporters = dict[tuple[str, str], list[Scrape]]
"""Scrapes by cluster and instance."""


def scrapes(source: random.Random) -> Iterator[Scrape]:
    """Yield the scrapes of one exporter in the last hours before NOW, every five minutes or so."""
    at = NOW - source.randrange(60 * HOUR_MS)
    end = NOW if source.random() < 0.7 else NOW - source.randrange(10 * HOUR_MS)
    acknowledged, failed, began = source.choice([0, 70]), 0, at / 1000 - source.choice([1, 4000, 300_000])
    while at < end:
        if source.random() < 0.02:
            acknowledged, failed, began = 0, 0, at / 1000
        acknowledged += source.randrange(40)
        failed += source.choice([0, 0, 1, 3])
        yield Scrape(at, acknowledged, failed, began)
        at += 300_000 + source.randrange(-20_000, 20_000) + (source.random() < 0.02) * source.randrange(5 * HOUR_MS)


def samples(exporters: Exporters) -> Iterator[Sample]:
    for (cluster, instance), of_exporter in exporters.items():
        target = {"job": "load", "instance": instance, "region": f"of-{cluster}"}
        labels = {**target, "cluster": cluster}
        for scrape in of_exporter:
            yield "process_start_time_seconds", target, scrape.at, scrape.began
            yield "migratory_publish_seconds_count", labels, scrape.at, float(scrape.acknowledged)
            yield "migratory_publish_errors_total", {**labels, "reason": "x"}, scrape.at, float(scrape.failed)


def truth(exporters: Exporters, cluster: str | None, start: int) -> tuple[int, int]:
    """Return acknowledged and all publications from `start` to NOW, by the rules of docs/reference/sla.md."""
    acknowledged = failed = 0
    for (of_cluster, _), of_exporter in exporters.items():
        before: Scrape | None = None
        for scrape in of_exporter:
            if cluster not in (None, of_cluster) or scrape.at <= start - LOOKBACK_MS:
                continue
            is_older = before is None and scrape.began * 1000 + SKEW_MS < start
            if scrape.at > start and not is_older:
                goes_on = before is not None and before.began == scrape.began
                acknowledged += scrape.acknowledged - (before.acknowledged if before and goes_on else 0)
                failed += scrape.failed - (before.failed if before and goes_on else 0)
            before = scrape
    return acknowledged, acknowledged + failed


def sent_by_prometheus(rows: list[Sample]) -> Iterator[SampleBlock]:
    """Yield the blocks that a reader makes of a streamed response with these samples."""
    by_series: dict[tuple[tuple[str, str], ...], list[tuple[int, float]]] = defaultdict(list)
    for metric, labels, at, value in rows:
        by_series[tuple(sorted({"__name__": metric, **labels}.items()))].append((at, value))
    data = prometheus_wire.streamed((dict(labels), sorted(points)) for labels, points in sorted(by_series.items()))
    yield from chunk_stream.blocks(chunk_stream.frames([data]), 0, NOW + 1)


def of_the_data_source(rows: list[Sample]) -> Iterator[pa.RecordBatch]:
    columns = ("metric", "labels", "timestamps", "values")
    yield from ArrowBatches("series", columns).from_blocks(sent_by_prometheus(rows))


def by_time(rows: list[Sample], parts: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the samples in the order of time, in parts, as tasks read files."""
    in_order = sorted(rows, key=lambda row: row[2])
    for part in range(parts):
        yield batches(in_order[part * len(rows) // parts : (part + 1) * len(rows) // parts])


def served(name: str, hours: int | None) -> Objective:
    window = {} if hours is None else {"window": {"rolling": f"{hours}h"}}
    return objective(name=name, type="availability", target="90", **window)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_counts_of_federated_clusters_are_exact_in_every_window(seed: int) -> None:
    source = random.Random(f"federated {seed}")
    exporters: Exporters = {
        (cluster, f"w{number}"): list(scrapes(source))
        for cluster in ("a", "b", "c")[: source.randint(2, 3)]
        for number in range(source.randint(1, 3))
    }
    rows = list(samples(exporters))
    source.shuffle(rows)
    cluster = source.choice([None, "a", "b"])
    hours = {"now": None, "half": source.randint(4, 20), "long": source.randint(21, 50)}
    objectives = [served(name, length) for name, length in hours.items()]
    start = NOW - source.randint(1, 3) * HOUR_MS
    expected = {
        name: truth(exporters, cluster, start if length is None else NOW - length * HOUR_MS)
        for name, length in hours.items()
    }
    ways: list[Callable[[SampleQuery], Iterable[SeriesPack]]] = [
        lambda query: pack_batches(batches(rows), query),
        lambda query: pack_batches(of_the_data_source(rows), query),
        lambda query: pack_blocks(sent_by_prometheus(rows), query),
        lambda query: (pack for part in by_time(rows, source.randint(1, 5)) for pack in pack_batches(part, query)),
    ]
    for pack in ways:
        report = of_packs(pack, start / 1000, NOW / 1000, objectives, cluster=cluster)
        counts = {result.name: (result.good or 0, result.total or 0) for result in report.objectives}
        assert counts == expected
