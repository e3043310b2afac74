"""Objectives to verdicts: met, missed or insufficient, each with the numbers it rests on.

Compliance is the share of good events; the error budget is what the target allows to be bad. Too little data is said,
never passed and never NaN (docs/sla.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from migratory_resources.objectives import Objective

from migratory_spark.aggregate.coverage import MINIMUM_COVERAGE, Covered
from migratory_spark.document import BudgetPoint, Burn, ObjectiveWindow, Result, Verdict
from migratory_spark.judge.event_counts import UNITS, Count, Counts
from migratory_spark.judge.objective_windows import Scope
from migratory_spark.judge.time_slices import SliceCounts
from migratory_spark.times import iso


def judge(
    objective: Objective, scope: Scope, count: Count, covered: Covered, whole_covered: dict[int, Covered]
) -> Result:
    """One objective over its window. `covered` is the coverage of it, `whole_covered` that of each of its burn windows,
    by length in ms."""
    counts = count((scope.start, scope.end))
    verdict, reason = _verdict(objective, counts, covered)
    told = covered.scrapes > 0 and counts.total is not None
    good, total = (counts.good, counts.total) if told else (None, None)
    share = good / total if good is not None and total else None
    sliced = count if isinstance(count, SliceCounts) else None
    threshold = objective.threshold or (objective.slices and objective.slices.threshold)
    return Result(
        name=objective.name,
        type=objective.type,
        target=str(objective.target),
        good=good,
        total=total,
        compliance=share,
        budget_left=_budget_left(objective, counts) if verdict != "insufficient" else None,
        verdict=verdict,
        reason=reason,
        threshold_ms=round(threshold * 1000, 3) if threshold else None,
        counts="slices" if sliced else "occurrences",
        unit="slices" if sliced else UNITS[objective.type],
        silent_slices=sliced.silent if sliced else None,
        bad_slices=[iso(moment) for moment in sliced.bad] if sliced else [],
        window=ObjectiveWindow(
            kind=scope.kind,
            start=iso(scope.start),
            end=iso(scope.end),
            zone=scope.zone,
            coverage=round(covered.share, 4),
        ),
        burn=[_burn(objective, scope, count, length, whole_covered[length]) for length in scope.burns],
        budget_over_time=[_point(objective, scope, count, moment) for moment in scope.points] if told else [],
    )


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Missed when one objective is; else insufficient when one is, or when there is none; else met."""
    found = set(verdicts)
    if "missed" in found:
        return "missed"
    return "met" if found == {"met"} else "insufficient"


def _verdict(objective: Objective, counts: Counts, covered: Covered) -> tuple[Verdict, str]:
    if not covered.scrapes:
        return "insufficient", (
            "no client's or load generator's metrics were recorded in the window: loss and latency are theirs to tell "
            "(`migratory up --scrape FILE` records those of `migratory bench run --metrics-targets FILE`)"
        )
    good, total, allowed = counts.good, counts.total, _allowed(objective)
    if good is not None and total is not None and good + counts.possible < total and not allowed:
        # Whatever else happened while nobody looked: all of them can't be good any more.
        return "missed", counts.reason
    if covered.share < MINIMUM_COVERAGE:
        return "insufficient", f"scrapes cover {covered.share:.1%} of the window, less than {MINIMUM_COVERAGE:.0%}"
    if good is None or total is None:
        return "insufficient", counts.reason
    if total == 0:
        return "met", counts.reason
    # Counts are whole numbers: an exact share decides, not a rounded one.
    if not _meets(objective, good + counts.possible, total):
        return "missed", counts.reason
    if not _meets(objective, good, total):
        return "insufficient", f"{counts.possible} more of them may have been good: {counts.reason}"
    if counts.doubtful and not _meets(objective, max(0, good - counts.doubtful), total):
        told = f"{counts.doubtful} of them were neither seen to arrive nor counted as lost"
        return "insufficient", "; ".join(filter(None, (told, counts.reason)))
    if allowed and total < (needed := math.ceil(1 / allowed)):
        return "insufficient", f"{total} events; {needed} are needed to show {objective.target}%"
    return "met", counts.reason


def _allowed(objective: Objective) -> Decimal:
    """The share that may be bad."""
    return 1 - objective.target / 100


def _meets(objective: Objective, good: int, total: int) -> bool:
    return Decimal(good) * 100 >= objective.target * total


def _budget_left(objective: Objective, counts: Counts) -> float | None:
    if counts.good is None or counts.total is None:
        return None
    if not counts.total:
        return 1.0
    allowed = _allowed(objective)
    spent = Decimal(counts.total - counts.good) / counts.total
    if allowed:
        return float(1 - spent / allowed)
    return 0.0 if spent else 1.0


def _burn(objective: Objective, scope: Scope, count: Count, length: int, covered: Covered) -> Burn:
    counts = count((scope.end - length, scope.end))
    good, total = counts.good or 0, counts.total or 0
    allowed = _allowed(objective)
    known = total and allowed and covered.share >= MINIMUM_COVERAGE
    return Burn(
        window_seconds=length / 1000,
        good=good,
        total=total,
        rate=round(float(Decimal(total - good) / total / allowed), 4) if known else None,
    )


def _point(objective: Objective, scope: Scope, count: Count, moment: int) -> BudgetPoint:
    counts = count((scope.start, moment))
    left = _budget_left(objective, counts) if counts.total else None
    return BudgetPoint(
        end=iso(moment),
        good=counts.good or 0,
        total=counts.total or 0,
        budget_left=None if left is None else round(left, 6),
    )
