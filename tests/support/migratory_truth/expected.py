"""The figures that a report of a data set must have, counted event by event by the rules of docs/reference/sla.md, and
what differs from them in a report."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any

from migratory_resources.objectives import Objective

from migratory_truth.data_sets import (
    GAP,
    LATENCY,
    NOW,
    OUTCOMES,
    RESUME,
    WAVE_MS,
    DataSet,
    Exporter,
    SeriesName,
)

LOOKBACK_MS = 3_600_000
SKEW_MS = 5000
SETTLE_MS = 15_000
PUBLISHED, ERRORS = "migratory_publish_seconds_count", "migratory_publish_errors_total"
RECONNECTS = "migratory_reconnects_total"

Counts = tuple[int, int]
"""Good and all events."""


def differences(data: DataSet, report: dict[str, Any]) -> list[str]:
    """Return a sentence for each figure of a report (as its JSON has it) that is not the right one."""
    return [
        f"{what}: {found} instead of {right}"
        for what, found, right in _figures(_Truth(data), data, report)
        if found != right
    ]


def _figures(truth: _Truth, data: DataSet, report: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    """Yield name, value in the report, and right value of each figure."""
    start, clusters = data.start, data.clusters if data.cluster is None else {data.cluster}
    for objective, result in zip(data.objectives, report["objectives"], strict=True):
        counts = result["good"] or 0, result["total"] or 0
        yield f"objective {objective.name} ({objective.type})", counts, truth.objective(objective, clusters)
    whole = start, NOW
    delivery = report["delivery"]
    for name in ("expected", *OUTCOMES):
        right = truth.count(clusters, start, whole, f"migratory_{name}_total")
        yield f"delivery.{name}", delivery[name] or 0, right
        if name in ("expected", "received", "lost"):
            yield f"rows of {name}", sum(row[name] or 0 for row in report["windows"]), right
    for name, metric in (("reconnects", RECONNECTS), ("publish_errors", ERRORS)):
        yield f"delivery.{name}", delivery[name] or 0, truth.count(clusters, start, whole, metric)
    for reason, count in report["availability"]["errors_by_reason"].items():
        yield f"errors {reason}", count, truth.count(clusters, start, whole, ERRORS, reason=reason)
    if data.by:
        for row in report["breakdown"]["rows"]:
            cluster = row["labels"][0].removeprefix("of-")
            by_name = {objective.name: objective for objective in data.objectives}
            for result in row["objectives"]:
                counts = result["good"] or 0, result["total"] or 0
                yield f"{result['name']} of {cluster}", counts, truth.objective(by_name[result["name"]], {cluster})
        regions = [row["labels"][0] for row in report["breakdown"]["rows"]]
        yield "regions", sorted(regions), sorted(f"of-{cluster}" for cluster in clusters)
    yield "notes of several servers", [note for note in report["notes"] if "differ by" in note], []
    # Brokers of several clusters have equal names, so their incidents are known of one cluster only.
    if len(clusters) == 1:
        yield from _incident_figures(truth, data, report, *clusters)


def _incident_figures(
    truth: _Truth, data: DataSet, report: dict[str, Any], cluster: str
) -> Iterator[tuple[str, object, object]]:
    found = report["incidents"]
    right = [incident for incident in data.incidents if incident.cluster == cluster]
    yield "incidents", [incident["kind"] for incident in found], [incident.kind for incident in right]
    moments = [(_ms(incident["at"]), _ms(incident["until"])) for incident in found]
    outside, after = 0, data.start
    for number, (incident, (at, until)) in enumerate(zip(found, moments, strict=True)):
        following = moments[number + 1][0] if number + 1 < len(moments) else NOW
        window = at, min(until + SETTLE_MS, max(at, following))
        name = f"incident {number}"
        if len(right) == len(found):
            cause = right[number]
            late, is_wave = at - cause.at, cause.kind == "reconnect wave"
            # A scrape between the links of a wave may have seen too few for a wave.
            allowed = 2.5 * data.interval if cause.is_return else WAVE_MS if is_wave else 0
            yield f"{name} begins by its cause", late <= allowed, True
            brokers = {cause.broker}
            # Links that another broker lost at that time may leave a wave without a name.
            lost = [
                truth.count({cluster}, data.start, (at, until), RECONNECTS, **of)
                for of in ({"broker": cause.broker}, {})
            ]
            if is_wave and lost[0] < lost[1]:
                brokers.add("")
            yield f"{name} has the name of its broker", incident["broker"] in brokers, True
        affected = incident["affected"]
        for key, metric in (("clients", RECONNECTS), ("publish_errors", ERRORS),
                            ("takeovers", "migratory_takeovers_total")):  # fmt: skip
            yield f"{name} {key}", affected[key], truth.count({cluster}, data.start, window, metric)
        outside += truth.count({cluster}, data.start, (after, at), ERRORS) if at > after else 0
        after = max(after, min(until + SETTLE_MS, NOW))
    outside += truth.count({cluster}, data.start, (after, NOW), ERRORS)
    yield "background failures", report["availability"]["background_failures"], outside


def _ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


@dataclass(slots=True)
class _Truth:
    """The observed events of a data set's exporters. `observed` keeps what was found of an exporter's counter for a
    window that starts at a moment."""

    data: DataSet
    observed: dict[tuple[int, SeriesName, int], list[int]] = field(default_factory=dict)

    def count(self, clusters: set[str], start: int, window: Counts, metric: str, **labels: str) -> int:
        """Return the events of a metric's counters with these labels that were observed in (window[0], window[1]].

        :param start: the start of the report's or objective's window, in ms.
        """
        total = 0
        for number, exporter in enumerate(self.data.exporters):
            if exporter.cluster not in clusters:
                continue
            for name in exporter.events:
                if name[0] == metric and labels.items() <= dict(name[1]).items():
                    key = number, name, start
                    if key not in self.observed:
                        self.observed[key] = _observed(exporter, name, start)
                    times = self.observed[key]
                    total += bisect_right(times, window[1]) - bisect_right(times, window[0])
        return total

    def objective(self, objective: Objective, clusters: set[str]) -> Counts:
        """Return the good and all events of an objective over its window."""
        start = self.data.start
        if objective.window is not None:
            assert objective.window.rolling is not None
            start = NOW - round(objective.window.rolling * 1000)
        slices = objective.slices
        if slices is None:
            return self._events(objective, clusters, start, (start, NOW))
        share = Fraction((slices.percentile if objective.type == "latency" else slices.share) or 0) / 100
        length, good, total = round(slices.length * 1000), 0, 0
        for begin in range(start, NOW, length):
            within, events = self._events(objective, clusters, start, (begin, min(begin + length, NOW)))
            total += events > 0
            good += events > 0 and within >= share * events
        return good, total

    def _events(self, objective: Objective, clusters: set[str], start: int, window: Counts) -> Counts:
        def count(metric: str, **labels: str) -> int:
            return self.count(clusters, start, window, metric, **labels)

        def within(histogram: str, bound: float) -> Counts:
            return count(f"{histogram}_bucket", le=str(bound)), count(f"{histogram}_count")

        match objective.type:
            case "availability":
                acknowledged = count(PUBLISHED)
                return acknowledged, acknowledged + count(ERRORS)
            case "latency":
                return within(LATENCY, 0.1)
            case "publish":
                return within(GAP, 5.0)
            case "delivery":
                expected = count("migratory_expected_total")
                return max(0, expected - sum(count(f"migratory_{outcome}_total") for outcome in OUTCOMES[1:])), expected
            case "resume":
                good, resumed = within(RESUME, 2.0)
                # Without a single resume nothing is counted: the verdict is insufficient.
                return good, max(resumed, count(RECONNECTS)) if resumed else 0


def _observed(exporter: Exporter, name: SeriesName, start: int) -> list[int]:
    """Return the time of the scrape that showed each event of a counter, for the events that a report over a window
    from `start` on counts or that were before it."""
    scrapes = [scrape for scrape in exporter.scrapes if start - LOOKBACK_MS < scrape.at <= NOW]
    exported = [scrape for scrape in scrapes if exporter.exported(name, scrape) is not None]
    if not exported:
        return []
    first = exported[0]
    began = exporter.created(name, first) if exporter.evidence == "created" else first.began
    is_known = exporter.evidence == "created" or (exporter.evidence == "process" and scrapes[0] is first)
    # How much of the first value lies in the window is unknown of a counter that is older.
    predates = is_known and first.at > start and began + SKEW_MS < start
    times = [scrape.at for scrape in exported]
    observed = []
    for event in exporter.events[name]:
        number = bisect_left(times, event)
        if number == len(times) or exported[number].began != exporter.life_at(event):
            continue  # lost with its process
        if not (predates and number == 0):
            observed.append(times[number])
    return observed
