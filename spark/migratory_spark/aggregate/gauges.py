"""Gauges: summaries of values that hold at a moment, such as the number of clients of a broker.

A value holds at the moment of its scrape only. Nothing is carried over a gap or a stale marker (the NaN with which
Prometheus ends a series). A stale marker ends a series until its next sample; any other NaN is a sample without a
number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from migratory_spark.read.merge import is_stale
from migratory_spark.read.series_pack import Floats, Ints, SeriesPack


@dataclass(slots=True, frozen=True)
class GaugeSummary:
    """A summary of one gauge series in a time [start, end).

    `samples`, `stale` and `nan` are the numbers of samples that hold a finite number, a stale marker, and another NaN
    or an infinity. `mean` and `max` are those of the finite numbers, None without one. `absent` are the intervals (ms
    since 1970) from a stale marker to the next sample, or to the end.
    """

    labels: dict[str, str]
    samples: int
    stale: int
    nan: int
    mean: float | None
    max: float | None
    absent: tuple[tuple[int, int], ...]


def summarize_gauges(packs: Iterable[SeriesPack], start_ms: int, end_ms: int) -> list[GaugeSummary]:
    """Return a summary of every series that has a sample in [start, end) (ms since 1970), sorted by labels. All series
    of `packs` must be of one metric. Series with equal labels from several servers are one; at equal times a number is
    preferred to a NaN."""
    by_labels: dict[tuple[tuple[str, str], ...], list[tuple[int, int, float]]] = {}
    for pack in packs:
        begin = 0
        for key, count in zip(pack.keys, pack.counts.tolist(), strict=True):
            inside = slice(begin, begin + count)
            # Of a number and a marker at the same time, from two servers, the number counts.
            kind = np.where(is_stale(pack.values[inside]), 1, np.where(np.isfinite(pack.values[inside]), 2, 0))
            samples = zip(pack.times[inside].tolist(), kind.tolist(), pack.values[inside].tolist(), strict=True)
            by_labels.setdefault(key.labels, []).extend(sample for sample in samples if start_ms <= sample[0] < end_ms)
            begin += count
    return [_summarize(dict(labels), samples, end_ms) for labels, samples in sorted(by_labels.items()) if samples]


def _summarize(labels: dict[str, str], samples: list[tuple[int, int, float]], end_ms: int) -> GaugeSummary:
    """Return the summary of one series.

    :param samples: time (ms), kind (0 for a NaN or infinity, 1 for a stale marker, 2 for a finite number) and value. Of
        equal times the highest kind counts.
    """
    by_time = {moment: (kind, value) for moment, kind, value in sorted(samples, key=lambda sample: sample[:2])}
    times = [*by_time, end_ms]
    numbers = [value for kind, value in by_time.values() if kind == 2]
    stale = [index for index, (kind, _) in enumerate(by_time.values()) if kind == 1]
    return GaugeSummary(
        labels, len(numbers), len(stale), len(by_time) - len(numbers) - len(stale),
        math.fsum(numbers) / len(numbers) if numbers else None, max(numbers, default=None),
        tuple((times[index], times[index + 1]) for index in stale),
    )  # fmt: skip


@dataclass(slots=True, frozen=True)
class GaugeReading:
    """A broker's gauge in one interval of a time grid: number, sum and maximum of its samples, of which there is at
    least one, and the last one with its time in ms since 1970."""

    samples: int
    sum: float
    max: float
    last: float
    last_ms: int

    @property
    def mean(self) -> float:
        """The mean of the samples in the interval."""
        return self.sum / self.samples

    @classmethod
    def from_samples(cls, times: Ints, values: Floats) -> GaugeReading:
        """Return the reading of one series' samples: at least one, in the order of time."""
        return cls(len(values), math.fsum(values), float(values.max()), float(values[-1]), int(times[-1]))

    def combined(self, other: GaugeReading) -> GaugeReading:
        """Return the reading of the samples of both. If both end at the same time, the higher value is the last."""
        last_ms, last = max((self.last_ms, self.last), (other.last_ms, other.last))
        return GaugeReading(
            self.samples + other.samples, self.sum + other.sum, max(self.max, other.max), last, last_ms
        )  # fmt: skip


BrokerReadings = dict[str, dict[int, GaugeReading]]
"""Readings by broker and interval. Intervals without a scrape are missing."""


def readings_by_broker(brokers: Iterable[str], readings: dict[tuple[int, int], GaugeReading]) -> BrokerReadings:
    """Return the readings by broker name and interval.

    :param brokers: the names of the brokers.
    :param readings: the readings by the broker's position in `brokers` and by the interval's index in the time grid.
    """
    by_broker: BrokerReadings = {}
    names = list(brokers)
    for (number, interval), reading in sorted(readings.items()):
        by_broker.setdefault(names[number], {})[interval] = reading
    return dict(sorted(by_broker.items()))
