"""Incidents, found in the samples: a broker that died or restarted, a takeover, a wave of reconnects.

What rose is put into episodes where the samples are (`rising`, `together`), the exporters' gaps and restarts come from
`coverage.py`; `find` makes incidents of both. An incident that somebody tells of (who killed the broker) takes in what
was found at its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from migratory_spark.aggregate.coverage import Exporter, Exporters
from migratory_spark.aggregate.time_grid import intersection
from migratory_spark.metrics import PUBLISH_ERRORS, RECONNECTS, TAKEOVERS
from migratory_spark.read.series_pack import Floats, Ints

CALM_MS = 15_000
"""What happens within so long of what happened before belongs to it: a session must time out before a takeover."""
EPISODE_MS = 5000
"""Rises with less than that between them are one episode."""
MOST_EPISODES = 2000
WAVE_LEAST, WAVE_SHARE = 5, 0.01
"""Reconnects are a wave when they are at least so many, and that share of the clients."""

Step = Literal["silent", "back", "restarted", "takeover", "reconnects", "publish_errors"]
_KINDS: dict[str, Step] = {TAKEOVERS: "takeover", RECONNECTS: "reconnects", PUBLISH_ERRORS: "publish_errors"}
EPISODES = tuple(_KINDS)
"""Counters whose rises are put into episodes."""
# The gravest of an incident's steps names it.
_NAMES: tuple[tuple[Step, str], ...] = (
    ("silent", "broker died"),
    ("restarted", "broker restarted"),
    ("takeover", "takeover"),
    ("reconnects", "reconnect wave"),
)


@dataclass(slots=True, frozen=True)
class Happened:
    """One step, in ms. It began after `at` and by `seen`, and lasted until `until`; `count` where it is counted."""

    kind: Step
    broker: str
    at: int
    seen: int
    until: int
    count: int | None = None


@dataclass(slots=True, frozen=True)
class Found:
    """An incident: after `at`, at the latest at `seen`, over at `until`. `broker` is empty where no single one is
    meant."""

    kind: str
    broker: str
    at: int
    seen: int
    until: int
    steps: tuple[Happened, ...] = field(default=())
    told: bool = False
    """Told by the caller, not found."""


@dataclass(slots=True, frozen=True)
class Episode:
    """Rises with less than EPISODE_MS between them: the first one at `seen` and not before `at`, the last `until`."""

    at: int
    seen: int
    until: int
    count: float


def together(found: Iterable[Episode]) -> list[Episode]:
    """Episodes of one thing out of parts of them, which may come in any order and from anywhere."""
    whole: list[Episode] = []
    for part in sorted(found, key=lambda part: (part.seen, part.at)):
        if whole and part.seen - whole[-1].until <= EPISODE_MS:
            last = whole[-1]
            # What told of the first rise at the same moment may have been looked at earlier before.
            whole[-1] = replace(last, until=max(last.until, part.until), count=last.count + part.count)
        else:
            whole.append(part)
    return whole


def rising(times: Ints, since: Ints, rise: Floats) -> list[Episode]:
    """Of rises in any order; `since` is when each series was looked at before."""
    order = np.lexsort((since, times))
    times, since, rise = times[order], since[order], rise[order]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(times) > EPISODE_MS))) if len(times) else times
    ends = np.concatenate((starts[1:], [len(times)])).astype(np.int64)
    return [
        Episode(int(since[first]), int(times[first]), int(times[after - 1]), float(rise[first:after].sum()))
        for first, after in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def episodes(parts: Mapping[tuple[str, str], Iterable[Episode]], start_ms: int) -> list[Happened]:
    """Takeovers, reconnects and failed publications, by metric and broker. At most MOST_EPISODES, the first."""
    found = [
        Happened(
            _KINDS[metric], broker, max(episode.at, start_ms), episode.seen, episode.until, round(episode.count)
        )
        for (metric, broker), told in sorted(parts.items())
        for episode in together(told)
    ]  # fmt: skip
    return sorted(found, key=lambda step: step.seen)[:MOST_EPISODES]


def silences(exporters: Exporters, start_ms: int, end_ms: int) -> list[Happened]:
    """Brokers whose scrapes end or whose counters fall, while others are scraped: else it was the scraper that was
    away."""
    found = []
    for broker in exporters.of("brokers"):
        others = [each for each in exporters.found if each is not broker]
        if not broker.name or not others:
            continue
        nobody = intersection([each.missing(start_ms, end_ms) for each in others])
        gaps = [gap for gap in broker.gaps if not _mostly(gap, nobody)]
        for last, following in gaps:
            found.append(Happened("silent", broker.name, last, _due(broker, last, following), following))
            found.append(Happened("back", broker.name, following, following, following))
        if end_ms - broker.last > broker.allowed and not _mostly((broker.last, end_ms), nobody):
            found.append(Happened("silent", broker.name, broker.last, _due(broker, broker.last, end_ms), end_ms))
        returns = {following for _, following in broker.gaps}
        for moment in broker.restarts:
            at = moment if moment in returns else max(start_ms, round(moment - broker.interval))
            found.append(Happened("restarted", broker.name, at, moment, moment))
    return found


def _due(broker: Exporter, last: int, following: int) -> int:
    return min(round(last + broker.interval), following)


def _mostly(gap: tuple[int, int], nobody: Iterable[tuple[int, int]]) -> bool:
    shared = sum(max(0, min(gap[1], other[1]) - max(gap[0], other[0])) for other in nobody)
    return shared > (gap[1] - gap[0]) / 2


def find(happened: Iterable[Happened], told: Sequence[Found], clients: float, served: int | None = None) -> list[Found]:
    """Incidents in the order of time: those that were told, with what was found at their time, and all others.

    `clients` is the most that were connected; a wave of reconnects must be a share of them to be an incident. `served`:
    when clients were seen first. Takeovers until then are how a cluster starts: every group gets its coordinator.
    """
    steps = sorted(happened, key=lambda step: (step.at, step.seen, step.kind, step.broker))
    owned: dict[int, list[Happened]] = {}
    rest = []
    for step in steps:
        owner = next((number for number, one in enumerate(told) if _belongs(step, one.at, one.until)), None)
        owned.setdefault(owner, []).append(step) if owner is not None else rest.append(step)
    found = [replace(one, steps=tuple(owned.get(number, ())), told=True) for number, one in enumerate(told)]
    for steps_of_one in _together(rest):
        incident = _incident(steps_of_one, clients)
        if incident is not None and not (served is not None and _of_the_start(incident, served)):
            found.append(incident)
    return sorted(found, key=lambda one: (one.at, one.until))


def _of_the_start(incident: Found, served: int) -> bool:
    """The last groups may get theirs while the first clients connect."""
    only = all(step.kind == "takeover" for step in incident.steps)
    return only and incident.at < served and incident.until <= served + EPISODE_MS


def _belongs(step: Happened, at: int, until: int) -> bool:
    return at - CALM_MS <= step.seen and step.at <= until + CALM_MS


def _together(steps: Sequence[Happened]) -> list[list[Happened]]:
    """Steps that follow one another within CALM_MS. A broker that stays away does not hold an incident open, and what
    was over before a broker died is no part of its death."""
    groups: list[list[Happened]] = []
    open_until = 0
    for step in steps:
        if not groups or step.at > open_until + CALM_MS:
            groups.append([])
            open_until = 0
        elif step.kind == "silent" and not any(other.kind == "silent" for other in groups[-1]):
            over = [other for other in groups[-1] if other.until <= step.at]
            if over:
                groups.append([other for other in groups[-1] if other.until > step.at])
                groups[-2] = over
        groups[-1].append(step)
        open_until = max(open_until, step.seen if step.kind == "silent" else step.until)
    return groups


def _incident(steps: Sequence[Happened], clients: float) -> Found | None:
    reconnects = sum(step.count or 0 for step in steps if step.kind == "reconnects")
    for kind, name in _NAMES:
        of_kind = [step for step in steps if step.kind == kind]
        if not of_kind:
            continue
        if kind == "reconnects" and reconnects < max(WAVE_LEAST, WAVE_SHARE * clients):
            return None
        brokers = {step.broker for step in of_kind}
        # It is over when clients and publishers are served again, whether or not the broker is back by then.
        ends = [step.until for step in steps if step.kind not in ("silent", "back")]
        seen = min(step.seen for step in of_kind)
        until = max(ends, default=max(step.seen for step in steps))
        return Found(
            name,
            brokers.pop() if len(brokers) == 1 else "",
            min(step.at for step in of_kind),
            seen,
            max(until, seen),
            tuple(steps),
        )
    return None
