"""Packing: rows of samples become packs, which hold each series once and its samples in flat arrays.

Both table shapes are read: a row per sample, and a row per series with arrays. Blocks of samples, as Prometheus servers
send them, are packed without a table. Metrics, times and clusters that a report does not need are dropped here, so that
later stages never see them. With a query that has cells, samples are also thinned here. Uses Arrow and numpy only; runs
on Spark's executors and anywhere else that yields record batches or blocks.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from migratory_spark.metrics import SHARED, role_of
from migratory_spark.prometheus.blocks import SampleBlock, SeriesId
from migratory_spark.read.thinning import Cells, needed

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PACK_SAMPLES = 1_000_000
"""Samples after which a pack is complete: 16 MB of arrays, and up to 0.9 GB while rows with labels are packed."""
LARGE_ROWS = 250_000
"""Rows from which on a batch is a pack of its own. Smaller ones are put together first, because each pack has every
series once."""
_MAX_KNOWN = 1 << 17
"""Series that a worker remembers."""
_MAX_TABLE = 1 << 20
"""Hashes of pairs of label and value that are computed once for a batch."""


@dataclass(slots=True, frozen=True)
class SampleQuery:
    """A selection of samples: of these metrics, in the time (after_ms, until_ms] (ms since 1970), and of one cluster
    (None for all).

    `replica_labels` are labels by which only servers that scrape the same exporters differ. They do not identify a
    series. If `cells` is not None, all metrics must be counters, and samples that a report does not need are left out
    (`thinning.py`).
    """

    metrics: frozenset[str]
    after_ms: int
    until_ms: int
    replica_labels: tuple[str, ...] = ()
    cluster: str | None = None
    cells: Cells | None = field(default=None, compare=False)

    def selects(self, metric: str, labels: dict[str, str]) -> bool:
        """Return whether the selection includes a series with this metric and these labels, whatever the times of its
        samples. A shared metric (`metrics.SHARED`) without the label `cluster` belongs to every cluster."""
        if metric not in self.metrics:
            return False
        cluster = labels.get("cluster")
        return self.cluster is None or cluster == self.cluster or (cluster is None and metric in SHARED)


@dataclass(slots=True, frozen=True)
class SeriesKey:
    """A series as one server has it: metric, sorted labels without replica labels, and the name of the server. That
    name (`source`) consists of the server's URL and the values of the replica labels, joined by slashes; it may be
    empty."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    source: str

    @property
    def partition_key(self) -> int:
        """A 63-bit number by which series are distributed to partitions.

        It is equal for all series of one exporter that show when it was scraped (`metrics.role_of` knows a role). For
        other series it is equal if they have the same metric and the same labels broker, clock, phase, reason and le,
        because their increases are added up.
        """
        return _partition_key(self)


def exporter_name(role: str, labels: dict[str, str]) -> str:
    """Return the name of an exporter of this role, from the labels of one of its series: the label `broker` for
    brokers, job and instance for others, joined by a slash. Labels that are missing are left out; the name may be
    empty."""
    if role == "brokers":
        return labels.get("broker", "")
    return "/".join(filter(None, (labels.get("job", ""), labels.get("instance", ""))))


@dataclass(slots=True)
class SeriesPack:
    """Samples of many series in flat arrays: `counts[i]` of them belong to `keys[i]`, whose fingerprint (hash of metric
    and labels) is `series[i]`.

    Samples are in no order, values may be NaN, and a key may occur more than once. `times` are ms since 1970. In a
    thinned pack the samples of each series are in the order of time, and `weights` says for how many samples each of
    them stands: itself and those before it that were left out. `weights` is None in a pack that is not thinned.
    """

    keys: list[SeriesKey]
    series: Ints
    counts: Ints
    times: Ints
    values: Floats
    weights: Ints | None = None

    def after(self, moment_ms: int) -> SeriesPack:
        """Return a pack of the samples later than `moment_ms` (ms since 1970), without the series that have none."""
        later = self.times > moment_ms
        if later.all():
            return self
        counts = np.bincount(np.repeat(np.arange(len(self.keys)), self.counts)[later], minlength=len(self.keys))
        rows = np.flatnonzero(counts)
        keys = [self.keys[row] for row in rows.tolist()]
        weights = None if self.weights is None else self.weights[later]
        return SeriesPack(keys, self.series[rows], counts[rows], self.times[later], self.values[later], weights)

    def thinned(self, cells: Cells) -> SeriesPack:
        """Return a pack of the samples that a report needs, in the order of time within each series, with their
        weights. All series must be counters with at least one sample."""
        if not len(self.times):
            return replace(self, weights=np.zeros(0, dtype=np.int64))
        times, values = self.times, self.values
        ends = np.cumsum(self.counts)
        in_order = times[1:] >= times[:-1]
        in_order[ends[:-1] - 1] = True
        if not in_order.all():
            order = np.lexsort((values, times, np.repeat(np.arange(len(self.counts)), self.counts)))
            times, values = times[order], values[order]
        kept = np.flatnonzero(needed(self.counts, times, values, cells))
        counts = np.diff(np.searchsorted(kept, ends), prepend=0)
        return SeriesPack(self.keys, self.series, counts, times[kept], values[kept], np.diff(kept, prepend=-1))

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
                self.times[samples], self.values[samples], None if self.weights is None else self.weights[samples],
            )  # fmt: skip


