"""What is known of each series besides its samples: what it is added up with, and what tells when it began.

As large as there are series, however long they were scraped: it is made where the report is made, without Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from migratory_spark.aggregate.increases import SKEW_MS, Guide
from migratory_spark.metrics import (
    CLIENTS,
    LABELS,
    PROCESS_START,
    counters,
    family,
    is_counter,
    role,
    tells_a_beginning,
)
from migratory_spark.read.merge import About
from migratory_spark.read.series_pack import exporter

Bounds = tuple[float, ...]


@dataclass(slots=True, frozen=True, order=True)
class Group:
    """Series that are added up: a metric with these labels. `layout` numbers the set of bounds of a histogram; there is
    none (-1) for what is no bucket, and for a bucket that came or went with a release."""

    metric: str
    broker: str
    clock: str
    phase: str
    layout: int
    reason: str
    receipt: str


NO_LAYOUT = -1


@dataclass(slots=True, frozen=True)
class Entry:
    """A series of the catalogue. `bound` is a bucket's upper bound in seconds, `evidence` the series that tells when
    this one began, `_created` or the process's start. `unborn` says that by that evidence the counter was older than
    the window's start, where nobody scraped it: how much of its first value lies in the window is unknown."""

    about: About
    group: Group
    bound: float | None
    evidence: int | None
    unborn: bool

    def there(self, start_ms: int, end_ms: int) -> bool:
        """Whether it was scraped in that time. A series that ended before was not; one that stayed at zero was."""
        first, last = self.about.first, self.about.last
        return first is not None and last is not None and last > start_ms and first <= end_ms


@dataclass(slots=True, frozen=True)
class Facts:
    """What there is, in numbers. `several`: some series come from more than one server. `clients`: the most that
    brokers had, all together. `apart`: labels by which alone series of one exporter differ that were scraped at the
    same time: whoever scraped it twice, its counts are in the sums twice."""

    series: int
    samples: int
    kept: int
    stale: int
    nan: int
    several: bool
    clients: float
    clusters: tuple[str, ...]
    apart: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Catalogue:
    """`entries` in the order of their numbers; `layouts` are the sets of bounds, rising, the last one infinite."""

    entries: tuple[Entry, ...]
    layouts: tuple[Bounds, ...]

    @property
    def counters(self) -> list[Entry]:
        known = frozenset(counters())
        return [entry for entry in self.entries if entry.about.metric in known and entry.about.samples]

    def undated(self, start_ms: int) -> list[tuple[str, int]]:
        """Exporters of clients and publishers that were scraped first after `start_ms`, and when, which had counted
        something by then, while nothing tells since when."""
        found: dict[str, list[About]] = {}
        for entry in self.entries:
            if entry.evidence is None and role(entry.about.metric) in ("clients", "publishers"):
                found.setdefault(exporter("clients", entry.about.labels), []).append(entry.about)
        firsts = {name: min(one.first for one in told if one.first is not None)
                  for name, told in sorted(found.items()) if any(one.samples for one in told)}  # fmt: skip
        return [
            (name, first)
            for name, first in firsts.items()
            if first > start_ms and any(one.first == first and one.least for one in found[name])
        ]

    @property
    def guide(self) -> Guide:
        changes = {entry.about.series: entry.about.changes for entry in self.entries if entry.about.changes}
        numbers = {series: number for number, series in enumerate(sorted(changes))}
        # What tells of no restart is one of them all the same, without a moment.
        evidence = [
            -1 if entry.evidence is None else numbers.get(entry.evidence, len(numbers)) for entry in self.entries
        ]
        return Guide(
            np.array([entry.about.series for entry in self.entries], dtype=np.int64),
            np.array([is_counter(entry.about.metric) for entry in self.entries], dtype=bool),
            np.array([entry.unborn for entry in self.entries], dtype=bool),
            np.array(evidence, dtype=np.int64),
            (*(np.array(changes[series], dtype=np.int64) for series in sorted(changes)), np.zeros(0, dtype=np.int64)),
        )


def facts(told: Sequence[About]) -> Facts:
    clusters = {one.labels.get("cluster", "") for one in told} - {""}
    return Facts(
        len(told), sum(one.samples for one in told), sum(one.kept for one in told), sum(one.stale for one in told),
        sum(one.nan for one in told), any(one.several for one in told),
        math.fsum(one.most or 0.0 for one in told if one.metric == CLIENTS), tuple(sorted(clusters)), _apart(told),
    )  # fmt: skip


