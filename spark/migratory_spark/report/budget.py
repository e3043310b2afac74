"""Rolling error budgets from the history of reports: adds up what kept reports counted, each moment at most once.

The history (`history.py`) has the events that each report counted for an objective, and the window in which it counted
them. Reports may overlap, because they were made by hand or with a window longer than their schedule's interval. Those
are chosen that do not overlap and together cover most of the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from migratory_spark.aggregate.coverage import MINIMUM_COVERAGE
from migratory_spark.document import Verdict
from migratory_spark.judge.verdicts import allowed_share, budget_left, meets, overall_verdict
from migratory_spark.report.history import OBJECTIVES, compact
from migratory_spark.times import iso

SCHEMA = "migratory.dev/sla-budget/v1alpha1"
POINTS = 28
"""Moments at which each budget is shown, at equal distances within the last window."""


class NotAHistory(Exception):
    """Raised when a folder or a file in it is no history of reports. The message names it and what is wrong."""


class RollingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A budget at a moment (`end`), over the window that ends then. `budget_left` is null without events."""

    end: str
    good: int
    total: int
    coverage: float
    budget_left: float | None


class RollingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of a cluster's objective over the rolling window. `coverage` is the share of the window that the
    scrapes of the chosen reports cover. `reports` is the number of reports that were chosen; `overlapping` that of
    those left out because others cover their time, and `different` that of those left out because the objective was
    defined differently than in the newest report."""

    cluster: str
    objective: str
    type: str
    target: str
    good: int
    total: int
    compliance: float | None
    budget_left: float | None
    coverage: float
    verdict: Verdict
    reason: str
    reports: int
    overlapping: int
    different: int
    provisional: int
    over_time: list[RollingPoint]


class RollingBudgets(msgspec.Struct, frozen=True, kw_only=True):
    """The rolling budgets of all objectives of a history, over [start, end)."""

    schema: str = SCHEMA
    start: str
    end: str
    seconds: float
    budgets: list[RollingBudget]
    verdict: Verdict


@dataclass(slots=True, frozen=True)
class KeptResult:
    """The events that a report counted of an objective in (start, end] (ms since 1970). `definition` is all that makes
    two results comparable: type, target, threshold in ms, and slices. `covered` is the share that scrapes cover. As in
    a report, `possibly_good` of the bad events may have been good, `possibly_bad` of the good ones bad."""

    cluster: str
    objective: str
    definition: tuple[str, str, float | None, str | None]
    start: int
    end: int
    good: int
    total: int
    possibly_good: int
    possibly_bad: int
    covered: float
    provisional: bool


def load_results(folder: Path, since_ms: int) -> list[KeptResult]:
    """Return the history's results of reports that end after a moment (ms since 1970) and counted something. Raises
    NotAHistory if there is no history in the folder, or a file cannot be read."""
    table = folder / "objectives"
    if not table.is_dir():
        raise NotAHistory(f"{folder}: there is no history of reports; `migratory sla report --history` writes one")
    oldest = compact(iso(since_ms))
    results = []
    for path in sorted(table.glob("day=*/*.parquet")):
        # The end of the report, in a form that sorts as time does.
        if path.stem.rpartition("-")[2] <= oldest:
            continue
        try:
            rows = pq.ParquetFile(path).read().select(OBJECTIVES.names).cast(OBJECTIVES).to_pylist()
        except KeyError as error:
            raise NotAHistory(
                f"{path}: it has not all columns; an earlier release wrote it, so move it away or make its report again"
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise NotAHistory(f"{path}: not a Parquet file of this history: {str(error).splitlines()[0]}") from error
        results += [
            KeptResult(
                row["cluster"], row["objective"], (row["type"], row["target"], row["threshold_ms"], row["slices"]),
                _ms(row["window_start"]), _ms(row["window_end"]), row["good"], row["total"], row["possibly_good"],
                row["possibly_bad"], row["coverage"], row["provisional"],
            )
            for row in rows
            if row["good"] is not None and row["total"] is not None
        ]  # fmt: skip
    return results


def rolling_budgets(results: Iterable[KeptResult], end_ms: int, length_ms: int) -> RollingBudgets:
    """Return the budget of each cluster and objective over the window of `length_ms` that ends at `end_ms` (ms since
    1970), and its course within that window. Objectives without a report that ends in the window are left out."""
    of_objective: dict[tuple[str, str], list[KeptResult]] = defaultdict(list)
    for result in results:
        if result.end <= end_ms:
            of_objective[result.cluster, result.objective].append(result)
    budgets = [
        _budget(of_objective[key], end_ms, length_ms)
        for key in sorted(of_objective)
        if any(result.end > end_ms - length_ms for result in of_objective[key])
    ]
    return RollingBudgets(
        start=iso(end_ms - length_ms), end=iso(end_ms), seconds=length_ms / 1000, budgets=budgets,
        verdict=overall_verdict(budget.verdict for budget in budgets),
    )  # fmt: skip


def choose(results: Iterable[KeptResult]) -> list[KeptResult]:
    """Return results that do not overlap and together are as long as possible, in the order of time. (Weighted interval
    scheduling; of equally long choices the one that uses later reports is returned.)"""
    ordered = sorted(results, key=lambda result: (result.end, result.start))
    ends = [result.end for result in ordered]
    # best[i] is the longest time that the first i results can cover; before[i] of them end before the i-th starts.
    best, before = [0], []
    for number, result in enumerate(ordered):
        before.append(bisect_right(ends, result.start, hi=number))
        best.append(max(best[number], best[before[number]] + result.end - result.start))
    chosen = []
    number = len(ordered)
    while number:
        result = ordered[number - 1]
        if best[before[number - 1]] + result.end - result.start == best[number]:
            chosen.append(result)
            number = before[number - 1]
        else:
            number -= 1
    return chosen[::-1]


def _budget(results: Sequence[KeptResult], end_ms: int, length_ms: int) -> RollingBudget:
    newest = max(results, key=lambda result: (result.end, result.start))
    same = [result for result in results if result.definition == newest.definition]
    target = Decimal(newest.definition[1])

    def within(end: int) -> list[KeptResult]:
        return choose(result for result in same if end - length_ms <= result.start < result.end <= end)

    def point(end: int) -> RollingPoint:
        sums = _Sums.of(within(end), length_ms)
        left = round(budget_left(target, sums.good, sums.total), 6) if sums.total else None
        return RollingPoint(end=iso(end), good=sums.good, total=sums.total, coverage=sums.coverage, budget_left=left)

    chosen = within(end_ms)
    sums = _Sums.of(chosen, length_ms)
    inside = [result for result in results if end_ms - length_ms <= result.start]
    inside_same = [result for result in inside if result.definition == newest.definition]
    verdict, reason = sums.verdict(target)
    return RollingBudget(
        cluster=newest.cluster,
        objective=newest.objective,
        type=newest.definition[0],
        target=newest.definition[1],
        good=sums.good,
        total=sums.total,
        compliance=sums.good / sums.total if sums.total else None,
        budget_left=budget_left(target, sums.good, sums.total) if sums.total else None,
        coverage=sums.coverage,
        verdict=verdict,
        reason=reason,
        reports=len(chosen),
        overlapping=len(inside_same) - len(chosen),
        different=len(inside) - len(inside_same),
        provisional=sum(result.provisional for result in chosen),
        over_time=[point(end_ms - length_ms + length_ms * number // POINTS) for number in range(1, POINTS + 1)],
    )


@dataclass(slots=True, frozen=True)
class _Sums:
    good: int
    total: int
    possibly_good: int
    possibly_bad: int
    coverage: float

    @classmethod
    def of(cls, chosen: Sequence[KeptResult], length_ms: int) -> _Sums:
        covered = sum(result.covered * (result.end - result.start) for result in chosen)
        good, total, possibly_good, possibly_bad = (
            sum(getattr(result, name) for result in chosen)
            for name in ("good", "total", "possibly_good", "possibly_bad")
        )
        return cls(good, total, possibly_good, possibly_bad, round(covered / length_ms, 4))

    def verdict(self, target: Decimal) -> tuple[Verdict, str]:
        """Return the verdict of these events and its reason, by the rules of a report."""
        allowed = allowed_share(target)
        is_missed = self.total > 0 and not meets(target, self.good + self.possibly_good, self.total)
        if is_missed and not allowed:
            return "missed", ""
        if self.coverage < MINIMUM_COVERAGE:
            return "insufficient", f"reports cover {self.coverage:.1%} of the window, less than {MINIMUM_COVERAGE:.0%}"
        if is_missed:
            return "missed", ""
        if not self.total:
            return "insufficient", "the reports counted no event"
        if not meets(target, self.good, self.total):
            return "insufficient", f"{self.possibly_good} more of them may have been good"
        if self.possibly_bad and not meets(target, max(0, self.good - self.possibly_bad), self.total):
            return "insufficient", f"{self.possibly_bad} of them may have been bad"
        if allowed and self.total * allowed < 1:
            return "insufficient", f"{self.total} events are too few to show {target}%"
        return "met", ""


def _ms(moment: datetime) -> int:
    return round(moment.astimezone(UTC).timestamp() * 1000)
