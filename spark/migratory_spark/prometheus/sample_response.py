"""Parses plain responses of remote read (`ReadResponse`, uncompressed) to blocks, for servers that do not stream. Pure.

Samples of a series follow one another, nearly all with the same length. A run of equal lengths is read as a matrix of
bytes. A value of zero is shorter, because protobuf leaves zeros out. Native histograms of a series follow its samples.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from migratory_spark.prometheus.blocks import (
    STALE,
    Float64,
    Int64,
    Objects,
    SampleBlock,
    decode_labels,
)
from migratory_spark.prometheus.native_histogram import (
    CUSTOM_SCHEMA,
    RESET_HINTS,
    BadHistogram,
    HistogramLayout,
    NativeHistogram,
    bucket_indexes,
)
from migratory_spark.prometheus.protobuf import BadProtobuf, NotSupported, field, varint

_LABEL, _SAMPLE, _HISTOGRAM = 0x0A, 0x12, 0x22
_VALUE, _TIME = 0x09, 0x10
_STALE_NAN = float(np.uint64(STALE).view(np.float64))
_MIN_RUN = 4
"""The smallest number of samples of a run. Samples of shorter runs are parsed one by one, because setting up a matrix
costs more."""


def blocks(message: bytes, start_ms: int, end_ms: int, rows: int = 500_000) -> Iterator[SampleBlock]:
    """Yield blocks of whole series, of about `rows` samples each, cut to [start, end) (ms since 1970). A block may be
    empty. Raises BadProtobuf, and NotSupported for a native histogram without the bounds of its custom buckets."""
    reader = _SeriesReader(message)
    pending: list[_OneSeries] = []
    samples = 0
    for result_begin, result_end in _fields(message, 0, len(message)):
        for begin, end in _fields(message, result_begin, result_end):
            pending.append(reader.series(begin, end))
            samples += pending[-1].size
            if samples >= rows:
                yield _block(pending).between(start_ms, end_ms)
                pending, samples = [], 0
    if pending:
        yield _block(pending).between(start_ms, end_ms)


class _OneSeries(NamedTuple):
    """A series: its encoded labels, its time stamps (ms since 1970) and values, each as a list of arrays, and times and
    values of the native histograms. The value of a stale marker among them is None."""

    key: bytes
    times: list[Int64]
    values: list[Float64]
    histograms: list[tuple[int, NativeHistogram | None]]

    @property
    def size(self) -> int:
        """The number of samples and histograms."""
        return sum(map(len, self.times)) + len(self.histograms)

    def in_order(self) -> _OneSeries:
        """Return the series with samples and histograms together in the order of time."""
        if not self.histograms:
            return self
        told = [time for time, _ in self.histograms]
        counts = [_STALE_NAN if histogram is None else histogram.count for _, histogram in self.histograms]
        times = np.concatenate([*self.times, np.array(told, np.int64)])
        # Of two samples at one time, numbers come first; a server has none such.
        order = np.argsort(times, kind="stable")
        histograms = [*[None] * (len(times) - len(told)), *(histogram for _, histogram in self.histograms)]
        return _OneSeries(
            self.key, [times[order]], [np.concatenate([*self.values, np.array(counts)])[order]],
            [(int(times[number]), histograms[number]) for number in order.tolist()],
        )  # fmt: skip


def _block(of_series: Sequence[_OneSeries]) -> SampleBlock:
    counts = np.array([each.size for each in of_series], np.int64)
    histograms: Objects | None = None
    if any(each.histograms for each in of_series):
        of_series = [each.in_order() for each in of_series]
        histograms = np.full(int(counts.sum()), None)
        for each, end in zip(of_series, np.cumsum(counts).tolist(), strict=True):
            histograms[end - len(each.histograms) : end] = [histogram for _, histogram in each.histograms]
    return SampleBlock(
        [decode_labels(each.key) for each in of_series],
        counts,
        np.concatenate([np.empty(0, np.int64), *(part for each in of_series for part in each.times)]),
        np.concatenate([np.empty(0), *(part for each in of_series for part in each.values)]),
        histograms=histograms,
    )


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the indexes of start and end of the content of each field with number 1. Raises BadProtobuf."""
    while at < end:
        tag, begin, at, _ = field(message, at, end)
        if tag == 0x0A:
            yield begin, at