@lru_cache(maxsize=1 << 17)
def _partition_key(key: SeriesKey) -> int:
    """Return the number that `SeriesKey.partition_key` describes."""
    labels = dict(key.labels)
    role = role_of(key.metric)
    if role is None:
        parts = [key.metric, *(labels.get(label, "") for label in ("broker", "clock", "phase", "reason", "le"))]
    else:
        parts = [exporter_name(role, labels)]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def index_ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the indexes of all ranges, one range after the other; range i has counts[i] indexes, from starts[i] on."""
    before = np.cumsum(counts) - counts
    indexes: Ints = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(starts - before, counts)
    return indexes


def pack_batches(batches: Iterable[pa.RecordBatch | pa.Table], query: SampleQuery) -> Iterator[SeriesPack]:
    """Yield packs of the samples that `query` selects. Rows are put together until they have PACK_SAMPLES samples of
    the query's metrics; a batch of at least LARGE_ROWS rows with single samples is a pack of its own.

    Batches have the columns metric, labels, and either timestamp and value or timestamps and values. A column `source`
    is optional. Texts may be dictionaries; then a table has a single chunk.
    """
    pending: list[pa.Table] = []
    samples = 0
    for batch in batches:
        if batch.num_rows >= LARGE_ROWS and "timestamp" in batch.schema.names:
            table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            yield _pack(table, query)
            continue
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
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
            yield _pack(_joined_tables(pending), query)
            pending, samples = [], 0
    if samples:
        yield _pack(_joined_tables(pending), query)


def pack_blocks(blocks: Iterable[SampleBlock], query: SampleQuery) -> Iterator[SeriesPack]:
    """Yield packs of the samples that `query` selects. Blocks are put together until they have PACK_SAMPLES samples. A
    block's `source` tells several servers apart."""
    pending: list[SeriesPack] = []
    samples = 0
    keys = _known_keys(query)
    for block in blocks:
        pending.append(_pack_block(block, query, keys))
        samples += len(pending[-1].times)
        if samples >= PACK_SAMPLES:
            yield _joined(pending)
            pending, samples = [], 0
    if samples:
        yield _joined(pending)


def _pack_block(block: SampleBlock, query: SampleQuery, keys: _KnownKeys) -> SeriesPack:
    """Return the pack of the block's samples that `query` selects; `keys` are those of the query."""
    source = block.source
    # Both ends of a block's interval differ from those of a query's: it includes its start and excludes its end.
    block = block.between(query.after_ms + 1, query.until_ms + 1)
    found = [keys.find(series_id, source) for series_id in block.series]
    return _selected(found, block.counts, block.times, block.values, query)


def _selected(
    found: Sequence[tuple[SeriesKey, int] | None], counts: Ints, times: Ints, values: Floats, query: SampleQuery
) -> SeriesPack:
    """Return the pack of the series that were found and have samples, thinned if the query has cells.

    :param found: key and fingerprint of each series, None for one that the query does not select.
    :param counts: the number of samples of each series; `times` and `values` are those of all series, one after the
        other.
    """
    chosen = [each for each, count in zip(found, counts.tolist(), strict=True) if each is not None and count]
    series = np.fromiter((fingerprint for _, fingerprint in chosen), np.int64, len(chosen))
    keys = [key for key, _ in chosen]
    if len(chosen) < len(found):
        selected = np.fromiter((each is not None for each in found), bool, len(found)) & (counts > 0)
        samples = index_ranges((np.cumsum(counts) - counts)[selected], counts[selected])
        counts, times, values = counts[selected], times[samples], values[samples]
    pack = SeriesPack(keys, series, counts.astype(np.int64, copy=False), times, values)
    return pack if query.cells is None else pack.thinned(query.cells)


