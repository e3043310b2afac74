"""Totals: one pass over all series adds up their increases by group of series and interval of time, and reads gauges.

Totals are exact and do not depend on the order or place of the samples: whole parts and fractions (to 10^-12) are added
separately, in numbers that hold them. The values are divided into these parts and not the increases, so that increases
that follow one another add up to exactly the increase over both, and samples between them may be left out. Uses numpy
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from migratory_spark.aggregate.gauges import GaugeReading
from migratory_spark.aggregate.increases import Increases, SeriesIndex, compute_increases
from migratory_spark.read.merge import SeriesBatch
from migratory_spark.read.series_pack import Floats, Ints

MAX_TOTALS = 5_000_000
"""The most totals of one plan: 120 MB on their way from Spark."""
_MAX_PENDING = 2_000_000
"""Totals that a pass holds before it merges those of equal keys."""
_FRACTIONS = 10**12


class TooManyTotals(ValueError):
    """Raised for a report with more than MAX_TOTALS totals of one plan (by brokers, buckets and rows), or as many
    slices of an objective. The message says what to ask for instead."""


@dataclass(slots=True, frozen=True)
class TotalsPlan:
    """A plan of totals to compute: a table with a column for each interval (edges[i], edges[i + 1]], in ms since 1970.

    `rows` has, for each series in the order of the series index, the table row to which its increases are added; -1 for
    a series that is not counted.
    """

    edges: Ints
    rows: Ints

    @property
    def columns(self) -> int:
        """The number of intervals."""
        return len(self.edges) - 1

    def column_of(self, times: Ints) -> Ints:
        """Return the index of the interval in which each time (ms) lies: below 0 before the first, at least `columns`
        after the last."""
        return np.searchsorted(self.edges, times, side="left") - 1


@dataclass(slots=True, frozen=True)
class Totals:
    """A sparse table of sums, with an entry for each cell that is not empty. The sum `whole[i]` + `fraction[i]` / 10^12
    is in row keys[i] // columns and column keys[i] % columns, where `columns` is that of the plan.

    Keys that `merged` returns are sorted, each once.
    """

    keys: Ints
    whole: Floats
    fraction: Ints

    @classmethod
    def merged(cls, parts: Sequence[Totals]) -> Totals:
        """Return the sums of all parts by key, in the order of the keys, each key once; `parts` has at least one."""
        keys = np.concatenate([part.keys for part in parts])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else keys
        if not len(starts):
            return cls(keys, np.zeros(0), np.zeros(0, dtype=np.int64))
        whole = np.add.reduceat(np.concatenate([part.whole for part in parts])[order], starts)
        fraction = np.add.reduceat(np.concatenate([part.fraction for part in parts])[order], starts)
        return cls(keys[starts], whole + fraction // _FRACTIONS, fraction % _FRACTIONS)

    @classmethod
    def from_increases(cls, keys: Ints, base: Floats, top: Floats) -> Totals:
        """Return the sums of single increases, at least one, each from `base` to `top` and none negative. Increases
        whose equal keys follow one another are added up. Equal keys with others between them are not, and keys stay in
        their order."""
        whole_base, whole_top = np.floor(base), np.floor(top)
        fraction = np.rint((top - whole_top) * _FRACTIONS) - np.rint((base - whole_base) * _FRACTIONS)
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return cls(
            keys[starts], np.add.reduceat(whole_top - whole_base, starts),
            np.add.reduceat(fraction.astype(np.int64), starts),
        )  # fmt: skip

    @property
    def values(self) -> Floats:
        """The totals as floating-point numbers."""
        return self.whole + self.fraction / _FRACTIONS


@dataclass(slots=True)
class AggregateResult:
    """The result of AggregatePass: the totals of each plan, gauge readings by the broker's number and the index of the
    interval, and the number of restarts of counters at all samples, also before the first edge."""

    totals: list[Totals]
    readings: dict[tuple[int, int], GaugeReading]
    restarts: int


@dataclass(slots=True, frozen=True)
class AggregatePass:
    """A function of one partition's series that computes the totals of all plans and reads gauges.

    `gauge` has, for each series in the order of the index, the number of the broker whose gauge it is, -1 for other
    series. Gauges are read by the intervals of the first plan, of which there must be one.
    """

    index: SeriesIndex
    plans: tuple[TotalsPlan, ...]
    gauge: Ints

    def __call__(self, batches: Iterable[SeriesBatch]) -> AggregateResult:
        """Return the totals, readings and restarts of the series in these batches."""
        pending: list[list[Totals]] = [[] for _ in self.plans]
        pending_count = 0
        result = AggregateResult([], {}, 0)
        for batch in batches:
            position = self.index.positions(batch)
            increases = compute_increases(batch, self.index)
            result.restarts += int(increases.restart.sum())
            for plan, parts in zip(self.plans, pending, strict=True):
                if (totals := _totals(plan, batch, plan.rows[position], increases)) is not None:
                    parts.append(totals)
                    pending_count += len(totals.keys)
            self._read_gauges(batch, self.gauge[position], result.readings)
            if pending_count > _MAX_PENDING:
                pending = [[Totals.merged(parts)] if parts else [] for parts in pending]
                pending_count = 0
        result.totals = [Totals.merged([_NO_TOTALS, *parts]) for parts in pending]
        return result

    def _read_gauges(self, batch: SeriesBatch, gauge: Ints, readings: dict[tuple[int, int], GaugeReading]) -> None:
        """Add the readings of a batch's gauges to `readings`, by the broker's number and the index of the interval.
        Samples outside of the first plan's intervals are left out.

        :param gauge: the number of the broker of each series of the batch, -1 for a series that is no gauge.
        """
        starts, plan = batch.starts, self.plans[0]
        for row in np.flatnonzero(gauge >= 0).tolist():
            inside = slice(int(starts[row]), int(starts[row] + batch.counts[row]))
            column = plan.column_of(batch.times[inside])
            for number in np.unique(column[(column >= 0) & (column < plan.columns)]).tolist():
                chosen = column == number
                reading = GaugeReading.from_samples(batch.times[inside][chosen], batch.values[inside][chosen])
                key = int(gauge[row]), number
                readings[key] = reading if key not in readings else readings[key].combined(reading)


_NO_TOTALS = Totals(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64))


def _totals(plan: TotalsPlan, batch: SeriesBatch, rows: Ints, increases: Increases) -> Totals | None:
    """Return the plan's totals of one batch, or None if no counted series rose within the plan's intervals.

    :param rows: the table row of each series of the batch, -1 for a series that is not counted.
    """
    counts = increases.top != increases.base
    if not (rows >= 0).all():
        counts &= np.repeat(rows >= 0, batch.counts)
    chosen = np.flatnonzero(counts)
    column = plan.column_of(batch.times[chosen])
    inside = (column >= 0) & (column < plan.columns)
    chosen, column = chosen[inside], column[inside]
    if not len(chosen):
        return None
    keys = np.repeat(rows, batch.counts)[chosen] * plan.columns + column
    return Totals.from_increases(keys, increases.base[chosen], increases.top[chosen])


def combine_results(parts: Sequence[AggregateResult]) -> AggregateResult:
    """Return the sum of the results of all partitions. Raises TooManyTotals if a plan has more than MAX_TOTALS
    totals."""
    totals = [Totals.merged([_NO_TOTALS, *each]) for each in zip(*(part.totals for part in parts), strict=True)]
    if any(len(each.keys) > MAX_TOTALS for each in totals):
        raise TooManyTotals(f"more than {MAX_TOTALS:,} totals: ask for longer rows or a shorter window")
    readings: dict[tuple[int, int], GaugeReading] = {}
    for part in parts:
        for key, reading in part.readings.items():
            readings[key] = reading if key not in readings else readings[key].combined(reading)
    return AggregateResult(totals, readings, sum(part.restarts for part in parts))
