"""The series store: reads and merges the samples of a report once, and holds them for as many passes as the report
needs.

This is the only module that plans Spark's work. Samples are packed where they are read (`series_pack.py`). Few samples
are fetched and merged in this process, so that a small report is one small job. Many samples are sent to partitions of
about a million each, merged there (`merge.py`), and stay there in memory or on disk. Each pass runs on the partitions,
and only its result comes back, whose size depends on series and intervals. Spark moves packs, never single samples. The
caller that opens a store says how many samples it will hold, because thinned ones are few (`sample_reader.py`).

A report may need several stores: for windows that begin at different times, each of which must see what a report over
it alone would see. Samples are read once for all of them and merged for each.
"""

from __future__ import annotations

import pickle
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from migratory_spark.read.merge import MergedSeries, NotMergeable, SeriesBatch, SeriesStats, merge_packs
from migratory_spark.read.samples import PackRows, SampleSource
from migratory_spark.read.series_pack import SampleQuery, SeriesKey, SeriesPack

MAX_LOCAL_SAMPLES = 6_000_000
"""Samples up to which the work is done in this process: 100 MB, and some 600 MB while they are merged."""
_PARTITION_SAMPLES = 1_000_000
"""The approximate number of samples of one partition, which a task holds in memory."""
_MIN_PARTITIONS, _DEFAULT_PARTITIONS, _MAX_PARTITIONS = 8, 128, 2000
"""The smallest number of partitions, their number if that of the samples is unknown, and the largest."""
_STATS, _TIMELINE, _OTHERS = 0, 1, 2
"""Kinds of row in the stored table."""

