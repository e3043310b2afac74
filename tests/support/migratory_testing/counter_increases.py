"""The increases of counters from sample to sample, computed by the product's SLA pipeline, for tests of that
pipeline."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from migratory_spark import metrics
from migratory_spark.aggregate.increases import SeriesIndex, compute_increases
from migratory_spark.aggregate.series_catalog import build_catalog
from migratory_spark.read.merge import SeriesBatch
from migratory_spark.read.samples import SampleSource
from migratory_spark.read.series_pack import SampleQuery
from migratory_spark.read.series_store import MAX_LOCAL_SAMPLES, open_store
from pyspark import cloudpickle
from pyspark.sql import SparkSession

# Spark's workers have the product installed, and not what tests share.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Increase(NamedTuple):
    """The rise of a series from the previous sample to the one at `timestamp` (ms)."""

    metric: str
    labels: dict[str, str]
    timestamp: int
    increase: float


@dataclass(frozen=True)
class IncreasesPass:
    """A pass over the merged series that returns (number of the series, time in ms, increase) for every sample. `index`
    groups the series."""

    index: SeriesIndex

    def __call__(self, batches: Iterable[SeriesBatch]) -> list[tuple[int, int, float]]:
        return [row for batch in batches for row in self._of(batch)]

    def _of(self, batch: SeriesBatch) -> Iterator[tuple[int, int, float]]:
        series = np.repeat(batch.series, batch.counts)
        yield from zip(
            series.tolist(), batch.times.tolist(), compute_increases(batch, self.index).increase.tolist(), strict=True
        )


def increases(
    session: SparkSession,
    source: SampleSource,
    start_ms: int,
    end_ms: int,
    metric_names: Iterable[str],
    max_local_samples: int = MAX_LOCAL_SAMPLES,
) -> list[Increase]:
    """Return the increases of the counters `metric_names` at samples with start < time <= end, ordered by metric, time
    and increase. Increases of 0 are included."""
    chosen = set(metric_names)
    start_series = {metrics.PROCESS_START, *(f"{metrics.family(metric)}_created" for metric in chosen)}
    store = open_store(
        session, source, SampleQuery(frozenset(chosen | start_series), -(2**62), end_ms), max_local_samples
    )
    try:
        catalog = build_catalog(store.stats, start_ms)
        rows = [row for part in store.run(IncreasesPass(catalog.index)) for row in part]
    finally:
        store.close()
    stats = {each.series: each for each in store.stats if each.metric in chosen}
    result = [
        Increase(stats[series].metric, stats[series].labels, moment, increase)
        for series, moment, increase in rows
        if series in stats and moment > start_ms
    ]
    return sorted(result, key=lambda each: (each.metric, each.timestamp, each.increase))
