"""Verdicts on objectives: fractions are exact, and insufficient data never meets a target.

Also windows, budgets over time, burn rates and the overall verdict.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from migratory_resources.objectives import Objective
from migratory_spark.aggregate.coverage import ScrapeCoverage
from migratory_spark.aggregate.observations import Observations
from migratory_spark.aggregate.series_catalog import NO_LAYOUT, SeriesGroup
from migratory_spark.aggregate.time_grid import TimeGrid
from migratory_spark.document import ObjectiveResult
from migratory_spark.judge.event_counts import event_counter
from migratory_spark.judge.objective_windows import JudgedWindow, judged_window
from migratory_spark.judge.time_slices import SliceCounts
from migratory_spark.judge.verdicts import judge, overall_verdict

END = 20_000
CELLS = TimeGrid.from_moments([0, 10_000, END])
FULL = ScrapeCoverage(1.0, 1000, 20, 1000.0)
LATENCY = "migratory_delivery_latency_seconds_bucket"
Rows = dict[SeriesGroup, list[Any]]


def group(metric: str, layout: int = NO_LAYOUT, **labels: str) -> SeriesGroup:
    every: dict[str, Any] = dict.fromkeys(("broker", "clock", "phase", "reason", "receipt"), "") | labels
    return SeriesGroup(metric=metric, layout=layout, **every)


def counter(name: str, *increases: float, **labels: str) -> Rows:
    return {group(f"migratory_{name}", NO_LAYOUT, **labels): [*increases, 0.0, 0.0][:2]}


def latencies(first: list[float], second: list[float] | None = None, **labels: str) -> Rows:
    """Return latencies whose buckets 0.1, 0.25 and infinity increase by `first` in the first interval and by
    `second` (zeros by default) in the second."""
    key = group(LATENCY, 1, **{"broker": "b0", "clock": "same", "phase": "live"} | labels)
    return {key: [first, second or [0.0, 0.0, 0.0]]}


def observations(*rows: Rows) -> Observations:
    sums = {key: np.array(values, dtype=float) for each in rows for key, values in each.items()}
    return Observations(CELLS, {1: (0.1, 0.25, math.inf), 2: (5.0, math.inf)}, sums)


def whole(objective: Objective) -> JudgedWindow:
    return judged_window(objective, 0, END, [10_000, END], "UTC")


def verdict(objective: dict[str, Any], *rows: Rows, covered: ScrapeCoverage = FULL) -> ObjectiveResult:
    made = Objective(name="o", **objective)
    count = event_counter(made, observations(*rows), covered.interval)
    return judge(made, whole(made), count, covered, dict.fromkeys(whole(made).burns, covered))


FAST = {"type": "latency", "threshold": "250ms", "target": "99"}
COMPLETE = {"type": "delivery", "target": "100"}
BACK = {"type": "resume", "threshold": "5s", "target": "99"}
COUNTED = [counter(f"{name}_total", 0.0) for name in ("lost", "duplicates", "reordered")]


def test_latency_is_the_share_at_or_below_the_threshold() -> None:
    result = verdict(FAST, latencies([500, 990, 1000]))
    assert (result.good, result.total, result.compliance, result.verdict) == (990, 1000, 0.99, "met")
    assert result.budget_left == pytest.approx(0.0)
    assert (result.unit, result.counts, result.threshold_ms) == ("deliveries", "occurrences", 250.0)


def test_one_bad_delivery_over_the_budget_is_a_miss() -> None:
    result = verdict(FAST, latencies([500, 989, 1000]))
    assert result.verdict == "missed"
    assert result.budget_left == pytest.approx(-0.1)


def test_shares_are_exact_where_floating_point_is_not() -> None:
    # 99.9 * 41,000 is a little more than 4,095,900 in floating point.
    assert verdict({**FAST, "target": "99.9"}, latencies([0, 40_959, 41_000])).verdict == "met"
    total = 300_000_000_000  # of which three may be bad
    exact = {**FAST, "target": "99.999999999"}
    assert verdict(exact, latencies([0, total - 3, total])).verdict == "met"
    assert verdict(exact, latencies([0, total - 4, total])).verdict == "missed"


def test_replays_and_estimated_clocks_are_judged_only_on_request() -> None:
    rows = [
        latencies([0, 1000, 1000]),
        latencies([0, 0, 1000], phase="replayed"),
        latencies([0, 0, 500], clock="estimated"),
    ]
    assert verdict(FAST, *rows).total == 1000
    assert verdict({**FAST, "clock": "estimated"}, *rows).total == 500
    assert verdict({**FAST, "clock": "any"}, *rows).total == 1500


def test_too_few_events_cannot_prove_the_target() -> None:
    result = verdict({**FAST, "target": "99.9"}, latencies([0, 100, 100]))
    assert result.verdict == "insufficient"
    assert "1000 are needed" in result.reason
    assert result.budget_left is None


def test_too_few_events_can_prove_a_miss() -> None:
    assert verdict({**FAST, "target": "99.9"}, latencies([0, 90, 100])).verdict == "missed"


def test_a_threshold_between_bounds_is_noted_and_counts_conservatively() -> None:
    result = verdict({**FAST, "threshold": "200ms"}, latencies([999, 1000, 1000]))
    assert result.good == 999
    assert "not a bound" in result.reason


def test_slices_are_judged_by_their_number() -> None:
    steady = {"length": "10s", "percentile": "99", "threshold": "250ms"}
    made = Objective(name="o", type="latency", target="50", slices=steady)  # type: ignore[arg-type]
    count = SliceCounts(CELLS, np.array([1, 0]), np.array([1, 1]), 0, (10_000,), True)
    result = judge(made, whole(made), count, FULL, dict.fromkeys(whole(made).burns, FULL))
    assert (result.good, result.total, result.verdict, result.unit) == (1, 2, "met", "slices")
    assert result.bad_slices == ["1970-01-01T00:00:10.000Z"]
    silent = SliceCounts(CELLS, np.array([0, 0]), np.array([0, 0]), 2, (), True)
    assert judge(made, whole(made), silent, FULL, dict.fromkeys(whole(made).burns, FULL)).verdict == "insufficient"


def test_delivery_counts_losses_duplicates_and_reorderings() -> None:
    expected = counter("expected_total", 1000.0)
    assert verdict(COMPLETE, expected, *COUNTED).verdict == "met"
    for name in ("lost", "duplicates", "reordered"):
        result = verdict(COMPLETE, expected, *COUNTED, counter(f"{name}_total", 1.0))
        assert (result.verdict, result.good) == ("missed", 999)
        assert name in result.reason


def test_unseen_deliveries_do_not_meet_the_target() -> None:
    rows = [counter("expected_total", 1000.0), *COUNTED]
    assert verdict(COMPLETE, *rows, counter("received_total", 1000.0)).verdict == "met"
    # 2.5 scrape intervals of 20 may be on their way.
    assert verdict(COMPLETE, *rows, counter("received_total", 880.0)).verdict == "met"
    result = verdict(COMPLETE, *rows, counter("received_total", 870.0))
    assert result.verdict == "insufficient"
    assert "130 of them were neither seen to arrive" in result.reason


def test_uncounted_events_are_not_zero() -> None:
    assert verdict(COMPLETE, counter("expected_total", 1000.0)).verdict == "insufficient"
    assert verdict(COMPLETE, *COUNTED).verdict == "insufficient"


def test_no_interruption_meets_the_target_only_if_interruptions_were_counted() -> None:
    assert verdict(BACK, counter("reconnects_total", 0.0)).verdict == "met"
    assert verdict(BACK).verdict == "insufficient"
    assert verdict(BACK, counter("reconnects_total", 3.0)).verdict == "insufficient"
    gap = {"type": "publish", "threshold": "5s", "target": "99"}
    assert verdict(gap, counter("publish_errors_total", 0.0)).verdict == "met"
    assert verdict(gap).verdict == "insufficient"


def resumes(good: float, all_: float) -> Rows:
    return {
        group("migratory_resume_seconds_bucket", 2): [[good, all_], [0.0, 0.0]],
        group("migratory_resume_seconds_count", 2): [all_, 0.0],
    }


@pytest.mark.parametrize(
    ("lost", "good", "measured", "expected"),
    [
        (100, 50, 50, ("insufficient", 50, 100)),
        (1000, 995, 1000, ("met", 995, 1000)),
        (1000, 991, 996, ("met", 991, 1000)),
        (1000, 985, 996, ("missed", 985, 1000)),
        (1000, 985, 990, ("insufficient", 985, 1000)),
        # Clients that lost their links before the interval.
        (900, 995, 1000, ("met", 995, 1000)),
    ],
)
def test_clients_that_did_not_come_back_count_in_resume(
    lost: int, good: int, measured: int, expected: tuple[str, int, int]
) -> None:
    """A lost link without a resume is an event that may be good: it cannot help to meet the target, and alone it makes
    no miss."""
    result = verdict(BACK, counter("reconnects_total", lost), resumes(good, measured))
    assert (result.verdict, result.good, result.total) == expected
    assert (f"{lost - measured} of {lost} lost links were not followed by a resume" in result.reason) == (
        lost > measured
    )


def test_low_scrape_coverage_is_insufficient() -> None:
    result = verdict(FAST, latencies([0, 1000, 1000]), covered=ScrapeCoverage(0.9, 10_000, 90, 1000.0))
    assert result.verdict == "insufficient"
    assert "90.0%" in result.reason


def test_a_loss_is_a_miss_despite_low_coverage() -> None:
    rows = [counter("expected_total", 1000.0), *COUNTED, counter("lost_total", 1.0)]
    assert verdict(COMPLETE, *rows, covered=ScrapeCoverage(0.5, 10_000, 90, 1000.0)).verdict == "missed"


def test_availability_is_acknowledged_of_acknowledged_and_failed() -> None:
    rows = [counter("publish_seconds_count", 999.0), counter("publish_errors_total", 1.0, reason="timeout")]
    result = verdict({"type": "availability", "target": "99.9"}, *rows)
    assert (result.compliance, result.verdict) == (0.999, "met")
    nothing = verdict({"type": "availability", "target": "99.9"})
    assert (nothing.compliance, nothing.verdict) == (None, "insufficient")


def test_result_has_budget_over_time_and_burn_rates() -> None:
    result = verdict(FAST, latencies([0, 995, 1000], [0, 985, 1000]))
    assert [(point.good, point.total, point.budget_left) for point in result.budget_over_time] == [
        (995, 1000, 0.5),
        (1980, 2000, 0.0),
    ]
    (burn,) = result.burn  # the shortest of the usual windows is longer than this one
    assert (burn.window_seconds, burn.rate) == (20.0, 1.0)
    assert verdict({**FAST, "target": "100"}, latencies([0, 99, 100])).burn[0].rate is None


def test_a_report_over_an_hour_has_burn_rates_of_five_and_thirty_minutes() -> None:
    made = Objective.model_validate({"name": "o", **FAST})
    assert judged_window(made, 0, 3_600_000, [3_600_000], "UTC").burns == (300_000, 1_800_000, 3_600_000)


def test_an_objectives_own_window_ends_with_the_report() -> None:
    def made(window: dict[str, str]) -> JudgedWindow:
        objective = Objective.model_validate({"name": "o", **FAST, "window": window})
        return judged_window(objective, 1_700_000_000_000, 1_700_000_060_000, [1_700_000_060_000], "UTC")

    rolling = made({"rolling": "30d"})
    assert rolling.end - rolling.start == 30 * 86_400_000
    assert len(rolling.points) == 60
    # 14 November 2023, 22:14:20 UTC.
    assert made({"calendar": "month"}).start == 1_698_796_800_000
    assert made({"calendar": "day", "zone": "Asia/Tokyo"}).start == 1_699_974_000_000


def test_the_overall_verdict_is_the_worst_one() -> None:
    assert overall_verdict(["met"]) == "met"
    assert overall_verdict(["met", "insufficient"]) == "insufficient"
    assert overall_verdict(["met", "insufficient", "missed"]) == "missed"
    assert overall_verdict([]) == "insufficient"


def test_missing_client_metrics_are_named() -> None:
    result = verdict(FAST, covered=ScrapeCoverage(0.0, END, 0, None))
    assert result.verdict == "insufficient"
    assert "no metrics of clients" in result.reason
    assert (result.good, result.total, result.budget_over_time) == (None, None, [])
