"""The increase of counters from sample to sample, as a report adds them up."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from migratory_spark import metrics
from migratory_spark.aggregate.increases import Guide, rises
from migratory_spark.aggregate.series_catalog import catalogue
from migratory_spark.read.merge import Flat
from migratory_spark.read.samples import Source
from migratory_spark.read.series_pack import Wanted
from migratory_spark.read.series_store import FEW, keep
from pyspark import cloudpickle
from pyspark.sql import SparkSession

# Spark's workers have the product installed, and not what tests share.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Rise(NamedTuple):
    metric: str
    labels: dict[str, str]
    timestamp: int
    rise: float


@dataclass(frozen=True)
class Each:
    """A pass over the samples that returns (series, time, increase) of every sample."""

    guide: Guide

    def __call__(self, flats: Iterable[Flat]) -> list[tuple[int, int, float]]:
        return [row for flat in flats for row in self._of(flat)]

    def _of(self, flat: Flat) -> Iterator[tuple[int, int, float]]:
        series = np.repeat(flat.series, flat.counts)
        yield from zip(series.tolist(), flat.times.tolist(), rises(flat, self.guide).rise.tolist(), strict=True)


def increases(
    session: SparkSession, source: Source, start_ms: int, end_ms: int, metric_names: Iterable[str], few: int = FEW
) -> list[Rise]:
    """Return the increases of samples with start < time <= end, ordered by metric and time. Increases of 0 are among
    them."""
    chosen = set(metric_names)
    told = {metrics.PROCESS_START, *(f"{metrics.family(metric)}_created" for metric in chosen)}
    kept = keep(session, source, Wanted(frozenset(chosen | told), -(2**62), end_ms), few)
    try:
        known = catalogue(kept.about, start_ms)
        rows = [row for part in kept.each(Each(known.guide)) for row in part]
    finally:
        kept.close()
    about = {one.series: one for one in kept.about if one.metric in chosen}
    found = [
        Rise(about[series].metric, about[series].labels, moment, rise)
        for series, moment, rise in rows
        if series in about and moment > start_ms
    ]
    return sorted(found, key=lambda each: (each.metric, each.timestamp, each.rise))
