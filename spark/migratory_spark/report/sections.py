"""Computes the sections of a report from observations: deliveries, availability, latency, rows of time, connections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from migratory_spark import metrics
from migratory_spark.aggregate.breakdown import Combination
from migratory_spark.aggregate.distributions import Distribution
from migratory_spark.aggregate.gauges import BrokerReadings, GaugeReading
from migratory_spark.aggregate.observations import GroupFilter, Observations, any_group
from migratory_spark.aggregate.series_catalog import SeriesGroup
from migratory_spark.aggregate.time_grid import Interval, TimeGrid, check_count
from migratory_spark.document import (
    AvailabilityCounts,
    Breakdown,
    BreakdownRow,
    BrokenDownObjective,
    BrokerConnections,
    BrokerDeliveryCounts,
    Calendar,
    CalendarRow,
    DeliveryCounts,
    DistributionSummary,
    GapCounts,
    LatencyHeatmap,
    LatencySection,
    WindowRow,
    WindowSummary,
)
from migratory_spark.judge.event_counts import judged_deliveries, publish_events
from migratory_spark.times import calendar_units, iso, local

MILLISECONDS = 1000.0
"""Milliseconds of a second."""
_BROKEN_DOWN = ("expected", "received", "lost", "duplicates", "reordered", "reconnects")
"""Counts of deliveries that a breakdown has."""
MAX_HEATMAP_BOUNDS = 40
"""The largest number of bounds of the heat map: more could not be distinguished in a plot."""


@dataclass(slots=True, frozen=True)
class ReportRows:
    """The report's window (ms since 1970) and its division into rows of `seconds` each, the last of which may be
    shorter. Raises TooManyIntervals if there are MAX_EDGES rows or more."""

    start: int
    end: int
    seconds: float

    def __post_init__(self) -> None:
        # Counted, because the rows of a second in a window of years would take gigabytes before they are refused.
        check_count(len(self._starts))

    @property
    def _starts(self) -> range:
        return range(self.start, self.end, max(1, round(self.seconds * 1000)))

    @property
    def edges(self) -> tuple[int, ...]:
        """The boundaries of the rows in ms since 1970: the start of each row, and the end of the last one."""
        return (*self._starts, self.end)

    @property
    def intervals(self) -> list[Interval]:
        """The rows as intervals in ms since 1970."""
        return list(pairwise(self.edges))

    @property
    def whole(self) -> Interval:
        """The report's window as one interval."""
        return self.start, self.end


def summary(distribution: Distribution, scale: float, digits: int = 3, whole: bool = False) -> DistributionSummary:
    """Return count, quantiles, mean, standard deviation and highest value of a distribution, multiplied by `scale`
    (1000 for milliseconds, 1 for seconds) and rounded. The count is not multiplied.

    :param digits: digits after the decimal point.
    :param whole: True to add the median's bucket and a note, for the tables of a whole window.
    """
    return DistributionSummary(**columns(distribution, scale, digits, whole))


@dataclass(slots=True, frozen=True)
class _Scale:
    """A function that multiplies a value by `factor` and rounds it to `digits` digits after the decimal point. It
    returns None for None and for an infinite value."""

    factor: float
    digits: int = field(default=3)

    def __call__(self, value: float | None) -> float | None:
        return None if value is None or math.isinf(value) else round(value * self.factor, self.digits)


def columns(distribution: Distribution, scale: float, digits: int = 3, whole: bool = False) -> dict[str, Any]:
    """Return by name the fields of the DistributionSummary that `summary` returns. The parameters are those of
    `summary`."""
    scaled = _Scale(scale, digits)
    result: dict[str, Any] = {
        "count": round(distribution.count),
        "median": scaled(distribution.quantile(0.5)),
        "mean": scaled(distribution.mean),
        "stdev": scaled(distribution.deviation),
        "p90": scaled(distribution.quantile(0.9)),
        "p95": scaled(distribution.quantile(0.95)),
        "p99": scaled(distribution.quantile(0.99)),
        "max": scaled(distribution.highest),
    }
    if whole:
        bucket = distribution.bucket(0.5)
        result["median_bucket"] = bucket and (scaled(bucket[0]), scaled(bucket[1]))
        result["note"] = distribution.note
    return result


