"""Event counts: counts the good events and all events of an objective, in any interval of time.

Nothing is judged here. If nothing can be counted, the result has the reason. A count of zero is given only if the
absence of events is itself data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

from migratory_resources.objectives import Objective

from migratory_spark import metrics
from migratory_spark.aggregate.coverage import ALLOWED_INTERVALS, MINIMUM_COVERAGE
from migratory_spark.aggregate.observations import GroupFilter, Observations, any_group
from migratory_spark.aggregate.series_catalog import SeriesGroup
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.metrics import Role

UNITS = {
    "latency": "deliveries",
    "delivery": "expected deliveries",
    "resume": "resumes",
    "publish": "publish gaps",
    "availability": "publications",
}
"""By type of objective, the name of the counted events."""
ROLES: dict[str, Role] = {
    "latency": "clients",
    "delivery": "clients",
    "resume": "clients",
    "publish": "publishers",
    "availability": "publishers",
}
"""By type of objective, the role of the exporters whose scrapes must cover the objective's window."""


@dataclass(slots=True, frozen=True)
class EventCounts:
    """Good and total events of an objective in an interval. If nothing can be counted, both are None and `reason` says
    why; otherwise `reason` is a note, or "".

    `doubtful` of the good events may have been bad, for which `doubt` is the reason ("… of them" precedes it).
    `possible` of the events that are not counted as good may have been good.
    """

    good: int | None
    total: int | None
    reason: str = ""
    doubtful: int = 0
    possible: int = 0
    doubt: str = "were neither seen to arrive nor counted as lost"


EventCounter = Callable[[Interval], EventCounts]
"""A function that counts events in an interval whose ends are edges of the grid."""


def judged_deliveries(*clocks: str) -> GroupFilter:
    """Return the filter that selects the series of live deliveries whose label `clock` is one of `clocks`.

    Replayed deliveries are late by nature; the resume objective judges them.
    """

    def where(group: SeriesGroup) -> bool:
        return group.clock in clocks and group.phase == "live"

    return where


def event_counter(objective: Objective, observations: Observations, scrape_interval_ms: float | None) -> EventCounter:
    """Return the function that counts an objective's events in an interval whose ends are edges of the observations'
    grid. The objective must count events, not slices of time.

    :param scrape_interval_ms: the usual time between scrapes, None if unknown. Deliveries up to 2.5 intervals old may
        still be on their way.
    """
    match objective.type:
        case "latency":
            where = judged_deliveries(*objective.clocks)
            return _within_threshold(objective, observations, metrics.LATENCY, where, "no delivery was measured")
        case "resume":
            measured = _interruptions(
                objective, observations, metrics.RESUME, metrics.RECONNECTS, "no client lost its connection",
                "no resume was measured", scrape_interval_ms,
            )  # fmt: skip
            return lambda interval: _add_unresumed(measured(interval), observations, interval)
        case "publish":
            return _interruptions(
                objective, observations, metrics.PUBLISH_GAP, metrics.PUBLISH_ERRORS,
                "publishing was never interrupted", "no publish gap was measured", scrape_interval_ms,
            )  # fmt: skip
        case "delivery":
            return lambda interval: _delivery(objective, observations, interval, scrape_interval_ms)
        case "availability":
            return lambda interval: _availability(objective, observations, interval)


def _within_threshold(
    objective: Objective, observations: Observations, histogram: str, where: GroupFilter, nothing: str
) -> EventCounter:
    """Return a function that counts a histogram's observations, and as good those at or below the objective's
    threshold.

    A bucket in which the threshold lies counts as above, and its observations are possibly good. So are observations
    that are in no bucket.

    :param where: selects the groups of series.
    :param nothing: the reason that is given if there is no observation; then nothing can be counted.
    """
    threshold = objective.threshold
    assert threshold is not None  # validated with the resource

    def count(interval: Interval) -> EventCounts:
        distribution = observations.distribution(histogram, where, interval)
        in_buckets = round(distribution.count)
        outside = observations.outside_buckets(histogram, where, interval)
        if not in_buckets + outside:
            return EventCounts(None, None, nothing)
        within, exact = distribution.at_most(threshold)
        good = round(within)
        notes = [
            f"{threshold:g} s is not a bound of every histogram: its whole bucket counts as above" * (not exact),
            f"{outside} of them are in no bucket" * (outside > 0),
        ]
        return EventCounts(
            good, in_buckets + outside, "; ".join(filter(None, notes)),
            possible=round(distribution.possibly_at_most(threshold)) - good + outside,
        )  # fmt: skip

    return count


def _interruptions(
    objective: Objective,
    observations: Observations,
    histogram: str,
    counter: str,
    nothing: str,
    unmeasured: str,
    scrape_interval_ms: float | None,
) -> EventCounter:
    """Return a function that counts interruptions by a histogram of their lengths, as `_within_threshold` does. If
    neither the histogram nor the counter of their causes rose, both counts are 0 if the counter was scraped nearly
    all the time; otherwise nothing can be counted. Nothing can be counted either if only the counter rose.

    :param counter: the metric that counts lost links or failed publications.
    :param nothing: the note of a count of 0.
    :param unmeasured: the reason that is given if nothing can be counted.
    :param scrape_interval_ms: the usual time between scrapes, None if unknown.
    """
    measured = _within_threshold(objective, observations, histogram, any_group, unmeasured)

    def count(interval: Interval) -> EventCounts:
        # The absence of an event is data only where its counter was scraped and did not move.
        events = observations.count(counter, interval=interval)
        if events or observations.count(f"{histogram}_count", interval=interval):
            return measured(interval)
        if _scraped_throughout(observations, counter, interval, scrape_interval_ms):
            return EventCounts(0, 0, nothing)
        return EventCounts(None, None, unmeasured)

    return count


