"""One pass over the series that show when exporters were scraped: who was, when nobody was, what rose meanwhile.

A target's series are all in one place, so what is told of it there is all there is; rises of one broker's counters are
told by many targets, and come as parts. Numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from migratory_spark.aggregate.coverage import Exporter, Exporters, Scrapes
from migratory_spark.aggregate.incidents import EPISODES, Episode, Happened, episodes, rising, together
from migratory_spark.aggregate.increases import Guide, rises
from migratory_spark.aggregate.series_catalog import Catalogue
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.metrics import Role, role
from migratory_spark.read.merge import Flat
from migratory_spark.read.series_pack import Floats, Ints, exporter

_HELD = 1_000_000
"""Moments of one target that are held before they are put together."""

Target = tuple[Role, str]


@dataclass(slots=True)
class Watched:
    """`exporters` by span, in the order of the spans."""

    exporters: list[list[Exporter]]
    episodes: dict[tuple[str, str], list[Episode]]


@dataclass(slots=True, frozen=True)
class Watch:
    """`target` and `rising` number a series' target and what its rises are put together with, in the order of the
    guide; -1 where there is none. Exporters are looked at within each of `spans`, rises within the first."""

    guide: Guide
    targets: tuple[Target, ...]
    target: Ints
    risings: tuple[tuple[str, str], ...]
    rising: Ints
    spans: tuple[Interval, ...]

    @classmethod
    def of(cls, known: Catalogue, spans: Sequence[Interval]) -> Watch:
        targets: dict[Target, int] = {}
        risings: dict[tuple[str, str], int] = {}
        target, rises_of = [], []
        for entry in known.entries:
            metric, labels = entry.about.metric, entry.about.labels
            told = role(metric)
            target.append(-1 if told is None else targets.setdefault((told, exporter(told, labels)), len(targets)))
            broker = labels.get("broker", "")
            rises_of.append(risings.setdefault((metric, broker), len(risings)) if metric in EPISODES else -1)
        return cls(
            known.guide, tuple(targets), np.array(target, dtype=np.int64), tuple(risings),
            np.array(rises_of, dtype=np.int64), tuple(spans),
        )  # fmt: skip

    def __call__(self, flats: Iterable[Flat]) -> Watched:
        seen: dict[int, _Held] = {}
        risen: dict[int, _Risen] = {}
        for flat in flats:
            place = self.guide.places(flat)
            found = rises(flat, self.guide)
            since = np.concatenate((flat.times[:1], flat.times[:-1]))
            since[flat.starts] = flat.times[flat.starts]
            for number, inside in _rows(self.target[place], flat):
                seen.setdefault(number, _Held()).add(flat.times[inside], found.moment[inside][found.restart[inside]])
            start_ms, end_ms = self.spans[0]
            rose = (found.rise > 0) & (flat.times > start_ms) & (flat.times <= end_ms)
            for number, inside in _rows(self.rising[place], flat):
                chosen = np.flatnonzero(rose[inside]) + inside.start
                if len(chosen):
                    risen.setdefault(number, _Risen()).add(flat.times[chosen], since[chosen], found.rise[chosen])
        scrapes = {self.targets[number]: held.scrapes for number, held in seen.items()}
        exporters = [
            [one for target, each in scrapes.items() if (one := each.exporter(*target, *span)) is not None]
            for span in self.spans
        ]
        return Watched(exporters, {self.risings[number]: each.episodes for number, each in risen.items()})


def _rows(numbers: Ints, flat: Flat) -> Iterator[tuple[int, slice]]:
    """The samples of each series that has a number."""
    starts = flat.starts
    for row in np.flatnonzero(numbers >= 0).tolist():
        yield int(numbers[row]), slice(int(starts[row]), int(starts[row] + flat.counts[row]))


@dataclass(slots=True)
class _Held:
    times: list[Ints] = field(default_factory=list)
    restarts: list[Ints] = field(default_factory=list)
    loose: int = 0

    def add(self, times: Ints, restarts: Ints) -> None:
        self.times.append(times)
        self.restarts.append(restarts)
        self.loose += len(times)
        if self.loose > _HELD:
            whole = self.scrapes
            self.times, self.restarts, self.loose = [whole.times], [whole.restarts], 0

    @property
    def scrapes(self) -> Scrapes:
        return Scrapes.of(self.times, self.restarts)


@dataclass(slots=True)
class _Risen:
    episodes: list[Episode] = field(default_factory=list)

    def add(self, times: Ints, since: Ints, rise: Floats) -> None:
        self.episodes = together([*self.episodes, *rising(times, since, rise)])


def exporters(parts: Iterable[Watched], span: int) -> Exporters:
    found = [one for part in parts for one in part.exporters[span]]
    return Exporters(tuple(sorted(found, key=lambda one: (one.role, one.name))))


def happened(parts: Iterable[Watched], start_ms: int) -> list[Happened]:
    found: dict[tuple[str, str], list[Episode]] = {}
    for part in parts:
        for key, told in part.episodes.items():
            found.setdefault(key, []).extend(told)
    return episodes(found, start_ms)
