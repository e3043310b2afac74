"""The parts of a report, out of what was added up: deliveries, availability, latency, rows of time, connections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from migratory_spark import metrics
from migratory_spark.aggregate.distributions import Distribution
from migratory_spark.aggregate.gauges import Reading
from migratory_spark.aggregate.observations import Observations, Where, anything
from migratory_spark.aggregate.series_catalog import Group
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.document import (
    Availability,
    BrokerDelivery,
    Calendar,
    CalendarRow,
    Connections,
    Delivery,
    Gaps,
    Heat,
    Latency,
    Summary,
    WindowRow,
    WindowSummary,
)
from migratory_spark.judge.event_counts import availability as acknowledged
from migratory_spark.judge.event_counts import judged
from migratory_spark.times import iso, local, units

MILLISECONDS = 1000.0
MOST_HEAT_BOUNDS = 40


@dataclass(slots=True, frozen=True)
class Rows:
    """The report's window in ms, cut into rows of `seconds` (the last may be shorter)."""

    start: int
    end: int
    seconds: float

    @property
    def edges(self) -> tuple[int, ...]:
        length = max(1, round(self.seconds * 1000))
        return (*range(self.start, self.end, length), self.end)

    @property
    def spans(self) -> list[Interval]:
        return list(pairwise(self.edges))

    @property
    def whole(self) -> Interval:
        return self.start, self.end


def summary(distribution: Distribution, scale: float, digits: int = 3, whole: bool = False) -> Summary:
    """The columns of the published tables, times `scale` (1000 for milliseconds). `whole`: with the median's bucket and
    a note, for the tables of a whole window."""
    return Summary(**columns(distribution, scale, digits, whole))


@dataclass(slots=True, frozen=True)
class _Scale:
    factor: float
    digits: int = field(default=3)

    def __call__(self, value: float | None) -> float | None:
        return None if value is None or math.isinf(value) else round(value * self.factor, self.digits)