def _add_unresumed(counts: EventCounts, observations: Observations, interval: Interval) -> EventCounts:
    """Return the counts of resumes, with the lost links that no resume followed added to the total. Their number is
    that of the links lost in the interval minus that of the resumes measured in it. They are not good, but possibly
    good: the client may resume later, and a link that is lost again before is measured with the next. Return the counts
    as they are if there are no such links, or if nothing could be counted."""
    lost = observations.count(metrics.RECONNECTS, interval=interval)
    unresumed = lost - observations.count(f"{metrics.RESUME}_count", interval=interval)
    if counts.total is None or unresumed <= 0:
        return counts
    note = f"{unresumed} of {lost} lost links were not followed by a resume"
    return replace(
        counts,
        total=counts.total + unresumed,
        possible=counts.possible + unresumed,
        reason="; ".join(filter(None, (note, counts.reason))),
    )


def _scraped_throughout(
    observations: Observations, metric: str, interval: Interval, scrape_interval_ms: float | None
) -> bool:
    """Return whether an increase of zero means that there was no event: the metric was scraped in at least 95% of the
    interval (MINIMUM_COVERAGE)."""
    validity_ms = ALLOWED_INTERVALS * (scrape_interval_ms or 0)
    return observations.scraped_share(metric, interval, validity_ms) >= MINIMUM_COVERAGE


def _delivery(
    objective: Objective, observations: Observations, interval: Interval, scrape_interval_ms: float | None
) -> EventCounts:
    """Return the counts of an objective of type `delivery`: expected deliveries, of which all are good but the lost,
    duplicated and reordered ones.

    Nothing can be counted if no delivery was expected, or if one of these counters was not scraped nearly all the time.
    If nevertheless one counted a bad delivery, and the target is 100% or expected deliveries were counted, all good
    ones are doubtful. Otherwise, if received deliveries were scraped, those are doubtful that were neither received nor
    lost and are more than can be on their way.
    """
    expected = observations.count(metrics.EXPECTED, interval=interval)
    kinds = {"lost": metrics.LOST, "duplicates": metrics.DUPLICATES, "reordered": metrics.REORDERED}
    wrong = {kind: observations.count(metric, interval=interval) for kind, metric in kinds.items()}
    note = ", ".join(f"{count} {kind}" for kind, count in wrong.items() if count)
    required = {"expected": metrics.EXPECTED, **kinds}
    missing = [
        kind
        for kind, metric in required.items()
        if not _scraped_throughout(observations, metric, interval, scrape_interval_ms)
    ]
    if missing:
        reason = f"nobody counted {', '.join(missing)} in all of the time"
        # A wrong delivery is wrong, however little was scraped. Its share is known only if all deliveries are.
        if not note or ("expected" in missing and objective.target < 100):
            return EventCounts(None, None, reason)
        received = observations.count(metrics.RECEIVED, interval=interval)
        expected = max(expected, received + wrong["lost"], sum(wrong.values()))
        good = expected - sum(wrong.values())
        return EventCounts(good, expected, f"{note}; {reason}", doubtful=good)
    if not expected:
        return EventCounts(None, None, "no delivery was expected")
    good = max(0, expected - sum(wrong.values()))
    if not observations.was_scraped(metrics.RECEIVED, interval):
        return EventCounts(good, expected, note)
    # A client that ended without a last scrape did not report what arrived. Some deliveries are on their way at the
    # ends.
    unseen = expected - observations.count(metrics.RECEIVED, interval=interval) - wrong["lost"]
    on_their_way = expected / (interval[1] - interval[0]) * ALLOWED_INTERVALS * (scrape_interval_ms or 0)
    return EventCounts(good, expected, note, max(0, unseen) if unseen > on_their_way else 0)


def _availability(objective: Objective, observations: Observations, interval: Interval) -> EventCounts:
    """Return the counts of an objective of type `availability`: publications, of which the acknowledged ones are good.

    Some exporters may count only one of both (`SeriesGroup.unpaired`). How many publications failed for an exporter of
    acknowledged ones alone is unknown: all of them are doubtful. An exporter of failed ones alone may have any number
    of acknowledged ones: nothing can be counted if the target is missed with its failures, unless it is 100%.
    """
    counts = publish_events(observations, interval)
    if counts.good is None or counts.total is None:
        return counts
    failed_alone = observations.count(metrics.PUBLISH_ERRORS, _is_unpaired, interval)
    if failed_alone and objective.target < 100 and Decimal(counts.good) * 100 < objective.target * counts.total:
        return EventCounts(
            None, None, f"{failed_alone} failed publications are of exporters that count no acknowledged ones"
        )
    return replace(
        counts,
        doubtful=observations.count(f"{metrics.PUBLISH}_count", _is_unpaired, interval),
        doubt="are of exporters that count no failed publications",
    )


def _is_unpaired(group: SeriesGroup) -> bool:
    return group.unpaired


def publish_events(observations: Observations, interval: Interval) -> EventCounts:
    """Return acknowledged publications (good) of all that were acknowledged or failed (total); None for both if there
    is none, also because nothing was scraped."""
    acknowledged = observations.count(f"{metrics.PUBLISH}_count", interval=interval)
    failed = observations.count(metrics.PUBLISH_ERRORS, interval=interval)
    if not acknowledged + failed:
        return EventCounts(None, None, "nothing was published")
    return EventCounts(acknowledged, acknowledged + failed)
