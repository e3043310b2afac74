"""Reports as rows of Parquet tables that are partitioned by day."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.dataset as ds
from migratory_spark.document import SlaReport
from migratory_spark.report.history import append
from migratory_testing.recordings import SECONDS
from migratory_testing.reports import empty_report, sample_report


def table(folder: Path, name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (
        ds.dataset(folder / name, format="parquet", partitioning="hive").to_table().to_pylist()
    )
    return rows


def across_midnight(report: SlaReport) -> SlaReport:
    """Return the report with its rows of latency over time from 00:00:40 to 00:00:49 moved to the next day."""
    rows = [
        msgspec.structs.replace(row, start=row.start.replace("2026-01-01T00:00:4", "2026-01-02T00:00:4"))
        for row in report.latency_ms.over_time
    ]
    return msgspec.structs.replace(report, latency_ms=msgspec.structs.replace(report.latency_ms, over_time=rows))


def test_a_report_is_stored_as_rows_of_its_day(tmp_path: Path) -> None:
    report = sample_report()
    append(report, tmp_path)
    objectives = table(tmp_path, "objectives")
    assert {row["objective"] for row in objectives} == {"fast", "complete", "back"}
    assert {str(row["day"]) for row in objectives} == {"2026-01-01"}
    fast = next(row for row in objectives if row["objective"] == "fast")
    assert (fast["good"], fast["total"], fast["verdict"]) == (4400, 4400, "met")
    latency = table(tmp_path, "latency")
    assert len([row for row in latency if row["broker"] == ""]) == SECONDS - 1
    assert sum(int(str(row["count"])) for row in latency if row["broker"] == "") == report.latency_ms.all.count


def test_a_report_made_again_replaces_its_rows_and_others_stay(tmp_path: Path) -> None:
    report = sample_report()
    append(report, tmp_path)
    append(msgspec.structs.replace(report, cluster="other"), tmp_path)
    append(sample_report(lost=9), tmp_path)
    rows = table(tmp_path, "objectives")
    assert len(rows) == 6
    assert {row["cluster"]: row["verdict"] for row in rows if row["objective"] == "complete"} == {
        "quotes": "missed", "other": "met",
    }  # fmt: skip
    assert not list(tmp_path.rglob("*.part"))


def test_a_window_across_midnight_is_in_both_days(tmp_path: Path) -> None:
    append(across_midnight(sample_report()), tmp_path)
    days = {str(row["day"]) for row in table(tmp_path, "latency")}
    assert days == {"2026-01-01", "2026-01-02"}
    # Made again it may have nothing on one of them, and on none.
    append(sample_report(), tmp_path)
    assert {str(row["day"]) for row in table(tmp_path, "latency")} == {"2026-01-01"}
    silent = msgspec.structs.replace(sample_report(), latency_ms=empty_report().latency_ms)
    append(silent, tmp_path)
    assert list((tmp_path / "latency").rglob("*.parquet")) == []
