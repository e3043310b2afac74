"""What an objective counts: good events of all events, in any stretch of time.

Nothing is judged here. Where nothing can be counted the answer says why; a count of nothing is given only where the
absence of events is itself data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from migratory_resources.objectives import Objective

from migratory_spark import metrics
from migratory_spark.aggregate.coverage import ALLOWED_INTERVALS, MINIMUM_COVERAGE
from migratory_spark.aggregate.observations import Observations, Where, anything
from migratory_spark.aggregate.series_catalog import Group
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.metrics import Role

UNITS = {
    "latency": "deliveries",
    "delivery": "expected deliveries",
    "resume": "resumes",
    "publish": "publish gaps",
    "availability": "publications",
}
ROLES: dict[str, Role] = {
    "latency": "clients",
    "delivery": "clients",
    "resume": "clients",
    "publish": "publishers",
    "availability": "publishers",
}
"""Whose scrapes must cover the time of an objective of that type."""


@dataclass(slots=True, frozen=True)
class Counts:
    """`good` and `total` are None where nothing can be counted. `doubtful` of the good ones may have been bad,
    `possible` of the others good."""

    good: int | None
    total: int | None
    reason: str = ""
    doubtful: int = 0
    possible: int = 0


Count = Callable[[Interval], Counts]
"""Counts in a stretch of time whose ends are edges of the cells."""


def judged(*clocks: str) -> Where:
    """Live deliveries by these clocks; what a replay brings late is the business of the resume objective."""

    def where(group: Group) -> bool:
        return group.clock in clocks and group.phase == "live"

    return where


def occurrences(objective: Objective, seen: Observations, interval_ms: float | None) -> Count:
    """The count of an objective's events. `interval_ms` is the scrape interval, within which deliveries may be on their
    way."""
    match objective.type:
        case "latency":
            where = judged(*objective.clocks)
            return _within(objective, seen, metrics.LATENCY, where, "no delivery was measured")
        case "resume":
            nothing = "no client lost its connection"
            return _interrupted(
                objective, seen, metrics.RESUME, metrics.RECONNECTS, nothing, "no resume was measured", interval_ms
            )
        case "publish":
            nothing = "publishing was never interrupted"
            unmeasured = "no publish gap was measured"
            return _interrupted(
                objective, seen, metrics.PUBLISH_GAP, metrics.PUBLISH_ERRORS, nothing, unmeasured, interval_ms
            )
        case "delivery":
            return lambda span: _delivery(objective, seen, span, interval_ms)
        case "availability":
            return lambda span: availability(seen, span)


def _within(objective: Objective, seen: Observations, histogram: str, where: Where, nothing: str) -> Count:
    threshold = objective.threshold
    assert threshold is not None  # the objective's own rules see to it

    def count(span: Interval) -> Counts:
        distribution = seen.distribution(histogram, where, span)
        placed = round(distribution.count)
        # What was counted and is in no bucket: an exporter, or who dropped its series, left out the one without bound.
        lost = max(0, seen.count(f"{histogram}_count", where, span) - placed)
        if not placed + lost:
            return Counts(None, None, nothing)
        found, exact = distribution.at_most(threshold)
        good = round(found)
        notes = [
            f"{threshold:g} s is not a bound of every histogram: its whole bucket counts as above" * (not exact),
            f"{lost} of them are in no bucket" * (lost > 0),
        ]
        return Counts(
            good, placed + lost, "; ".join(filter(None, notes)),
            possible=round(distribution.at_best(threshold)) - good + lost,
        )  # fmt: skip

    return count


def _interrupted(
    objective: Objective,
    seen: Observations,
    histogram: str,
    counter: str,
    nothing: str,
    unmeasured: str,
    interval_ms: float | None,
) -> Count:
    measured = _within(objective, seen, histogram, anything, unmeasured)

    def count(span: Interval) -> Counts:
        # The absence of an event is data only where its counter was scraped and did not move.
        if not seen.count(counter, span=span) and not seen.count(f"{histogram}_count", span=span):
            return Counts(0, 0, nothing) if _told(seen, counter, span, interval_ms) else Counts(None, None, unmeasured)
        return measured(span)

    return count


def _told(seen: Observations, metric: str, span: Interval, interval_ms: float | None) -> bool:
    """Whether zero means none: somebody counted all the time, or nearly."""
    return seen.share(metric, span, ALLOWED_INTERVALS * (interval_ms or 0)) >= MINIMUM_COVERAGE


def _delivery(objective: Objective, seen: Observations, span: Interval, interval_ms: float | None) -> Counts:
    expected = seen.count(metrics.EXPECTED, span=span)
    kinds = {"lost": metrics.LOST, "duplicates": metrics.DUPLICATES, "reordered": metrics.REORDERED}
    wrong = {kind: seen.count(metric, span=span) for kind, metric in kinds.items()}
    note = ", ".join(f"{count} {kind}" for kind, count in wrong.items() if count)
    every = {"expected": metrics.EXPECTED, **kinds}
    if missing := [kind for kind, metric in every.items() if not _told(seen, metric, span, interval_ms)]:
        reason = f"nobody counted {', '.join(missing)} in all of the time"
        # A wrong one is wrong, however little was looked at; of which share is known only if the whole is.
        if not note or ("expected" in missing and objective.target < 100):
            return Counts(None, None, reason)
        expected = max(expected, seen.count(metrics.RECEIVED, span=span) + wrong["lost"], sum(wrong.values()))
        good = expected - sum(wrong.values())
        return Counts(good, expected, f"{note}; {reason}", doubtful=good)
    if not expected:
        return Counts(None, None, "no delivery was expected")
    good = max(0, expected - sum(wrong.values()))
    if not seen.has(metrics.RECEIVED, span):
        return Counts(good, expected, note)
    # Who ended without a last scrape can't say what arrived. Some deliveries are on their way at either end.
    unseen = expected - seen.count(metrics.RECEIVED, span=span) - wrong["lost"]
    on_their_way = expected / (span[1] - span[0]) * ALLOWED_INTERVALS * (interval_ms or 0)
    return Counts(good, expected, note, max(0, unseen) if unseen > on_their_way else 0)


def availability(seen: Observations, span: Interval) -> Counts:
    """Acknowledged publications of those that were answered."""
    answered = seen.count(f"{metrics.PUBLISH}_count", span=span)
    failed = seen.count(metrics.PUBLISH_ERRORS, span=span)
    if not answered + failed:
        return Counts(None, None, "nothing was published")
    return Counts(answered, answered + failed)
