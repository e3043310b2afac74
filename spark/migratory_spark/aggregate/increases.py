"""Computes increases: how much each counter's series rose from sample to sample.

These are raw differences. PromQL's `increase` extrapolates, and loses events at restarts.

- An increase has the time of the later of its two samples.
- A series that existed before a window counts from its last sample at or before the window's start. A series that
  starts inside it counts from zero, unless its `_created` (or its process's start time) says that it is older.
- A sample below the previous one is a restart: the counter began again at zero. Where `_created` or the process's start
  time is scraped, that decides instead. It reveals a restart that was too fast to be seen as a fall, and shows that a
  lower sample without a restart is a late one. A series that does not return at once after a restart (a label's first
  use) restarts with its first sample after it.
- Of two servers that scrape a series the second may be slightly behind the first. A fall after more than SKEW_MS is a
  restart, whichever server reports it.

`merge.py` selects the samples from which increases are computed. Uses numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from migratory_spark.read.merge import Bools, SeriesBatch
from migratory_spark.read.series_pack import Floats, Ints

SKEW_MS = 5000
"""Milliseconds by which two clocks may differ: `_created` is by the exporter's clock, all else by the scrapers'."""


@dataclass(slots=True, frozen=True)
class SeriesIndex:
    """The facts about each series that a pass over the samples needs to compute increases. Small enough to be sent to
    all executors.

    All arrays have the order of `series`, the sorted fingerprints (hashes of metric and labels). `counter` is False for
    series that can't restart. `evidence` is an index into `restarts`, which has the times (ms since 1970) of the
    scrapes that showed a new start; -1 if nothing shows starts. `predates_window` is True if it is unknown how much of
    the first value belongs to the window; then the first sample adds nothing.
    """

    series: Ints
    counter: Bools
    predates_window: Bools
    evidence: Ints
    restarts: tuple[Ints, ...]

    def positions(self, batch: SeriesBatch) -> Ints:
        """Return the position in this index of each series of the batch. All of them must be in the index."""
        return np.searchsorted(self.series, batch.series)


@dataclass(slots=True, frozen=True)
class Increases:
    """The increase of each sample of a batch, from `base` to `top`, and whether the sample shows a restart of its
    counter.

    `restart_at` is the time in ms since 1970 of the scrape that showed the restart first; for a series that came back
    later, that was a sample of another series. For samples that show no restart it is their own time.
    """

    base: Floats
    top: Floats
    restart: Bools
    restart_at: Ints

    @property
    def increase(self) -> Floats:
        """How much the counter rose at each sample."""
        return self.top - self.base


def compute_increases(batch: SeriesBatch, index: SeriesIndex) -> Increases:
    """Return the increase of each sample over the sample before in the same series. None is negative.

    The first sample of a series counts from zero, or adds nothing if the index says that the series predates the
    window. A sample that shows a restart counts from zero, too. A lower sample without a restart adds nothing, and
    after it only what exceeds the highest sample since the last restart is an increase. The docstring of this module
    says what is a restart.
    """
    position = index.positions(batch)
    first = np.zeros(len(batch.times), dtype=bool)
    first[batch.starts] = True
    before = np.empty_like(batch.values)
    before[1:] = batch.values[:-1]
    before[:1] = 0.0
    fell = batch.values < before
    if batch.own_previous is not None:
        since = np.diff(batch.times, prepend=batch.times[:1])
        fell &= (batch.values < batch.own_previous) | (since > SKEW_MS)
    counter, evidence = index.counter[position], index.evidence[position]
    restart = fell & np.repeat(counter & (evidence < 0), batch.counts)
    starts, restart_at = batch.starts, batch.times.copy()
    with_evidence = np.flatnonzero(counter & (evidence >= 0))
    has_restarts = [len(index.restarts[number]) > 0 for number in evidence[with_evidence].tolist()]
    for row in with_evidence[has_restarts].tolist():
        inside = slice(starts[row], starts[row] + batch.counts[row])
        restarts = index.restarts[evidence[row]]
        shown = _first_samples(
            batch.times[inside], batch.values[inside], restarts, batch.own_previous is not None
        )  # fmt: skip
        returned = shown < batch.counts[row]
        restart[shown[returned] + starts[row]] = True
        restart_at[shown[returned] + starts[row]] = restarts[returned]
    restart &= ~first
    # After a start the counter is at zero, and until the next one only what exceeds the highest sample is an increase.
    begins = first | restart
    base, top = np.where(begins, 0.0, before), batch.values
    predating = starts[index.predates_window[position]]
    base[predating] = top[predating]
    late = np.flatnonzero((top < base) & ~begins)
    if len(late):
        top = top.copy()
        lives = np.flatnonzero(begins)
        ends = np.concatenate((lives[1:], [len(top)]))
        for life in np.unique(np.searchsorted(lives, late, side="right") - 1).tolist():
            highest = np.maximum.accumulate(batch.values[lives[life] : ends[life]])
            base[lives[life] + 1 : ends[life]] = highest[:-1]
            top[lives[life] + 1 : ends[life]] = highest[1:]
    return Increases(base, top, restart, restart_at)


def _first_samples(times: Ints, values: Floats, restarts: Ints, several_servers: bool) -> Ints:
    """Return, for each restart, the index of the series' first sample at or after it, or the number of samples if none
    follows.

    :param times: the times (ms since 1970) of the series' samples; `restarts` are those of the restarts.
    :param several_servers: True if more than one server scraped the series. Then a sample up to SKEW_MS after the
        restart that did not fall is skipped: another server read it before the restart.
    """
    index = np.searchsorted(times, restarts)
    if several_servers:
        # Another server than the one that showed the restart may be behind and report the previous life once more.
        inside = np.minimum(index, len(times) - 1)
        near = (times[inside] > restarts) & (times[inside] - restarts <= SKEW_MS)
        index = index + (near & (inside > 0) & (values[inside] >= values[inside - 1]))
    return index