def of_broker(name: str) -> GroupFilter:
    """Return the filter that selects the groups of series with this label `broker`."""
    return lambda group: group.broker == name


def of_reason(reason: str) -> GroupFilter:
    """Return the filter that selects the groups of series with this label `reason`."""
    return lambda group: group.reason == reason


def live(broker: str | None = None) -> GroupFilter:
    """Return the filter that selects live deliveries whose sender and receiver had the same clock, of one broker or
    (None) of all."""
    where = judged_deliveries("same")
    return where if broker is None else lambda group: where(group) and group.broker == broker


def measured(
    observations: Observations, histogram: str, scale: float, interval: Interval, where: GroupFilter = any_group
) -> DistributionSummary:
    """Return the summary of a histogram's observations in an interval, multiplied by `scale` as in `summary`, with the
    median's bucket and a note."""
    return summary(observations.distribution(histogram, where, interval), scale, whole=True)


def delivery(observations: Observations, interval: Interval) -> DeliveryCounts:
    """Return the delivery counts of an interval, of all brokers together and by broker. A count is None if its metric
    was not scraped in the interval, which is not the same as zero."""

    def count(metric: str, where: GroupFilter = any_group) -> int | None:
        return observations.count(metric, where, interval) if observations.was_scraped(metric, interval) else None

    def receipt(kind: str) -> int | None:
        return count(metrics.GAPS, lambda group: group.receipt == kind)

    counted = (metrics.RECEIVED, metrics.LOST, metrics.RECONNECTS)
    return DeliveryCounts(
        expected=count(metrics.EXPECTED),
        received=count(metrics.RECEIVED),
        lost=count(metrics.LOST),
        duplicates=count(metrics.DUPLICATES),
        reordered=count(metrics.REORDERED),
        reconnects=count(metrics.RECONNECTS),
        publish_errors=count(metrics.PUBLISH_ERRORS),
        gaps=GapCounts(truncated=receipt("truncated"), reset=receipt("reset")),
        by_broker={
            name: BrokerDeliveryCounts(
                received=count(metrics.RECEIVED, of_broker(name)),
                lost=count(metrics.LOST, of_broker(name)),
                reconnects=count(metrics.RECONNECTS, of_broker(name)),
            )
            for name in sorted({name for metric in counted for name in observations.brokers(metric)})
        },
    )


def breakdown(
    by: Sequence[str],
    figures: Mapping[Combination, Observations],
    objectives: Mapping[Combination, list[BrokenDownObjective]],
    interval: Interval,
) -> Breakdown:
    """Return the figures of each combination of the labels `by` in the interval, with the results of its objectives. A
    combination may have only one of both, because objectives have windows of their own; its counts are None, or it has
    no results."""
    nothing = Observations(TimeGrid(interval), {}, {})
    rows = []
    for combination in sorted({*figures, *objectives}):
        observations = figures.get(combination, nothing)
        counts, published = delivery(observations, interval), publish_events(observations, interval)
        rows.append(
            BreakdownRow(
                labels=list(combination),
                **{name: getattr(counts, name) for name in _BROKEN_DOWN},
                attempts=published.total,
                failures=None if published.total is None else published.total - (published.good or 0),
                latency_ms=measured(observations, metrics.LATENCY, MILLISECONDS, interval, live()),
                resume_seconds=measured(observations, metrics.RESUME, 1.0, interval),
                objectives=objectives.get(combination, []),
            )
        )
    return Breakdown(by=list(by), rows=rows)


