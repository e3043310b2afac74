"""A whole report over samples whose true figures are known, and the command's exit codes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_spark.read.samples import SCHEMA
from migratory_spark.report.build import KnownIncident, as_plain, build_report
from migratory_testing.recordings import Sample as Recorded
from migratory_testing.recordings import write_parquet
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
Sample = tuple[str, dict[str, str], int, float]
Write = Callable[[list[Sample]], Path]

START, KILL, BACK, END = 1_000_000.0, 1_000_040.0, 1_000_045.0, 1_000_100.0
BOUNDS = [0.01, 0.05, 0.25, 1.0, 5.0, math.inf]


def run(lost_count: int = 0) -> list[Sample]:
    """Return samples of 100 s with 100 deliveries per second for each of two brokers. A delivery takes 10 ms before
    b1 is killed, and 50 ms afterwards, on b0 alone. The last sample of each broker counts `lost_count` lost
    deliveries."""
    samples: list[Sample] = []

    def counter(name: str, moment: int, value: float, **labels: str) -> None:
        samples.append((name, labels | {"cluster": "c", "instance": "w"}, int((START + moment) * 1000), value))

    for moment in range(0, 101):
        killed = moment > KILL - START
        for broker in ("b0", "b1"):
            alive = min(moment, int(KILL - START)) if broker == "b1" else moment
            quick = 100.0 * min(alive, int(KILL - START))
            slow = 100.0 * max(0, alive - int(KILL - START))
            labels = {"broker": broker, "clock": "same", "phase": "live"}
            for bound in BOUNDS:
                counted = (quick if bound >= 0.01 else 0) + (slow if bound >= 0.05 else 0)
                le = "+Inf" if math.isinf(bound) else str(bound)
                counter("migratory_delivery_latency_seconds_bucket", moment, counted, le=le, **labels)
            counter("migratory_delivery_latency_seconds_sum", moment, quick * 0.01 + slow * 0.05, **labels)
            counter("migratory_delivery_latency_seconds_squared_total", moment, quick * 1e-4 + slow * 2.5e-3, **labels)
            counter("migratory_received_total", moment, 100.0 * alive, broker=broker)
            for name in ("duplicates", "reordered"):
                counter(f"migratory_{name}_total", moment, 0.0, broker=broker)
            counter("migratory_lost_total", moment, float(lost_count) if moment == 100 else 0.0, broker=broker)
        counter("migratory_expected_total", moment, 100.0 * moment + 100.0 * min(moment, KILL - START))
        resumed = 500.0 if killed else 0.0
        counter("migratory_reconnects_total", moment, resumed, broker="b0", reason="lost")
        for bound in (1.0, 5.0, math.inf):
            le = "+Inf" if math.isinf(bound) else str(bound)
            counter("migratory_resume_seconds_bucket", moment, resumed if bound >= 5 else 0.0, broker="b0", le=le)
        counter("migratory_resume_seconds_count", moment, resumed, broker="b0")
        counter("migratory_resume_seconds_sum", moment, resumed * 2.0, broker="b0")
    return samples


def made(session: SparkSession, directory: Path) -> dict[str, Any]:
    incident = KnownIncident("kill", "b1", KILL, BACK)
    return as_plain(build_report(session, directory, START, END, DEFAULT_OBJECTIVES, [incident]))


@pytest.fixture(scope="module")
def whole(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of a run in which nothing was lost."""
    return made(session, write_parquet([Recorded(*sample) for sample in run()], tmp_path_factory.mktemp("whole")))


def test_totals_equal_the_truth_to_the_integer(whole: dict[str, Any]) -> None:
    report = whole
    assert report["delivery"]["expected"] == report["delivery"]["received"] == 14_000
    assert report["latency_ms"]["all"]["count"] == 14_000
    assert report["latency_ms"]["by_broker"]["b1"]["count"] == 4_000
    assert sum(row["count"] for row in report["latency_ms"]["by_window"]) == 14_000
    assert report["delivery"]["reconnects"] == 500
    assert report["delivery"]["publish_errors"] is None
    assert report["verdict"] == "met"
    assert [result["verdict"] for result in report["objectives"]] == ["met", "met", "met"]


def test_latency_is_split_before_during_and_after_an_incident(whole: dict[str, Any]) -> None:
    (incident,) = whole["incidents"]
    latency = incident["latency_ms"]
    assert [latency[when]["count"] for when in ("before", "during", "after")] == [8_000, 500, 5_500]
    assert latency["before"]["mean"] == pytest.approx(10.0)
    assert latency["after"]["mean"] == pytest.approx(50.0)
    assert latency["after"]["stdev"] == pytest.approx(0.0, abs=0.01)
    assert incident["resume_seconds"]["count"] == 500


def test_one_lost_delivery_is_a_missed_report(session: SparkSession, write: Write) -> None:
    report = made(session, write(run(lost_count=1)))
    assert report["delivery"]["lost"] == 2  # one at each broker
    assert report["verdict"] == "missed"


def test_the_report_is_json_without_nan(whole: dict[str, Any]) -> None:
    json.dumps(whole, allow_nan=False)


def test_an_empty_window_is_insufficient_and_a_reversed_one_is_rejected(session: SparkSession, write: Write) -> None:
    table = session.read.schema(SCHEMA).parquet(str(write(run())))
    report = as_plain(build_report(session, table, END + 1000, END + 2000, DEFAULT_OBJECTIVES))
    assert report["verdict"] == "insufficient"
    assert report["latency_ms"]["all"]["count"] == 0
    json.dumps(report, allow_nan=False)
    with pytest.raises(ValueError, match="not a millisecond after its start"):
        build_report(session, table, END, START, DEFAULT_OBJECTIVES)


def test_the_command_ends_with_the_verdict(write: Write, tmp_path: Path) -> None:
    """For a run with lost deliveries `migratory sla report` exits with 1 and writes the report with their number;
    sla_output/test_jobs_on_spark.py has a report with the verdict "met"."""
    target = tmp_path / "report.json"
    command = [sys.executable, "-m", "migratory_cli.main", "sla", "report", "--samples", str(write(run(lost_count=1)))]
    command += ["--start", str(START), "--end", str(END), "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(target.read_text())["delivery"]["lost"] == 2
    assert "Objectives" in done.stdout


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "migratory_cli.main", "sla", "report", "--samples", str(tmp_path)]
    for window, words in (
        (["--start", "soon", "--end", "5"], "is not a time; use seconds"),
        (["--start", "9", "--end", "5"], "after"),
    ):
        done = subprocess.run([*command, *window], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert words in done.stderr