_SETTINGS = {
    # Packs have up to some megabytes.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.inMemoryColumnarStorage.batchSize": "8",
    # The number of partitions is known.
    "spark.sql.adaptive.enabled": "false",
}
_UNCOMPILED = {
    # Rows are few (packs and series): compiling the code that handles them would cost more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

PassResult = TypeVar("PassResult")
Pass = Callable[[Iterator[SeriesBatch]], PassResult]
"""Work on the series of one partition. It is sent to executors and must pickle."""


class SeriesStore(ABC):
    """The merged series of a report, in one or more partitions. `stats` describes each series, also one without
    samples. `run` executes a pass over their samples."""

    stats: Sequence[SeriesStats]

    @abstractmethod
    def run(self, work: Pass[PassResult], timeline_only: bool = False) -> list[PassResult]:
        """Run `work` on the batches of each partition's series, and return the result of each partition.

        :param timeline_only: True to pass only over series that show when exporters were scraped.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the memory and disk that the samples take. The store can't be used after that."""


def open_store(
    session: SparkSession, source: SampleSource, query: SampleQuery, max_local_samples: int = MAX_LOCAL_SAMPLES
) -> SeriesStore:
    """Read and merge the samples that `query` selects, and return the store that holds them: in this process if the
    source is known to have at most `max_local_samples`, else in Spark's executors. Raises NotMergeable if the query has
    cells and the samples cannot be thinned."""
    here = source.samples is not None and source.samples <= max_local_samples
    return open_stores(session, source, query, [query.after_ms], source.samples, here)[0]


def open_stores(
    session: SparkSession,
    source: SampleSource,
    query: SampleQuery,
    after_ms: Sequence[int],
    expected: int | None,
    here: bool,
) -> list[SeriesStore]:
    """Read the samples that `query` selects once, and return a store for each moment of `after_ms` (ms since 1970) with
    the samples after it. Stores in Spark's executors share their memory: closing one of them frees the samples of all.

    :param expected: the approximate number of samples that the stores will hold, None if unknown. The number of
        partitions follows from it.
    :param here: True for stores in this process, False for stores in Spark's executors.
    :raises NotMergeable: the query has cells, and a series comes from several servers or in parts that overlap in time.
    """
    if "metric" in source.frame.columns:
        # Spark filters metrics before rows reach Python.
        source = replace(source, frame=source.frame.where(F.col("metric").isin(*query.metrics)))
    if here and source.tasks is not None:
        return local_stores(_fetch_packs(session, source.pack, query, source.tasks), after_ms)
    with _settings(session, source.frame.columns):
        if here:
            rows = source.frame.mapInArrow(partial(_pack_rows, source.pack, query), "pack binary").toArrow()
            return local_stores([_load(row) for row in rows["pack"]], after_ms)
        return _spark_stores(session, source, query, after_ms, expected)


def _fetch_packs(session: SparkSession, pack_rows: PackRows, query: SampleQuery, tasks: int) -> list[SeriesPack]:
    """Return the packs of all tasks. Run them as a plain job of Spark, which starts in less time than one with tables.

    :param tasks: the number of tasks; `pack_rows` gets the number of each.
    """
    numbers = session.sparkContext.parallelize(range(tasks), tasks)
    fetched = numbers.mapPartitions(partial(_packs_of_tasks, pack_rows, query)).collect()
    keys: dict[bytes, list[SeriesKey]] = {}
    packs = []
    for keys_row, row in fetched:
        # Most tasks have the same series.
        if keys_row not in keys:
            keys[keys_row] = pickle.loads(zlib.decompress(keys_row))
        packs.append(replace(pickle.loads(row), keys=keys[keys_row]))
    return packs


def _packs_of_tasks(pack_rows: PackRows, query: SampleQuery, numbers: Iterator[int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each pack of the tasks with these numbers: its keys, pickled and compressed, and the pickled pack without
    them."""
    batches = (pa.RecordBatch.from_pydict({"id": [number]}) for number in numbers)
    for pack in pack_rows(batches, query):
        # Labels are many times as long as thinned samples, and much the same.
        yield zlib.compress(pickle.dumps(pack.keys, 5), 1), pickle.dumps(replace(pack, keys=[]), 5)


def local_stores(packs: Sequence[SeriesPack], after_ms: Sequence[int]) -> list[SeriesStore]:
    """Return a store in this process for each moment (ms since 1970), with the packs' samples after it. Raises
    NotMergeable."""
    return [LocalSeriesStore(merge_packs([pack.after(moment) for pack in packs])) for moment in after_ms]


def _spark_stores(
    session: SparkSession, source: SampleSource, query: SampleQuery, after_ms: Sequence[int], expected: int | None
) -> list[SeriesStore]:
    """Read the samples, send them to partitions, merge them there for each moment of `after_ms`, and return the stores.
    The parameters are those of `open_stores`. Raises NotMergeable, and then frees what was stored."""
    partitions = _DEFAULT_PARTITIONS
    if expected is not None:
        partitions = min(_MAX_PARTITIONS, max(_MIN_PARTITIONS, expected // _PARTITION_SAMPLES))
    packs = source.frame.mapInArrow(
        partial(_pack_by_partition, source.pack, query, partitions), "partition int, pack binary"
    ).repartitionById(partitions, F.col("partition"))
    rows = packs.mapInArrow(partial(_merge_partition, tuple(after_ms)), "store int, kind int, content binary").persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        return [_SparkSeriesStore(session, rows, number) for number in range(len(after_ms))]
    except BaseException:
        rows.unpersist()
        raise


class JoinedSeriesStore(SeriesStore):
    """The stores of several parts of the series as one store. A pass runs on each part, and closing it closes all
    parts."""

    def __init__(self, parts: Sequence[SeriesStore]) -> None:
        self._parts = parts
        self.stats = [series for part in parts for series in part.stats]

    def run(self, work: Pass[PassResult], timeline_only: bool = False) -> list[PassResult]:
        return [result for part in self._parts for result in part.run(work, timeline_only)]

    def close(self) -> None:
        for part in self._parts:
            part.close()


class LocalSeriesStore(SeriesStore):
    """The store for few samples: this process holds them as one partition and runs every pass itself, without Spark."""

    def __init__(self, merged: MergedSeries) -> None:
        self.stats = merged.stats
        self._timeline, self._others = merged.timeline, merged.others

    def run(self, work: Pass[PassResult], timeline_only: bool = False) -> list[PassResult]:
        batches = [self._timeline] if timeline_only else [self._timeline, self._others]
        return [work(piece for batch in batches for piece in batch.split())]

    def close(self) -> None:
        self._timeline = self._others = merge_packs([]).others


class _SparkSeriesStore(SeriesStore):
    """A store whose samples are in Spark's executors: the rows with its number in the table `rows`, which other stores
    share. Creating the first one runs the job that reads and merges. Raises NotMergeable if a partition could not be
    merged."""

    def __init__(self, session: SparkSession, rows: DataFrame, number: int) -> None:
        self._session, self._all_rows = session, rows
        self._rows = rows.where(F.col("store") == number)
        stats = self._rows.where(F.col("kind") == _STATS).select("content").toArrow()
        parts = [_load(row) for row in stats["content"]]
        if any(part is None for part in parts):
            raise NotMergeable("parts of a series overlap in time")
        self.stats = [series for part in parts for series in part]

    def run(self, work: Pass[PassResult], timeline_only: bool = False) -> list[PassResult]:
        chosen = F.col("kind") == _TIMELINE if timeline_only else F.col("kind") != _STATS
        with _settings(self._session, self._rows.columns):
            content = self._rows.where(chosen).select("content")
            rows = content.mapInArrow(partial(_run_pass, work), "result binary").toArrow()
        return [_load(row) for row in rows["result"]]

    def close(self) -> None:
        self._all_rows.unpersist()


@contextmanager
def _settings(session: SparkSession, columns: Sequence[str]) -> Iterator[None]:
    """A context that applies this module's settings to the session and restores the previous ones, because the session
    may belong to the caller.

    :param columns: the columns of the table that is processed. Unless they have single samples, Spark does not compile
        code.
    """
    settings = _SETTINGS if "timestamp" in columns else {**_SETTINGS, **_UNCOMPILED}
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in settings}
    for name, setting in settings.items():
        session.conf.set(name, setting)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


def _pack_rows(pack_rows: PackRows, query: SampleQuery, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each pack of the rows in `batches`, with the pickled pack."""
    for pack in pack_rows(batches, query):
        yield _pickled_batch(pack=[pack])


def _pack_by_partition(
    pack_rows: PackRows, query: SampleQuery, partitions: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each pack and partition that has series of it: the partition's number, and a pickled pack of
    these series."""
    for pack in pack_rows(batches, query):
        for partition, part in pack.split(partitions):
            row = _pickled_batch(pack=[part])
            yield pa.RecordBatch.from_arrays(
                [pa.array([partition], pa.int32()), row.column(0)], names=["partition", "pack"]
            )  # fmt: skip


def _merge_partition(after_ms: Sequence[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge the packs of one partition for each moment of `after_ms`, and yield the rows to be stored: statistics, and
    batches of the timeline and of other series. The row of statistics has None if the packs cannot be merged."""
    packs: list[SeriesPack] = [_load(row) for batch in batches for row in batch.column("pack")]
    for store, moment in enumerate(after_ms):
        try:
            merged: MergedSeries = merge_packs([pack.after(moment) for pack in packs])
        except NotMergeable:
            yield _stored_row(store, _STATS, None)
            continue
        if store == len(after_ms) - 1:
            packs.clear()
        yield _stored_row(store, _STATS, merged.stats)
        for kind, series in ((_TIMELINE, merged.timeline), (_OTHERS, merged.others)):
            for piece in series.split():
                yield _stored_row(store, kind, piece)


def _stored_row(store: int, kind: int, content: object) -> pa.RecordBatch:
    """Return a row of the stored table: number of the store, kind (_STATS, _TIMELINE or _OTHERS), pickled content."""
    return pa.RecordBatch.from_arrays(
        [pa.array([store], pa.int32()), pa.array([kind], pa.int32()), _pickled_batch(content=[content]).column(0)],
        names=["store", "kind", "content"],
    )


def _run_pass(work: Pass[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a pass on the batches stored in one partition, and yield one row with its pickled result."""
    yield _pickled_batch(result=[work(_load(row) for batch in batches for row in batch.column(0))])


def _pickled_batch(**columns: Iterable[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {name: pa.array([pickle.dumps(value, 5) for value in values], pa.binary()) for name, values in columns.items()}
    )


def _load(row: Any) -> Any:
    # Trusted: `_pickled_batch` wrote it in this job, as Spark's own Python processes exchange pickles.
    return pickle.loads(row.as_buffer())