def availability(
    observations: Observations, rows: ReportRows, background_failures: int, background_per_minute: float | None
) -> AvailabilityCounts:
    """Return the numbers of publications that were attempted and that failed in the window (None if the metrics of
    neither were scraped), the acknowledged share, the number of rows without publications, and failures by reason.

    :param background_failures: failures outside of incidents; `background_per_minute` is their number per minute, None
        if incidents take up the whole window.
    """
    counts = publish_events(observations, rows.whole)
    known = observations.was_scraped(metrics.PUBLISH, rows.whole) or observations.was_scraped(
        metrics.PUBLISH_ERRORS, rows.whole
    )
    good, total = counts.good or 0, counts.total or 0
    reasons = sorted({group.reason for group in observations.groups(metrics.PUBLISH_ERRORS)} - {""})
    by_reason = {
        reason: observations.count(metrics.PUBLISH_ERRORS, of_reason(reason), rows.whole) for reason in reasons
    }
    return AvailabilityCounts(
        attempts=total if known else None,
        failures=total - good if known else None,
        share=good / total if total else None,
        windows_without_traffic=sum(not publish_events(observations, interval).total for interval in rows.intervals),
        errors_by_reason={reason: count for reason, count in by_reason.items() if count},
        background_failures=background_failures if known else None,
        background_failures_per_minute=background_per_minute if known else None,
    )


def latency(observations: Observations, rows: ReportRows) -> LatencySection:
    """Return the latency in ms of live deliveries in the window, of sender and receiver on one clock: of all, by
    broker, by row, and by row and broker, with cumulative counts and a heat map. Rows without a delivery are left out
    of the tables by row."""
    brokers = observations.brokers(metrics.LATENCY)
    return LatencySection(
        all=measured(observations, metrics.LATENCY, MILLISECONDS, rows.whole, live()),
        by_broker={
            name: measured(observations, metrics.LATENCY, MILLISECONDS, rows.whole, live(name)) for name in brokers
        },
        by_window=[
            row
            for interval in rows.intervals
            for name in brokers
            if (row := _window_summary(observations, interval, name))
        ],
        over_time=[row for interval in rows.intervals if (row := _window_summary(observations, interval, ""))],
        window_seconds=rows.seconds,
        cumulative=_cumulative(observations.distribution(metrics.LATENCY, live(), rows.whole)),
        heat=_heatmap(observations, rows),
    )


def _window_summary(observations: Observations, interval: Interval, broker: str) -> WindowSummary | None:
    """Return the latency in ms of a row's live deliveries, or None without a delivery. An empty `broker` means all
    brokers."""
    distribution = observations.distribution(metrics.LATENCY, live(broker or None), interval)
    if not round(distribution.count):
        return None
    return WindowSummary(start=iso(interval[0]), broker=broker, **columns(distribution, MILLISECONDS))


def _cumulative(distribution: Distribution) -> list[tuple[float, int]]:
    """Return pairs of a bound in ms and the number of deliveries at or below it, rising in both. Of bounds with equal
    numbers the lowest is returned, but of those below all deliveries the highest. Return nothing without a delivery at
    or below a bound."""
    common = distribution.common
    points: list[tuple[float, int]] = []
    before = 0
    for bound, count in zip(common.bounds, common.cumulative, strict=True):
        # Includes the bound below the first observation: the curve rises from there.
        if (counted := round(count)) == 0:
            points = [(_ms(bound), 0)]
        elif counted > before:
            points.append((_ms(bound), counted))
        before = counted
    return points if before else []


