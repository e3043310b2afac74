"""The two ways in which a report reads a data set: Parquet files as a recorder writes them, and a real Prometheus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from migratory_spark.jobs.inputs import PrometheusServers
from migratory_spark.prometheus.blocks import STALE
from migratory_spark.read.sample_reader import DEFAULT_LIMITS, ReadLimits
from migratory_spark.read.samples import SampleSource
from migratory_spark.report.build import LOOKBACK_MS, as_plain, build_report, plan_report
from migratory_testing.prometheus_wire import of_bits
from migratory_testing.realprometheus import Prometheus, backfill
from migratory_testing.reports import Sample, batches
from pyspark.sql import SparkSession

from migratory_truth.data_sets import NOW, DataSet
from migratory_truth.expected import differences

IN_TWO_STEPS = ReadLimits(whole=0, local=0)
"""Limits with which a report reads in two steps, and Spark's tasks merge and add up."""


def check(session: SparkSession, data: DataSet, folder: Path) -> list[str]:
    """Return a sentence for each figure that is wrong in a report from Parquet or from Prometheus, and one if the two
    reports differ. `folder` is empty and takes the samples."""
    samples = data.samples()
    source = random.Random(f"readings {data.number}")
    limits = [DEFAULT_LIMITS, IN_TWO_STEPS]
    source.shuffle(limits)
    by_way = {"Parquet": _report(session, data, _write(samples, source, folder / "parquet"), limits[0])}
    backfill(folder / "prometheus", openmetrics(samples))
    with Prometheus(folder / "prometheus") as server:
        first_ms = plan_report(data.start / 1000, NOW / 1000, data.objectives, None, "UTC").first_ms - LOOKBACK_MS
        servers = PrometheusServers(server.url, data.cluster, first_ms, NOW, {})
        by_way["Prometheus"] = _report(session, data, servers.samples(session), limits[1])
    wrong = [f"{way}: {each}" for way, report in by_way.items() for each in differences(data, report)]
    files, server_report = by_way.values()
    wrong += [
        f"{key}: the reports from Parquet and from Prometheus differ"
        for key in files
        if key != "samples" and files[key] != server_report[key]
    ]
    return wrong


def _report(session: SparkSession, data: DataSet, source: Path | SampleSource, limits: ReadLimits) -> dict[str, Any]:
    report = build_report(
        session, source, data.start / 1000, NOW / 1000, data.objectives, cluster=data.cluster, by=data.by, limits=limits
    )
    return as_plain(report)


def _write(samples: Sequence[Sample], source: random.Random, folder: Path) -> Path:
    """Write samples as Parquet files, in any order, some twice, with stale markers, and return their folder."""
    folder.mkdir(parents=True)
    rows = [*samples, *source.choices(samples, k=len(samples) // 50)]
    counters = [sample for sample in samples if sample[0].endswith("_total")]
    rows += [(metric, labels, at + 300, of_bits(STALE)) for metric, labels, at, _ in source.choices(counters, k=50)]
    source.shuffle(rows)
    parts = source.randint(1, 3)
    for part in range(parts):
        table = pa.Table.from_batches(batches(rows[part::parts]))
        pq.write_table(table, folder / f"samples-{part}.parquet", row_group_size=source.choice([5_000, 1_000_000]))
    return folder


def openmetrics(samples: Sequence[Sample]) -> list[str]:
    """Return the samples as lines of OpenMetrics, in the order of time."""
    lines = []
    for metric, labels, at, value in sorted(samples, key=lambda sample: sample[2]):
        pairs = ",".join(f'{name}="{label}"' for name, label in labels.items())
        lines.append(f"{metric}{{{pairs}}} {value!r} {at // 1000}.{at % 1000:03}")
    return lines
