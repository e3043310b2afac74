"""The exporters' timeline: one pass over the samples finds the scrapes, gaps and restarts of each exporter, and the
episodes (times in which a counter rose) that tell of incidents.

All series of an exporter that show its scrapes are in one partition, so the exporter's timeline there is complete.
Increases of one broker's counters are exported by many exporters and come in parts. Uses numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from migratory_spark.aggregate.coverage import ScrapedExporter, ScrapedExporters, ScrapeTimes
from migratory_spark.aggregate.incidents import (
    EPISODE_METRICS,
    Episode,
    IncidentStep,
    episode_steps,
    find_episodes,
    merge_episodes,
)
from migratory_spark.aggregate.increases import SeriesIndex, compute_increases
from migratory_spark.aggregate.series_catalog import SeriesCatalog
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.metrics import Role, role_of
from migratory_spark.read.merge import Bools, SeriesBatch
from migratory_spark.read.series_pack import Floats, Ints, exporter_name

_MAX_PENDING = 1_000_000
"""Scrape times of one exporter that a pass adds before it removes repeated ones."""

ExporterKey = tuple[Role, str]
"""Role and name of a scraped target."""
EpisodeKey = tuple[str, str]
"""Metric and broker."""


@dataclass(slots=True)
class TimelineResult:
    """The result of TimelinePass for one partition.

    `exporters` has a list of scraped exporters for each window, in the order of the windows. `episodes` has the times
    in which counters rose within the first window, by metric and broker; more of them may be in other partitions.
    """

    exporters: list[list[ScrapedExporter]]
    episodes: dict[EpisodeKey, list[Episode]]


@dataclass(slots=True, frozen=True)
class TimelinePass:
    """A function of one partition's series that finds exporters within each of `windows` (ms since 1970), and episodes
    within the first window.

    For each series in the order of the index, `exporter` has the position of its exporter in `exporter_keys`, and
    `episode` the position of its metric and broker in `episode_keys`; -1 for a series that has none. The first value of
    a series belongs to an episode where `first_is_burst` is true.
    """

    index: SeriesIndex
    exporter_keys: tuple[ExporterKey, ...]
    exporter: Ints
    episode_keys: tuple[EpisodeKey, ...]
    episode: Ints
    first_is_burst: Bools
    windows: tuple[Interval, ...]

    @classmethod
    def from_catalog(cls, catalog: SeriesCatalog, windows: Sequence[Interval]) -> TimelinePass:
        """Return the pass over the series of a catalog, for these windows."""
        exporter_numbers: dict[ExporterKey, int] = {}
        episode_numbers: dict[EpisodeKey, int] = {}
        exporter, episode = [], []
        for entry in catalog.entries:
            metric, labels = entry.stats.metric, entry.stats.labels
            role = role_of(metric)
            if role is None:
                exporter.append(-1)
            else:
                exporter.append(exporter_numbers.setdefault((role, exporter_name(role, labels)), len(exporter_numbers)))
            if metric in EPISODE_METRICS:
                key = metric, labels.get("broker", "")
                episode.append(episode_numbers.setdefault(key, len(episode_numbers)))
            else:
                episode.append(-1)
        return cls(
            catalog.index, tuple(exporter_numbers), np.array(exporter, dtype=np.int64), tuple(episode_numbers),
            np.array(episode, dtype=np.int64),
            np.array([entry.first_is_burst for entry in catalog.entries], dtype=bool), tuple(windows),
        )  # fmt: skip

    def __call__(self, batches: Iterable[SeriesBatch]) -> TimelineResult:
        """Return the exporters and episodes of the series in these batches."""
        scrapes: dict[int, _ScrapeBuffer] = {}
        episodes: dict[int, _EpisodeBuffer] = {}
        for batch in batches:
            position = self.index.positions(batch)
            increases = compute_increases(batch, self.index)
            previous = np.concatenate((batch.times[:1], batch.times[:-1]))
            previous[batch.starts] = batch.times[batch.starts]
            for number, inside in _numbered_series(self.exporter[position], batch):
                restarts = increases.restart_at[inside][increases.restart[inside]]
                scrapes.setdefault(number, _ScrapeBuffer()).add(batch.times[inside], restarts)
            start_ms, end_ms = self.windows[0]
            rose = (increases.increase > 0) & (batch.times > start_ms) & (batch.times <= end_ms)
            # What an exporter counted for long before its first scrape did not happen at the time of that scrape.
            rose[batch.starts[~self.first_is_burst[position]]] = False
            for number, inside in _numbered_series(self.episode[position], batch):
                chosen = np.flatnonzero(rose[inside]) + inside.start
                if len(chosen):
                    buffer = episodes.setdefault(number, _EpisodeBuffer())
                    buffer.add(batch.times[chosen], previous[chosen], increases.increase[chosen])
        times = {self.exporter_keys[number]: buffer.times_so_far for number, buffer in scrapes.items()}
        exporters = [
            [
                exporter
                for key, scrape_times in times.items()
                if (exporter := scrape_times.exporter_within(*key, *window)) is not None
            ]
            for window in self.windows
        ]
        return TimelineResult(
            exporters, {self.episode_keys[number]: buffer.episodes for number, buffer in episodes.items()}
        )


def _numbered_series(numbers: Ints, batch: SeriesBatch) -> Iterator[tuple[int, slice]]:
    """Yield the number of each series of the batch, and the slice of its samples there. Series whose number is negative
    are skipped.

    :param numbers: a number for each series of the batch.
    """
    starts = batch.starts
    for row in np.flatnonzero(numbers >= 0).tolist():
        yield int(numbers[row]), slice(int(starts[row]), int(starts[row] + batch.counts[row]))


@dataclass(slots=True)
class _ScrapeBuffer:
    """The scrape times of one exporter, and the times of the scrapes that showed a restart. Repeated times are removed
    whenever more than _MAX_PENDING were added since the last removal."""

    times: list[Ints] = field(default_factory=list)
    restarts: list[Ints] = field(default_factory=list)
    pending: int = 0

    def add(self, times: Ints, restarts: Ints) -> None:
        """Add the times (ms since 1970) of one series' samples, and the times of the scrapes that showed a restart."""
        self.times.append(times)
        self.restarts.append(restarts)
        self.pending += len(times)
        if self.pending > _MAX_PENDING:
            compacted = self.times_so_far
            self.times, self.restarts, self.pending = [compacted.times], [compacted.restarts], 0

    @property
    def times_so_far(self) -> ScrapeTimes:
        """All times added so far, of scrapes and of those that showed a restart, sorted, each once."""
        return ScrapeTimes.from_series(self.times, self.restarts)