def _heatmap(observations: Observations, rows: ReportRows) -> LatencyHeatmap:
    """Return the heat map of live deliveries, with at most MAX_HEATMAP_BOUNDS bounds: of the bounds that all exporters
    have, from the one below the first delivery on, every n-th one, counted from the highest one needed. It is empty
    without a delivery or a common bound."""
    common = observations.distribution(metrics.LATENCY, live(), rows.whole).common
    if not common.bounds or not common.count:
        return LatencyHeatmap(starts=[], bounds_ms=[], counts=[])
    first = max(0, int(np.searchsorted(common.cumulative, 0, side="right")) - 1)
    last = int(np.searchsorted(common.cumulative, common.cumulative[-1]))
    step = -(-(last - first + 1) // MAX_HEATMAP_BOUNDS)
    # Chosen from the highest downwards, so that it is one of them.
    chosen = [common.bounds[place] for place in range(last, first - 1, -step)][::-1]
    counts = []
    for interval in rows.intervals:
        distribution = observations.distribution(metrics.LATENCY, live(), interval)
        below = [round(distribution.at_most(bound)[0]) for bound in chosen]
        counts.append(
            [upper - lower for lower, upper in zip([0, *below], [*below, round(distribution.count)], strict=True)]
        )
    return LatencyHeatmap(
        starts=[iso(start) for start, _ in rows.intervals], bounds_ms=[_ms(bound) for bound in chosen], counts=counts
    )


def _ms(seconds: float) -> float:
    """Return seconds in milliseconds, rounded to a microsecond."""
    return round(seconds * MILLISECONDS, 3)


def windows(observations: Observations, rows: ReportRows) -> list[WindowRow]:
    """Return for each row of the report, and all brokers together, the publications that were attempted and that
    failed, the deliveries that were expected, received and lost, the reconnects, and the latency of deliveries."""
    return [WindowRow(**_row(observations, interval)) for interval in rows.intervals]


def calendar(observations: Observations, rows: ReportRows, tz: ZoneInfo) -> Calendar:
    """Return a row like those of `windows` for each hour of the time zone in the report's window, or for each day if
    the window is longer than four days."""
    unit, starts = calendar_units(rows.start, rows.end, tz)
    intervals = zip(starts, [*starts[1:], rows.end], strict=True)
    return Calendar(
        unit=unit,
        zone=str(tz),
        rows=[CalendarRow(local=local(interval[0], tz), **_row(observations, interval)) for interval in intervals],
    )


def _row(observations: Observations, interval: Interval) -> dict[str, Any]:
    """Return the fields of a WindowRow for an interval (ms since 1970), by name."""
    counts = publish_events(observations, interval)
    good, total = counts.good or 0, counts.total or 0
    return {
        "start": iso(interval[0]),
        "seconds": (interval[1] - interval[0]) / 1000,
        "attempts": total,
        "failures": total - good,
        "availability": good / total if total else None,
        "expected": observations.count(metrics.EXPECTED, interval=interval),
        "received": observations.count(metrics.RECEIVED, interval=interval),
        "lost": observations.count(metrics.LOST, interval=interval),
        "reconnects": observations.count(metrics.RECONNECTS, interval=interval),
        "latency_ms": summary(observations.distribution(metrics.LATENCY, live(), interval), MILLISECONDS),
    }


def connections(observations: Observations, readings: BrokerReadings, rows: ReportRows) -> list[BrokerConnections]:
    """Return the number of clients of each broker over time, from its own gauge.

    :param readings: the gauge's readings by broker and interval of the observations' grid.
    """

    def readings_within(by_interval: dict[int, GaugeReading], interval: Interval) -> list[GaugeReading]:
        inside = observations.grid.within(*interval)
        return [by_interval[number] for number in range(inside.start, inside.stop) if number in by_interval]

    def mean(selected: Sequence[GaugeReading]) -> float | None:
        total = sum(reading.samples for reading in selected)
        return round(sum(reading.mean * reading.samples for reading in selected) / total, 3) if total else None

    result = []
    for broker, by_interval in readings.items():
        readings_of_broker = readings_within(by_interval, rows.whole)
        result.append(
            BrokerConnections(
                broker=broker,
                mean=mean(readings_of_broker),
                max=max((reading.max for reading in readings_of_broker), default=None),
                last=readings_of_broker[-1].last if readings_of_broker else None,
                by_window=[mean(readings_within(by_interval, interval)) for interval in rows.intervals],
            )
        )
    return result


def estimated(group: SeriesGroup) -> bool:
    """Return whether a group of series has latencies of live deliveries that were measured across two clocks."""
    return group.clock == "estimated" and group.phase == "live"


def replayed(group: SeriesGroup) -> bool:
    """Return whether a group of series has latencies of replayed deliveries whose sender and receiver had the same
    clock."""
    return group.clock == "same" and group.phase == "replayed"
