"""Who was scraped, and when nobody was: the time of which nothing is known.

A counter keeps its sum across a gap, so a gap of one exporter costs nothing but the moment of what it counted. What
can't be made up for is time in which nobody was scraped, and the last interval of an exporter that ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from migratory_spark.aggregate.time_grid import Interval, intersection
from migratory_spark.metrics import Role
from migratory_spark.read.series_pack import Ints

ALLOWED_INTERVALS = 2.5
"""A stretch without a scrape is a gap when it is longer than so many scrape intervals: one missed scrape is none."""
MINIMUM_COVERAGE = 0.95
"""Share of the window that scrapes must cover; below it no verdict is given."""
MOST_GAPS = 1000
"""Of one exporter, the first ones."""


@dataclass(slots=True, frozen=True)
class Exporter:
    """One scraped target in one role, in ms. A broker is named by its label, others by job and instance. `gaps` are
    stretches between its scrapes that are too long; `restarts` the scrapes that saw a counter begin again. `interval`
    is 0 where it is not known: of a target that was scraped once, nothing but that moment is covered."""

    role: Role
    name: str
    first: int
    last: int
    scrapes: int
    interval: float
    longest: int
    gaps: tuple[Interval, ...]
    restarts: tuple[int, ...]

    @property
    def allowed(self) -> float:
        return ALLOWED_INTERVALS * self.interval

    def missing(self, start: int, end: int) -> list[Interval]:
        """Intervales of [start, end] without it, its time before the first and after the last scrape included."""
        edges = [(start, self.first), *self.gaps, (self.last, end)]
        clipped = [(max(one, start), min(other, end)) for one, other in edges]
        return [(one, other) for one, other in clipped if other - one > self.allowed]


@dataclass(slots=True, frozen=True)
class Covered:
    """Of a stretch of time: the `share` that scrapes cover, the longest time without one, how many there were."""

    share: float
    longest: int
    scrapes: int
    interval: float | None


@dataclass(slots=True, frozen=True)
class Exporters:
    found: tuple[Exporter, ...]

    def of(self, *roles: Role) -> list[Exporter]:
        return [exporter for exporter in self.found if exporter.role in roles]

    def covered(self, start: int, end: int, *roles: Role) -> Covered:
        """Time counts as covered while any exporter of these roles was scraped."""
        seen = [one for one in self.of(*roles) if one.first <= end and one.last >= start]
        if not seen or end <= start:
            return Covered(0.0, max(0, end - start), 0, None)
        nobody = intersection([one.missing(start, end) for one in seen])
        uncovered = sum(other - one for one, other in nobody)
        interval = sorted(one.interval for one in seen)[len(seen) // 2]
        longest = max([other - one for one, other in nobody], default=round(interval))
        return Covered(1 - uncovered / (end - start), longest, max(one.scrapes for one in seen), interval)


@dataclass(slots=True, frozen=True)
class Scrapes:
    """Of one target in one role: when it was scraped, in order, and when a counter was seen to have begun again."""

    times: Ints
    restarts: Ints

    @classmethod
    def of(cls, times: Sequence[Ints], restarts: Sequence[Ints]) -> Scrapes:
        """Of what its series tell. A scrape is one, however many series were told in it."""
        return cls(np.unique(np.concatenate(times)), np.unique(np.concatenate(restarts)))

    def exporter(self, role: Role, name: str, start_ms: int, end_ms: int) -> Exporter | None:
        """Within [start, end]; None if it was not scraped then."""
        first, after = np.searchsorted(self.times, (start_ms, end_ms + 1)).tolist()
        times = self.times[first:after]
        if not len(times):
            return None
        begun, ended = np.searchsorted(self.restarts, (start_ms, end_ms + 1)).tolist()
        steps = np.diff(times)
        # The lower of two middle ones. One step alone may be a gap, and none is nothing: then those before the window
        # tell, too.
        usual = np.sort(steps if len(steps) > 1 else np.diff(self.times[:after]))
        interval = float(usual[(len(usual) - 1) // 2]) if len(usual) else 0.0
        long = np.flatnonzero(steps > ALLOWED_INTERVALS * interval)[:MOST_GAPS]
        return Exporter(
            role, name, int(times[0]), int(times[-1]), len(times), interval, int(steps.max(initial=0)),
            tuple(zip(times[long].tolist(), times[long + 1].tolist(), strict=True)),
            tuple(self.restarts[begun:ended][:MOST_GAPS].tolist()),
        )  # fmt: skip
