"""Packing: rows of samples become packs, which hold each series once and its samples in flat arrays.

Both table shapes are read: a row per sample, and a row per series with arrays. Blocks of samples, as Prometheus servers
send them, are packed without a table. Metrics, times and clusters that a report does not need are dropped here, so that
later stages never see them. Uses Arrow and numpy only; runs on Spark's executors and anywhere else that yields record
batches or blocks.
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

from migratory_spark.metrics import SHARED, role_of
from migratory_spark.prometheus.blocks import SampleBlock, SeriesId

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PACK_SAMPLES = 1_000_000
"""Samples after which a pack is complete: 16 MB of arrays, and up to 0.9 GB while rows with labels are packed."""


@dataclass(slots=True, frozen=True)
class SampleQuery:
    """A selection of samples: of these metrics, in the time (after_ms, until_ms] (ms since 1970), and of one cluster
    (None for all).

    `replica_labels` are labels by which only servers that scrape the same targets differ. They do not identify a
    series.
    """

    metrics: frozenset[str]
    after_ms: int
    until_ms: int
    replica_labels: tuple[str, ...] = ()
    cluster: str | None = None

    def selects(self, metric: str, labels: dict[str, str]) -> bool:
        """Return whether the selection includes a series with this metric and these labels. Shared metrics may have no
        cluster label."""
        if metric not in self.metrics:
            return False
        cluster = labels.get("cluster")
        return self.cluster is None or cluster == self.cluster or (cluster is None and metric in SHARED)


@dataclass(slots=True, frozen=True)
class SeriesKey:
    """A series as one server exports it: metric, sorted labels without replica labels, and the name of the server
    (`source`, may be empty)."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    source: str

    @property
    def partition_key(self) -> int:
        """A 63-bit number by which series are distributed to partitions.

        It is equal for all series of one exporter that show when it was scraped, and for all series that are added up
        to one total.
        """
        return _partition_key(self)


def exporter_name(role: str, labels: dict[str, str]) -> str:
    """Return the name of a scraped target: the label `broker` for brokers, job and instance for others."""
    if role == "brokers":
        return labels.get("broker", "")
    return "/".join(filter(None, (labels.get("job", ""), labels.get("instance", ""))))


@dataclass(slots=True)
class SeriesPack:
    """Samples of many series in flat arrays: `counts[i]` of them belong to `keys[i]`, whose fingerprint (hash of metric
    and labels) is `series[i]`.

    Samples are in no order, values may be NaN, and a key may occur more than once. `times` are ms since 1970.
    """

    keys: list[SeriesKey]
    series: Ints
    counts: Ints
    times: Ints
    values: Floats

    def after(self, moment_ms: int) -> SeriesPack:
        """Return a pack of the samples later than `moment_ms`, without the series that have none."""
        later = self.times > moment_ms
        if later.all():
            return self
        counts = np.bincount(np.repeat(np.arange(len(self.keys)), self.counts)[later], minlength=len(self.keys))
        rows = np.flatnonzero(counts)
        keys = [self.keys[row] for row in rows.tolist()]
        return SeriesPack(keys, self.series[rows], counts[rows], self.times[later], self.values[later])

    def split(self, partitions: int) -> Iterator[tuple[int, SeriesPack]]:
        """Yield the number of each partition that has series here, with a pack of these series.

        :param partitions: the number of partitions.
        """
        partition = np.array([key.partition_key % partitions for key in self.keys], dtype=np.int64)
        starts = np.cumsum(self.counts) - self.counts
        for number in np.unique(partition).tolist():
            rows = np.flatnonzero(partition == number)
            samples = index_ranges(starts[rows], self.counts[rows])
            yield number, SeriesPack(
                [self.keys[row] for row in rows.tolist()], self.series[rows], self.counts[rows],
                self.times[samples], self.values[samples],
            )  # fmt: skip


