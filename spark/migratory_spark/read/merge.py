"""Packs to whole series: each series' samples in the order of time, each time once; and what there is of each.

- (series, time) counts once, with the highest value. Of two servers that scrape one target, one is believed at a time.
- Stale markers and other NaN are no samples, infinities and negative counters neither: they are counted and left out.

Numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from migratory_spark.metrics import is_counter, role, tells_a_beginning
from migratory_spark.prometheus.blocks import STALE
from migratory_spark.read.series_pack import Floats, Ints, Name, Pack, ranges

SLOT_MS = 60_000
"""How long one of several servers is believed before the choice is made again."""
FLAT = 65_536
"""Samples of one `Flat`, as far as whole series allow: a megabyte."""
_QUIET = STALE | 1 << 51
"""The stale marker is a signalling NaN; arithmetic on the way may have set the quiet bit."""

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True, frozen=True)
class About:
    """A series and its samples in numbers, times in ms. `kept` of its `samples` are left once each time counts once;
    `several`: they come from more than one server. `changes`: of a series that tells when others began, the scrapes
    that found another value than the one before."""

    series: int
    metric: str
    labels: dict[str, str]
    samples: int
    kept: int
    stale: int
    nan: int
    several: bool
    first: int | None
    last: int | None
    least: float | None
    most: float | None
    changes: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class Flat:
    """Whole series, one after the other: `counts[i]` (at least one) of the samples belong to `series[i]`. `own` is the
    value before from the same server, NaN where there is none; None unless one of the series has several servers."""

    series: Ints
    counts: Ints
    times: Ints
    values: Floats
    own: Floats | None = None

    @property
    def starts(self) -> Ints:
        return np.cumsum(self.counts) - self.counts

    @property
    def rows(self) -> Ints:
        """The place of each sample's series."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def of(self, chosen: Bools) -> Flat:
        """The series that are chosen."""
        if chosen.all():
            return self
        samples = ranges(self.starts[chosen], self.counts[chosen])
        own = None if self.own is None else self.own[samples]
        return Flat(self.series[chosen], self.counts[chosen], self.times[samples], self.values[samples], own)

    def pieces(self, samples: int = FLAT) -> Iterator[Flat]:
        """The same in several, none of which has more unless it is one series."""
        ends = np.cumsum(self.counts)
        first = 0
        while first < len(ends):
            begin = int(ends[first] - self.counts[first])
            after = max(first + 1, int(np.searchsorted(ends, begin + samples, side="right")))
            inside = slice(begin, int(ends[after - 1]))
            own = None if self.own is None else self.own[inside]
            yield Flat(
                self.series[first:after], self.counts[first:after], self.times[inside], self.values[inside], own
            )  # fmt: skip
            first = after


