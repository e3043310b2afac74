"""Verdicts on objectives: met, missed or insufficient, each with the numbers it is based on.

Compliance is the share of good events. The error budget is the share of bad events that the target allows. Too little
data makes a verdict insufficient, never met, and no number is NaN (docs/reference/sla.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from migratory_resources.objectives import Objective

from migratory_spark.aggregate.coverage import MINIMUM_COVERAGE, ScrapeCoverage
from migratory_spark.document import BudgetPoint, BurnRate, JudgedSlices, ObjectiveResult, ObjectiveWindow, Verdict
from migratory_spark.judge.event_counts import UNITS, EventCounter, EventCounts
from migratory_spark.judge.objective_windows import JudgedWindow
from migratory_spark.judge.time_slices import SliceCounts
from migratory_spark.times import iso


def judge(
    objective: Objective,
    window: JudgedWindow,
    counter: EventCounter,
    coverage: ScrapeCoverage,
    burn_coverage: dict[int, ScrapeCoverage],
) -> ObjectiveResult:
    """Return the result of one objective over its window: verdict with reason, counts, error budget and burn rates.

    :param counter: counts the objective's events (or slices of time) in an interval.
    :param coverage: scrape coverage of the window by the exporters whose role the objective needs.
    :param burn_coverage: their scrape coverage of each burn window, by its length in ms.
    """
    counts = counter((window.start, window.end))
    verdict, reason = _verdict(objective, counts, coverage)
    known = coverage.scrapes > 0 and counts.total is not None
    good, total = (counts.good, counts.total) if known else (None, None)
    share = good / total if good is not None and total else None
    slices = counter if isinstance(counter, SliceCounts) else None
    threshold = objective.threshold or (objective.slices and objective.slices.threshold)
    return ObjectiveResult(
        name=objective.name,
        type=objective.type,
        target=str(objective.target),
        good=good,
        total=total,
        compliance=share,
        budget_left=_budget_left(objective, counts) if verdict != "insufficient" else None,
        possibly_good=counts.possible if known else 0,
        possibly_bad=counts.doubtful if known else 0,
        verdict=verdict,
        reason=reason,
        threshold_ms=round(threshold * 1000, 3) if threshold else None,
        counts="slices" if slices else "occurrences",
        unit="slices" if slices else UNITS[objective.type],
        silent_slices=slices.silent if slices else None,
        bad_slices=[iso(moment) for moment in slices.bad] if slices else [],
        window=ObjectiveWindow(
            kind=window.kind,
            start=iso(window.start),
            end=iso(window.end),
            zone=window.zone,
            coverage=round(coverage.share, 4),
        ),
        burn=[_burn(objective, window, counter, length, burn_coverage[length]) for length in window.burns],
        budget_over_time=[_point(objective, window, counter, moment) for moment in window.points] if known else [],
        slices=_slices(objective),
    )


def _slices(objective: Objective) -> JudgedSlices | None:
    """Return what the result says about the objective's slices of time, None for an objective that counts events."""
    if objective.slices is None:
        return None
    percentile, share = (
        None if value is None else str(value) for value in (objective.slices.percentile, objective.slices.share)
    )
    return JudgedSlices(length_seconds=objective.slices.length, percentile=percentile, share=share)


def overall_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return `missed` if a verdict is, else `insufficient` if one is or if there is none, else `met`."""
    distinct = set(verdicts)
    if "missed" in distinct:
        return "missed"
    return "met" if distinct == {"met"} else "insufficient"


def _verdict(objective: Objective, counts: EventCounts, coverage: ScrapeCoverage) -> tuple[Verdict, str]:
    """Return the verdict and its reason, which may be empty for `met` and `missed`.

    The data is insufficient if nothing was scraped or could be counted, if scrapes cover less than MINIMUM_COVERAGE of
    the window, if the verdict depends on possible or doubtful events, or if there are too few events to prove the
    target. With a target of 100% a single event that is surely bad is a miss, however little of the window scrapes
    cover.
    """
    if not coverage.scrapes:
        return "insufficient", (
            "no metrics of clients or load generators were recorded in the window; only they measure loss and latency "
            "(`migratory up --scrape FILE` records those of `migratory bench run --metrics-targets FILE`)"
        )
    good, total, allowed = counts.good, counts.total, allowed_share(objective.target)
    if good is not None and total is not None and good + counts.possible < total and not allowed:
        # With a target of 100%, one event that is surely bad decides, however little was scraped.
        return "missed", counts.reason
    if coverage.share < MINIMUM_COVERAGE:
        return "insufficient", f"scrapes cover {coverage.share:.1%} of the window, less than {MINIMUM_COVERAGE:.0%}"
    if good is None or total is None:
        return "insufficient", counts.reason
    if total == 0:
        return "met", counts.reason
    # Counts are integers, so the exact share decides and not a rounded one.
    if not meets(objective.target, good + counts.possible, total):
        return "missed", counts.reason
    if not meets(objective.target, good, total):
        return "insufficient", f"{counts.possible} more of them may have been good: {counts.reason}"
    if counts.doubtful and not meets(objective.target, max(0, good - counts.doubtful), total):
        doubt = f"{counts.doubtful} of them {counts.doubt}"
        return "insufficient", "; ".join(filter(None, (doubt, counts.reason)))
    if allowed and total < (needed := math.ceil(1 / allowed)):
        return "insufficient", f"{total} events; {needed} are needed to show {objective.target}%"
    return "met", counts.reason


def allowed_share(target: Decimal) -> Decimal:
    """Return the share (0 to 1) of events that may be bad for a target in percent."""
    return 1 - target / 100


def meets(target: Decimal, good: int, total: int) -> bool:
    """Return whether good/total is at or above a target in percent, compared exactly."""
    return Decimal(good) * 100 >= target * total


def budget_left(target: Decimal, good: int, total: int) -> float:
    """Return the share of the error budget that is left: 1 without bad events, below 0 when overspent. With a target of
    100%, which has no budget, return 1 without bad events, else 0."""
    if not total:
        return 1.0
    allowed = allowed_share(target)
    spent = Decimal(total - good) / total
    if allowed:
        return float(1 - spent / allowed)
    return 0.0 if spent else 1.0


def _budget_left(objective: Objective, counts: EventCounts) -> float | None:
    """Return the share of the error budget that is left (see `budget_left`), None if nothing could be counted."""
    if counts.good is None or counts.total is None:
        return None
    return budget_left(objective.target, counts.good, counts.total)


def _burn(
    objective: Objective, window: JudgedWindow, counter: EventCounter, length: int, coverage: ScrapeCoverage
) -> BurnRate:
    """Return the burn rate in the last `length` ms of the window. The rate is None without an event, with a target of
    100%, and if scrapes cover less than MINIMUM_COVERAGE of this time."""
    counts = counter((window.end - length, window.end))
    good, total = counts.good or 0, counts.total or 0
    allowed = allowed_share(objective.target)
    known = total and allowed and coverage.share >= MINIMUM_COVERAGE
    return BurnRate(
        window_seconds=length / 1000,
        good=good,
        total=total,
        rate=round(float(Decimal(total - good) / total / allowed), 4) if known else None,
    )


def _point(objective: Objective, window: JudgedWindow, counter: EventCounter, end: int) -> BudgetPoint:
    """Return the error budget left at the moment `end` (ms since 1970), from the events since the window's start."""
    counts = counter((window.start, end))
    left = _budget_left(objective, counts) if counts.total else None
    return BudgetPoint(
        end=iso(end),
        good=counts.good or 0,
        total=counts.total or 0,
        budget_left=None if left is None else round(left, 6),
    )
