"""Computes the impact of incidents: their steps, affected clients and publishers, and the figures before, during and
after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from migratory_spark import metrics
from migratory_spark.aggregate.gauges import BrokerReadings
from migratory_spark.aggregate.incidents import SETTLE_MS, DetectedIncident
from migratory_spark.aggregate.observations import Observations
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.document import ConnectionsAround, Incident, IncidentImpact, IncidentStepRow, LatencyAround
from migratory_spark.report.sections import MILLISECONDS, live, measured, of_broker
from migratory_spark.times import iso


def edges(detected: Sequence[DetectedIncident], start: int, end: int) -> Iterator[int]:
    """Yield the moments (ms since 1970) between which figures of each incident are counted: its start, its end, and
    SETTLE_MS after its end. A moment outside of [start, end] is replaced by the nearer end of the window."""
    for incident in detected:
        yield from (_clip(moment, start, end) for moment in _moments(incident))


def background_failures(
    detected: Sequence[DetectedIncident], observations: Observations, whole: Interval
) -> tuple[int, float | None]:
    """Return the number of publications that failed in the window `whole` (ms since 1970) outside of incidents, and
    their rate per minute of that time; None for the rate if incidents take up the whole window.

    An incident counts until SETTLE_MS after its end.
    """
    after, failures, milliseconds = whole[0], 0, 0
    moments = [(_clip(incident.at, *whole), _clip(incident.until + SETTLE_MS, *whole)) for incident in detected]
    for at, settled_at in [*sorted(moments), (whole[1], whole[1])]:
        if at > after:
            failures += observations.count(metrics.PUBLISH_ERRORS, interval=(after, at))
            milliseconds += at - after
        after = max(after, settled_at)
    return failures, round(failures / milliseconds * 60_000, 4) if milliseconds else None


def _moments(incident: DetectedIncident) -> tuple[int, int, int]:
    """Return start and end of an incident, and the moment SETTLE_MS after its end (ms since 1970)."""
    return incident.at, incident.until, incident.until + SETTLE_MS


def _clip(moment: int, start: int, end: int) -> int:
    return min(max(moment, start), end)


def incidents(
    detected: Sequence[DetectedIncident],
    observations: Observations,
    readings: BrokerReadings,
    whole: Interval,
    validity_ms: float,
) -> list[Incident]:
    """Return the report's incidents, with the impact of each.

    :param readings: numbers of clients, by broker and interval of the observations' grid.
    :param whole: the report's window, in ms since 1970.
    :param validity_ms: milliseconds after a scrape for which a broker's number of clients counts.
    """
    start, end = whole
    result = []
    for incident in detected:
        at, until, settled_at = (_clip(moment, start, end) for moment in _moments(incident))
        # From the previous incident to the next one. Incidents that overlap do not cut each other's figures.
        begin = max([_clip(other.until, start, end) for other in detected if other.until <= at], default=start)
        later = [other for other in detected if other.at >= until and other is not incident]
        following = min([_clip(other.at, start, end) for other in later], default=end)
        after = (at, max(at, following))
        until_settled = (at, min(settled_at, after[1]))
        result.append(
            Incident(
                kind=incident.kind,
                broker=incident.broker,
                at=iso(incident.at),
                until=iso(incident.until),
                at_uncertain_seconds=max(0, incident.seen - incident.at) / 1000,
                found=not incident.known,
                happenings=[
                    IncidentStepRow(
                        kind=step.kind, at=iso(step.at), until=iso(step.until), broker=step.broker, count=step.count
                    )
                    for step in incident.steps
                ],
                affected=_impact(observations, until_settled, after),
                latency_ms=LatencyAround(
                    before=measured(observations, metrics.LATENCY, MILLISECONDS, (begin, at), live()),
                    during=measured(observations, metrics.LATENCY, MILLISECONDS, (at, max(at, until)), live()),
                    after=measured(observations, metrics.LATENCY, MILLISECONDS, (until, max(until, following)), live()),
                ),
                resume_seconds=measured(observations, metrics.RESUME, 1.0, after),
                publish_gap_seconds=measured(observations, metrics.PUBLISH_GAP, 1.0, after),
                connections=ConnectionsAround(
                    before=_connected_clients(observations, readings, at, validity_ms),
                    after=_connected_clients(observations, readings, after[1], validity_ms),
                ),
            )
        )
    return result


def _impact(observations: Observations, until_settled: Interval, after: Interval) -> IncidentImpact:
    """Return the impact of an incident.

    :param until_settled: the time for which reconnects, failed publications and takeovers belong to it.
    :param after: the time from its start to the next incident, for which interruptions of publishers belong to it.
    """
    by_broker = {
        name: count
        for name in observations.brokers(metrics.RECONNECTS)
        if (count := observations.count(metrics.RECONNECTS, of_broker(name), until_settled))
    }
    return IncidentImpact(
        clients_by_broker=by_broker,
        clients=observations.count(metrics.RECONNECTS, interval=until_settled),
        publish_gaps=observations.count(f"{metrics.PUBLISH_GAP}_count", interval=after),
        publish_errors=observations.count(metrics.PUBLISH_ERRORS, interval=until_settled),
        takeovers=observations.count(metrics.TAKEOVERS, interval=until_settled),
    )


def _connected_clients(
    observations: Observations, readings: BrokerReadings, moment: int, validity_ms: float
) -> dict[str, float]:
    """Return the number of clients by broker at the last scrape up to `moment` (ms since 1970), which must be an edge
    of the grid. A broker is left out if that scrape was more than `validity_ms` before."""
    last_interval = observations.grid.within(observations.grid.edges[0], moment).stop
    clients = {}
    for broker, by_interval in readings.items():
        earlier = [interval for interval in by_interval if interval < last_interval]
        if earlier and moment - by_interval[max(earlier)].last_ms <= validity_ms:
            clients[broker] = by_interval[max(earlier)].last
    return clients
