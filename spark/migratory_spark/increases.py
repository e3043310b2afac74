"""Counters to what happened: how much each series rose, sample by sample.

Raw differences, not PromQL's `increase`, which extrapolates and loses what happens at restarts.

- A rise belongs to the moment of the later of its two samples.
- A series that was there before a window counts from its last sample at or before the window's start; one that is born
  inside it counts from zero, unless its `_created` (or its process's start) says that it is older.
- A sample lower than the one before is a restart: the counter began again at zero. Where `_created` or the process's
  start is scraped, that decides: it shows a restart that was too quick to be seen as a fall, and that a lower sample
  without a restart is a late one.

What counts as a sample is settled before, in `merging.py`. Numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from migratory_spark.merging import Bools, Flat
from migratory_spark.packing import Floats, Ints


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
    """Of each sample: how much its series rose since the one before, and whether it shows a restart."""

    rise: Floats
    restart: Bools


def rises(flat: Flat, guide: Guide) -> Rises:
    place = guide.places(flat)
    first = np.zeros(len(flat.times), dtype=bool)
    first[flat.starts] = True
    before = np.empty_like(flat.values)
    before[1:] = flat.values[:-1]
    before[:1] = 0.0
    fell = flat.values < before
    if flat.own is not None:
        fell &= flat.values < flat.own
    counter, evidence = guide.counter[place], guide.evidence[place]
    restart = fell & np.repeat(counter & (evidence < 0), flat.counts)
    starts = flat.starts
    told = np.flatnonzero(counter & (evidence >= 0))
    for row in told[[len(guide.beginnings[number]) > 0 for number in evidence[told].tolist()]].tolist():
        inside = slice(starts[row], starts[row] + flat.counts[row])
        restart[inside] = np.isin(flat.times[inside], guide.beginnings[evidence[row]])
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
    return Rises(rise, restart)
