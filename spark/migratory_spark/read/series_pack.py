"""Rows of samples to packs: each series once with its labels, its samples in flat arrays.

Tables of both shapes are read, a row per sample or a row per series with arrays. What a report does not ask for is left
out here, so nothing later meets it. Arrow and numpy alone; runs on executors and wherever else batches come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from migratory_spark.metrics import SHARED, role
from migratory_spark.prometheus.blocks import Series

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PACK = 1_000_000
"""Samples of a pack at least, where there are as many: 16 MB, and up to 0.9 GB while rows with labels are packed."""


@dataclass(slots=True, frozen=True)
class Wanted:
    """What is to be read: these metrics, after < time <= until in ms, of one `cluster` or of all (None).

    `replica_labels` tell servers apart that scrape the same targets; they are no part of a series.
    """

    metrics: frozenset[str]
    after_ms: int
    until_ms: int
    replica_labels: tuple[str, ...] = ()
    cluster: str | None = None

    def named(self, metric: str, labels: dict[str, str]) -> bool:
        if metric not in self.metrics:
            return False
        cluster = labels.get("cluster")
        return self.cluster is None or cluster == self.cluster or (cluster is None and metric in SHARED)


@dataclass(slots=True, frozen=True)
class Name:
    """A series as one server tells it: `labels` without those of replicas, `source` is the server."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    source: str

    @property
    def place(self) -> int:
        """A number that is equal for series that are looked at together: those that tell when an exporter was scraped,
        and those that are added up to one sum. 63 bits."""
        return _place(self)


def exporter(told: str, labels: dict[str, str]) -> str:
    """What a scraped target is called: a broker by its label, others by job and instance."""
    if told == "brokers":
        return labels.get("broker", "")
    return "/".join(filter(None, (labels.get("job", ""), labels.get("instance", ""))))


@dataclass(slots=True)
class Pack:
    """`counts[i]` of the samples belong to `names[i]`, whose series is numbered `series[i]`. In no order, not a number
    among the values; a name may come more than once."""

    names: list[Name]
    series: Ints
    counts: Ints
    times: Ints
    values: Floats

    def parts(self, places: int) -> Iterator[tuple[int, Pack]]:
        """What belongs to each of so many places."""
        place = np.array([name.place % places for name in self.names], dtype=np.int64)
        starts = np.cumsum(self.counts) - self.counts
        for number in np.unique(place).tolist():
            rows = np.flatnonzero(place == number)
            samples = ranges(starts[rows], self.counts[rows])
            yield number, Pack(
                [self.names[row] for row in rows.tolist()], self.series[rows], self.counts[rows],
                self.times[samples], self.values[samples],
            )  # fmt: skip


@lru_cache(maxsize=1 << 17)
def _place(name: Name) -> int:
    labels = dict(name.labels)
    told = role(name.metric)
    if told is None:
        parts = [name.metric, *(labels.get(label, "") for label in ("broker", "clock", "phase", "reason", "le"))]
    else:
        parts = [exporter(told, labels)]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@lru_cache(maxsize=1 << 17)
def _identity(metric: str, labels: tuple[tuple[str, str], ...]) -> int:
    """A worker meets the same series again in every pack."""
    return Series(metric, labels).identity


def ranges(starts: Ints, counts: Ints) -> Ints:
    """The numbers of start to start + count, one range after the other."""
    before = np.cumsum(counts) - counts
    places: Ints = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(starts - before, counts)
    return places


def packs(batches: Iterable[pa.RecordBatch], wanted: Wanted) -> Iterator[Pack]:
    """Of batches with the columns metric, labels, timestamp, value, or timestamps and values; `source` may be there."""
    held: list[pa.Table] = []
    samples = 0
    for batch in batches:
        table = pa.Table.from_batches([batch])
        table = table.filter(pc.is_in(table["metric"], pa.array(sorted(wanted.metrics))))
        if "timestamp" in table.column_names:
            inside = pc.and_(
                pc.greater(table["timestamp"], wanted.after_ms), pc.less_equal(table["timestamp"], wanted.until_ms)
            )
            table = table.filter(inside)
            samples += table.num_rows
        else:
            samples += pc.sum(pc.list_value_length(table["timestamps"])).as_py() or 0
        held.append(table)
        if samples >= PACK:
            yield _pack(held, wanted)
            held, samples = [], 0
    if samples:
        yield _pack(held, wanted)


