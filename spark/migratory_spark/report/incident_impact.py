"""Incidents as the report shows them: what happened, who was touched, and the figures before, during and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from migratory_spark import metrics
from migratory_spark.aggregate.gauges import Reading
from migratory_spark.aggregate.incidents import CALM_MS, Found
from migratory_spark.aggregate.observations import Observations
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.document import Affected, Around, ConnectionsAround, Happening, Incident
from migratory_spark.report.sections import MILLISECONDS, live, measured, of_broker
from migratory_spark.times import iso


def edges(found: Sequence[Found], start: int, end: int) -> Iterator[int]:
    """The moments at which the figures around incidents are parted."""
    for incident in found:
        yield from (_clip(moment, start, end) for moment in _moments(incident))


def _moments(incident: Found) -> tuple[int, int, int]:
    return incident.at, incident.until, incident.until + CALM_MS


def _clip(moment: int, start: int, end: int) -> int:
    return min(max(moment, start), end)


def incidents(
    found: Sequence[Found],
    seen: Observations,
    readings: dict[str, dict[int, Reading]],
    whole: Interval,
    stale_ms: float,
) -> list[Incident]:
    """`stale_ms`: how long a broker's count of clients holds after its scrape."""
    start, end = whole
    result = []
    for incident in found:
        at, until, calm = (_clip(moment, start, end) for moment in _moments(incident))
        # From the incident before, to the next one; those that overlap do not part one another's figures.
        begin = max([_clip(other.until, start, end) for other in found if other.until <= at], default=start)
        following = min([_clip(other.at, start, end) for other in found if other.at >= until and other is not incident],
                        default=end)  # fmt: skip
        after = (at, max(at, following))
        settled = (at, min(calm, after[1]))
        result.append(
            Incident(
                kind=incident.kind,
                broker=incident.broker,
                at=iso(incident.at),
                until=iso(incident.until),
                at_uncertain_seconds=max(0, incident.seen - incident.at) / 1000,
                found=not incident.told,
                happenings=[
                    Happening(
                        kind=step.kind, at=iso(step.at), until=iso(step.until), broker=step.broker, count=step.count
                    )
                    for step in incident.steps
                ],
                affected=_affected(seen, settled, after),
                latency_ms=Around(
                    before=measured(seen, metrics.LATENCY, MILLISECONDS, (begin, at), live()),
                    during=measured(seen, metrics.LATENCY, MILLISECONDS, (at, max(at, until)), live()),
                    after=measured(seen, metrics.LATENCY, MILLISECONDS, (until, max(until, following)), live()),
                ),
                resume_seconds=measured(seen, metrics.RESUME, 1.0, after),
                publish_gap_seconds=measured(seen, metrics.PUBLISH_GAP, 1.0, after),
                connections=ConnectionsAround(
                    before=_connected(seen, readings, at, stale_ms),
                    after=_connected(seen, readings, after[1], stale_ms),
                ),
            )
        )
    return result


def _affected(seen: Observations, settled: Interval, after: Interval) -> Affected:
    by_broker = {
        name: count
        for name in seen.brokers(metrics.RECONNECTS)
        if (count := seen.count(metrics.RECONNECTS, of_broker(name), settled))
    }
    return Affected(
        clients_by_broker=by_broker,
        clients=seen.count(metrics.RECONNECTS, span=settled),
        publish_gaps=seen.count(f"{metrics.PUBLISH_GAP}_count", span=after),
        publish_errors=seen.count(metrics.PUBLISH_ERRORS, span=settled),
        takeovers=seen.count(metrics.TAKEOVERS, span=settled),
    )


def _connected(
    seen: Observations, readings: dict[str, dict[int, Reading]], moment: int, stale_ms: float
) -> dict[str, float]:
    """Clients by broker at the last scrape up to `moment`; a broker that was silent by then is missing."""
    last_cell = seen.cells.within(seen.cells.edges[0], moment).stop
    found = {}
    for broker, by_cell in readings.items():
        before = [cell for cell in by_cell if cell < last_cell]
        if before and moment - by_cell[max(before)].last_ms <= stale_ms:
            found[broker] = by_cell[max(before)].last
    return found
