"""Whole reports for cases from bug reports of similar systems: different buckets (A18), windows without traffic
(A20), the repeated hour of a clock change (A21), incidents in the samples, and samples of which no report can be
made."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from migratory_resources.objectives import Objective
from migratory_spark.aggregate.time_grid import TooManyIntervals
from migratory_spark.report.build import as_plain, build_report
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
Sample = tuple[str, dict[str, str], int, float]
Write = Callable[[list[Sample]], Path]

LATENCY = "migratory_delivery_latency_seconds"
OPEN = Objective.model_validate({"name": "open", "type": "availability", "target": "99"})


def attempts(at: float, answered: float, failed: float) -> list[Sample]:
    labels = {"cluster": "c", "broker": "b0", "job": "load", "instance": "w"}
    moment = round(at * 1000)
    return [
        ("migratory_publish_seconds_count", labels, moment, answered),
        ("migratory_publish_errors_total", labels | {"reason": "timeout"}, moment, failed),
    ]


def test_histograms_with_different_buckets_are_merged_on_common_bounds(session: SparkSession, write: Write) -> None:
    counts = {
        "b0": {"0.01": 600, "0.025": 900, "0.05": 980, "0.1": 1000, "+Inf": 1000},
        "b1": {"0.01": 100, "0.05": 700, "0.1": 990, "+Inf": 1000},
    }
    samples: list[Sample] = []
    for moment in range(0, 61, 10):
        for broker, buckets in counts.items():
            labels = {"broker": broker, "clock": "same", "phase": "live", "job": "load", "instance": broker}
            samples += [
                (f"{LATENCY}_bucket", labels | {"le": le}, moment * 1000, count if moment == 60 else 0.0)
                for le, count in buckets.items()
            ]
            samples.append((f"{LATENCY}_count", labels, moment * 1000, 1000.0 if moment == 60 else 0.0))
    at = Objective.model_validate({"name": "at", "type": "latency", "threshold": "50ms", "target": "84"})
    between = Objective.model_validate({"name": "between", "type": "latency", "threshold": "25ms", "target": "50"})
    report = as_plain(build_report(session, write(samples), 0, 60, [at, between]))
    every = report["latency_ms"]["all"]
    assert every["count"] == 2000
    assert [every[name] for name in ("median", "p90", "p95", "p99")] == [22.245, 69.355, 85.484, 98.387]
    assert every["median_bucket"] == [10.0, 50.0]
    assert "buckets differ" in every["note"]
    assert report["samples"]["different_buckets"] == [LATENCY]
    assert any("different buckets" in note for note in report["notes"])
    assert [(result["good"], result["total"], result["verdict"]) for result in report["objectives"]] == [
        (1680, 2000, "met"), (1000, 2000, "met"),
    ]  # fmt: skip
    assert "not a bound of every histogram" in report["objectives"][1]["reason"]


def test_windows_without_traffic_do_not_count_for_availability(session: SparkSession, write: Write) -> None:
    answered = failed = 0.0
    samples = attempts(0, 0, 0)
    for window in range(288):
        if window < 240:
            failures = 1 if window < 24 else 0
            answered, failed = answered + 100 - failures, failed + failures
        samples += attempts(300 * (window + 1), answered, failed)
    day, slices = 86_400, {"length": "5m", "share": "100"}
    sliced = Objective.model_validate({"name": "sliced", "type": "availability", "target": "90", "slices": slices})
    report = as_plain(build_report(session, write(samples), 0, day, [OPEN, sliced], window_seconds=300))
    availability = report["availability"]
    assert (availability["attempts"], availability["failures"], availability["share"]) == (24_000, 24, 0.999)
    assert availability["windows_without_traffic"] == 48
    assert [row["availability"] for row in report["windows"]].count(None) == 48
    assert report["windows"][0]["availability"] == 0.99
    assert [result["verdict"] for result in report["objectives"]] == ["met", "met"]
    assert (report["objectives"][1]["good"], report["objectives"][1]["total"]) == (216, 240)
    assert report["objectives"][1]["silent_slices"] == 48
    json.dumps(report, allow_nan=False)


def test_day_without_publications_is_insufficient(session: SparkSession, write: Write) -> None:
    samples = [sample for moment in range(0, 86_401, 300) for sample in attempts(moment, 5.0, 1.0)]
    report = as_plain(build_report(session, write(samples[2:]), 300, 86_400, [OPEN]))
    assert report["availability"]["share"] is None
    assert (report["objectives"][0]["compliance"], report["verdict"]) == (None, "insufficient")
    assert report["objectives"][0]["reason"] == "nothing was published"
    json.dumps(report, allow_nan=False)


class RepeatedHour(NamedTuple):
    """A day on which an hour is repeated, at the end of daylight saving time: it begins at `start`, and publishing
    fails for a quarter of an hour from `down` on, in the first of the two hours. `repeated` are the local times at
    which the two hours start."""

    zone: str
    start: str
    down: str
    repeated: tuple[str, str]

    def samples(self) -> list[Sample]:
        """Return the samples of the day's 25 hours, with an attempt to publish every 15 s."""
        first, down = (datetime.fromisoformat(text).timestamp() for text in (self.start, self.down))
        samples: list[Sample] = []
        answered = failed = 0
        for slot in range(25 * 240 + 1):
            at = first + 15 * slot
            samples += attempts(at, answered, failed)
            is_down = down <= at < down + 900
            answered, failed = answered + (not is_down), failed + is_down
        return samples


