"""Samples on their way: whole series with their time stamps and values as arrays. Pure."""

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

STALE = 0x7FF0000000000002
"""The bits of the NaN by which Prometheus marks that a series ended; an ordinary NaN has others."""


@dataclass(slots=True, frozen=True)
class Series:
    """`labels` are sorted by name and hold neither the metric's name nor an empty value."""

    metric: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Series:
        """Of pairs that include `__name__`."""
        labels = {name: value for name, value in pairs if value}
        return cls(labels.pop("__name__", ""), tuple(sorted(labels.items())))

    def without(self, drop: frozenset[str]) -> Series:
        return Series(self.metric, tuple(pair for pair in self.labels if pair[0] not in drop)) if drop else self

    @property
    def identity(self) -> int:
        """64 bits (signed) of a hash over name and labels: the same on every server, at every time."""
        digest = hashlib.blake2b(digest_size=8)
        for text in (self.metric, *(text for pair in self.labels for text in pair)):
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded)
        return int.from_bytes(digest.digest(), "big", signed=True)


@lru_cache(maxsize=1 << 15)
def decoded(labels: bytes) -> Series:
    """Of encoded labels. A worker meets the same ones again in every stretch of time. Raises protobuf.BadMessage."""
    return Series.of(protobuf.labels(labels))


@dataclass(slots=True)
class Block:
    """Series one after another: `counts[i]` of the samples belong to `series[i]`, in the order of time. Time in ms."""

    series: list[Series]
    counts: Int64
    times: Int64
    values: Float64
    source: str = ""
    """The server's URL, where one is known."""

    def __len__(self) -> int:
        return len(self.times)

    def without(self, series: set[Series]) -> Block:
        """Less those series."""
        if series.isdisjoint(self.series):
            return self
        wanted = np.array([one not in series for one in self.series], bool)
        inside = np.repeat(wanted, self.counts)
        kept = [one for one, stays in zip(self.series, wanted.tolist(), strict=True) if stays]
        return Block(kept, self.counts[wanted], self.times[inside], self.values[inside])

    def between(self, start_ms: int, end_ms: int) -> Block:
        """What lies in [start, end), without series that have nothing there."""
        inside = (self.times >= start_ms) & (self.times < end_ms)
        if inside.all() and self.counts.all():
            return self
        # Running sums, not `reduceat`, which takes an empty stretch for its neighbour.
        running = np.concatenate(([0], np.cumsum(inside)))
        ends = np.cumsum(self.counts)
        counts = running[ends] - running[ends - self.counts]
        kept = np.flatnonzero(counts)
        return Block([self.series[i] for i in kept.tolist()], counts[kept], self.times[inside], self.values[inside])


def merged(parts: Iterable[Block], drop: frozenset[str] = frozenset()) -> Iterator[Block]:
    """All parts as one block in which each (series, time) is there once, series being told apart without the labels
    in `drop`.

    Of values that differ the higher one stays: a counter only rises between two readings of one moment. NaN, a stale
    marker too, gives way to any number. Memory: about 60 bytes per sample.
    """
    numbers: dict[Series, int] = {}
    ids: list[Int64] = []
    times: list[Int64] = []
    values: list[Float64] = []
    for part in parts:
        own = np.fromiter(
            (numbers.setdefault(one.without(drop), len(numbers)) for one in part.series),
            np.int64,
            count=len(part.series),
        )
        ids.append(np.repeat(own, part.counts))
        times.append(part.times)
        values.append(part.values)
    if not ids:
        return
    series, time, value = np.concatenate(ids), np.concatenate(times), np.concatenate(values)
    order = np.lexsort((np.where(np.isnan(value), -np.inf, value), time, series))
    series, time, value = series[order], time[order], value[order]
    # The last of each (series, time) is the highest.
    last = np.ones(len(order), bool)
    last[:-1] = (series[1:] != series[:-1]) | (time[1:] != time[:-1])
    counts = np.bincount(series[last], minlength=len(numbers))
    yield Block(list(numbers), counts, time[last], value[last])