@lru_cache(maxsize=1 << 17)
def _partition_key(key: SeriesKey) -> int:
    labels = dict(key.labels)
    role = role_of(key.metric)
    if role is None:
        parts = [key.metric, *(labels.get(label, "") for label in ("broker", "clock", "phase", "reason", "le"))]
    else:
        parts = [exporter_name(role, labels)]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@lru_cache(maxsize=1 << 17)
def _fingerprint(metric: str, labels: tuple[tuple[str, str], ...]) -> int:
    # Cached: a worker meets the same series in every pack.
    return SeriesId(metric, labels).fingerprint


def index_ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the indexes of all ranges, one range after the other; range i goes from starts[i] to starts[i] + counts[i]
    - 1."""
    before = np.cumsum(counts) - counts
    indexes: Ints = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(starts - before, counts)
    return indexes


def pack_batches(batches: Iterable[pa.RecordBatch], query: SampleQuery) -> Iterator[SeriesPack]:
    """Yield packs of the samples that `query` selects, each of about PACK_SAMPLES samples.

    Batches have the columns metric, labels, and either timestamp and value or timestamps and values. A column `source`
    is optional.
    """
    pending: list[pa.Table] = []
    samples = 0
    for batch in batches:
        table = pa.Table.from_batches([batch])
        table = table.filter(pc.is_in(table["metric"], pa.array(sorted(query.metrics))))
        if "timestamp" in table.column_names:
            inside = pc.and_(
                pc.greater(table["timestamp"], query.after_ms), pc.less_equal(table["timestamp"], query.until_ms)
            )
            table = table.filter(inside)
            samples += table.num_rows
        else:
            samples += pc.sum(pc.list_value_length(table["timestamps"])).as_py() or 0
        pending.append(table)
        if samples >= PACK_SAMPLES:
            yield _pack(pending, query)
            pending, samples = [], 0
    if samples:
        yield _pack(pending, query)


def pack_blocks(blocks: Iterable[SampleBlock], query: SampleQuery) -> Iterator[SeriesPack]:
    """Yield packs of the samples that `query` selects, each of about PACK_SAMPLES samples. The block's `source` tells
    several servers apart."""
    pending: list[SeriesPack] = []
    samples = 0
    for block in blocks:
        pending.append(_pack_block(block, query))
        samples += len(pending[-1].times)
        if samples >= PACK_SAMPLES:
            yield _joined(pending)
            pending, samples = [], 0
    if samples:
        yield _joined(pending)


def _pack_block(block: SampleBlock, query: SampleQuery) -> SeriesPack:
    source = block.source
    # Both ends of a block's interval differ from those of a query's: it includes its start and excludes its end.
    block = block.between(query.after_ms + 1, query.until_ms + 1)
    keys = [_series_key(series_id, source, query) for series_id in block.series]
    selected = np.array([key is not None for key in keys], dtype=bool)
    selected_keys = [key for key in keys if key is not None]
    series = np.array([_fingerprint(key.metric, key.labels) for key in selected_keys], dtype=np.int64)
    if selected.all():
        return SeriesPack(selected_keys, series, block.counts, block.times, block.values)
    samples = index_ranges((np.cumsum(block.counts) - block.counts)[selected], block.counts[selected])
    return SeriesPack(selected_keys, series, block.counts[selected], block.times[samples], block.values[samples])


def _joined(packs: Sequence[SeriesPack]) -> SeriesPack:
    series, counts, times, values = (
        np.concatenate([getattr(pack, name) for pack in packs]) for name in ("series", "counts", "times", "values")
    )
    return SeriesPack([key for pack in packs for key in pack.keys], series, counts, times, values)


def _pack(tables: Sequence[pa.Table], query: SampleQuery) -> SeriesPack:
    # Files with and without the column `source` may lie in one folder.
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    if "timestamp" in table.column_names:
        rows, counts, order = _group_rows(table)
        times, values = _to_numpy(table["timestamp"])[order], _to_numpy(table["value"])[order]
    else:
        rows, lists = np.arange(table.num_rows), _as_array(table["timestamps"])
        counts = _to_numpy(pc.list_value_length(lists)).astype(np.int64)
        times, values = _to_numpy(lists.flatten()), _to_numpy(_as_array(table["values"]).flatten())
        inside = (times > query.after_ms) & (times <= query.until_ms)
        if not inside.all():
            row = np.repeat(rows, counts)[inside]
            counts, times, values = np.bincount(row, minlength=len(rows)), times[inside], values[inside]
    keys = list(_series_keys(table.take(pa.array(rows)), query))
    selected = np.array([counts[row] > 0 and key is not None for row, key in enumerate(keys)], dtype=bool)
    samples = index_ranges((np.cumsum(counts) - counts)[selected], counts[selected])
    selected_keys = [key for key, chosen in zip(keys, selected.tolist(), strict=True) if chosen and key is not None]
    series = np.array([_fingerprint(key.metric, key.labels) for key in selected_keys], dtype=np.int64)
    return SeriesPack(selected_keys, series, counts[selected].astype(np.int64), times[samples], values[samples])


def _series_keys(table: pa.Table, query: SampleQuery) -> Iterator[SeriesKey | None]:
    """Yield the key of each row, or None for a row that the query does not select."""
    sources = table["source"].to_pylist() if "source" in table.column_names else None
    metrics, label_rows = table["metric"].to_pylist(), table["labels"].to_pylist()
    for row, (metric, pairs) in enumerate(zip(metrics, label_rows, strict=True)):
        # A label with an empty value is no label, as in Prometheus.
        labels = tuple(sorted(pair for pair in pairs or () if pair[1]))
        yield _series_key(SeriesId(metric, labels), (sources[row] or "") if sources is not None else "", query)


@lru_cache(maxsize=1 << 17)
def _series_key(series_id: SeriesId, source: str, query: SampleQuery) -> SeriesKey | None:
    """Return the key of a series that a server (`source`) exports, or None if the query does not select it."""
    # Cached: a worker meets the same series in every pack.
    labels = dict(series_id.labels)
    if not query.selects(series_id.metric, labels):
        return None
    replicas = [labels.pop(name, "") for name in query.replica_labels]
    servers = (source, *replicas) if source else replicas
    return SeriesKey(series_id.metric, tuple(labels.items()), "/".join(servers))


def _group_rows(table: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Group rows of single samples by metric, labels and source.

    Return the index of one row of each series, the number of its samples, and the order of rows in which the samples of
    each series follow one another. Series are told apart by a 64-bit hash: with a million series in a pack, two collide
    in one of 30 million packs.
    """
    labels = _as_array(table["labels"])
    offsets = _to_numpy(labels.offsets).astype(np.int64)
    inside = slice(int(offsets[0]), int(offsets[-1]))
    pairs = _codes(labels.keys[inside]) * np.uint64(0x9E3779B97F4A7C15) + _codes(labels.items[inside])
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(_mix_bits(pairs), dtype=np.uint64)))
    offsets = offsets - offsets[0]
    # A sum does not depend on the order of the labels. Differences of sums that wrap around are still right.
    hashed = sums[offsets[1:]] - sums[offsets[:-1]]
    for name in ("metric", "source"):
        if name in table.column_names:
            hashed = _mix_bits(hashed * np.uint64(0xD6E8FEB86659FD93) + _codes(_as_array(table[name])))
    _, rows, number = np.unique(hashed, return_index=True, return_inverse=True)
    return rows, np.bincount(number, minlength=len(rows)), np.argsort(number, kind="stable")


def _mix_bits(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return hashes in which each input bit affects each output bit (the finalizer of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _codes(texts: pa.Array) -> npt.NDArray[np.uint64]:
    return _to_numpy(texts.dictionary_encode(null_encoding="encode").indices).astype(np.uint64)


def _as_array(column: pa.ChunkedArray) -> Any:
    """Return the only chunk of a column whose chunks were combined; an empty array if the column has none."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _to_numpy(column: Any) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy())
