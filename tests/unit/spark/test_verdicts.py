"""Objectives to verdicts: exact fractions, and too little data that is never a pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
from migratory_resources.objectives import Objective
from migratory_spark.observations import Coverage, Observations, Row
from migratory_spark.verdicts import Result, judge, overall

FULL = Coverage(1.0, 1.0, 1.0, 100)


def row(metric: str, increase: float, window: int = 0, **labels: str) -> Row:
    every = dict.fromkeys(("broker", "clock", "phase", "le", "reason", "receipt"), "") | labels
    return Row(metric=metric, window=window, segment=0, increase=increase, **every)  # type: ignore[arg-type]


def latencies(cumulative: dict[float, float], window: int = 0, phase: str = "live", clock: str = "same") -> list[Row]:
    return [
        row("migratory_delivery_latency_seconds_bucket", count, window, broker="b0", clock=clock, phase=phase,
            le="+Inf" if math.isinf(bound) else str(bound))
        for bound, count in cumulative.items()
    ]  # fmt: skip


def verdict(objective: dict[str, Any], rows: list[Row], covered: Coverage = FULL) -> Result:
    return judge(Objective(name="o", **objective), Observations(rows, 0, 20_000, 10_000), covered)


FAST = {"type": "latency", "threshold": "250ms", "target": "99"}
COMPLETE = {"type": "delivery", "target": "100"}
BACK = {"type": "resume", "threshold": "5s", "target": "99"}
COUNTED = [row(f"migratory_{name}_total", 0.0) for name in ("lost", "duplicates", "reordered")]


def test_latency_is_the_share_at_or_below_the_threshold() -> None:
    result = verdict(FAST, latencies({0.1: 500, 0.25: 990, math.inf: 1000}))
    assert (result.good, result.total, result.compliance, result.verdict) == (990, 1000, 0.99, "met")
    assert result.budget_left == pytest.approx(0.0)


def test_one_delivery_more_is_a_miss() -> None:
    result = verdict(FAST, latencies({0.1: 500, 0.25: 989, math.inf: 1000}))
    assert result.verdict == "missed"
    assert result.budget_left == pytest.approx(-0.1)


def test_replays_and_estimated_clocks_are_not_judged() -> None:
    rows = latencies({0.25: 1000, math.inf: 1000}) + [
        other
        for labels in ({"phase": "replayed"}, {"clock": "estimated"})
        for other in latencies({0.25: 0, math.inf: 1000}, **labels)
    ]
    assert verdict(FAST, rows).total == 1000


def test_too_few_events_cannot_show_the_target() -> None:
    result = verdict({**FAST, "target": "99.9"}, latencies({0.25: 100, math.inf: 100}))
    assert result.verdict == "insufficient"
    assert "1000 are needed" in result.reason


def test_but_they_can_show_a_miss() -> None:
    assert verdict({**FAST, "target": "99.9"}, latencies({0.25: 90, math.inf: 100})).verdict == "missed"


def test_a_threshold_between_bounds_is_said_and_counted_conservatively() -> None:
    result = verdict({**FAST, "threshold": "200ms"}, latencies({0.1: 999, 0.25: 1000, math.inf: 1000}))
    assert result.good == 999
    assert "not a bound" in result.reason


def test_slices_are_judged_by_their_percentile_and_silent_ones_do_not_count() -> None:
    steady = {"type": "latency", "target": "50", "slices": {"length": "10s", "percentile": "99", "threshold": "250ms"}}
    slow, fast = {0.1: 0, 0.25: 0, 1.0: 100, math.inf: 100}, {0.1: 100, 0.25: 100, 1.0: 100, math.inf: 100}
    rows = latencies(fast, window=0) + latencies(slow, window=1)
    assert verdict(steady, rows).compliance == 0.5
    assert verdict(steady, latencies(fast, window=0)).total == 1


def test_delivery_counts_every_loss_duplicate_and_disorder() -> None:
    rows = [row("migratory_expected_total", 1000.0), *COUNTED]
    assert verdict(COMPLETE, rows).verdict == "met"
    for name in ("lost", "duplicates", "reordered"):
        result = verdict(COMPLETE, [*rows, row(f"migratory_{name}_total", 1.0)])
        assert (result.verdict, result.good) == ("missed", 999)
        assert name in result.reason


def test_what_nobody_counted_is_not_zero() -> None:
    assert verdict(COMPLETE, [row("migratory_expected_total", 1000.0)]).verdict == "insufficient"
    assert verdict(COMPLETE, COUNTED).verdict == "insufficient"


def test_no_interruption_is_met_only_where_interruptions_were_counted() -> None:
    assert verdict(BACK, [row("migratory_reconnects_total", 0.0)]).verdict == "met"
    assert verdict(BACK, []).verdict == "insufficient"
    assert verdict(BACK, [row("migratory_reconnects_total", 3.0)]).verdict == "insufficient"


def test_a_window_that_scrapes_did_not_cover_gets_no_verdict() -> None:
    rows = latencies({0.25: 1000, math.inf: 1000})
    result = verdict(FAST, rows, Coverage(0.9, 1.0, 10.0, 90))
    assert result.verdict == "insufficient"
    assert "90.0%" in result.reason


def test_availability_is_acknowledged_of_answered() -> None:
    rows = [row("migratory_publish_seconds_count", 999.0), row("migratory_publish_errors_total", 1.0, reason="timeout")]
    result = verdict({"type": "availability", "target": "99.9"}, rows)
    assert (result.compliance, result.verdict) == (0.999, "met")
    assert verdict({"type": "availability", "target": "99.9"}, []).verdict == "insufficient"


def test_the_report_is_as_good_as_its_worst_objective() -> None:
    met = verdict(FAST, latencies({0.25: 1000, math.inf: 1000}))
    missed = verdict(FAST, latencies({0.25: 0, math.inf: 1000}))
    unknown = verdict(FAST, [])
    assert overall([met]) == "met"
    assert overall([met, unknown]) == "insufficient"
    assert overall([met, unknown, missed]) == "missed"
    assert overall([]) == "insufficient"


def test_a_window_without_any_clients_metrics_says_whose_are_missing() -> None:
    result = verdict(FAST, [], Coverage(0.0, math.nan, 100.0, 0))
    assert result.verdict == "insufficient"
    assert "no client's" in result.reason
