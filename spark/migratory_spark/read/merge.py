"""Merging: packs become whole series, with samples in the order of time, each time once, and statistics of each series.

- A pair (series, time) counts once, with the highest value. Where two servers scrape one exporter, the samples of one
  of them are used at a time.
- Stale markers, other NaN, infinities and negative values of counters are no samples. They are counted and left out.

Uses numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from migratory_spark.metrics import is_counter, role_of, shows_start
from migratory_spark.prometheus.blocks import STALE
from migratory_spark.read.series_pack import Floats, Ints, SeriesKey, SeriesPack, index_ranges

SERVER_CHOICE_MS = 60_000
"""Milliseconds after which it is chosen again which of several servers' samples are used."""
BATCH_SAMPLES = 65_536
"""Samples of one SeriesBatch (a megabyte), unless a single series has more."""
_QUIET_STALE = STALE | 1 << 51
"""The stale marker is a signaling NaN; arithmetic on the way may have set the quiet bit."""

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True, frozen=True)
class SeriesStats:
    """Identity and statistics of a series; times in ms since 1970.

    `series` is its fingerprint (hash of metric and labels). `samples` counts the values that are samples, also those
    that thinning left out. Of them, `unique` remain once each time counts once and, of several servers, one is chosen.
    Not among them are `stale` markers and other values that are no samples (`nan`): NaN, infinities, and negative
    values of a counter. `first` and `last` are the times of the first and last sample, `minimum` and `maximum` their
    lowest and highest value; None without samples. `several_servers` is True if the values come from more than one
    server. `changes` are, for a series that shows when a counter or process started, the times of the samples whose
    value differs from the one before; it is empty for other series.
    """

    series: int
    metric: str
    labels: dict[str, str]
    samples: int
    unique: int
    stale: int
    nan: int
    several_servers: bool
    first: int | None
    last: int | None
    minimum: float | None
    maximum: float | None
    changes: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class SeriesBatch:
    """Samples of whole series, one series after the other: `counts[i]` (at least one) of the samples belong to
    `series[i]`, a fingerprint.

    `times` are ms since 1970, rising within a series. `own_previous` is each sample's previous value from the same
    server, NaN if there is none. It is None if none of the series that were merged together has several servers.
    """

    series: Ints
    counts: Ints
    times: Ints
    values: Floats
    own_previous: Floats | None = None

    @property
    def starts(self) -> Ints:
        """The index of each series' first sample."""
        return np.cumsum(self.counts) - self.counts

    @property
    def rows(self) -> Ints:
        """For each sample, the index of its series in `series`."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def select(self, chosen: Bools) -> SeriesBatch:
        """Return a batch with only the series for which `chosen`, a value for each series, is true."""
        if chosen.all():
            return self
        samples = index_ranges(self.starts[chosen], self.counts[chosen])
        own_previous = None if self.own_previous is None else self.own_previous[samples]
        return SeriesBatch(
            self.series[chosen], self.counts[chosen], self.times[samples], self.values[samples], own_previous
        )

    def split(self, samples: int = BATCH_SAMPLES) -> Iterator[SeriesBatch]:
        """Yield the same series in batches of at most `samples` samples. A series with more samples is a batch of its
        own."""
        ends = np.cumsum(self.counts)
        first = 0
        while first < len(ends):
            begin = int(ends[first] - self.counts[first])
            after = max(first + 1, int(np.searchsorted(ends, begin + samples, side="right")))
            inside = slice(begin, int(ends[after - 1]))
            own_previous = None if self.own_previous is None else self.own_previous[inside]
            yield SeriesBatch(
                self.series[first:after], self.counts[first:after], self.times[inside], self.values[inside],
                own_previous,
            )  # fmt: skip
            first = after


def is_stale(values: Floats) -> Bools:
    """Return for each value whether it is the stale marker, a NaN with special bits by which Prometheus ends a series.
    The marker is also recognized if arithmetic made it a quiet NaN."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    stale: Bools = (bits == np.uint64(STALE)) | (bits == np.uint64(_QUIET_STALE))
    return stale


@dataclass(slots=True, frozen=True)
class MergedSeries:
    """Whole series of one partition in two batches, and statistics of all of them, also of those without samples.
    `timeline` has the series from whose metric the role of the exporter follows (`metrics.role_of`), `others` has all
    other series."""

    stats: list[SeriesStats]
    timeline: SeriesBatch
    """Series that show when an exporter was scraped, and whether it restarted."""
    others: SeriesBatch


class NotMergeable(Exception):
    """Raised for thinned packs of a series whose times overlap, or which come from several servers: samples were left
    out that are needed."""


