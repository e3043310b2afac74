"""Gauges: readings of values that hold at a moment, such as the number of clients of a broker.

A value holds at the moment of its scrape only. Nothing is carried over a gap. `merge.py` leaves out stale markers (the
NaN with which Prometheus ends a series) and other values that are no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from migratory_spark.read.series_pack import Floats, Ints


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
