"""Objectives to verdicts: met, missed or insufficient, each with the numbers it rests on.

Compliance is the share of good events; the error budget is what the target allows to be bad. Too little data is said,
never passed and never NaN (docs/sla.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from migratory_resources.objectives import Objective, Slices

from migratory_spark.observations import Coverage, Observations, Row

Verdict = Literal["met", "missed", "insufficient"]
LATENCY = "migratory_delivery_latency_seconds"
MINIMUM_COVERAGE = 0.95
"""Share of the window that scrapes must cover; below it no verdict is given."""


@dataclass(slots=True)
class Result:
    """`good` of `total` events were as promised. `compliance` and `budget_left` are shares; None where nothing could
    be counted."""

    name: str
    type: str
    target: str
    good: float | None
    total: float | None
    compliance: float | None
    budget_left: float | None
    verdict: Verdict
    reason: str


def judged_latency(row: Row) -> bool:
    """Verdicts use latency between a sender and a receiver that share a clock, of live deliveries; what a replay
    brings late is the business of the resume objective."""
    return row.clock == "same" and row.phase == "live"


def judge(objective: Objective, seen: Observations, covered: Coverage) -> Result:
    """One objective over the whole window."""
    if not covered.scrapes:
        reason = (
            "no client's or load generator's metrics were recorded in the window: loss and latency are theirs to tell"
        )
        return _result(objective, None, None, reason)
    if covered.share < MINIMUM_COVERAGE:
        reason = f"scrapes cover {covered.share:.1%} of the window, less than {MINIMUM_COVERAGE:.0%}"
        return _result(objective, None, None, reason)
    match objective.type:
        case "latency" if objective.slices is not None:
            return _latency_slices(objective, objective.slices, seen)
        case "latency":
            return _share_below(objective, LATENCY, seen, "no delivery was measured")
        case "delivery":
            return _delivery(objective, seen)
        case "resume":
            if _proven_zero(seen, "migratory_resume_seconds", "migratory_reconnects_total"):
                return _result(objective, 0, 0, "no client lost its connection")
            return _share_below(objective, "migratory_resume_seconds", seen, "no resume was measured")
        case "publish":
            if _proven_zero(seen, "migratory_publish_gap_seconds", "migratory_publish_errors_total"):
                return _result(objective, 0, 0, "publishing was never interrupted")
            return _share_below(objective, "migratory_publish_gap_seconds", seen, "no publish gap was measured")
        case "availability":
            return _availability(objective, seen)
    raise ValueError(f"objective {objective.name!r} has the unknown type {objective.type!r}")


def overall(results: list[Result]) -> Verdict:
    """Missed when one objective is; else insufficient when one is, or when there is none; else met."""
    verdicts = {result.verdict for result in results}
    if "missed" in verdicts:
        return "missed"
    return "met" if verdicts == {"met"} else "insufficient"


def _proven_zero(seen: Observations, histogram: str, counter: str) -> bool:
    """The absence of an event is data only where its counter was scraped and did not move."""
    return seen.has(counter) and seen.total(counter) == 0 and seen.total(f"{histogram}_count") == 0


def _share_below(objective: Objective, histogram: str, seen: Observations, nothing: str) -> Result:
    threshold = _threshold(objective.threshold, objective)
    where = judged_latency if histogram == LATENCY else None
    distribution = seen.distribution(histogram, where) if where else seen.distribution(histogram)
    total = distribution.count
    if not total:
        return _result(objective, None, None, nothing)
    good, exact = distribution.at_most(threshold, seen.bounds(histogram))
    note = "" if exact else f"{threshold:g} s is not a bound of the histogram: its whole bucket counts as above"
    return _result(objective, good, total, note)


def _latency_slices(objective: Objective, slices: Slices, seen: Observations) -> Result:
    """Share of time slices whose percentile keeps the threshold. A slice without a delivery is no slice."""
    length_ms = round(_seconds(slices.length) * 1000)
    if length_ms % seen.window_ms:
        return _result(objective, None, None, f"slices of {length_ms} ms are no multiple of {seen.window_ms} ms")
    per_slice = length_ms // seen.window_ms
    threshold = _threshold(slices.threshold, objective)
    share = float(Decimal(str(slices.percentile)) / 100)
    good = total = 0
    bounds = seen.bounds(LATENCY)
    for first in range(0, len(seen.windows), per_slice):
        inside = range(first, first + per_slice)

        def in_slice(row: Row, inside: range = inside) -> bool:
            return judged_latency(row) and row.window in inside

        distribution = seen.distribution(LATENCY, in_slice)
        value = distribution.quantile(share, bounds)
        if value is not None:
            total += 1
            good += value <= threshold
    if not total:
        return _result(objective, None, None, "no slice had a delivery")
    return _result(objective, good, total, "")


def _delivery(objective: Objective, seen: Observations) -> Result:
    expected = seen.total("migratory_expected_total")
    if not expected:
        return _result(objective, None, None, "nothing says how many deliveries were expected")
    missing = [name for name in ("lost", "duplicates", "reordered") if not seen.has(f"migratory_{name}_total")]
    if missing:
        return _result(objective, None, None, f"nobody counted {', '.join(missing)}")
    wrong = {name: seen.total(f"migratory_{name}_total") for name in ("lost", "duplicates", "reordered")}
    note = ", ".join(f"{count:.0f} {name}" for name, count in wrong.items() if count)
    return _result(objective, max(0.0, expected - sum(wrong.values())), expected, note)


def _availability(objective: Objective, seen: Observations) -> Result:
    answered = seen.total("migratory_publish_seconds_count")
    failed = seen.total("migratory_publish_errors_total")
    if not answered + failed:
        return _result(objective, None, None, "nothing was published")
    return _result(objective, answered, answered + failed, "")


def _result(objective: Objective, good: float | None, total: float | None, reason: str) -> Result:
    target = Decimal(str(objective.target)) / 100

    def made(compliance: float | None, budget_left: float | None, verdict: Verdict, why: str) -> Result:
        return Result(
            objective.name, objective.type, str(objective.target), good, total, compliance, budget_left, verdict, why
        )

    if good is None or total is None:
        return made(None, None, "insufficient", reason)
    if total == 0:
        return made(None, 1.0, "met", reason)
    # Counts are whole numbers: an exact share decides, not a rounded one.
    share = Decimal(round(good)) / Decimal(round(total))
    allowed = 1 - target
    if allowed and total < (needed := math.ceil(1 / allowed)) and share >= target:
        return made(float(share), None, "insufficient", f"{total:.0f} events; {needed} are needed to show {target:%}")
    spent = 1 - share
    left = float(1 - spent / allowed) if allowed else (1.0 if not spent else 0.0)
    return made(float(share), left, "met" if share >= target else "missed", reason)


def _seconds(value: Any) -> float:
    return value.total_seconds() if hasattr(value, "total_seconds") else float(value)


def _threshold(value: Any, objective: Objective) -> float:
    if value is None:
        raise ValueError(f"objective {objective.name!r} of type {objective.type} needs a threshold")
    return _seconds(value)