@dataclass(slots=True)
class _EpisodeBuffer:
    """Episodes of one metric and broker, to which series are added one by one."""

    episodes: list[Episode] = field(default_factory=list)

    def add(self, times: Ints, previous: Ints, increase: Floats) -> None:
        """Find the episodes in the increases of one series, and merge them into those of the buffer. Pass only samples
        at which the counter rose, in any order.

        :param times: the time of each such sample, in ms since 1970.
        :param previous: the time of the sample before it.
        :param increase: how much the counter rose between the two.
        """
        self.episodes = merge_episodes([*self.episodes, *find_episodes(times, previous, increase)])


def exporters_within(parts: Iterable[TimelineResult], window: int) -> ScrapedExporters:
    """Return the exporters of all partitions within the window with index `window`, sorted by role and name."""
    exporters = [exporter for part in parts for exporter in part.exporters[window]]
    return ScrapedExporters(tuple(sorted(exporters, key=lambda exporter: (exporter.role, exporter.name))))


def counted_steps(parts: Iterable[TimelineResult], start_ms: int) -> list[IncidentStep]:
    """Return the takeovers, reconnects and publish errors of all partitions as steps of incidents, in the order of
    time; of each kind only the MAX_STEPS with the highest counts.

    :param start_ms: the start of the window; no step begins earlier.
    """
    by_key: dict[EpisodeKey, list[Episode]] = {}
    for part in parts:
        for key, episodes in part.episodes.items():
            by_key.setdefault(key, []).extend(episodes)
    return episode_steps(by_key, start_ms)
