"""One pass over all series that adds up what they rose by, in whatever stretches of time were asked for.

Sums are exact and do not depend on the order in which samples come or where they lie: whole parts and fractions (to
10^-12) are added apart, in numbers that hold them. Numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from migratory_spark.aggregate.gauges import Reading
from migratory_spark.aggregate.increases import Guide, rises
from migratory_spark.read.merge import Flat
from migratory_spark.read.series_pack import Floats, Ints

MOST_NUMBERS = 5_000_000
"""Sums that a report holds at most: 120 MB on their way from Spark."""
_LOOSE = 2_000_000
"""Sums that are held before they are put together."""
_FRACTIONS = 10**12


class TooManySums(ValueError):
    """More brokers, buckets and rows than a report can hold; the text says what to ask for instead."""


@dataclass(slots=True, frozen=True)
class Tally:
    """What to add up: in the stretches (edges[i], edges[i + 1]], and of each series on the line that `lines` says, in
    the order of the guide; -1 for none."""

    edges: Ints
    lines: Ints

    @property
    def cells(self) -> int:
        return len(self.edges) - 1

    def cell(self, times: Ints) -> Ints:
        """Of each time the number of its stretch; below 0 or `cells` outside of all."""
        return np.searchsorted(self.edges, times, side="left") - 1


@dataclass(slots=True, frozen=True)
class Sums:
    """`whole[i]` + `part[i]` / 10^12 belong to line keys[i] // cells and cell keys[i] % cells. Keys rise."""

    keys: Ints
    whole: Floats
    part: Ints

    @classmethod
    def of(cls, several: Sequence[Sums]) -> Sums:
        keys = np.concatenate([each.keys for each in several])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else keys
        if not len(starts):
            return cls(keys, np.zeros(0), np.zeros(0, dtype=np.int64))
        whole = np.add.reduceat(np.concatenate([each.whole for each in several])[order], starts)
        part = np.add.reduceat(np.concatenate([each.part for each in several])[order], starts)
        return cls(keys[starts], whole + part // _FRACTIONS, part % _FRACTIONS)

    @classmethod
    def rises(cls, keys: Ints, rise: Floats) -> Sums:
        """Of single rises, none of them negative; equal keys follow one another, mostly."""
        whole = np.floor(rise)
        part = np.rint((rise - whole) * _FRACTIONS).astype(np.int64)
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return cls(keys[starts], np.add.reduceat(whole, starts), np.add.reduceat(part, starts))

    @property
    def values(self) -> Floats:
        return self.whole + self.part / _FRACTIONS


@dataclass(slots=True)
class Added:
    """`sums` by tally, `readings` by broker's number and cell, and how many restarts there were."""

    sums: list[Sums]
    readings: dict[tuple[int, int], Reading]
    restarts: int


@dataclass(slots=True, frozen=True)
class Add:
    """`gauge` numbers the broker whose gauge a series is, -1 for none; readings are by the cells of the first tally."""

    guide: Guide
    tallies: tuple[Tally, ...]
    gauge: Ints

    def __call__(self, flats: Iterable[Flat]) -> Added:
        loose: list[list[Sums]] = [[] for _ in self.tallies]
        held = 0
        added = Added([], {}, 0)
        for flat in flats:
            place = self.guide.places(flat)
            found = rises(flat, self.guide)
            added.restarts += int(found.restart.sum())
            for tally, parts in zip(self.tallies, loose, strict=True):
                if (sums := _sums(tally, flat, tally.lines[place], found.rise)) is not None:
                    parts.append(sums)
                    held += len(sums.keys)
            self._read(flat, self.gauge[place], added.readings)
            if held > _LOOSE:
                loose = [[Sums.of(parts)] if parts else [] for parts in loose]
                held = 0
        added.sums = [Sums.of([_NOTHING, *parts]) for parts in loose]
        return added

    def _read(self, flat: Flat, gauge: Ints, readings: dict[tuple[int, int], Reading]) -> None:
        starts = flat.starts
        for row in np.flatnonzero(gauge >= 0).tolist():
            inside = slice(int(starts[row]), int(starts[row] + flat.counts[row]))
            cell = self.tallies[0].cell(flat.times[inside])
            for number in np.unique(cell[(cell >= 0) & (cell < self.tallies[0].cells)]).tolist():
                chosen = cell == number
                reading = Reading.of(flat.times[inside][chosen], flat.values[inside][chosen])
                key = int(gauge[row]), number
                readings[key] = reading if key not in readings else readings[key].with_(reading)


_NOTHING = Sums(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64))


def _sums(tally: Tally, flat: Flat, lines: Ints, rise: Floats) -> Sums | None:
    chosen = flat.of(lines >= 0) if not (lines >= 0).all() else flat
    if not len(chosen.times):
        return None
    if chosen is not flat:
        rise = rise[np.repeat(lines >= 0, flat.counts)]
    cell = tally.cell(chosen.times)
    counts = (cell >= 0) & (cell < tally.cells) & (rise != 0)
    if not counts.any():
        return None
    line = np.repeat(lines[lines >= 0], chosen.counts)
    return Sums.rises((line * tally.cells + cell)[counts], rise[counts])


def together(parts: Sequence[Added]) -> Added:
    """Raises TooManySums."""
    sums = [Sums.of([_NOTHING, *each]) for each in zip(*(part.sums for part in parts), strict=True)]
    if any(len(each.keys) > MOST_NUMBERS for each in sums):
        raise TooManySums(f"more than {MOST_NUMBERS:,} sums: ask for longer rows or a shorter window")
    readings: dict[tuple[int, int], Reading] = {}
    for part in parts:
        for key, reading in part.readings.items():
            readings[key] = reading if key not in readings else readings[key].with_(reading)
    return Added(sums, readings, sum(part.restarts for part in parts))
