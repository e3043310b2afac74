"""Gauges: what was there at a moment, such as the clients of a broker.

A value holds for its scrape alone; nothing is carried over a gap or a stale marker. Stale markers end a series until
its next sample; any other NaN is a sample without a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from migratory_spark.read.merge import is_stale
from migratory_spark.read.series_pack import Floats, Ints, Pack


@dataclass(slots=True, frozen=True)
class Gauge:
    """One series in [start, end). `mean` and `max` of the samples that hold a number; `absent` are the stretches from a
    stale marker to the next sample, or to the end, in ms."""

    labels: dict[str, str]
    samples: int
    stale: int
    nan: int
    mean: float | None
    max: float | None
    absent: tuple[tuple[int, int], ...]


def gauges(packs: Iterable[Pack], start_ms: int, end_ms: int) -> list[Gauge]:
    """Every series in `packs`, by its labels. For one metric, whose samples are held here."""
    found: dict[tuple[tuple[str, str], ...], list[tuple[int, int, float]]] = {}
    for pack in packs:
        begin = 0
        for name, count in zip(pack.names, pack.counts.tolist(), strict=True):
            inside = slice(begin, begin + count)
            # Of a number and a marker at the same time, told by two servers, the number holds.
            kind = np.where(is_stale(pack.values[inside]), 1, np.where(np.isfinite(pack.values[inside]), 2, 0))
            samples = zip(pack.times[inside].tolist(), kind.tolist(), pack.values[inside].tolist(), strict=True)
            found.setdefault(name.labels, []).extend(sample for sample in samples if start_ms <= sample[0] < end_ms)
            begin += count
    return [_gauge(dict(labels), samples, end_ms) for labels, samples in sorted(found.items()) if samples]


def _gauge(labels: dict[str, str], samples: list[tuple[int, int, float]], end_ms: int) -> Gauge:
    by_time = {moment: (kind, value) for moment, kind, value in sorted(samples, key=lambda sample: sample[:2])}
    times = [*by_time, end_ms]
    numbers = [value for kind, value in by_time.values() if kind == 2]
    stale = [place for place, (kind, _) in enumerate(by_time.values()) if kind == 1]
    return Gauge(
        labels, len(numbers), len(stale), len(by_time) - len(numbers) - len(stale),
        math.fsum(numbers) / len(numbers) if numbers else None, max(numbers, default=None),
        tuple((times[place], times[place + 1]) for place in stale),
    )  # fmt: skip


@dataclass(slots=True, frozen=True)
class Reading:
    """A broker's gauge in one cell."""

    samples: int
    sum: float
    max: float
    last: float
    last_ms: int

    @property
    def mean(self) -> float:
        return self.sum / self.samples

    @classmethod
    def of(cls, times: Ints, values: Floats) -> Reading:
        """Of one series' samples, at least one, in order."""
        return cls(len(values), math.fsum(values), float(values.max()), float(values[-1]), int(times[-1]))

    def with_(self, other: Reading) -> Reading:
        """Of both. Of two that end at the same time the higher one is the last."""
        last_ms, last = max((self.last_ms, self.last), (other.last_ms, other.last))
        return Reading(
            self.samples + other.samples, self.sum + other.sum, max(self.max, other.max), last, last_ms
        )  # fmt: skip


def by_broker(brokers: Iterable[str], readings: dict[tuple[int, int], Reading]) -> dict[str, dict[int, Reading]]:
    """By broker and cell; cells without a scrape are missing."""
    found: dict[str, dict[int, Reading]] = {}
    names = list(brokers)
    for (number, cell), reading in sorted(readings.items()):
        found.setdefault(names[number], {})[cell] = reading
    return dict(sorted(found.items()))
