"""The series catalog: for each series, the group in which its increases are added up, and the evidence of its starts.

Its size depends on the number of series, however long they were scraped. It is built in the process that makes the
report, without Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from migratory_spark.aggregate.coverage import ALLOWED_INTERVALS
from migratory_spark.aggregate.increases import SKEW_MS, SeriesIndex
from migratory_spark.metrics import (
    CLIENTS,
    LABELS,
    PROCESS_START,
    PUBLISH,
    PUBLISH_ERRORS,
    SQUARED,
    counters,
    family,
    is_counter,
    role_of,
    shows_start,
)
from migratory_spark.read.merge import SeriesStats
from migratory_spark.read.series_pack import exporter_name

Bounds = tuple[float, ...]


@dataclass(slots=True, frozen=True, order=True)
class SeriesGroup:
    """The key of series whose increases are added up: a metric and the labels that a report distinguishes.

    `layout` is the number of a histogram's set of bucket bounds. The histogram's `_count` has it as well, and its sum
    and its counter of squares if they have the same observations as its infinite bucket. It is NO_LAYOUT for other
    series, for a bucket that appeared or vanished when another release of the exporter started, and for all series of a
    histogram without the infinite bucket.

    `unpaired` is True for publications of an exporter that counts only acknowledged or only failed ones.
    """

    metric: str
    broker: str
    clock: str
    phase: str
    layout: int
    reason: str
    receipt: str
    unpaired: bool = False

    @property
    def has_bounds(self) -> bool:
        """True for buckets with a layout, which have a total for each bound of it."""
        return self.layout != NO_LAYOUT and self.metric.endswith("_bucket")


NO_LAYOUT = -1


@dataclass(slots=True, frozen=True)
class CatalogEntry:
    """A series of the catalog.

    `bound` is a bucket's upper bound in seconds, None for other series. `evidence` is the fingerprint (hash of metric
    and labels) of the series that shows when this one started: its `_created`, or the start time of its process. None
    if there is none. `predates_window` is True if by that evidence the counter is older than the window, and nobody
    scraped it before. How much of its first value lies in the window is then unknown. `started` is the start by the
    evidence, in ms since 1970, of a series whose evidence was first scraped with it; None for others.
    """

    stats: SeriesStats
    group: SeriesGroup
    bound: float | None
    evidence: int | None
    predates_window: bool
    started: int | None = None

    @property
    def first_is_burst(self) -> bool:
        """True if the first value may have risen in about one scrape interval. False if the exporter is known to have
        counted for longer than ALLOWED_INTERVALS scrape intervals before it was scraped."""
        first, last = self.stats.first, self.stats.last
        if self.started is None or first is None or last is None or self.stats.unique < 2:
            return True
        return first - self.started <= ALLOWED_INTERVALS * (last - first) / (self.stats.unique - 1)

    def was_scraped(self, start_ms: int, end_ms: int) -> bool:
        """Return whether (start, end] (ms) overlaps the time from the first to the last sample of the series, even if
        its value stayed at zero. Return False for a series without samples."""
        first, last = self.stats.first, self.stats.last
        return first is not None and last is not None and last > start_ms and first <= end_ms


@dataclass(slots=True, frozen=True)
class SampleStatistics:
    """Numbers of series and samples, and facts about all series of a report.

    `unique` of the `samples` remain once each time of a series counts once, and of several servers one is chosen.
    `stale` and `nan` are not among them (see SeriesStats). `several_servers` is True if a series comes from more than
    one server. `max_clients` is the sum of the brokers' highest client counts. `clusters` are the sorted values of the
    label `cluster`. `differing_labels` are labels by which servers differ that scraped the same exporter at the same
    time. Such an exporter's counts are in the totals several times.
    """

    series: int
    samples: int
    unique: int
    stale: int
    nan: int
    several_servers: bool
    max_clients: float
    clusters: tuple[str, ...]
    differing_labels: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class SeriesCatalog:
    """All series of a report, sorted by fingerprint (hash of metric and labels). `layouts` are the sets of bucket
    bounds, each sorted with the infinite bound last. Histograms with equal bounds have different layouts if one has a
    sum, a counter of squares or a `_count` that the other lacks."""

    entries: tuple[CatalogEntry, ...]
    layouts: tuple[Bounds, ...]

    @property
    def counters(self) -> list[CatalogEntry]:
        """The entries of the counters that a report reads and that have samples."""
        known = frozenset(counters())
        return [entry for entry in self.entries if entry.stats.metric in known and entry.stats.samples]

    def exporters_of_unknown_start(self, start_ms: int) -> list[tuple[str, int]]:
        """Return name and first scrape (ms since 1970) of each exporter whose first values may belong to the time
        before `start_ms`, sorted by name.

        These are exporters of clients and publishers that were first scraped after `start_ms` with counters above zero,
        and that export nothing to show when they started.
        """
        by_exporter: dict[str, list[SeriesStats]] = {}
        for entry in self.entries:
            if entry.evidence is None and role_of(entry.stats.metric) in ("clients", "publishers"):
                by_exporter.setdefault(exporter_name("clients", entry.stats.labels), []).append(entry.stats)
        firsts = {name: min(stats.first for stats in series if stats.first is not None)
                  for name, series in sorted(by_exporter.items())
                  if any(stats.samples for stats in series)}  # fmt: skip
        return [
            (name, first)
            for name, first in firsts.items()
            if first > start_ms and any(stats.first == first and stats.minimum for stats in by_exporter[name])
        ]

    @property
    def index(self) -> SeriesIndex:
        """The facts about each series that passes over the samples need."""
        changes = {entry.stats.series: entry.stats.changes for entry in self.entries if entry.stats.changes}
        numbers = {series: number for number, series in enumerate(sorted(changes))}
        # Evidence that shows no restart is evidence all the same; it shares one empty entry at the end.
        evidence = [
            -1 if entry.evidence is None else numbers.get(entry.evidence, len(numbers)) for entry in self.entries
        ]
        return SeriesIndex(
            np.array([entry.stats.series for entry in self.entries], dtype=np.int64),
            np.array([is_counter(entry.stats.metric) for entry in self.entries], dtype=bool),
            np.array([entry.predates_window for entry in self.entries], dtype=bool),
            np.array(evidence, dtype=np.int64),
            (*(np.array(changes[series], dtype=np.int64) for series in sorted(changes)), np.zeros(0, dtype=np.int64)),
        )


def sample_statistics(series: Sequence[SeriesStats]) -> SampleStatistics:
    """Return numbers of samples and facts of all series together, from the statistics of each."""
    clusters = {stats.labels.get("cluster", "") for stats in series} - {""}
    return SampleStatistics(
        len(series),
        sum(stats.samples for stats in series),
        sum(stats.unique for stats in series),
        sum(stats.stale for stats in series),
        sum(stats.nan for stats in series),
        any(stats.several_servers for stats in series),
        math.fsum(stats.maximum or 0.0 for stats in series if stats.metric == CLIENTS),
        tuple(sorted(clusters)),
        _differing_labels(series),
    )


def _differing_labels(series: Sequence[SeriesStats]) -> tuple[str, ...]:
    """Return the sorted names of the labels by which servers differ that scraped the same exporter at the same time.
    They are found in series of one metric that have equal values of LABELS and overlap in time."""
    by_identity: dict[Key, list[SeriesStats]] = {}
    for stats in series:
        if role_of(stats.metric) is not None and stats.first is not None and stats.labels.get("instance"):
            key = (stats.metric, *(stats.labels.get(label, "") for label in LABELS))
            by_identity.setdefault(key, []).append(stats)
    names_at: dict[Key, set[str]] = {}
    for stats in series:
        names_at.setdefault(_address(stats.labels), set(stats.labels)).intersection_update(stats.labels)
    names: set[str] = set()
    processes = _Processes(series)
    for duplicates in by_identity.values():
        duplicates.sort(key=lambda stats: stats.first or 0)
        for earlier, later in pairwise(duplicates):
            # A series that follows another may be the same exporter, restarted on another machine.
            if (later.first or 0) < (earlier.last or 0):
                names |= _server_labels(earlier, later, processes, names_at[_address(earlier.labels)])
    return tuple(sorted(names))


def _server_labels(one: SeriesStats, other: SeriesStats, processes: _Processes, names: set[str]) -> set[str]:
    """Return the names of the labels by which servers differ that scrape the exporter of both series. There are none if
    two exporters export the series, or if one server scraped both.

    A server's label is at all series that it scrapes of an exporter, also at the start time of the process. Other
    labels are the exporter's own.

    :param names: the names of the labels that all series at the address (job and instance) of both have.
    """
    first, second = processes.start_of(one.labels), processes.start_of(other.labels)
    if first is not None and second is not None:
        # Another process is that of another cluster with equal addresses.
        if (first.minimum, first.maximum) != (second.minimum, second.maximum):
            return set()
        return {name for name, _ in first.labels.items() ^ second.labels.items()}
    differing = {name for name, _ in one.labels.items() ^ other.labels.items()}
    own = (differing - names) & one.labels.keys() & other.labels.keys()
    return differing - own


def build_catalog(series: Iterable[SeriesStats], start_ms: int) -> SeriesCatalog:
    """Return the catalog of all series, for windows that start at `start_ms` (ms since 1970) or later."""
    series = sorted(series, key=lambda stats: stats.series)
    bounds = {stats.series: bound for stats in series if (bound := _bound(stats)) is not None}
    layout_of, layouts = _layouts(series, bounds)
    created = {
        _siblings(stats): stats for stats in series if stats.metric.endswith("_created") and stats.first is not None
    }
    processes = _Processes(series)
    unpaired = _unpaired(series, processes)
    entries = []
    for stats in series:
        labels = stats.labels
        group = SeriesGroup(
            stats.metric,
            labels.get("broker", ""),
            labels.get("clock", ""),
            labels.get("phase", ""),
            layout_of.get(stats.series, NO_LAYOUT),
            labels.get("reason", ""),
            labels.get("receipt", ""),
            stats.series in unpaired,
        )
        evidence = None
        if is_counter(stats.metric) and not shows_start(stats.metric):
            evidence = created.get(_siblings(stats)) or processes.start_of(labels)
        evidence_series = None if evidence is None else evidence.series
        predates = _predates_window(stats, evidence, start_ms)
        started = None
        if evidence is not None and evidence.minimum is not None and evidence.first == stats.first:
            started = round(evidence.minimum * 1000)
        entries.append(CatalogEntry(stats, group, bounds.get(stats.series), evidence_series, predates, started))
    return SeriesCatalog(tuple(entries), layouts)


Key = tuple[object, ...]


def _siblings(stats: SeriesStats) -> Key:
    """Return a key that is the same for all series of one counter or histogram with the same labels (except `le`), and
    for their `_created` series."""
    created = stats.metric.endswith("_created")
    name = stats.metric.removesuffix("_created") if created else family(stats.metric)
    return (name, *((key, value) for key, value in sorted(stats.labels.items()) if key != "le"))


class _Processes:
    """The start times of processes, to be looked up by the labels of the series that a process exports.

    Job and instance do not identify a process: several clusters behind one server may have equal addresses, which
    labels of the scraper distinguish (federation, external_labels). So all labels of the start time's own series must
    agree. Labels that only the other series has do not matter. If several start times agree, that with the most labels
    is the process's own.
    """

    def __init__(self, series: Iterable[SeriesStats]) -> None:
        self._by_address: dict[Key, list[SeriesStats]] = {}
        for stats in sorted(series, key=lambda stats: (-len(stats.labels), stats.series)):
            if stats.metric == PROCESS_START and stats.first is not None:
                self._by_address.setdefault(_address(stats.labels), []).append(stats)

    def start_of(self, labels: dict[str, str]) -> SeriesStats | None:
        """Return the series with the start time of the process that exports a series with these labels, None if there
        is none."""
        candidates = self._by_address.get(_address(labels), ())
        return next((stats for stats in candidates if stats.labels.items() <= labels.items()), None)


def _unpaired(series: Sequence[SeriesStats], processes: _Processes) -> set[int]:
    """Return the fingerprints of the series that count publications of an exporter of which only acknowledged or only
    failed publications were scraped. Series of histograms of acknowledged ones are among them.

    An exporter is known by the start of its process, else by its address and the label `cluster`.
    """
    by_exporter: dict[Key, dict[str, list[int]]] = {}
    for stats in series:
        counted = family(stats.metric) if family(stats.metric) == PUBLISH else stats.metric
        if counted in (PUBLISH, PUBLISH_ERRORS) and stats.samples:
            start = processes.start_of(stats.labels)
            exporter = (*_address(stats.labels), stats.labels.get("cluster", "")) if start is None else (start.series,)
            by_exporter.setdefault(exporter, {}).setdefault(counted, []).append(stats.series)
    return {
        fingerprint
        for counted_series in by_exporter.values()
        if len(counted_series) == 1
        for fingerprints in counted_series.values()
        for fingerprint in fingerprints
    }


def _address(labels: dict[str, str]) -> Key:
    return labels.get("job", ""), labels.get("instance", "")


def _predates_window(stats: SeriesStats, evidence: SeriesStats | None, start_ms: int) -> bool:
    """Return whether the counter is older than the window that begins at `start_ms`, and was not scraped before it: its
    evidence was first scraped with it, and shows a start more than SKEW_MS before the window. Return False without
    evidence."""
    if evidence is None or evidence.minimum is None or stats.first is None or stats.first <= start_ms:
        return False
    return evidence.first == stats.first and evidence.minimum * 1000 + SKEW_MS < start_ms


def _bound(stats: SeriesStats) -> float | None:
    """Return a bucket's upper bound in seconds, or None for a series that is no bucket or has no number in the label
    `le`."""
    if not stats.metric.endswith("_bucket"):
        return None
    try:
        bound = float(stats.labels.get("le", ""))
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _layouts(series: Sequence[SeriesStats], bounds: dict[int, float]) -> tuple[dict[int, int], tuple[Bounds, ...]]:
    """Return the layout number of each series of a histogram that has one (see SeriesGroup), by the fingerprint of the
    series, and the bounds of each layout.

    A layout is the set of bounds that one histogram has in all scrapes. All buckets of a scrape come together: one that
    appeared later than its siblings, or vanished earlier, belongs to another release of the exporter. (The number of
    samples says nothing, since samples may be repeated in part.) The bucket without an upper bound holds every
    observation and always belongs to the layout. A histogram without that bucket has no layout, because the number of
    observations that the others leave out is unknown.

    A sum or counter of squares that was not scraped as long as the infinite bucket has other observations. It belongs
    to no layout, as if the exporter had none.
    """
    histograms: dict[Key, list[SeriesStats]] = {}
    others: dict[Key, list[SeriesStats]] = {}
    for stats in series:
        if stats.metric.endswith("_bucket"):
            histograms.setdefault(_siblings(stats), []).append(stats)
        elif stats.metric.endswith(("_sum", "_count")):
            others.setdefault(_siblings(stats), []).append(stats)
        elif stats.metric in SQUARED:
            others.setdefault((SQUARED[stats.metric], *_siblings(stats)[1:]), []).append(stats)
    by_parts: dict[tuple[Bounds, tuple[str, ...]], list[int]] = {}
    for key, buckets in histograms.items():
        since = min([bucket.first for bucket in buckets if bucket.first is not None], default=None)
        until = max([bucket.last for bucket in buckets if bucket.last is not None], default=None)
        always = [
            bucket
            for bucket in buckets
            if bucket.series in bounds
            and (
                math.isinf(bounds[bucket.series])
                or (since is not None and (bucket.first, bucket.last) == (since, until))
            )
        ]  # fmt: skip
        infinite = next((bucket for bucket in always if math.isinf(bounds[bucket.series])), None)
        if infinite is not None:
            scraped = infinite.first, infinite.last
            parts = [
                other
                for other in others.get(key, ())
                if other.metric.endswith("_count") or (other.first, other.last) == scraped
            ]
            layout = tuple(sorted({bounds[bucket.series] for bucket in always}))
            names = tuple(sorted({part.metric for part in parts}))
            by_parts.setdefault((layout, names), []).extend(stats.series for stats in (*always, *parts))
    numbered = sorted(by_parts)
    layout_of = {series: number for number, layout in enumerate(numbered) for series in by_parts[layout]}
    return layout_of, tuple(layout for layout, _ in numbered)
