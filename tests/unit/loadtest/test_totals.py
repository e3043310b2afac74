"""The verdict: each single reason for `missed` and `insufficient`, and that they do not hide one another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from migratory_loadtest.control import Mark, MarkSummary, Summary
from migratory_loadtest.histogram import Histogram, bounds
from migratory_loadtest.meter import AFTER, BEFORE, buckets, from_buckets
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.totals import RunFacts, assemble, spread
from migratory_loadtest.verifier import Verdict

BOUNDS = bounds()
GOOD: dict[str, Any] = {"acknowledged": 10, "expected": 50, "delivered": 50, "received": 50}


def measured(*values: float) -> Any:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    return buckets(histogram)


def summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "latency": {BEFORE: measured(0.01, 0.02)}, "publish": measured(0.005), "resumes": [], "reconnects": {},
        "changes": {0: 2}, "connections": {"b-0": 3}, "measured_bytes": 10**9 // 8, "repeated": 0,
        "scheduled": 5, "published": 5, "late": 0, "latest": 0.001, "errors": [], "marks": [],
    }  # fmt: skip
    return Summary(**{**values, **changes})


def result(verdict: dict[str, Any] | None = None, parts: list[Summary] | None = None, mark: bool = False) -> Any:
    scenario = Scenario(servers=("ws://x",), subscribers=5, topics=2, duration=1.0)
    marks = [Mark(0, 0, "kill", "b-1")] if mark else []
    facts = RunFacts(scenario, BOUNDS, parts or [summary(), summary()], marks, {"b-0": 6}, 3.0)
    return assemble(facts, Verdict(**(verdict or GOOD)))


def test_a_good_run_is_met_and_its_parts_add_up() -> None:
    found = result()
    assert (found.verdict, found.reasons) == ("met", [])
    assert (found.published, found.scheduled, found.connections.after) == (10, 10, {"b-0": 6})
    assert found.latency_ms.before.count == 4
    assert found.latency_ms.before.mean == pytest.approx(15.0)
    assert found.latency_ms.before.stdev == pytest.approx(5.0)
    assert found.latency_ms.after.median is None
    assert found.traffic_gbps == pytest.approx(2.0)
    json.loads(found.to_json())


def test_clients_are_counted_by_how_often_they_changed_their_broker() -> None:
    found = result(parts=[summary(changes={0: 3, 2: 1}, reconnects={"drain": 2}), summary(changes={2: 2, 1: 1})])
    assert found.clients_by_reconnects == {"0": 3, "1": 1, "2": 3}
    assert found.reconnects == 2


def test_a_mark_counts_the_changes_behind_it_over_all_workers() -> None:
    workers = [summary(marks=[MarkSummary(0, changes={1: 2})]), summary(marks=[MarkSummary(0, changes={1: 1, 2: 4})])]
    (mark,) = result(parts=workers, mark=True).marks
    assert mark.clients_by_reconnects == {"1": 3, "2": 4}


@pytest.mark.parametrize("kind", ["lost", "duplicates", "reordered", "unexpected", "conflicts", "failed"])
def test_one_of_anything_wrong_is_missed(kind: str) -> None:
    found = result({**GOOD, kind: 1})
    assert found.verdict == "missed"
    assert "1 " in found.reasons[0]


@pytest.mark.parametrize(
    ("qos", "verdict", "reasons"), [(1, "missed", ["3 publications were never answered"]), (0, "met", [])]
)
def test_publishing_that_came_to_a_halt_is_no_success(qos: int, verdict: str, reasons: list[str]) -> None:
    """All that was acknowledged came, and the rest waited for ever. With QoS 0 nobody waits."""
    for sizes in ({}, {"subscribers": 0, "alone": True}):
        scenario = Scenario(servers=("ws://x",), topics=2, duration=1.0, qos=qos, **sizes)  # type: ignore[arg-type]
        found = assemble(RunFacts(scenario, BOUNDS, [summary()], [], {}, 3.0), Verdict(**GOOD, unanswered=3))
        assert (found.verdict, found.reasons) == (verdict, reasons)


@pytest.mark.parametrize(
    ("mark", "verdict", "reason"),
    [
        (MarkSummary(0, 4, 4, 0, [1.0, 2.0, 3.0, 4.9]), "met", ""),
        (MarkSummary(0, 4, 4, 0, [1.0, 2.0, 3.0, 5.1]), "missed", "longer than 5 s"),
        (MarkSummary(0, 4, 4, 0, [1.0, 2.0, 3.0]), "missed", "1 clients of b-1 never resumed"),
        (MarkSummary(0, 4, 3, 0, [1.0, 2.0, 3.0]), "insufficient", "never lost their link"),
        (MarkSummary(0, 0, 0, 0, []), "insufficient", "no client was on b-1"),
    ],
)
def test_every_client_of_the_marked_broker_must_lose_its_link_and_resume_in_time(
    mark: MarkSummary, verdict: str, reason: str
) -> None:
    found = result(parts=[summary(marks=[mark]), summary()], mark=True)
    assert found.verdict == verdict
    assert any(reason in line for line in found.reasons) or not reason


def test_a_late_generator_makes_no_success_but_hides_no_failure() -> None:
    late = [summary(late=3)]
    assert result(parts=late).verdict == "insufficient"
    assert result(parts=late).generator_late
    assert result({**GOOD, "lost": 1}, parts=late).verdict == "missed"


def test_nothing_acknowledged_or_delivered_is_insufficient() -> None:
    found = result({"acknowledged": 0, "expected": 0})
    assert found.verdict == "insufficient"
    assert found.reasons == ["nothing was acknowledged", "nothing was delivered"]


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"subscribers": 0}, "there were no subscribers"),
        ({"publishers": 0}, "there were no publishers"),
    ],
)
def test_a_run_without_one_half_is_insufficient_unless_that_was_meant(counts: dict[str, int], reason: str) -> None:
    for alone, verdict, reasons in ((False, "insufficient", [reason]), (True, "met", [])):
        scenario = Scenario(servers=("ws://x",), topics=2, duration=1.0, alone=alone, **counts)  # type: ignore[arg-type]
        found = assemble(RunFacts(scenario, BOUNDS, [summary()], [], {}, 3.0), Verdict(**GOOD))
        assert (found.verdict, found.reasons) == (verdict, reasons)


def test_what_the_generator_itself_took_is_told() -> None:
    parts = [summary(cpu=0.5, peak_bytes=40 * 2**20), summary(cpu=1.5, peak_bytes=60 * 2**20)]
    own = result(parts=parts).generator
    assert (own.workers, own.cpu_seconds, own.peak_mib) == (2, 2.0, 100.0)
    assert own.cpu_us_per_delivery == 2.0 / 50 * 1e6
    assert result({"acknowledged": 0, "expected": 0}, parts).generator.cpu_us_per_delivery is None


def test_windows_of_all_workers_are_merged() -> None:
    parts = [summary(latency={AFTER: measured(0.1)}), summary(latency={AFTER: measured(0.3), BEFORE: measured(0.2)})]
    found = result(parts=parts)
    assert (found.latency_ms.after.count, found.latency_ms.before.count) == (2, 1)
    assert found.latency_ms.after.max == pytest.approx(300.0)


def test_spread_is_by_nearest_rank() -> None:
    found = spread(float(value) for value in range(1, 101))
    assert (found.count, found.p50, found.p99, found.max) == (100, 50.0, 99.0, 100.0)
    assert spread([]).p99 is None


def test_buckets_with_other_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="other bounds"):
        from_buckets(bounds([0.123]), measured(1.0))