def columns(distribution: Distribution, scale: float, digits: int = 3, whole: bool = False) -> dict[str, Any]:
    """As `summary`, as keywords."""
    scaled = _Scale(scale, digits)
    found: dict[str, Any] = {
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
        found["median_bucket"] = bucket and (scaled(bucket[0]), scaled(bucket[1]))
        found["note"] = distribution.note
    return found


def of_broker(name: str) -> Where:
    return lambda group: group.broker == name


def live(broker: str | None = None) -> Where:
    """Judged deliveries, of one broker or of all."""
    where = judged("same")
    return where if broker is None else lambda group: where(group) and group.broker == broker


def measured(seen: Observations, histogram: str, scale: float, span: Interval, where: Where = anything) -> Summary:
    return summary(seen.distribution(histogram, where, span), scale, whole=True)


def delivery(seen: Observations, span: Interval) -> Delivery:
    """Counts; None for what nobody counted, which is not the same as none."""

    def count(metric: str, where: Where = anything) -> int | None:
        return seen.count(metric, where, span) if seen.has(metric, span) else None

    def receipt(kind: str) -> int | None:
        return count(metrics.GAPS, lambda group: group.receipt == kind)

    counted = (metrics.RECEIVED, metrics.LOST, metrics.RECONNECTS)
    return Delivery(
        expected=count(metrics.EXPECTED),
        received=count(metrics.RECEIVED),
        lost=count(metrics.LOST),
        duplicates=count(metrics.DUPLICATES),
        reordered=count(metrics.REORDERED),
        reconnects=count(metrics.RECONNECTS),
        publish_errors=count(metrics.PUBLISH_ERRORS),
        gaps=Gaps(truncated=receipt("truncated"), reset=receipt("reset")),
        by_broker={
            name: BrokerDelivery(
                received=count(metrics.RECEIVED, of_broker(name)),
                lost=count(metrics.LOST, of_broker(name)),
                reconnects=count(metrics.RECONNECTS, of_broker(name)),
            )
            for name in sorted({name for metric in counted for name in seen.brokers(metric)})
        },
    )


def availability(seen: Observations, rows: Rows) -> Availability:
    counts = acknowledged(seen, rows.whole)
    known = seen.has(metrics.PUBLISH, rows.whole) or seen.has(metrics.PUBLISH_ERRORS, rows.whole)
    good, total = counts.good or 0, counts.total or 0
    reasons = sorted({group.reason for group in seen.groups(metrics.PUBLISH_ERRORS)} - {""})
    by_reason = {
        reason: seen.count(metrics.PUBLISH_ERRORS, lambda group, reason=reason: group.reason == reason, rows.whole)  # type: ignore[misc]
        for reason in reasons
    }
    return Availability(
        attempts=total if known else None,
        failures=total - good if known else None,
        share=good / total if total else None,
        windows_without_traffic=sum(not acknowledged(seen, span).total for span in rows.spans),
        errors_by_reason={reason: count for reason, count in by_reason.items() if count},
    )


def latency(seen: Observations, rows: Rows) -> Latency:
    brokers = seen.brokers(metrics.LATENCY)
    return Latency(
        all=measured(seen, metrics.LATENCY, MILLISECONDS, rows.whole, live()),
        by_broker={name: measured(seen, metrics.LATENCY, MILLISECONDS, rows.whole, live(name)) for name in brokers},
        by_window=[row for span in rows.spans for name in brokers if (row := _window_summary(seen, span, name))],
        over_time=[row for span in rows.spans if (row := _window_summary(seen, span, ""))],
        window_seconds=rows.seconds,
        cumulative=_cumulative(seen.distribution(metrics.LATENCY, live(), rows.whole)),
        heat=_heat(seen, rows),
    )


def _window_summary(seen: Observations, span: Interval, broker: str) -> WindowSummary | None:
    """None without a delivery. `broker` is empty for all."""
    distribution = seen.distribution(metrics.LATENCY, live(broker or None), span)
    if not round(distribution.count):
        return None
    return WindowSummary(start=iso(span[0]), broker=broker, **columns(distribution, MILLISECONDS))


def _cumulative(distribution: Distribution) -> list[tuple[float, int]]:
    common = distribution.common
    points: list[tuple[float, int]] = []
    before = 0
    for bound, count in zip(common.bounds, common.cumulative, strict=True):
        # The bound below the first observation, too: the curve rises from there.
        if (counted := round(count)) == 0:
            points = [(_ms(bound), 0)]
        elif counted > before:
            points.append((_ms(bound), counted))
        before = counted
    return points if before else []


def _heat(seen: Observations, rows: Rows) -> Heat:
    common = seen.distribution(metrics.LATENCY, live(), rows.whole).common
    if not common.bounds or not common.count:
        return Heat(starts=[], bounds_ms=[], counts=[])
    first = max(0, int(np.searchsorted(common.cumulative, 0, side="right")) - 1)
    last = int(np.searchsorted(common.cumulative, common.cumulative[-1]))
    step = -(-(last - first + 1) // MOST_HEAT_BOUNDS)
    # Counted back from the highest, so that it is one of them.
    chosen = [common.bounds[place] for place in range(last, first - 1, -step)][::-1]
    counts = []
    for span in rows.spans:
        distribution = seen.distribution(metrics.LATENCY, live(), span)
        below = [round(distribution.at_most(bound)[0]) for bound in chosen]
        counts.append(
            [upper - lower for lower, upper in zip([0, *below], [*below, round(distribution.count)], strict=True)]
        )
    return Heat(
        starts=[iso(start) for start, _ in rows.spans], bounds_ms=[_ms(bound) for bound in chosen], counts=counts
    )


def _ms(seconds: float) -> float:
    return round(seconds * MILLISECONDS, 3)


def windows(seen: Observations, rows: Rows) -> list[WindowRow]:
    return [WindowRow(**_row(seen, span)) for span in rows.spans]


def calendar(seen: Observations, rows: Rows, tz: ZoneInfo) -> Calendar:
    unit, starts = units(rows.start, rows.end, tz)
    spans = zip(starts, [*starts[1:], rows.end], strict=True)
    return Calendar(
        unit=unit,
        zone=str(tz),
        rows=[CalendarRow(local=local(span[0], tz), **_row(seen, span)) for span in spans],
    )


def _row(seen: Observations, span: Interval) -> dict[str, Any]:
    counts = acknowledged(seen, span)
    good, total = counts.good or 0, counts.total or 0
    return {
        "start": iso(span[0]),
        "seconds": (span[1] - span[0]) / 1000,
        "attempts": total,
        "failures": total - good,
        "availability": good / total if total else None,
        "expected": seen.count(metrics.EXPECTED, span=span),
        "received": seen.count(metrics.RECEIVED, span=span),
        "lost": seen.count(metrics.LOST, span=span),
        "reconnects": seen.count(metrics.RECONNECTS, span=span),
        "latency_ms": summary(seen.distribution(metrics.LATENCY, live(), span), MILLISECONDS),
    }


def connections(seen: Observations, readings: dict[str, dict[int, Reading]], rows: Rows) -> list[Connections]:
    def over(by_cell: dict[int, Reading], span: Interval) -> list[Reading]:
        inside = seen.cells.within(*span)
        return [by_cell[cell] for cell in range(inside.start, inside.stop) if cell in by_cell]

    def mean(found: Sequence[Reading]) -> float | None:
        total = sum(reading.samples for reading in found)
        return round(sum(reading.mean * reading.samples for reading in found) / total, 3) if total else None

    result = []
    for broker, by_cell in readings.items():
        found = over(by_cell, rows.whole)
        result.append(
            Connections(
                broker=broker,
                mean=mean(found),
                max=max((reading.max for reading in found), default=None),
                last=found[-1].last if found else None,
                by_window=[mean(over(by_cell, span)) for span in rows.spans],
            )
        )
    return result


def replayed(group: Group) -> bool:
    return group.clock == "same" and group.phase == "replayed"