REPEATED_HOURS = (
    RepeatedHour(
        "Europe/Bucharest", "2025-10-25T21:00:00Z", "2025-10-26T00:30:00Z", ("T03:00:00+03:00", "T03:00:00+02:00")
    ),
    RepeatedHour(
        "America/New_York", "2025-11-02T04:00:00Z", "2025-11-02T05:30:00Z", ("T01:00:00-04:00", "T01:00:00-05:00")
    ),
)


@pytest.mark.parametrize("day", REPEATED_HOURS, ids=lambda day: day.zone)
def test_a_repeated_hour_does_not_depend_on_the_machines_zone(
    session: SparkSession, write: Write, tmp_path: Path, day: RepeatedHour
) -> None:
    folder, file, result = write(day.samples()), tmp_path / "cluster.yaml", tmp_path / "report.json"
    start = datetime.fromisoformat(day.start).timestamp()
    objectives = [
        {"name": "open", "type": "availability", "target": "99", "window": {"calendar": "day", "zone": day.zone}},
        {"name": "slots", "type": "availability", "target": "99.5", "slices": {"length": "15s", "share": "100"}},
    ]
    cluster = {"apiVersion": "migratory.dev/v1alpha1", "kind": "MigratoryCluster", "metadata": {"name": "c"}}
    file.write_text(json.dumps({**cluster, "spec": {"sla": {"objectives": objectives}}}))
    command = [
        sys.executable,
        "-m",
        "migratory_cli.main",
        "sla",
        "report",
        "--samples",
        str(folder),
        "--zone",
        day.zone,
    ]
    command += [
        "--start",
        str(start),
        "--end",
        str(start + 25 * 3600),
        "--objectives",
        str(file),
        "--json",
        str(result),
    ]
    environment = {**os.environ, "TZ": "America/Los_Angeles"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr[-2000:]
    report = json.loads(result.read_text())
    parsed = [Objective.model_validate(objective) for objective in objectives]
    here = as_plain(build_report(session, folder, start, start + 25 * 3600, parsed, zone=day.zone))
    assert report == here, "other than in this machine's zone"
    rows = report["calendar"]["rows"]
    assert (report["calendar"]["unit"], len(rows)) == ("hour", 25)
    assert [(row["attempts"], row["availability"]) for row in rows if row["local"].endswith(day.repeated)] == [
        (240, 0.75), (240, 1.0),
    ]  # fmt: skip
    by_day, slots = report["objectives"]
    since = f"{day.start[:-1]}.000Z"
    assert (by_day["window"]["start"], by_day["total"], by_day["compliance"]) == (since, 6000, 0.99)
    assert (slots["total"], slots["total"] - slots["good"], slots["verdict"]) == (6000, 60, "missed")
    assert len(slots["bad_slices"]) == 60
    assert slots["bad_slices"][0] == f"{day.down[:-1]}.000Z"


def broken_cluster() -> list[Sample]:
    """Return samples of three brokers with 100 clients each over 120 seconds. b1 is killed at 40.5 s and back at 46
    s; b0 and b2 take its groups over at 44 s."""
    samples: list[Sample] = []

    def add(metric: str, second: int, value: float, instance: str, **labels: str) -> None:
        job = "load" if instance == "w" else "broker"
        labels |= {"cluster": "c", "job": job, "instance": instance}
        samples.append((metric, labels, second * 1000, value))

    for second in range(121):
        for number, broker in enumerate(("b0", "b1", "b2")):
            if broker == "b1" and 40 < second < 46:
                continue
            life = second - 46 if broker == "b1" and second >= 46 else second + 1000
            clients = 100.0 if second <= 40 else 0.0 if broker == "b1" else 150.0
            add("migratory_clients", second, clients, f"h{number}", broker=broker)
            add("migratory_published_total", second, 10.0 * life, f"h{number}", broker=broker)
            taken = {"b0": 20.0, "b2": 14.0}.get(broker, 0.0) if second >= 44 else 0.0
            add("migratory_takeovers_total", second, taken, f"h{number}", broker=broker)
        for broker in ("b0", "b1", "b2"):
            labels = {"broker": broker, "clock": "same", "phase": "live"}
            slow = 100.0 * max(0, min(second, 44) - 40)
            for le, counted in (("0.25", 100.0 * second - slow), ("5", 100.0 * second), ("+Inf", 100.0 * second)):
                add(f"{LATENCY}_bucket", second, counted, "w", le=le, **labels)
            add("migratory_received_total", second, 100.0 * second, "w", broker=broker)
            lost_count = 100.0 if broker == "b1" and second >= 42 else 0.0
            add("migratory_reconnects_total", second, lost_count, "w", broker=broker, reason="lost")
        add("migratory_publish_errors_total", second, 3.0 if second >= 43 else 0.0, "w", broker="b1", reason="timeout")
        for histogram, count in (("migratory_resume_seconds", 100.0), ("migratory_publish_gap_seconds", 2.0)):
            for le in ("1.0", "5.0", "+Inf"):
                value = count if second >= 43 and le != "1.0" else 0.0
                add(f"{histogram}_bucket", second, value, "w", broker="b0", le=le)
            add(f"{histogram}_count", second, count if second >= 43 else 0.0, "w", broker="b0")
    return samples


def test_a_broker_death_is_found_with_all_its_steps(session: SparkSession, write: Write) -> None:
    report = as_plain(build_report(session, write(broken_cluster()), 1.0, 120.0, []))
    (incident,) = report["incidents"]
    assert (incident["kind"], incident["broker"], incident["found"]) == ("broker died", "b1", True)
    assert incident["at"] == "1970-01-01T00:00:40.000Z"
    assert incident["at_uncertain_seconds"] == 1.0
    kinds = [(step["kind"], step["broker"], step["count"]) for step in incident["happenings"]]
    assert sorted(kinds, key=str) == sorted(
        [
            ("silent", "b1", None), ("back", "b1", None), ("restarted", "b1", None), ("reconnects", "b1", 100),
            ("publish_errors", "b1", 3), ("takeover", "b0", 20), ("takeover", "b2", 14),
        ],
        key=str,
    )  # fmt: skip
    assert incident["affected"] == {
        "clients_by_broker": {"b1": 100}, "clients": 100, "publish_gaps": 2, "publish_errors": 3, "takeovers": 34,
    }  # fmt: skip
    assert incident["connections"] == {
        "before": {"b0": 100.0, "b1": 100.0, "b2": 100.0}, "after": {"b0": 150.0, "b1": 0.0, "b2": 150.0},
    }  # fmt: skip
    around = incident["latency_ms"]
    assert around["before"]["count"] == 3 * 100 * 39
    assert around["before"]["p99"] <= 250.0 < around["during"]["p95"]
    assert sum(around[when]["count"] for when in ("before", "during", "after")) == 3 * 100 * 119
    assert (incident["resume_seconds"]["count"], incident["publish_gap_seconds"]["count"]) == (100, 2)
    silent = next(row for row in report["connections"] if row["broker"] == "b1")
    assert silent["by_window"][45 - 1 - 1] is None
    assert silent["last"] == 0.0


def test_samples_without_usable_metrics_are_insufficient_and_wrong_arguments_raise(
    session: SparkSession, write: Write
) -> None:
    """Unknown metrics, and known ones that never hold a number, give the verdict `insufficient` with a reason, and JSON
    without NaN. Wrong arguments raise at once."""
    labels = {"broker": "b0", "job": "load", "instance": "w"}
    samples = [("node_load1", labels, moment, 1.0) for moment in range(0, 60_000, 1000)]
    samples += [("migratory_received_total", labels, moment, math.nan) for moment in range(0, 60_000, 1000)]
    complete = Objective.model_validate({"name": "complete", "type": "delivery", "target": "100"})
    folder = write(samples)
    report = as_plain(build_report(session, folder, 1, 59, [complete, OPEN]))
    assert report["verdict"] == "insufficient"
    assert all("no metrics of clients or load generators" in result["reason"] for result in report["objectives"])
    assert report["samples"]["nan"] == 60
    assert any("60 samples are not a number" in note for note in report["notes"])
    json.dumps(report, allow_nan=False)
    # Errors that need no samples are raised at once.
    with pytest.raises(TooManyIntervals, match="ask for longer rows"):
        build_report(session, folder, 1, 59, [complete], window_seconds=0.01)
    with pytest.raises(ValueError, match="not a time zone"):
        build_report(session, folder, 1, 59, [complete], zone="Mars/Olympus")
    with pytest.raises(ValueError, match="a name that no other objective has"):
        build_report(session, folder, 1, 59, [complete, complete])
