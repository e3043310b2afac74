"""History of reports: writes their figures as rows of Parquet tables, partitioned by day.

    DIR/objectives/day=2026-11-28/…parquet    one row for each objective of a report
    DIR/latency/day=2026-11-28/…parquet       one row for each broker and window of a report's tables

A row belongs to the day (UTC) on which its time starts. A report's files are named by its cluster and window, so that
appending the report again replaces its rows.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from migratory_spark.document import ObjectiveResult, SlaReport

_TIME = pa.timestamp("ms", tz="UTC")

OBJECTIVES = pa.schema(
    [
        ("cluster", pa.string()), ("start", _TIME), ("end", _TIME), ("objective", pa.string()), ("type", pa.string()),
        ("target", pa.string()), ("good", pa.int64()), ("total", pa.int64()), ("compliance", pa.float64()),
        ("budget_left", pa.float64()), ("verdict", pa.string()), ("reason", pa.string()),
        ("window_start", _TIME), ("window_end", _TIME), ("coverage", pa.float64()), ("provisional", pa.bool_()),
        ("threshold_ms", pa.float64()), ("slices", pa.string()),
        ("possibly_good", pa.int64()), ("possibly_bad", pa.int64()),
    ]
)  # fmt: skip
"""Rows of objectives. `start` and `end` are those of the report, `window_start` and `window_end` those of the
objective, and `coverage` is the share of the objective's window that scrapes cover. `slices` is null unless slices are
counted."""
LATENCY = pa.schema(
    [
        ("cluster", pa.string()), ("start", _TIME), ("seconds", pa.float64()), ("broker", pa.string()),
        ("count", pa.int64()), ("median", pa.float64()), ("mean", pa.float64()), ("stdev", pa.float64()),
        ("p90", pa.float64()), ("p95", pa.float64()), ("p99", pa.float64()), ("max", pa.float64()),
    ]
)  # fmt: skip
"""Rows of latency in ms; `broker` is empty for all brokers together."""


def append(report: SlaReport, folder: Path) -> None:
    """Write the report's rows into `folder`, and delete rows of an earlier report of the same cluster and window. Each
    file appears whole or not at all. Raises OSError; some files may be written then."""
    # A cluster's name may contain characters that a file's name may not.
    cluster_hash = hashlib.sha256(report.cluster.encode()).hexdigest()[:12]
    name = f"{cluster_hash}-{compact(report.window.start)}-{compact(report.window.end)}.parquet"
    for table, schema, rows in (
        ("objectives", OBJECTIVES, _objectives(report)),
        ("latency", LATENCY, _latency(report)),
    ):
        by_day: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_day[row["start"].date().isoformat()].append(row)
        written = {folder / table / f"day={day}" / name: rows_of_day for day, rows_of_day in by_day.items()}
        for path, rows_of_day in written.items():
            _write(path, pa.Table.from_pylist(rows_of_day, schema=schema))
        # A report that is appended again may have rows on fewer days.
        for path in (folder / table).glob(f"day=*/{name}"):
            if path not in written:
                path.unlink()


def _objectives(report: SlaReport) -> Iterable[dict[str, Any]]:
    """Yield a row of the table OBJECTIVES for each objective of the report."""
    start, end = _moment(report.window.start), _moment(report.window.end)
    for result in report.objectives:
        yield {
            "cluster": report.cluster, "start": start, "end": end, "objective": result.name, "type": result.type,
            "target": result.target, "good": result.good, "total": result.total, "compliance": result.compliance,
            "budget_left": result.budget_left, "verdict": result.verdict, "reason": result.reason,
            "window_start": _moment(result.window.start), "window_end": _moment(result.window.end),
            "coverage": result.window.coverage, "provisional": report.window.provisional,
            "threshold_ms": result.threshold_ms, "slices": _slices(result),
            "possibly_good": result.possibly_good, "possibly_bad": result.possibly_bad,
        }  # fmt: skip


def _slices(result: ObjectiveResult) -> str | None:
    return None if result.slices is None else msgspec.json.encode(result.slices).decode()


def _latency(report: SlaReport) -> Iterable[dict[str, Any]]:
    """Yield a row of the table LATENCY for each row of the report's tables, for all brokers together and for each
    broker."""
    columns = ("count", "median", "mean", "stdev", "p90", "p95", "p99", "max")
    for row in (*report.latency_ms.over_time, *report.latency_ms.by_window):
        yield {
            "cluster": report.cluster,
            "start": _moment(row.start),
            "seconds": report.latency_ms.window_seconds,
            "broker": row.broker,
            **{column: getattr(row, column) for column in columns},
        }


def _write(path: Path, table: pa.Table) -> None:
    """Write a Parquet file and the folders above it. An earlier file of that name stays until the new one is
    complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        pq.write_table(table, part, compression="zstd")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def compact(text: str) -> str:
    """Return an RFC 3339 time in UTC without the characters that a file's name should not have. The
    results sort as the times do."""
    return text.replace("-", "").replace(":", "").replace(".", "")
