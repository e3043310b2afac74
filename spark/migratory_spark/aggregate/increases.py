"""Counters to what happened: how much each series rose, sample by sample.

Raw differences, not PromQL's `increase`, which extrapolates and loses what happens at restarts.

- A rise belongs to the moment of the later of its two samples.
- A series that was there before a window counts from its last sample at or before the window's start; one that is born
  inside it counts from zero, unless its `_created` (or its process's start) says that it is older.
- A sample lower than the one before is a restart: the counter began again at zero. Where `_created` or the process's
  start is scraped, that decides: it shows a restart that was too quick to be seen as a fall, and that a lower sample
  without a restart is a late one. A series that is not there again at once (a label's first use) begins when it comes.
- Of two servers that tell of a series the second may be a little behind the first. A fall after more than that is a
  restart whoever tells of it.

What counts as a sample is settled before, in `merging.py`. Numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from migratory_spark.read.merge import Bools, Flat
from migratory_spark.read.series_pack import Floats, Ints

SKEW_MS = 5000
"""`_created` is the exporter's clock, all else the scrapers': how far two clocks may be apart."""


@dataclass(slots=True, frozen=True)
class Guide:
    """What the catalogue knows of each series, in the order of `series`, which rise: small enough to travel to all who
    add up samples.

    `evidence` numbers one of `beginnings`, the scrapes that found a counter to have begun anew; -1 where nothing tells.
    `unborn`: how much of its first value belongs to the window is unknown. Only `counter`s restart.
    """

    series: Ints
    counter: Bools
    unborn: Bools
    evidence: Ints
    beginnings: tuple[Ints, ...]

    def places(self, flat: Flat) -> Ints:
        return np.searchsorted(self.series, flat.series)


@dataclass(slots=True, frozen=True)
class Rises:
    """Of each sample: how much its series rose since the one before, whether it shows a restart, and if so, the moment
    of the scrape that was the first to show it: of a series that came back later, that was another series' sample."""

    rise: Floats
    restart: Bools
    moment: Ints


def rises(flat: Flat, guide: Guide) -> Rises:
    place = guide.places(flat)
    first = np.zeros(len(flat.times), dtype=bool)
    first[flat.starts] = True
    before = np.empty_like(flat.values)
    before[1:] = flat.values[:-1]
    before[:1] = 0.0
    fell = flat.values < before
    if flat.own is not None:
        since = np.diff(flat.times, prepend=flat.times[:1])
        fell &= (flat.values < flat.own) | (since > SKEW_MS)
    counter, evidence = guide.counter[place], guide.evidence[place]
    restart = fell & np.repeat(counter & (evidence < 0), flat.counts)
    starts, moment = flat.starts, flat.times.copy()
    told = np.flatnonzero(counter & (evidence >= 0))
    for row in told[[len(guide.beginnings[number]) > 0 for number in evidence[told].tolist()]].tolist():
        inside = slice(starts[row], starts[row] + flat.counts[row])
        beginnings = guide.beginnings[evidence[row]]
        shown = _shown(flat.times[inside], flat.values[inside], beginnings, flat.own is not None)
        there = shown < flat.counts[row]
        restart[shown[there] + starts[row]] = True
        moment[shown[there] + starts[row]] = beginnings[there]
    restart &= ~first
    rise = flat.values - before
    # A life begins at zero, and within one only what exceeds the highest sample so far is a rise.
    begins = first | restart
    rise[begins] = flat.values[begins]
    rise[starts[guide.unborn[place]]] = 0.0
    late = np.flatnonzero((rise < 0) & ~begins)
    if len(late):
        lives = np.flatnonzero(begins)
        ends = np.concatenate((lives[1:], [len(rise)]))
        for life in np.unique(np.searchsorted(lives, late, side="right") - 1).tolist():
            values = flat.values[lives[life] : ends[life]]
            top = np.maximum.accumulate(values)
            rise[lives[life] + 1 : ends[life]] = np.maximum(values[1:] - top[:-1], 0.0)
    return Rises(rise, restart, moment)


def _shown(times: Ints, values: Floats, beginnings: Ints, several: bool) -> Ints:
    """The place of the first sample of each of a series' lives; past the last one where it never came back."""
    place = np.searchsorted(times, beginnings)
    if several:
        # Another server than the one that told of the beginning may be behind, and tell once more of the life before.
        there = np.minimum(place, len(times) - 1)
        near = (times[there] > beginnings) & (times[there] - beginnings <= SKEW_MS)
        place = place + (near & (there > 0) & (values[there] >= values[there - 1]))
    return place