def _apart(told: Sequence[About]) -> tuple[str, ...]:
    exporters: dict[Key, list[About]] = {}
    for one in told:
        if role(one.metric) is not None and one.first is not None and one.labels.get("instance"):
            key = (one.metric, *(one.labels.get(label, "") for label in LABELS))
            exporters.setdefault(key, []).append(one)
    found: set[str] = set()
    for several in exporters.values():
        several.sort(key=lambda one: one.first or 0)
        for one, other in pairwise(several):
            # One that follows the other may be another life of it, on another machine.
            if (other.first or 0) < (one.last or 0):
                found |= {name for name, _ in one.labels.items() ^ other.labels.items()}
    return tuple(sorted(found))


def catalogue(told: Iterable[About], start_ms: int) -> Catalogue:
    """`start_ms`: what was there before counts from its value at that time."""
    told = sorted(told, key=lambda one: one.series)
    bounds = {one.series: bound for one in told if (bound := _bound(one)) is not None}
    layouts, numbers = _layouts(told, bounds)
    created = _evidence((_siblings(one), one) for one in told if one.metric.endswith("_created"))
    started = _evidence((_process(one), one) for one in told if one.metric == PROCESS_START)
    entries = []
    for one in told:
        labels = one.labels
        group = Group(
            one.metric,
            labels.get("broker", ""),
            labels.get("clock", ""),
            labels.get("phase", ""),
            layouts.get(one.series, NO_LAYOUT),
            labels.get("reason", ""),
            labels.get("receipt", ""),
        )
        evidence = None
        if is_counter(one.metric) and not tells_a_beginning(one.metric):
            evidence = created.get(_siblings(one)) or started.get(_process(one))
        tells = None if evidence is None else evidence.series
        entries.append(Entry(one, group, bounds.get(one.series), tells, _unborn(one, evidence, start_ms)))
    return Catalogue(tuple(entries), numbers)


Key = tuple[object, ...]


def _siblings(one: About) -> Key:
    """The same for all series of a counter or histogram, and what tells when that began."""
    created = one.metric.endswith("_created")
    name = one.metric.removesuffix("_created") if created else family(one.metric)
    return (name, *((key, value) for key, value in sorted(one.labels.items()) if key != "le"))


def _process(one: About) -> Key:
    return one.labels.get("job", ""), one.labels.get("instance", "")


@dataclass(slots=True, frozen=True)
class _Evidence:
    series: int
    first: int
    began: float


def _evidence(told: Iterable[tuple[Key, About]]) -> dict[Key, _Evidence]:
    found: dict[Key, _Evidence] = {}
    for key, one in told:
        if one.first is None or one.least is None:
            continue
        known = found.get(key, _Evidence(one.series, one.first, one.least))
        found[key] = _Evidence(
            min(known.series, one.series), min(known.first, one.first), min(known.began, one.least)
        )  # fmt: skip
    return found


def _unborn(one: About, evidence: _Evidence | None, start_ms: int) -> bool:
    if evidence is None or one.first is None or one.first <= start_ms:
        return False
    return evidence.first == one.first and evidence.began * 1000 + SKEW_MS < start_ms


def _bound(one: About) -> float | None:
    if not one.metric.endswith("_bucket"):
        return None
    try:
        bound = float(one.labels.get("le", ""))
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _layouts(told: Sequence[About], bounds: dict[int, float]) -> tuple[dict[int, int], tuple[Bounds, ...]]:
    """The layout of each bucket, by series, and the bounds of each layout.

    All buckets of a scrape come together: one that came later than its siblings, or went earlier, belongs to another
    release of the exporter. (How often each was seen tells nothing: samples may be repeated, in parts.) The one without
    an upper bound holds everything and is always there; of a histogram without it nobody knows how much the others
    leave out, so that it has no layout at all.
    """
    histograms: dict[Key, list[About]] = {}
    for one in told:
        if one.metric.endswith("_bucket"):
            histograms.setdefault((one.metric, _siblings(one)), []).append(one)
    found: dict[Bounds, list[int]] = {}
    for buckets in histograms.values():
        since = min([one.first for one in buckets if one.first is not None], default=None)
        until = max([one.last for one in buckets if one.last is not None], default=None)
        always = [
            one.series
            for one in buckets
            if one.series in bounds
            and (
                math.isinf(bounds[one.series])
                or (since is not None and (one.first, one.last) == (since, until))
            )
        ]  # fmt: skip
        if any(math.isinf(bounds[series]) for series in always):
            found.setdefault(tuple(sorted({bounds[series] for series in always})), []).extend(always)
    layouts = tuple(sorted(found))
    return {series: number for number, layout in enumerate(layouts) for series in found[layout]}, layouts
