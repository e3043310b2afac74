"""Parses plain responses of remote read (`ReadResponse`, uncompressed) to blocks, for servers that do not stream. Pure.

Samples of a series follow one another, nearly all with the same length. A run of equal lengths is read as a matrix of
bytes. A value of zero is shorter, because protobuf leaves zeros out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from migratory_spark.prometheus.blocks import Float64, Int64, SampleBlock, SeriesId, decode_labels
from migratory_spark.prometheus.protobuf import BadProtobuf, field, varint

_LABEL, _SAMPLE, _HISTOGRAM = 0x0A, 0x12, 0x22
_VALUE, _TIME = 0x09, 0x10
_MIN_RUN = 4
"""The smallest number of samples of a run. Samples of shorter runs are parsed one by one, because setting up a matrix
costs more."""


def blocks(message: bytes, start_ms: int, end_ms: int, rows: int = 500_000) -> Iterator[SampleBlock]:
    """Yield blocks of whole series, of about `rows` samples each, cut to [start, end) (ms since 1970). A block may be
    empty. Raises BadProtobuf."""
    reader = _SeriesReader(message)
    series: list[SeriesId] = []
    counts: list[int] = []
    times: list[Int64] = []
    values: list[Float64] = []
    pending = 0
    for result_begin, result_end in _fields(message, 0, len(message)):
        for begin, end in _fields(message, result_begin, result_end):
            key, own_times, own_values = reader.series(begin, end)
            series.append(decode_labels(key))
            count = sum(map(len, own_times))
            counts.append(count)
            times += own_times
            values += own_values
            pending += count
            if pending >= rows:
                yield _block(series, counts, times, values).between(start_ms, end_ms)
                series, counts, times, values = [], [], [], []
                pending = 0
    if series:
        yield _block(series, counts, times, values).between(start_ms, end_ms)


def _block(series: list[SeriesId], counts: list[int], times: list[Int64], values: list[Float64]) -> SampleBlock:
    empty = not times
    return SampleBlock(
        series,
        np.array(counts, np.int64),
        np.empty(0, np.int64) if empty else np.concatenate(times),
        np.empty(0, np.float64) if empty else np.concatenate(values),
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

    def series(self, at: int, end: int) -> tuple[bytes, list[Int64], list[Float64]]:
        """Parse the series from index `at` to `end`. Return its encoded labels, and its time stamps (ms since 1970) and
        values, each as a list of arrays.

        Raises BadProtobuf, also for a native histogram.
        """
        message, first, behind = self._message, at, at
        times: list[Int64] = []
        values: list[Float64] = []
        while at < end:
            if message[at] == _SAMPLE:
                at = self._read_run(at, end, times, values)
                continue
            tag, _, at, _ = field(message, at, end)
            if tag == _LABEL:
                behind = at
            elif tag == _HISTOGRAM:
                raise BadProtobuf(
                    "a native histogram: only plain numbers are read; leave it out by the option matchers"
                )
        return message[first:behind], times, values

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