def _pack(tables: Sequence[pa.Table], wanted: Wanted) -> Pack:
    # Files with the column `source` and without it may lie beside each other.
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    if "timestamp" in table.column_names:
        rows, counts, order = _series(table)
        times, values = _numbers(table["timestamp"])[order], _numbers(table["value"])[order]
    else:
        rows, lists = np.arange(table.num_rows), _array(table["timestamps"])
        counts = _numbers(pc.list_value_length(lists)).astype(np.int64)
        times, values = _numbers(lists.flatten()), _numbers(_array(table["values"]).flatten())
        inside = (times > wanted.after_ms) & (times <= wanted.until_ms)
        if not inside.all():
            row = np.repeat(rows, counts)[inside]
            counts, times, values = np.bincount(row, minlength=len(rows)), times[inside], values[inside]
    chosen = table.take(pa.array(rows))
    names = list(_names(chosen, wanted))
    kept = np.array([counts[place] > 0 and name is not None for place, name in enumerate(names)], dtype=bool)
    samples = ranges((np.cumsum(counts) - counts)[kept], counts[kept])
    left = [name for name, keep in zip(names, kept.tolist(), strict=True) if keep and name is not None]
    series = np.array([_identity(name.metric, name.labels) for name in left], dtype=np.int64)
    return Pack(left, series, counts[kept].astype(np.int64), times[samples], values[samples])


def _names(chosen: pa.Table, wanted: Wanted) -> Iterator[Name | None]:
    """Of each row; None for one that is not wanted."""
    sources = chosen["source"].to_pylist() if "source" in chosen.column_names else None
    metrics, rows = chosen["metric"].to_pylist(), chosen["labels"].to_pylist()
    for place, (metric, pairs) in enumerate(zip(metrics, rows, strict=True)):
        # A label without a value is none, as for a Prometheus.
        labels = {name: value for name, value in pairs or () if value}
        if not wanted.named(metric, labels):
            yield None
            continue
        replicas = [labels.pop(name, "") for name in wanted.replica_labels]
        told = () if sources is None else (sources[place] or "",)
        yield Name(metric, tuple(sorted(labels.items())), "/".join((*told, *replicas)))


def _series(table: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Rows of single samples by metric, labels and source: a row of each series, how many it has, and the order in
    which samples of one follow one another.

    Rows are told apart by a 64-bit hash of the numbers of their texts: of a million series in one pack, two would be
    taken for one in 30 million packs.
    """
    labels = _array(table["labels"])
    offsets = _numbers(labels.offsets).astype(np.int64)
    inside = slice(int(offsets[0]), int(offsets[-1]))
    pairs = _codes(labels.keys[inside]) * np.uint64(0x9E3779B97F4A7C15) + _codes(labels.items[inside])
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(_mixed(pairs), dtype=np.uint64)))
    offsets = offsets - offsets[0]
    # In whatever order the labels come; differences of sums that wrap around are right.
    hashed = sums[offsets[1:]] - sums[offsets[:-1]]
    for name in ("metric", "source"):
        if name in table.column_names:
            hashed = _mixed(hashed * np.uint64(0xD6E8FEB86659FD93) + _codes(_array(table[name])))
    _, rows, number = np.unique(hashed, return_index=True, return_inverse=True)
    return rows, np.bincount(number, minlength=len(rows)), np.argsort(number, kind="stable")


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every bit of a number has a say in every bit of the result (the end of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _codes(texts: pa.Array) -> npt.NDArray[np.uint64]:
    return _numbers(texts.dictionary_encode(null_encoding="encode").indices).astype(np.uint64)


def _array(column: pa.ChunkedArray) -> Any:
    """Of a table whose chunks were combined."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _numbers(column: Any) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy())