def merge_packs(packs: Sequence[SeriesPack]) -> MergedSeries:
    """Return all packs of a partition as whole series, each time once and in the order of time, with their statistics.
    Values that are no samples are left out and counted.

    Raises NotMergeable if a pack is thinned, and a series has several servers or parts that overlap in time.
    """
    keys = [key for pack in packs for key in pack.keys]
    if not keys:
        empty = _empty_batch()
        return MergedSeries([], empty, empty)
    series, counts, times, values = (
        np.concatenate([getattr(pack, name) for pack in packs]) for name in ("series", "counts", "times", "values")
    )
    weights = None
    if any(pack.weights is not None for pack in packs):
        weights = np.concatenate(
            [np.ones(len(pack.times), dtype=np.int64) if pack.weights is None else pack.weights for pack in packs]
        )
    starts = np.cumsum(counts) - counts
    # Packs are mostly in the order of time themselves; then nothing remains to be sorted.
    order = np.lexsort((times[starts], series))
    if weights is not None:
        _check_order(keys, series, times[starts], times[starts + counts - 1], order)
    samples = index_ranges(starts[order], counts[order])
    row, times, values = np.repeat(order, counts[order]), times[samples], values[samples]
    weights = None if weights is None else weights[samples]
    numbers, number = np.unique(series, return_inverse=True)
    number = number[row]
    if not _is_sorted(number, times):
        order = np.lexsort((values, times, number))
        row, number, times, values = row[order], number[order], times[order], values[order]
        weights = None if weights is None else weights[order]
    counter = np.array([is_counter(key.metric) for key in keys], dtype=bool)
    usable = np.isfinite(values) & ~(counter[row] & (values < 0))
    count = len(numbers)
    stale = np.bincount(number[~usable], weights=is_stale(values[~usable]), minlength=count).astype(np.int64)
    unusable = np.bincount(number[~usable], minlength=count)
    several_servers = _has_several_servers(keys, series, numbers)
    row, number, times, values = row[usable], number[usable], times[usable], values[usable]
    weights = None if weights is None else weights[usable]
    sample_counts = np.bincount(number, weights, minlength=count).astype(np.int64)
    firsts, lasts, minima, maxima = _extremes(number, times, values, count)
    own_previous = None
    if any(several_servers):
        number, times, values, own_previous = _choose_servers(number, times, values, row, keys, several_servers)
    before_choice = number
    last_of_time = np.ones(len(number), dtype=bool)
    last_of_time[:-1] = (number[1:] != number[:-1]) | (times[1:] != times[:-1])
    number, times, values = number[last_of_time], times[last_of_time], values[last_of_time]
    if own_previous is not None:
        own_previous = own_previous[last_of_time]
    remaining = np.bincount(number, minlength=count)
    # Of thinned packs, only samples that were not repeated were left out.
    repeated = np.bincount(before_choice[~last_of_time], minlength=count)
    unique = remaining if weights is None else sample_counts - repeated
    by_fingerprint = {int(fingerprint): key for fingerprint, key in zip(series.tolist(), keys, strict=True)}
    series_keys = [by_fingerprint[fingerprint] for fingerprint in numbers.tolist()]
    changes = _changes(number, times, values, [shows_start(key.metric) for key in series_keys])
    stats = []
    for place, (fingerprint, key) in enumerate(zip(numbers.tolist(), series_keys, strict=True)):
        has_samples = bool(sample_counts[place])
        stats.append(
            SeriesStats(
                fingerprint,
                key.metric,
                dict(key.labels),
                samples=int(sample_counts[place]),
                unique=int(unique[place]),
                stale=int(stale[place]),
                nan=int(unusable[place] - stale[place]),
                several_servers=several_servers[place],
                first=int(firsts[place]) if has_samples else None,
                last=int(lasts[place]) if has_samples else None,
                minimum=float(minima[place]) if has_samples else None,
                maximum=float(maxima[place]) if has_samples else None,
                changes=changes.get(place, ()),
            )
        )
    remains = remaining > 0
    merged = SeriesBatch(numbers[remains], remaining[remains], times, values, own_previous)
    timeline = np.array([role_of(key.metric) is not None for key in series_keys], dtype=bool)[remains]
    return MergedSeries(stats, merged.select(timeline), merged.select(~timeline))


def _check_order(keys: Sequence[SeriesKey], series: Ints, firsts: Ints, lasts: Ints, order: Ints) -> None:
    """Raise NotMergeable unless each series comes from one server, in parts that follow one another in time. A part may
    begin at the moment at which the one before ends.

    :param keys: the key of each part; `series`, `firsts` and `lasts` are its fingerprint and the times of its first and
        last sample.
    :param order: the order of the parts by series and time of the first sample.
    """
    sources = {source: number for number, source in enumerate(sorted({key.source for key in keys}))}
    source = np.fromiter((sources[key.source] for key in keys), np.int64, len(keys))
    before, after = order[:-1], order[1:]
    same = series[before] == series[after]
    if (same & ((lasts[before] > firsts[after]) | (source[before] != source[after]))).any():
        raise NotMergeable("parts of a series overlap in time")