class _SeriesReader:
    """A parser of the series in one encoded message."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._bytes = np.frombuffer(message, np.uint8)

    def series(self, at: int, end: int) -> _OneSeries:
        """Parse and return the series from index `at` to `end`. Raises BadProtobuf, and NotSupported for a native
        histogram without the bounds of its custom buckets."""
        message, first, behind = self._message, at, at
        times: list[Int64] = []
        values: list[Float64] = []
        histograms: list[tuple[int, NativeHistogram | None]] = []
        while at < end:
            if message[at] == _SAMPLE:
                at = self._read_run(at, end, times, values)
                continue
            tag, begin, at, _ = field(message, at, end)
            if tag == _LABEL:
                behind = at
            elif tag == _HISTOGRAM:
                histograms.append(_parse_histogram(message, begin, at))
        return _OneSeries(message[first:behind], times, values, histograms)

    def _read_run(self, at: int, end: int, times: list[Int64], values: list[Float64]) -> int:
        """Read samples from index `at` on: the run of samples with the length and layout of the first one, or only the
        first one if the run is shorter than _MIN_RUN. Append their times and values, and return the index after them.
        Raises BadProtobuf."""
        size = 2 + self._message[at + 1] if at + 1 < end else 0
        if not 2 <= size < 0x80 or at + size > end:
            raise BadProtobuf("a sample is longer than its series")
        matrix = self._bytes[at : at + (end - at) // size * size].reshape(-1, size)
        with_value = size > 2 and bool(matrix[0, 2] == _VALUE)
        time_at = 12 if with_value else 3
        if time_at < size and matrix[0, time_at - 1] == _TIME and size - time_at <= 9:
            same = self._run_length(matrix, with_value, time_at)
            if same >= _MIN_RUN:
                rows = matrix[:same]
                times.append(_varints(rows[:, time_at:]))
                read_values = rows[:, 3:11].copy().view("<f8")[:, 0] if with_value else np.zeros(same)
                values.append(read_values.astype(np.float64, copy=False))
                return at + same * size
        time, value = self._parse_sample(at + 2, at + size)
        times.append(np.array([time], np.int64))
        values.append(np.array([value], np.float64))
        return at + size

    @staticmethod
    def _run_length(matrix: npt.NDArray[np.uint8], with_value: bool, time_at: int) -> int:
        """Return the number of rows from the first one on that have the layout of the first row.

        :param matrix: a row of bytes for each sample.
        :param with_value: True if the first row has a value, which is left out if it is zero.
        :param time_at: the index in a row at which its time stamp begins.
        """
        same = (matrix[:, 0] == _SAMPLE) & (matrix[:, 1] == matrix[0, 1]) & (matrix[:, time_at - 1] == _TIME)
        if with_value:
            same &= matrix[:, 2] == _VALUE
        # A time stamp fills the row: every byte but the last says that another follows.
        same &= (matrix[:, time_at:-1] >= 0x80).all(axis=1) & (matrix[:, -1] < 0x80)
        return len(matrix) if same.all() else int(np.argmin(same))

    def _parse_sample(self, at: int, end: int) -> tuple[int, float]:
        """Return time (ms since 1970) and value of the sample from index `at` to `end`. Raises BadProtobuf."""
        time, value = 0, 0.0
        while at < end:
            tag, begin, at, _ = field(self._message, at, end)
            if tag == _VALUE:
                (value,) = struct.unpack_from("<d", self._message, begin)
            elif tag == _TIME:
                time, _ = varint(self._message, begin)
        return time - (1 << 64) if time >> 63 else time, value


def _varints(rows: npt.NDArray[np.uint8]) -> Int64:
    """Return the variable-length number in each row of bytes. Each number takes up the whole of its row."""
    result = np.zeros(len(rows), np.int64)
    for group in range(rows.shape[1]):
        result |= (rows[:, group] & 0x7F).astype(np.int64) << (7 * group)
    return result


class _Fields:
    """The fields of a native histogram, by tag: numbers, and the bytes of packed lists and messages."""

    def __init__(self, message: bytes, at: int, end: int) -> None:
        self._numbers: dict[int, int] = {}
        self._parts: dict[int, list[bytes]] = {}
        while at < end:
            tag, begin, at, number = field(message, at, end)
            if tag & 7:
                self._parts.setdefault(tag, []).append(message[begin:at])
            else:
                self._numbers[tag] = number

    def number(self, tag: int) -> int:
        """Return a number without a sign, 0 if the field is missing."""
        return self._numbers.get(tag, 0)

    def signed(self, tag: int) -> int:
        """Return a number in zigzag code, 0 if the field is missing."""
        return _zigzag(self.number(tag))

    def real(self, tag: int) -> float:
        """Return a floating-point number, 0 if the field is missing."""
        return float(np.frombuffer(self._parts.get(tag, [bytes(8)])[-1], "<f8")[0])

    def count(self, whole: int, real: int) -> float:
        """Return a count that is in one of two fields: as a whole or as a floating-point number."""
        return float(self.number(whole)) or self.real(real)

    def reals(self, tag: int) -> Float64:
        """Return a packed list of floating-point numbers. Raises BadProtobuf."""
        packed = b"".join(self._parts.get(tag, ()))
        if len(packed) % 8:
            raise BadProtobuf("a list of numbers ends inside a number")
        return np.frombuffer(packed, "<f8").astype(np.float64, copy=False)

    def counts(self, deltas: int, reals: int) -> Float64:
        """Return the counts of buckets, which are in one of two fields: the differences to the bucket before, or the
        counts as floating-point numbers. Raises BadProtobuf."""
        if deltas in self._parts:
            numbers = _packed_varints(b"".join(self._parts[deltas]))
            changes = (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)
            return np.cumsum(changes).astype(np.float64)
        return self.reals(reals)

    def indexes(self, tag: int, buckets: int) -> tuple[int, ...]:
        """Return the indexes of the buckets in a list of spans, which must be as many as `buckets`. Raises BadProtobuf
        and BadHistogram."""
        spans = []
        for span in self._parts.get(tag, ()):
            of_span = _Fields(span, 0, len(span))
            spans.append((of_span.signed(0x08), of_span.number(0x10)))
        indexes = bucket_indexes(spans, buckets)
        if len(indexes) != buckets:
            raise BadProtobuf(f"a native histogram with {buckets} counts for {len(indexes)} buckets")
        return indexes


def _parse_histogram(message: bytes, at: int, end: int) -> tuple[int, NativeHistogram | None]:
    """Return time (ms since 1970) and value of the native histogram from index `at` to `end`; None for a stale marker.
    Raises BadProtobuf and NotSupported."""
    fields = _Fields(message, at, end)
    time = fields.number(0x78)
    time = time - (1 << 64) if time >> 63 else time
    total = fields.real(0x19)
    if np.float64(total).view(np.uint64) == STALE:
        return time, None
    negative, positive = fields.counts(0x4A, 0x52), fields.counts(0x62, 0x6A)
    schema, custom_bounds = fields.signed(0x20), fields.reals(0x82)
    if schema == CUSTOM_SCHEMA and not len(custom_bounds) and len(positive):
        raise NotSupported(
            "a native histogram whose bounds the server leaves out: plain responses have none of custom buckets; "
            "set option api to remote_read, or leave it out by option matchers"
        )
    try:
        layout = HistogramLayout(
            schema, fields.real(0x29), fields.indexes(0x42, len(negative)), fields.indexes(0x5A, len(positive)),
            tuple(custom_bounds.tolist()),
        )  # fmt: skip
    except BadHistogram as error:
        raise BadProtobuf(str(error)) from error
    hint = fields.number(0x70)
    return time, NativeHistogram(
        layout, fields.count(0x08, 0x11), total, fields.count(0x30, 0x39), negative, positive,
        RESET_HINTS[hint] if hint < len(RESET_HINTS) else "unknown",
    )  # fmt: skip


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _packed_varints(packed: bytes) -> npt.NDArray[np.uint64]:
    """Return the numbers of variable length that follow one another. Raises BadProtobuf."""
    raw = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if len(raw) and (not len(ends) or ends[-1] != len(raw) - 1):
        raise BadProtobuf("the message ends inside a number")
    sizes = np.diff(ends, prepend=-1)
    if sizes.max(initial=0) > 10:
        raise BadProtobuf("a number of more than 64 bits")
    starts = ends + 1 - sizes
    shifts = 7 * (np.arange(len(raw)) - np.repeat(starts, sizes)).astype(np.uint64)
    groups = (raw & 0x7F).astype(np.uint64) << shifts
    return np.add.reduceat(groups, starts) if len(raw) else groups