def is_stale(values: Floats) -> Bools:
    """Whether a sample is the stale marker, which other NaN are not."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    found: Bools = (bits == np.uint64(STALE)) | (bits == np.uint64(_QUIET))
    return found


@dataclass(slots=True, frozen=True)
class Merged:
    about: list[About]
    watched: Flat
    """Series that tell when an exporter was scraped and what happened to it."""
    others: Flat


def merge(packs: Sequence[Pack]) -> Merged:
    """All packs of a place."""
    names = [name for pack in packs for name in pack.names]
    if not names:
        nothing = _nothing()
        return Merged([], nothing, nothing)
    series, counts, times, values = (
        np.concatenate([getattr(pack, name) for pack in packs]) for name in ("series", "counts", "times", "values")
    )
    starts = np.cumsum(counts) - counts
    # Packs are in the order of time themselves, mostly: then nothing is left to be sorted.
    order = np.lexsort((times[starts], series))
    samples = ranges(starts[order], counts[order])
    row, times, values = np.repeat(order, counts[order]), times[samples], values[samples]
    numbers, number = np.unique(series, return_inverse=True)
    number = number[row]
    if not _rising(number, times):
        order = np.lexsort((values, times, number))
        row, number, times, values = row[order], number[order], times[order], values[order]
    counter = np.array([is_counter(name.metric) for name in names], dtype=bool)
    usable = np.isfinite(values) & ~(counter[row] & (values < 0))
    count = len(numbers)
    stale = np.bincount(number[~usable], weights=is_stale(values[~usable]), minlength=count).astype(np.int64)
    useless = np.bincount(number[~usable], minlength=count)
    sources = _sources(names, series, numbers)
    row, number, times, values = row[usable], number[usable], times[usable], values[usable]
    found = np.bincount(number, minlength=count)
    firsts, lasts, least, most = _extremes(number, times, values, count)
    own = None
    if any(sources):
        number, times, values, own = _one_server_at_a_time(number, times, values, row, names, sources)
    last_of_time = np.ones(len(number), dtype=bool)
    last_of_time[:-1] = (number[1:] != number[:-1]) | (times[1:] != times[:-1])
    number, times, values = number[last_of_time], times[last_of_time], values[last_of_time]
    if own is not None:
        own = own[last_of_time]
    kept = np.bincount(number, minlength=count)
    by_number = {int(identity): name for identity, name in zip(series.tolist(), names, strict=True)}
    chosen = [by_number[identity] for identity in numbers.tolist()]
    changes = _changes(number, times, values, [tells_a_beginning(name.metric) for name in chosen])
    about = []
    for place, (identity, name) in enumerate(zip(numbers.tolist(), chosen, strict=True)):
        some = bool(found[place])
        about.append(
            About(
                identity,
                name.metric,
                dict(name.labels),
                samples=int(found[place]),
                kept=int(kept[place]),
                stale=int(stale[place]),
                nan=int(useless[place] - stale[place]),
                several=sources[place],
                first=int(firsts[place]) if some else None,
                last=int(lasts[place]) if some else None,
                least=float(least[place]) if some else None,
                most=float(most[place]) if some else None,
                changes=changes.get(place, ()),
            )
        )
    there = kept > 0
    everything = Flat(numbers[there], kept[there], times, values, own)
    watched = np.array([role(name.metric) is not None for name in chosen], dtype=bool)[there]
    return Merged(about, everything.of(watched), everything.of(~watched))


def _nothing() -> Flat:
    nothing = np.zeros(0, dtype=np.int64)
    return Flat(nothing, nothing, nothing, np.zeros(0))


def _rising(number: Ints, times: Ints) -> bool:
    return bool(((number[1:] != number[:-1]) | (times[1:] > times[:-1])).all())


def _sources(names: Sequence[Name], series: Ints, numbers: Ints) -> list[bool]:
    """Of each series, whether several servers tell of it."""
    seen: dict[int, str] = {}
    several = set()
    for identity, name in zip(series.tolist(), names, strict=True):
        if seen.setdefault(identity, name.source) != name.source:
            several.add(identity)
    return [identity in several for identity in numbers.tolist()]


def _extremes(number: Ints, times: Ints, values: Floats, count: int) -> tuple[Ints, Ints, Floats, Floats]:
    """First and last time, least and highest value; what a series without samples has here means nothing."""
    firsts, lasts = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    least, most = np.zeros(count), np.zeros(count)
    if len(number):
        starts = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
        there = number[starts]
        firsts[there] = times[starts]
        lasts[there] = times[np.concatenate((starts[1:], [len(number)])) - 1]
        least[there], most[there] = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return firsts, lasts, least, most


def _changes(number: Ints, times: Ints, values: Floats, telling: Sequence[bool]) -> dict[int, tuple[int, ...]]:
    changed = np.flatnonzero((number[1:] == number[:-1]) & (values[1:] != values[:-1])) + 1
    changed = changed[np.array(telling, dtype=bool)[number[changed]]]
    found: dict[int, list[int]] = {}
    for place, moment in zip(number[changed].tolist(), times[changed].tolist(), strict=True):
        found.setdefault(place, []).append(moment)
    return {place: tuple(moments) for place, moments in found.items()}


def _one_server_at_a_time(
    number: Ints, times: Ints, values: Floats, row: Ints, names: Sequence[Name], several: Sequence[bool]
) -> tuple[Ints, Ints, Floats, Floats]:
    """Two servers read a counter at different moments of clocks that differ: put together, their samples would fall
    where nothing restarted. So in each slot of time the one with more samples is believed. Besides number, times and
    values, the value before from the same server, which tells a restart from a change of servers."""
    named = sorted({name.source for name in names})
    source = np.array([named.index(name.source) for name in names], dtype=np.int64)[row]
    # A stable sort: within one server the order stays that of time.
    by_server = np.lexsort((np.arange(len(number)), source, number))
    own = np.full(len(number), np.nan)
    same = (number[by_server][1:] == number[by_server][:-1]) & (source[by_server][1:] == source[by_server][:-1])
    own[by_server[1:][same]] = values[by_server[:-1][same]]
    # How many samples each server has in a slot; of equally many the one named last.
    begins = (number[1:] != number[:-1]) | (times[1:] // SLOT_MS != times[:-1] // SLOT_MS)
    slot = np.concatenate((np.zeros(min(1, len(number)), dtype=np.int64), np.cumsum(begins)))
    pair, told = np.unique(slot * len(named) + source, return_counts=True)
    best = np.zeros(int(slot.max()) + 1 if len(slot) else 0, dtype=np.int64)
    order = np.lexsort((pair % len(named), told))
    best[(pair // len(named))[order]] = (pair % len(named))[order]  # the last one written stays
    chosen = (source == best[slot]) | ~np.array(several, dtype=bool)[number]
    return number[chosen], times[chosen], values[chosen], own[chosen]
