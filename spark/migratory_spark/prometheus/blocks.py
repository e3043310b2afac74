"""Blocks of samples, which the readers of Prometheus servers yield: series with time stamps and values as arrays, each
series whole within the time of one query. `merge_blocks` joins those of several servers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from migratory_spark.prometheus import protobuf

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]

STALE = 0x7FF0000000000002
"""The bits of the NaN that marks the end of a series in Prometheus. An ordinary NaN has other bits."""


@dataclass(slots=True, frozen=True)
class SeriesId:
    """The identity of a series: its metric and labels. `labels` are sorted and have neither `__name__` nor empty
    values."""

    metric: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]]) -> SeriesId:
        """Return the identity of a series from its pairs of label and value, which include `__name__`."""
        labels = {name: value for name, value in pairs if value}
        return cls(labels.pop("__name__", ""), tuple(sorted(labels.items())))

    def without(self, drop: frozenset[str]) -> SeriesId:
        """Return the identity without the labels in `drop`."""
        return SeriesId(self.metric, tuple(pair for pair in self.labels if pair[0] not in drop)) if drop else self

    @property
    def fingerprint(self) -> int:
        """A signed 64-bit hash of metric and labels: the same on every server and at every time."""
        digest = hashlib.blake2b(digest_size=8)
        for text in (self.metric, *(text for pair in self.labels for text in pair)):
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded)
        return int.from_bytes(digest.digest(), "big", signed=True)


@lru_cache(maxsize=1 << 17)
def decode_labels(labels: bytes) -> SeriesId:
    """Return the identity of the series whose labels are encoded in protobuf. Raises BadProtobuf.

    Results are cached: a worker meets the same series in every partition.
    """
    return SeriesId.from_pairs(protobuf.labels(labels))


@dataclass(slots=True)
class SampleBlock:
    """Samples of several series, one series after another: `counts[i]` of the samples belong to `series[i]`, in the
    order of time.

    `times` are ms since 1970. `histograms` is None if all samples are numbers. Otherwise it has a NativeHistogram for
    each sample that is one, whose value is its number of observations, and None for each number and stale marker.
    """

    series: list[SeriesId]
    counts: Int64
    times: Int64
    values: Float64
    source: str = ""
    """The server's URL, if known."""
    histograms: Objects | None = None

    def __len__(self) -> int:
        return len(self.times)

    def without(self, series: set[SeriesId]) -> SampleBlock:
        """Return the block without these series and their samples: the same block if it has none of them, else a new
        one, which has no `source` and no series without samples."""
        if series.isdisjoint(self.series):
            return self
        selected = np.array([series_id not in series for series_id in self.series], bool)
        return self._part(np.repeat(selected, self.counts))

    def numbers(self) -> SampleBlock:
        """Return the samples that are no native histograms, without series that have none: the same block if all are,
        else a new one, which has no `source`."""
        if self.histograms is None:
            return self
        return self._part(np.fromiter((each is None for each in self.histograms), bool, len(self)))

    def between(self, start_ms: int, end_ms: int) -> SampleBlock:
        """Return the samples in [start, end) (ms since 1970), without series that have none there: the same block if
        nothing is left out, else a new one, which has no `source`."""
        inside = (self.times >= start_ms) & (self.times < end_ms)
        return self if inside.all() and self.counts.all() else self._part(inside)

    def _part(self, inside: npt.NDArray[np.bool_]) -> SampleBlock:
        """Return a block of the samples for which `inside` is true, and of the series that have any."""
        # Running sums, because `reduceat` mistakes an empty range for its neighbor.
        running = np.concatenate(([0], np.cumsum(inside)))
        ends = np.cumsum(self.counts)
        counts = running[ends] - running[ends - self.counts]
        series = np.flatnonzero(counts)
        histograms = None if self.histograms is None else self.histograms[inside]
        if histograms is not None and not histograms.any():
            histograms = None
        return SampleBlock(
            [self.series[i] for i in series.tolist()], counts[series], self.times[inside], self.values[inside],
            histograms=histograms,
        )  # fmt: skip


def merge_blocks(parts: Iterable[SampleBlock], drop: frozenset[str] = frozenset()) -> Iterator[SampleBlock]:
    """Yield all parts as one block with each (series, time) once; nothing without parts. Labels in `drop` are removed
    before. The block has no `source`.

    Of different values the higher one is used: between two readings of one moment a counter only rises. Any number is
    preferred to a NaN (a stale marker is one). Of native histograms the one with more observations is used. Needs about
    60 bytes of memory per sample.
    """
    numbers: dict[SeriesId, int] = {}
    ids: list[Int64] = []
    times: list[Int64] = []
    values: list[Float64] = []
    histograms: list[Objects | None] = []
    for part in parts:
        row_of = np.fromiter(
            (numbers.setdefault(series_id.without(drop), len(numbers)) for series_id in part.series),
            np.int64,
            count=len(part.series),
        )
        ids.append(np.repeat(row_of, part.counts))
        times.append(part.times)
        values.append(part.values)
        histograms.append(part.histograms)
    if not ids:
        return
    series, time, value = np.concatenate(ids), np.concatenate(times), np.concatenate(values)
    order = np.lexsort((np.where(np.isnan(value), -np.inf, value), time, series))
    series, time, value = series[order], time[order], value[order]
    # The last of each (series, time) is the highest.
    last = np.ones(len(order), bool)
    last[:-1] = (series[1:] != series[:-1]) | (time[1:] != time[:-1])
    counts = np.bincount(series[last], minlength=len(numbers))
    yield SampleBlock(list(numbers), counts, time[last], value[last], histograms=_joined(histograms, ids, order[last]))


def _joined(parts: list[Objects | None], rows: list[Int64], chosen: Int64) -> Objects | None:
    """Return the native histograms of all parts at the chosen places; None if no part has any.

    :param rows: an array for each part, with as many entries as the part has samples.
    """
    if all(part is None for part in parts):
        return None
    every = [np.full(len(row), None) if part is None else part for part, row in zip(parts, rows, strict=True)]
    joined: Objects = np.concatenate(every)[chosen]
    return joined
