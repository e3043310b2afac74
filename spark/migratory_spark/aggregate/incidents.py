"""Incident detection: a broker that died or restarted, a takeover, a wave of reconnects.

An episode is a time in which a counter rose without a longer pause. Increases become episodes where the samples are
(`find_episodes`, `merge_episodes`). Episodes, and gaps and restarts of exporters (`coverage.py`), become steps.
`find_incidents` groups steps to incidents. An incident that the caller knows of (because it stopped a broker, say)
includes the steps at its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from migratory_spark.aggregate.coverage import ScrapedExporter, ScrapedExporters
from migratory_spark.aggregate.time_grid import Interval, intersection
from migratory_spark.metrics import PUBLISH_ERRORS, RECONNECTS, TAKEOVERS
from migratory_spark.read.series_pack import Floats, Ints

SETTLE_MS = 15_000
"""Time after a step within which the next one belongs to the same incident: a ZooKeeper session must expire before a
takeover begins."""
EPISODE_MS = 5000
"""Time between two increases up to which they belong to one episode."""
MAX_STEPS = 2000
"""Steps of one kind that a report looks at, the largest ones: a month of single errors must not hide a wave."""
MIN_WAVE_RECONNECTS, MIN_WAVE_SHARE = 5, 0.01
"""Reconnects, and share of the clients, from which on reconnects are an incident."""

StepKind = Literal["silent", "back", "restarted", "takeover", "reconnects", "publish_errors"]
_STEP_KINDS: dict[str, StepKind] = {TAKEOVERS: "takeover", RECONNECTS: "reconnects", PUBLISH_ERRORS: "publish_errors"}
EPISODE_METRICS = tuple(_STEP_KINDS)
"""Counters whose increases become episodes."""
_INCIDENT_KINDS: tuple[tuple[StepKind, str], ...] = (
    ("silent", "broker died"),
    ("restarted", "broker restarted"),
    ("takeover", "takeover"),
    ("reconnects", "reconnect wave"),
)
"""By kind of step, the incident that it makes, the gravest first."""


@dataclass(slots=True, frozen=True)
class IncidentStep:
    """A step of an incident; times in ms since 1970. The step began after `at` and by `seen`, and lasted until `until`.
    `broker` is the broker that it concerns, "" if the counter has no such label. `count` is the number of takeovers,
    reconnects or publish errors, None for other kinds."""

    kind: StepKind
    broker: str
    at: int
    seen: int
    until: int
    count: int | None = None
    """Takeovers, reconnects or publish errors; None for other kinds."""


@dataclass(slots=True, frozen=True)
class DetectedIncident:
    """An incident; times in ms since 1970. It began after `at` and by `seen`, and was over at `until`.

    `broker` is empty if the incident concerns no single broker. `steps` are in the order of time. `known` is True if
    the caller gave the incident.
    """

    kind: str
    broker: str
    at: int
    seen: int
    until: int
    steps: tuple[IncidentStep, ...] = field(default=())
    known: bool = False
    """True if the caller gave the incident, false if it was found in the samples."""


@dataclass(slots=True, frozen=True)
class Episode:
    """A time in which a counter rose, with at most EPISODE_MS between two increases; times in ms since 1970.

    The first increase was after `at` and by `seen`, the last at `until`. `count` is how much the counter rose.
    """

    at: int
    seen: int
    until: int
    count: float


def merge_episodes(parts: Iterable[Episode]) -> list[Episode]:
    """Return the episodes of one counter, in the order of time. Parts with at most EPISODE_MS between them become one
    episode. They may come in any order and from any partition."""
    episodes: list[Episode] = []
    for part in sorted(parts, key=lambda part: (part.seen, part.at)):
        if episodes and part.seen - episodes[-1].until <= EPISODE_MS:
            last = episodes[-1]
            # Parts with the same first increase are sorted by `at`: the earliest lower limit stays.
            episodes[-1] = replace(last, until=max(last.until, part.until), count=last.count + part.count)
        else:
            episodes.append(part)
    return episodes


def find_episodes(times: Ints, previous: Ints, increase: Floats) -> list[Episode]:
    """Return the episodes of one counter's increases, in the order of time. The increases may be of several series and
    in any order.

    :param times: the time in ms of each increase.
    :param previous: the time of the sample before, in the same series.
    :param increase: how much the counter rose.
    """
    order = np.lexsort((previous, times))
    times, previous, increase = times[order], previous[order], increase[order]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(times) > EPISODE_MS))) if len(times) else times
    ends = np.concatenate((starts[1:], [len(times)])).astype(np.int64)
    return [
        Episode(int(previous[first]), int(times[first]), int(times[after - 1]), float(increase[first:after].sum()))
        for first, after in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def episode_steps(parts: Mapping[tuple[str, str], Iterable[Episode]], start_ms: int) -> list[IncidentStep]:
    """Return the episodes as steps in the order of time. Of each kind only the MAX_STEPS with the highest counts are
    returned.

    :param parts: parts of episodes, by metric and broker. Parts with at most EPISODE_MS between them become one step.
    :param start_ms: the start of the window; no step begins earlier.
    """
    steps = [
        IncidentStep(
            _STEP_KINDS[metric], broker, max(episode.at, start_ms), episode.seen, episode.until, round(episode.count)
        )
        for (metric, broker), episodes in sorted(parts.items())
        for episode in merge_episodes(episodes)
    ]  # fmt: skip
    chosen = []
    for kind in _STEP_KINDS.values():
        of_kind = [step for step in steps if step.kind == kind]
        chosen += sorted(of_kind, key=lambda step: (-(step.count or 0), step.seen, step.broker))[:MAX_STEPS]
    return sorted(chosen, key=lambda step: step.seen)


def broker_steps(exporters: ScrapedExporters, start_ms: int, end_ms: int) -> list[IncidentStep]:
    """Return a step for each time in [start, end] (ms) at which a broker's scrapes end, begin again, or show that its
    counters restarted, in no order.

    A gap is no step if for more than half of it no other exporter was scraped: then the scraper has failed, not the
    broker. A broker without a name, and an only exporter, have no steps.
    """
    steps = []
    for broker in exporters.with_role("brokers"):
        others = [exporter for exporter in exporters.exporters if exporter is not broker]
        if not broker.name or not others:
            continue
        scraper_gaps = intersection([exporter.gaps_within(start_ms, end_ms) for exporter in others])
        gaps = [gap for gap in broker.gaps if not _mostly_covered(gap, scraper_gaps)]
        for last, following in gaps:
            steps.append(IncidentStep("silent", broker.name, last, _next_due(broker, last, following), following))
            steps.append(IncidentStep("back", broker.name, following, following, following))
        if end_ms - broker.last > broker.allowed_gap and not _mostly_covered((broker.last, end_ms), scraper_gaps):
            due = _next_due(broker, broker.last, end_ms)
            steps.append(IncidentStep("silent", broker.name, broker.last, due, end_ms))
        returns = {following for _, following in broker.gaps}
        for before, moment in broker.restarts:
            at = moment if moment in returns else max(start_ms, before)
            steps.append(IncidentStep("restarted", broker.name, at, moment, moment))
    return steps


def _next_due(broker: ScrapedExporter, last: int, following: int) -> int:
    """Return the time in ms at which the scrape after `last` was due by the broker's scrape interval, at most
    `following`."""
    return min(round(last + broker.interval), following)


def _mostly_covered(gap: Interval, others: Iterable[Interval]) -> bool:
    """Return whether the intervals `others`, which are disjoint, cover more than half of the gap."""
    shared = sum(max(0, min(gap[1], other[1]) - max(gap[0], other[0])) for other in others)
    return shared > (gap[1] - gap[0]) / 2


def find_incidents(
    steps: Iterable[IncidentStep],
    known: Sequence[DetectedIncident],
    max_clients: float,
    first_client_at: int | None = None,
) -> list[DetectedIncident]:
    """Return incidents in the order of time: the known ones, each with the steps at its time, and those found in the
    other steps.

    A step that may have begun during a known incident, or within SETTLE_MS of it, belongs to it; if there are several,
    to the first in `known`. Failed publications, and reconnects that are no wave, make no incident; they join a found
    one at their time, and are left out otherwise.

    :param known: the incidents that the caller gives.
    :param max_clients: the most clients that were connected. A wave has at least MIN_WAVE_RECONNECTS reconnects, and
        MIN_WAVE_SHARE of these clients.
    :param first_client_at: the time at which clients were first scraped, None if they were not. Takeovers up to then
        belong to the start of a cluster, when every group gets its coordinator, and are no incidents.
    """
    ordered = sorted(steps, key=lambda step: (step.at, step.seen, step.kind, step.broker))
    by_incident: dict[int, list[IncidentStep]] = {}
    unclaimed = []
    for step in ordered:
        owner = next(
            (number for number, incident in enumerate(known) if _belongs(step, incident.at, incident.until)), None
        )
        by_incident.setdefault(owner, []).append(step) if owner is not None else unclaimed.append(step)
    incidents = [
        replace(incident, steps=tuple(by_incident.get(number, ())), known=True) for number, incident in enumerate(known)
    ]
    causes, others = _split_background(unclaimed, max(MIN_WAVE_RECONNECTS, MIN_WAVE_SHARE * max_clients))
    for group in _group_steps(causes):
        incident = _classify(group)
        if incident is None:
            continue
        if first_client_at is None or not _is_cluster_start(incident, first_client_at):
            incidents.append(_with_background(incident, others))
    return sorted(incidents, key=lambda incident: (incident.at, incident.until))


def _is_cluster_start(incident: DetectedIncident, first_client_at: int) -> bool:
    """Return whether the incident consists of takeovers only that began before clients were first scraped, and were
    over by EPISODE_MS after that."""
    # The last groups may get their coordinator while the first clients connect.
    only_takeovers = all(step.kind == "takeover" for step in incident.steps)
    return only_takeovers and incident.at < first_client_at and incident.until <= first_client_at + EPISODE_MS


def _belongs(step: IncidentStep, at: int, until: int) -> bool:
    """Return whether the step may have begun in the time from SETTLE_MS before `at` to SETTLE_MS after `until` (ms)."""
    return at - SETTLE_MS <= step.seen and step.at <= until + SETTLE_MS


def _split_background(steps: Sequence[IncidentStep], min_wave: float) -> tuple[list[IncidentStep], list[IncidentStep]]:
    """Return the steps that make incidents, in the order of time, and the background: steps that occur without an
    incident as well. These are publish errors, and reconnects that are no wave. A wave is at least `min_wave`
    reconnects, from any brokers, with at most EPISODE_MS between them."""
    causes = [step for step in steps if step.kind not in ("reconnects", "publish_errors")]
    background = [step for step in steps if step.kind == "publish_errors"]
    burst: list[IncidentStep] = []
    for step in [*sorted((step for step in steps if step.kind == "reconnects"), key=lambda step: step.seen), None]:
        if burst and (step is None or step.seen - max(earlier.until for earlier in burst) > EPISODE_MS):
            is_wave = sum(earlier.count or 0 for earlier in burst) >= min_wave
            (causes if is_wave else background).extend(burst)
            burst = []
        if step is not None:
            burst.append(step)
    return sorted(causes, key=lambda step: (step.at, step.seen, step.kind, step.broker)), background


def _with_background(incident: DetectedIncident, background: Iterable[IncidentStep]) -> DetectedIncident:
    """Return the incident with the background steps that may have begun between its start and EPISODE_MS after its end.
    It lasts until these are over, but at most SETTLE_MS longer than before."""
    begun = [step for step in background if incident.at <= step.seen and step.at <= incident.until + EPISODE_MS]
    steps = sorted((*incident.steps, *begun), key=lambda step: (step.at, step.seen, step.kind, step.broker))
    # A step may go on in the background: it holds the incident open for as long as steps belong together.
    ends = [min(step.until, incident.until + SETTLE_MS) for step in begun]
    return replace(incident, steps=tuple(steps), until=max([incident.until, *ends]))


def _group_steps(steps: Sequence[IncidentStep]) -> list[list[IncidentStep]]:
    """Return groups of steps, each with at most one cause. The steps are in the order of time.

    A broker that dies or restarts is a cause. Its group has the broker's return and the reconnects of the broker's
    clients. Other steps of the same chain (see `_chains`) are in the group of the latest cause that began before they
    ended. Those that ended before every cause are a group without one.
    """
    groups: list[list[IncidentStep]] = []
    for chain in _chains(steps):
        by_broker: dict[str, list[IncidentStep]] = {}
        for step in chain:
            if step.kind in ("silent", "restarted"):
                by_broker.setdefault(step.broker, []).append(step)
        begins = {broker: min(step.at for step in own) for broker, own in by_broker.items()}
        before: list[IncidentStep] = []
        for step in chain:
            if step.kind in ("silent", "restarted"):
                continue
            causes = [broker for broker, at in begins.items() if at < step.until]
            if step.kind in ("back", "reconnects") and step.broker in causes:
                by_broker[step.broker].append(step)
            elif causes:
                by_broker[max(causes, key=lambda broker: (begins[broker], broker))].append(step)
            else:
                before.append(step)
        groups += [before] if before else []
        groups += by_broker.values()
    return groups


def _chains(steps: Sequence[IncidentStep]) -> list[list[IncidentStep]]:
    """Return chains of steps, each of which begins at most SETTLE_MS after the latest end of those before it. The steps
    are in the order of time. A broker whose scrapes end counts as over when its next scrape was due, so that a broker
    that stays away does not prolong a chain."""
    chains: list[list[IncidentStep]] = []
    open_until = 0
    for step in steps:
        if not chains or step.at > open_until + SETTLE_MS:
            chains.append([])
            open_until = 0
        chains[-1].append(step)
        open_until = max(open_until, step.seen if step.kind == "silent" else step.until)
    return chains


def _classify(steps: Sequence[IncidentStep]) -> DetectedIncident | None:
    """Return the incident of which these are the steps. The gravest kind among them (_INCIDENT_KINDS) gives it its name
    and its beginning. It is over with the last step that is no absence or return of a broker; if there is none, when
    the last of its steps was seen. Return None if no step makes an incident: a broker is only back."""
    named = [(name, of_kind) for kind, name in _INCIDENT_KINDS
             if (of_kind := [step for step in steps if step.kind == kind])]  # fmt: skip
    if not named:
        return None
    name, of_kind = named[0]
    brokers = {step.broker for step in of_kind}
    # An incident is over when clients and publishers are served again, whether or not the broker is back.
    ends = [step.until for step in steps if step.kind not in ("silent", "back")]
    seen = min(step.seen for step in of_kind)
    until = max(ends, default=max(step.seen for step in steps))
    return DetectedIncident(
        name,
        brokers.pop() if len(brokers) == 1 else "",
        min(step.at for step in of_kind),
        seen,
        max(until, seen),
        tuple(sorted(steps, key=lambda step: (step.at, step.seen, step.kind, step.broker))),
    )
