"""Scrape coverage: the times at which each exporter was scraped, and the gaps in which nothing is known.

A counter keeps its sum across a gap, so a gap of one exporter loses nothing but the moments of its events. Two things
cannot be recovered: time in which no exporter was scraped, and the last interval of an exporter that ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from migratory_spark.aggregate.time_grid import Interval, intersection
from migratory_spark.metrics import Role
from migratory_spark.read.series_pack import Ints

ALLOWED_INTERVALS = 2.5
"""Scrape intervals after which time without a scrape is a gap: one missed scrape is none."""
MINIMUM_COVERAGE = 0.95
"""Share of the window that scrapes must cover. Below it the verdict is insufficient, unless the target is 100% and an
event is surely bad."""
MAX_GAPS = 1000
"""Gaps and restarts of one exporter that are kept, the first ones."""


@dataclass(slots=True, frozen=True)
class ScrapedExporter:
    """One exporter in one role (clients, publishers or brokers) and one window; times in ms since 1970, lengths in ms.

    `name` is the label `broker` of a broker, and job and instance of others. `first` and `last` are its first and last
    scrape, `scrapes` their number, `longest` the longest time between two. `interval` is the usual scrape interval. It
    is 0 if it is unknown: of an exporter that was scraped once, only that moment is covered. `gaps` are the intervals
    from one scrape to the next that are longer than ALLOWED_INTERVALS scrape intervals. `restarts` are those in which a
    counter restarted, each from the last scrape before to the scrape that showed it. Of both, only the first MAX_GAPS
    are kept.
    """

    role: Role
    name: str
    first: int
    last: int
    scrapes: int
    interval: float
    longest: int
    gaps: tuple[Interval, ...]
    restarts: tuple[Interval, ...]

    @property
    def allowed_gap(self) -> float:
        """The longest time in ms between two scrapes that does not count as a gap."""
        return ALLOWED_INTERVALS * self.interval

    def gaps_within(self, start: int, end: int) -> list[Interval]:
        """Return the parts of gaps in [start, end] (ms) that are longer than `allowed_gap`. The time before the first
        scrape and the time after the last one are gaps, too."""
        gaps = [(start, self.first), *self.gaps, (self.last, end)]
        clipped = [(max(begin, start), min(finish, end)) for begin, finish in gaps]
        return [(begin, finish) for begin, finish in clipped if finish - begin > self.allowed_gap]


@dataclass(slots=True, frozen=True)
class ScrapeCoverage:
    """Scrape coverage of a window by several exporters.

    `share` (0 to 1) of the window is covered. `longest` is the longest gap in ms that all exporters have in common: the
    scrape interval if there is none, the window's length without an exporter. `scrapes` is the highest number of
    scrapes of one exporter, 0 without one. `interval` is the median scrape interval in ms, None without an exporter.
    """

    share: float
    longest: int
    scrapes: int
    interval: float | None


@dataclass(slots=True, frozen=True)
class ScrapedExporters:
    """All exporters that were scraped in a window. An exporter with two roles is in it twice."""

    exporters: tuple[ScrapedExporter, ...]

    def with_role(self, *roles: Role) -> list[ScrapedExporter]:
        """Return the exporters of these roles."""
        return [exporter for exporter in self.exporters if exporter.role in roles]

    def coverage(self, start: int, end: int, *roles: Role) -> ScrapeCoverage:
        """Return the coverage of [start, end] (ms) by the exporters of these roles whose first scrape is not after that
        time and whose last is not before it. Time is covered unless it lies in a gap of each of them. The share is 0
        without an exporter and for an empty interval."""
        exporters = [each for each in self.with_role(*roles) if each.first <= end and each.last >= start]
        if not exporters or end <= start:
            return ScrapeCoverage(0.0, max(0, end - start), 0, None)
        common_gaps = intersection([exporter.gaps_within(start, end) for exporter in exporters])
        uncovered = sum(finish - begin for begin, finish in common_gaps)
        interval = sorted(exporter.interval for exporter in exporters)[len(exporters) // 2]
        longest = max([finish - begin for begin, finish in common_gaps], default=round(interval))
        scrapes = max(exporter.scrapes for exporter in exporters)
        return ScrapeCoverage(1 - uncovered / (end - start), longest, scrapes, interval)


@dataclass(slots=True, frozen=True)
class ScrapeTimes:
    """The times of one exporter's scrapes in one role, and the times of the scrapes that showed a counter's restart;
    sorted, in ms since 1970."""

    times: Ints
    restarts: Ints

    @classmethod
    def from_series(cls, times: Sequence[Ints], restarts: Sequence[Ints]) -> ScrapeTimes:
        """Return the union of the times of all series of an exporter, sorted and each once. Each argument has an array
        of times for each series, at least one."""
        return cls(np.unique(np.concatenate(times)), np.unique(np.concatenate(restarts)))

    def exporter_within(self, role: Role, name: str, start_ms: int, end_ms: int) -> ScrapedExporter | None:
        """Return the exporter with its scrapes in [start, end], or None if it was not scraped then. Gaps and restarts
        are those within this time. The scrape interval is the median of the times between these scrapes; if there are
        fewer than three, earlier scrapes count, too."""
        first, after = np.searchsorted(self.times, (start_ms, end_ms + 1)).tolist()
        times = self.times[first:after]
        if not len(times):
            return None
        first_restart, after_restart = np.searchsorted(self.restarts, (start_ms, end_ms + 1)).tolist()
        restarts = self.restarts[first_restart:after_restart][:MAX_GAPS]
        before = self.times[np.maximum(np.searchsorted(self.times, restarts) - 1, 0)]
        steps = np.diff(times)
        # The median of the steps, of two middle ones the lower. One step may itself be a gap, and none says nothing:
        # then the steps before the window count, too.
        usual = np.sort(steps if len(steps) > 1 else np.diff(self.times[:after]))
        interval = float(usual[(len(usual) - 1) // 2]) if len(usual) else 0.0
        long = np.flatnonzero(steps > ALLOWED_INTERVALS * interval)[:MAX_GAPS]
        return ScrapedExporter(
            role, name, int(times[0]), int(times[-1]), len(times), interval, int(steps.max(initial=0)),
            tuple(zip(times[long].tolist(), times[long + 1].tolist(), strict=True)),
            tuple(zip(before.tolist(), restarts.tolist(), strict=True)),
        )  # fmt: skip
