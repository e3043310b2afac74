"""Samples read and merged once, kept for as many passes as a report needs: the one module that plans Spark's work.

What is read is put into packs where it is read (`packing.py`). Few samples come here and are merged here: a report of
them is one small job. Many are sent to as many places as there are tasks, merged there (`merging.py`), and stay there,
in memory or on disk; each pass runs where they are, and only its result, which depends on series and stretches of time,
comes back. Spark moves packs, never single samples.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from migratory_spark.read.merge import About, Flat, Merged, merge
from migratory_spark.read.samples import Read, Source
from migratory_spark.read.series_pack import Pack, Wanted, packs

FEW = 2_000_000
"""Samples that are merged where the report is made: 32 MB, some 200 MB while it lasts."""
_PLACE = 1_000_000
"""Samples of one place, about: what a task holds at once."""
_FEWEST, _UNKNOWN, _MOST = 8, 128, 2000
"""Places: at least, where nobody knows how many samples there are, and at most."""
_ABOUT, _WATCHED, _OTHERS = 0, 1, 2

_SETTINGS = {
    # Packs are of up to some megabytes.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.inMemoryColumnarStorage.batchSize": "8",
    # How many places there are is known.
    "spark.sql.adaptive.enabled": "false",
}
_UNCOMPILED = {
    # Rows are packs and series, few of them: compiling what handles them would cost more than it spares.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

Result = TypeVar("Result")
Pass = Callable[[Iterator[Flat]], Result]
"""What is done with the series of one place. It travels to executors, so it pickles."""


class Kept(ABC):
    """`about` tells of every series; `each` passes over their samples."""

    about: Sequence[About]

    @abstractmethod
    def each(self, work: Pass[Result], watched: bool = False) -> list[Result]:
        """The result of each place. `watched`: only the series that tell when exporters were scraped."""

    @abstractmethod
    def close(self) -> None:
        """Gives the room back."""


def keep(session: SparkSession, source: Source, wanted: Wanted, few: int = FEW) -> Kept:
    """Reads. Up to `few` samples are taken here."""
    if "metric" in source.frame.columns:
        # What nobody asks for does not even reach Python.
        source = replace(source, frame=source.frame.where(F.col("metric").isin(*wanted.metrics)))
    with _settings(session, source.frame.columns):
        if source.samples is not None and source.samples <= few:
            return Here(_fetched(source, wanted))
        return _Spread(session, source, wanted)


def _fetched(source: Source, wanted: Wanted) -> Merged:
    rows = source.frame.mapInArrow(partial(_packed, source.read, wanted), "pack binary").toArrow()
    return merge([_load(row) for row in rows["pack"]])


class Here(Kept):
    """All of it in this process, as one place; without Spark."""

    def __init__(self, merged: Merged) -> None:
        self.about = merged.about
        self._watched, self._others = merged.watched, merged.others

    def each(self, work: Pass[Result], watched: bool = False) -> list[Result]:
        whole = [self._watched] if watched else [self._watched, self._others]
        return [work(flat for flat in whole if len(flat.series))]

    def close(self) -> None:
        self._watched = self._others = merge([]).others


class _Spread(Kept):
    def __init__(self, session: SparkSession, source: Source, wanted: Wanted) -> None:
        self._session = session
        places = _UNKNOWN
        if source.samples is not None:
            places = min(_MOST, max(_FEWEST, source.samples // _PLACE))
        rows = source.frame.mapInArrow(partial(_sent, source.read, wanted, places), "place int, pack binary")
        rows = rows.repartitionById(places, F.col("place"))
        self._rows = rows.mapInArrow(_merged, "kind int, packed binary").persist(StorageLevel.MEMORY_AND_DISK)
        try:
            about = self._rows.where(F.col("kind") == _ABOUT).select("packed").toArrow()
        except BaseException:
            self.close()
            raise
        self.about = [one for row in about["packed"] for one in _load(row)]

    def each(self, work: Pass[Result], watched: bool = False) -> list[Result]:
        chosen = F.col("kind") == _WATCHED if watched else F.col("kind") != _ABOUT
        with _settings(self._session, self._rows.columns):
            rows = self._rows.where(chosen).select("packed").mapInArrow(partial(_done, work), "result binary").toArrow()
        return [_load(row) for row in rows["result"]]

    def close(self) -> None:
        self._rows.unpersist()


@contextmanager
def _settings(session: SparkSession, columns: Sequence[str]) -> Iterator[None]:
    """Those of this module, and afterwards what was there before: the session may be somebody else's."""
    settings = _SETTINGS if "timestamp" in columns else {**_SETTINGS, **_UNCOMPILED}
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in settings}
    for name, ours in settings.items():
        session.conf.set(name, ours)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


def _packed(read: Read, wanted: Wanted, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for pack in packs(read(batches), wanted):
        yield _batch(pack=[pack])


def _sent(read: Read, wanted: Wanted, places: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for pack in packs(read(batches), wanted):
        for place, part in pack.parts(places):
            row = _batch(pack=[part])
            yield pa.RecordBatch.from_arrays(
                [pa.array([place], pa.int32()), row.column(0)], names=["place", "pack"]
            )  # fmt: skip


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of one place."""
    received: list[Pack] = [_load(row) for batch in batches for row in batch.column("pack")]
    merged: Merged = merge(received)
    received.clear()
    yield _kept(_ABOUT, merged.about)
    for kind, flat in ((_WATCHED, merged.watched), (_OTHERS, merged.others)):
        for piece in flat.pieces():
            yield _kept(kind, piece)


def _kept(kind: int, what: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([kind], pa.int32()), _batch(packed=[what]).column(0)], names=["kind", "packed"]
    )


def _done(work: Pass[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield _batch(result=[work(_load(row) for batch in batches for row in batch.column(0))])


def _batch(**columns: Iterable[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {name: pa.array([pickle.dumps(value, 5) for value in values], pa.binary()) for name, values in columns.items()}
    )


def _load(row: Any) -> Any:
    # What Spark carries was written by `_batch` a moment ago, as all that travels between Spark's Python processes.
    return pickle.loads(row.as_buffer())
