"""The result of a load run and its verdict: sums over workers, each reason for `missed` and `insufficient`, and that
`insufficient` hides no failure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_loadtest.meter import AFTER, BEFORE, from_histogram_data, to_histogram_data
from migratory_loadtest.result_builder import RunData, build_result, summarize_durations
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.verifier import Verification
from migratory_loadtest.worker_messages import FaultSummary, MarkFault, WorkerSummary

BOUNDS = bucket_bounds()
GOOD: dict[str, Any] = {"acknowledged": 10, "expected": 50, "delivered": 50, "received": 50}


def measured(*values: float) -> Any:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    return to_histogram_data(histogram)


def summary(**changes: Any) -> WorkerSummary:
    values: dict[str, Any] = {
        "latency": {BEFORE: measured(0.01, 0.02)}, "publish": measured(0.005), "resumes": [], "reconnects": {},
        "changes": {0: 2}, "connections": {"b-0": 3}, "measured_bytes": 10**9 // 8, "repeated": 0,
        "scheduled": 5, "published": 5, "late": 0, "latest": 0.001, "errors": [], "marks": [],
    }  # fmt: skip
    return WorkerSummary(**{**values, **changes})


def result(verdict: dict[str, Any] | None = None, parts: list[WorkerSummary] | None = None, mark: bool = False) -> Any:
    scenario = Scenario(servers=("ws://x",), subscribers=5, topics=2, duration=1.0)
    marks = [MarkFault(0, 0, "kill", "b-1")] if mark else []
    data = RunData(scenario, BOUNDS, parts or [summary(), summary()], marks, {"b-0": 6}, 3.0)
    return build_result(data, Verification(**(verdict or GOOD)))


def test_good_run_is_met_and_workers_add_up() -> None:
    outcome = result()
    assert (outcome.verdict, outcome.reasons) == ("met", [])
    assert (outcome.published, outcome.scheduled, outcome.connections.after) == (10, 10, {"b-0": 6})
    assert outcome.latency_ms.before.count == 4
    assert outcome.latency_ms.before.mean == pytest.approx(15.0)
    assert outcome.latency_ms.before.stdev == pytest.approx(5.0)
    assert outcome.latency_ms.after.median is None
    assert outcome.traffic_gbps == pytest.approx(2.0)
    json.loads(outcome.to_json())


def test_clients_are_counted_by_their_number_of_reconnects() -> None:
    outcome = result(parts=[summary(changes={0: 3, 2: 1}, reconnects={"drain": 2}), summary(changes={2: 2, 1: 1})])
    assert outcome.clients_by_reconnects == {"0": 3, "1": 1, "2": 3}
    assert outcome.reconnects == 2


def test_mark_counts_reconnects_over_all_workers() -> None:
    workers = [summary(marks=[FaultSummary(0, changes={1: 2})]), summary(marks=[FaultSummary(0, changes={1: 1, 2: 4})])]
    (mark,) = result(parts=workers, mark=True).marks
    assert mark.clients_by_reconnects == {"1": 3, "2": 4}


@pytest.mark.parametrize("kind", ["lost", "duplicates", "reordered", "unexpected", "conflicts", "failed"])
def test_single_violation_is_missed(kind: str) -> None:
    outcome = result({**GOOD, kind: 1})
    assert outcome.verdict == "missed"
    assert "1 " in outcome.reasons[0]


@pytest.mark.parametrize(
    ("qos", "verdict", "reasons"), [(1, "missed", ["3 publications were never answered"]), (0, "met", [])]
)
def test_unanswered_publications_are_missed_with_qos_1(qos: int, verdict: str, reasons: list[str]) -> None:
    """Publications without an answer make the verdict `missed` with QoS 1, also when every acknowledged one was
    delivered, and do not matter with QoS 0."""
    for sizes in ({}, {"subscribers": 0, "alone": True}):
        scenario = Scenario(servers=("ws://x",), topics=2, duration=1.0, qos=qos, **sizes)  # type: ignore[arg-type]
        outcome = build_result(RunData(scenario, BOUNDS, [summary()], [], {}, 3.0), Verification(**GOOD, unanswered=3))
        assert (outcome.verdict, outcome.reasons) == (verdict, reasons)


@pytest.mark.parametrize(
    ("mark", "verdict", "reason"),
    [
        (FaultSummary(0, 4, 4, 0, [1.0, 2.0, 3.0, 4.9]), "met", ""),
        (FaultSummary(0, 4, 4, 0, [1.0, 2.0, 3.0, 5.1]), "missed", "longer than 5 s"),
        (FaultSummary(0, 4, 4, 0, [1.0, 2.0, 3.0]), "missed", "1 clients of b-1 never resumed"),
        (FaultSummary(0, 4, 3, 0, [1.0, 2.0, 3.0]), "insufficient", "never lost their link"),
        (FaultSummary(0, 0, 0, 0, []), "insufficient", "no client was connected to b-1"),
    ],
)
def test_clients_of_a_marked_broker_must_lose_their_link_and_resume_in_time(
    mark: FaultSummary, verdict: str, reason: str
) -> None:
    outcome = result(parts=[summary(marks=[mark]), summary()], mark=True)
    assert outcome.verdict == verdict
    assert any(reason in line for line in outcome.reasons) or not reason


def test_late_generator_is_insufficient_but_hides_no_failure() -> None:
    late = [summary(late=3)]
    assert result(parts=late).verdict == "insufficient"
    assert result(parts=late).generator_late
    assert result({**GOOD, "lost": 1}, parts=late).verdict == "missed"


def test_run_without_acknowledgements_or_deliveries_is_insufficient() -> None:
    outcome = result({"acknowledged": 0, "expected": 0})
    assert outcome.verdict == "insufficient"
    assert outcome.reasons == ["nothing was acknowledged", "nothing was delivered"]


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"subscribers": 0}, "there were no subscribers"),
        ({"publishers": 0}, "there were no publishers"),
    ],
)
def test_run_without_subscribers_or_publishers_is_insufficient_unless_alone(
    counts: dict[str, int], reason: str
) -> None:
    for alone, verdict, reasons in ((False, "insufficient", [reason]), (True, "met", [])):
        scenario = Scenario(servers=("ws://x",), topics=2, duration=1.0, alone=alone, **counts)  # type: ignore[arg-type]
        outcome = build_result(RunData(scenario, BOUNDS, [summary()], [], {}, 3.0), Verification(**GOOD))
        assert (outcome.verdict, outcome.reasons) == (verdict, reasons)


def test_usage_of_the_generator_is_summed() -> None:
    parts = [summary(cpu=0.5, peak_bytes=40 * 2**20), summary(cpu=1.5, peak_bytes=60 * 2**20)]
    own = result(parts=parts).generator
    assert (own.workers, own.cpu_seconds, own.peak_mib) == (2, 2.0, 100.0)
    assert own.cpu_us_per_delivery == 2.0 / 50 * 1e6
    assert result({"acknowledged": 0, "expected": 0}, parts).generator.cpu_us_per_delivery is None


def test_latency_windows_of_all_workers_are_merged() -> None:
    parts = [summary(latency={AFTER: measured(0.1)}), summary(latency={AFTER: measured(0.3), BEFORE: measured(0.2)})]
    outcome = result(parts=parts)
    assert (outcome.latency_ms.after.count, outcome.latency_ms.before.count) == (2, 1)
    assert outcome.latency_ms.after.max == pytest.approx(300.0)


def test_durations_are_summarized_by_nearest_rank() -> None:
    durations = summarize_durations(float(value) for value in range(1, 101))
    assert (durations.count, durations.p50, durations.p99, durations.max) == (100, 50.0, 99.0, 100.0)
    assert summarize_durations([]).p99 is None


def test_histogram_with_other_bounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="buckets; "):
        from_histogram_data(bucket_bounds([0.123]), measured(1.0))