def _joined(packs: Sequence[SeriesPack]) -> SeriesPack:
    """Return one pack with the samples of all packs, in their order. Either all of them are thinned, or none is."""
    if len(packs) == 1:
        return packs[0]
    series, counts, times, values = (
        np.concatenate([getattr(pack, name) for pack in packs]) for name in ("series", "counts", "times", "values")
    )
    weights = [pack.weights for pack in packs if pack.weights is not None]
    return SeriesPack(
        [key for pack in packs for key in pack.keys], series, counts, times, values,
        np.concatenate(weights) if weights else None,
    )  # fmt: skip


def _joined_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table with the rows of all tables, in one chunk. A column that a table does not have is null there."""
    # Files with and without the column `source` may lie in one folder.
    return pa.concat_tables(tables, promote_options="default").combine_chunks()


def _pack(table: pa.Table, query: SampleQuery) -> SeriesPack:
    """Return the pack of the samples in a table that `query` selects. The table has single samples or a row per series,
    and each column in at most one chunk."""
    if "timestamp" in table.column_names:
        times, values = _to_numpy(table["timestamp"]), _to_numpy(table["value"])
        rows, counts, order = _group_rows(table, _rows_of(table, times, query))
        times, values = times[order], values[order]
    else:
        rows, lists = np.arange(table.num_rows), _as_array(table["timestamps"])
        counts = _to_numpy(pc.list_value_length(lists)).astype(np.int64)
        times, values = _to_numpy(lists.flatten()), _to_numpy(_as_array(table["values"]).flatten())
        inside = (times > query.after_ms) & (times <= query.until_ms)
        if not inside.all():
            row = np.repeat(rows, counts)[inside]
            counts, times, values = np.bincount(row, minlength=len(rows)), times[inside], values[inside]
    return _selected(list(_find_keys(table.take(pa.array(rows)).combine_chunks(), query)), counts, times, values, query)


def _rows_of(table: pa.Table, times: Ints, query: SampleQuery) -> Ints:
    """Return the indexes of the rows of single samples whose metric and time the query selects. `times` has the time of
    each row."""
    metric = _as_array(table["metric"])
    if isinstance(metric, pa.DictionaryArray):
        known = np.fromiter((name in query.metrics for name in metric.dictionary.to_pylist()), bool)
        selected = known[_to_numpy(metric.indices)]
    else:
        selected = _to_numpy(pc.is_in(metric, pa.array(sorted(query.metrics))))
    return np.flatnonzero(selected & (times > query.after_ms) & (times <= query.until_ms))


def _find_keys(table: pa.Table, query: SampleQuery) -> Iterator[tuple[SeriesKey, int] | None]:
    """Yield key and fingerprint of each row, or None for a row that the query does not select."""
    known = _known_keys(query)
    sources = table["source"].to_pylist() if "source" in table.column_names else itertools.repeat("", table.num_rows)
    labels = _as_array(table["labels"])
    offsets = _to_numpy(labels.offsets).tolist()
    pairs = list(zip(_texts(labels.keys), _texts(labels.items), strict=True))
    metrics = _texts(_as_array(table["metric"]))
    for metric, source, (begin, end) in zip(metrics, sources, itertools.pairwise(offsets), strict=True):
        # A label with an empty value is no label, as in Prometheus.
        of_row = tuple(sorted(pair for pair in pairs[begin:end] if pair[1]))
        yield known.find(SeriesId(metric, of_row), source or "")


class _KnownKeys:
    """Keys and fingerprints of the series that a worker has met, which it meets again in every pack of a query. All are
    forgotten when there are _MAX_KNOWN."""

    def __init__(self, query: SampleQuery) -> None:
        self._query = query
        self._known: dict[tuple[SeriesId, str], tuple[SeriesKey, int] | None] = {}

    def find(self, series_id: SeriesId, source: str) -> tuple[SeriesKey, int] | None:
        """Return key and fingerprint of a series that a server (`source`) exports, or None if the query does not select
        it."""
        identity = series_id, source
        try:
            return self._known[identity]
        except KeyError:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = self._known[identity] = self._key(series_id, source)
            return found

    def _key(self, series_id: SeriesId, source: str) -> tuple[SeriesKey, int] | None:
        """Compute what `find` returns: split the replica labels off the series' labels, and join them to the server's
        name."""
        labels = dict(series_id.labels)
        if not self._query.selects(series_id.metric, labels):
            return None
        replicas = [labels.pop(name, "") for name in self._query.replica_labels]
        servers = (source, *replicas) if source else replicas
        key = SeriesKey(series_id.metric, tuple(labels.items()), "/".join(servers))
        return key, SeriesId(key.metric, key.labels).fingerprint


@lru_cache(maxsize=2)
def _known_keys(query: SampleQuery) -> _KnownKeys:
    """Return the keys that this process knows of a query. Those of the last two queries are kept; queries that differ
    only in their cells share them."""
    return _KnownKeys(query)


def _group_rows(table: pa.Table, selected: Ints) -> tuple[Ints, Ints, Ints]:
    """Return, for each series, the row of the table in which it comes first and the number of its samples; and the
    selected rows of the table, ordered so that the samples of each series follow one another, and otherwise as in
    `selected`."""
    if not len(selected):
        return selected, selected, selected
    labels = _as_array(table["labels"])
    offsets = _to_numpy(labels.offsets).astype(np.int64)
    starts, lengths = offsets[selected], offsets[selected + 1] - offsets[selected]
    few = 2 * len(selected) < table.num_rows
    pairs = index_ranges(starts, lengths) if few else slice(int(offsets[0]), int(offsets[-1]))
    starts = np.cumsum(lengths) - lengths if few else starts - offsets[0]
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(_pair_hashes(labels, pairs), dtype=np.uint64)))
    # A sum does not depend on the order of the labels. Differences of sums that wrap around are still right.
    hashed = sums[starts + lengths] - sums[starts]
    for name in ("metric", "source"):
        if name in table.column_names:
            codes = _codes(_as_array(table[name]))[selected].astype(np.uint64)
            hashed = _mix_bits(hashed * np.uint64(0xD6E8FEB86659FD93) + codes)
    number = _to_numpy(pa.array(hashed).dictionary_encode().indices)
    count = int(number.max()) + 1
    rows = np.empty(count, dtype=np.int64)
    rows[number[::-1]] = selected[::-1]
    # Numpy sorts numbers of 16 bits by their digits, several times as fast as others.
    order = np.argsort(number.astype(np.uint16) if count < 1 << 16 else number, kind="stable")
    return rows, np.bincount(number, minlength=count), selected[order]


def _pair_hashes(labels: Any, pairs: Ints | slice) -> npt.NDArray[np.uint64]:
    """Return a hash of each pair of label and value, at the indexes `pairs` of the map array's pairs. Equal pairs have
    equal hashes in one array only."""
    names, values = _codes(labels.keys)[pairs], _codes(labels.items)[pairs]
    wide = int(values.max(initial=0)) + 1
    numbers = int(names.max(initial=0) + 1) * wide
    if numbers > _MAX_TABLE:
        return _mix_bits(names.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + values.astype(np.uint64))
    hashes = _mix_bits(np.arange(1, numbers + 1, dtype=np.uint64))
    of_pairs: npt.NDArray[np.uint64] = hashes[names * np.int32(wide) + values]
    return of_pairs


def _mix_bits(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return hashes in which each input bit affects each output bit (the finalizer of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _texts(texts: pa.Array) -> list[Any]:
    """Return the texts of an array, None for null. Each different one becomes an object once."""
    if not isinstance(texts, pa.DictionaryArray):
        texts = texts.dictionary_encode(null_encoding="encode")
    different = texts.dictionary.to_pylist()
    if texts.null_count:
        return [None if code is None else different[code] for code in texts.indices.to_pylist()]
    return [different[code] for code in texts.indices.to_pylist()]


def _codes(texts: pa.Array) -> npt.NDArray[np.int32]:
    """Return a number for each text, the same for equal texts of the array; null is a text of its own."""
    if not isinstance(texts, pa.DictionaryArray):
        texts = texts.dictionary_encode(null_encoding="encode")
    elif texts.null_count:
        return _to_numpy(texts.indices.fill_null(len(texts.dictionary))).astype(np.int32, copy=False)
    return _to_numpy(texts.indices).astype(np.int32, copy=False)


def _as_array(column: pa.ChunkedArray) -> Any:
    """Return the only chunk of a column whose chunks were combined; an empty array if the column has none."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _to_numpy(column: Any) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy())