def _empty_batch() -> SeriesBatch:
    empty = np.zeros(0, dtype=np.int64)
    return SeriesBatch(empty, empty, empty, np.zeros(0))


def _is_sorted(number: Ints, times: Ints) -> bool:
    """Return whether the samples are in the order of their series, and the times of each series rise without a repeated
    one."""
    return bool(((number[1:] != number[:-1]) | (times[1:] > times[:-1])).all())


def _has_several_servers(keys: Sequence[SeriesKey], series: Ints, numbers: Ints) -> list[bool]:
    """Return for each fingerprint in `numbers` whether its samples come from more than one server. `series[i]` is the
    fingerprint of `keys[i]`."""
    sources: dict[int, str] = {}
    several = set()
    for fingerprint, key in zip(series.tolist(), keys, strict=True):
        if sources.setdefault(fingerprint, key.source) != key.source:
            several.add(fingerprint)
    return [fingerprint in several for fingerprint in numbers.tolist()]


def _extremes(number: Ints, times: Ints, values: Floats, count: int) -> tuple[Ints, Ints, Floats, Floats]:
    """Return first and last time, lowest and highest value of each of `count` series. Zero stands for a series without
    samples.

    :param number: the index of each sample's series, rising; the samples of each series are in the order of time.
    """
    firsts, lasts = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    minima, maxima = np.zeros(count), np.zeros(count)
    if len(number):
        starts = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
        series = number[starts]
        firsts[series] = times[starts]
        lasts[series] = times[np.concatenate((starts[1:], [len(number)])) - 1]
        minima[series], maxima[series] = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return firsts, lasts, minima, maxima


def _changes(number: Ints, times: Ints, values: Floats, shows_starts: Sequence[bool]) -> dict[int, tuple[int, ...]]:
    """Return, by index of the series, the times (ms) of the samples whose value differs from the one before. Series
    without such a sample are missing.

    :param number: the index of each sample's series, rising; the samples of each series are in the order of time.
    :param shows_starts: for each series, whether it shows when a counter or process started. Others are left out.
    """
    changed = np.flatnonzero((number[1:] == number[:-1]) & (values[1:] != values[:-1])) + 1
    changed = changed[np.array(shows_starts, dtype=bool)[number[changed]]]
    by_series: dict[int, list[int]] = {}
    for series, moment in zip(number[changed].tolist(), times[changed].tolist(), strict=True):
        by_series.setdefault(series, []).append(moment)
    return {series: tuple(moments) for series, moments in by_series.items()}


def _choose_servers(
    number: Ints, times: Ints, values: Floats, row: Ints, keys: Sequence[SeriesKey], several_servers: Sequence[bool]
) -> tuple[Ints, Ints, Floats, Floats]:
    """Select, for each series with several servers and each slot of SERVER_CHOICE_MS, the samples of the server that
    has most of them there, of equal ones the last by name. Samples of other series all stay.

    Two servers read a counter at different moments by different clocks. Mixed, their samples would fall without a
    restart. Return the index of the series, time and value of each sample that stays, and the previous value from the
    same server (NaN if there is none), which distinguishes a restart from a change of servers.

    :param row: the index in `keys` of each sample's key.
    """
    servers = sorted({key.source for key in keys})
    source = np.array([servers.index(key.source) for key in keys], dtype=np.int64)[row]
    # A stable sort: within one server the order of time is kept.
    by_server = np.lexsort((np.arange(len(number)), source, number))
    own_previous = np.full(len(number), np.nan)
    same = (number[by_server][1:] == number[by_server][:-1]) & (source[by_server][1:] == source[by_server][:-1])
    own_previous[by_server[1:][same]] = values[by_server[:-1][same]]
    # Samples of each server by slot. Of servers with equally many, the last by name is chosen.
    begins = (number[1:] != number[:-1]) | (times[1:] // SERVER_CHOICE_MS != times[:-1] // SERVER_CHOICE_MS)
    slot = np.concatenate((np.zeros(min(1, len(number)), dtype=np.int64), np.cumsum(begins)))
    pair, samples = np.unique(slot * len(servers) + source, return_counts=True)
    best = np.zeros(int(slot.max()) + 1 if len(slot) else 0, dtype=np.int64)
    order = np.lexsort((pair % len(servers), samples))
    best[(pair // len(servers))[order]] = (pair % len(servers))[order]  # the last one written stays
    chosen = (source == best[slot]) | ~np.array(several_servers, dtype=bool)[number]
    return number[chosen], times[chosen], values[chosen], own_previous[chosen]
