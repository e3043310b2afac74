"""Remote read's plain answers (`ReadResponse`, uncompressed) to blocks. Pure.

For servers that do not stream. Samples of one series lie one after another, nearly all of them equally long: a run of
equally long ones is read as a matrix of bytes. Another length comes with a value of zero, which protobuf leaves out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from migratory_spark.prometheus.blocks import Block, Float64, Int64, Series, decoded
from migratory_spark.prometheus.protobuf import BadMessage, field, varint

_LABEL, _SAMPLE, _HISTOGRAM = 0x0A, 0x12, 0x22
_VALUE, _TIME = 0x09, 0x10
_SHORT = 4  # runs below this are read one by one: setting up a matrix would cost more


def blocks(message: bytes, start_ms: int, end_ms: int, rows: int = 500_000) -> Iterator[Block]:
    """Whole series, about `rows` samples at once, cut to [start, end). Raises BadMessage."""
    reader = _Reader(message)
    series: list[Series] = []
    counts: list[int] = []
    times: list[Int64] = []
    values: list[Float64] = []
    held = 0
    for result_begin, result_end in _fields(message, 0, len(message)):
        for begin, end in _fields(message, result_begin, result_end):
            key, own_times, own_values = reader.series(begin, end)
            series.append(decoded(key))
            count = sum(map(len, own_times))
            counts.append(count)
            times += own_times
            values += own_values
            held += count
            if held >= rows:
                yield _block(series, counts, times, values).between(start_ms, end_ms)
                series, counts, times, values = [], [], [], []
                held = 0
    if series:
        yield _block(series, counts, times, values).between(start_ms, end_ms)


def _block(series: list[Series], counts: list[int], times: list[Int64], values: list[Float64]) -> Block:
    empty = not times
    return Block(
        series,
        np.array(counts, np.int64),
        np.empty(0, np.int64) if empty else np.concatenate(times),
        np.empty(0, np.float64) if empty else np.concatenate(values),
    )


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Where each of the fields number 1 lies."""
    while at < end:
        tag, begin, at, _ = field(message, at, end)
        if tag == 0x0A:
            yield begin, at


class _Reader:
    def __init__(self, message: bytes) -> None:
        self._message = message
        self._bytes = np.frombuffer(message, np.uint8)

    def series(self, at: int, end: int) -> tuple[bytes, list[Int64], list[Float64]]:
        """Encoded labels, and the time stamps and values in pieces."""
        message, first, behind = self._message, at, at
        times: list[Int64] = []
        values: list[Float64] = []
        while at < end:
            if message[at] == _SAMPLE:
                at = self._run(at, end, times, values)
                continue
            tag, _, at, _ = field(message, at, end)
            if tag == _LABEL:
                behind = at
            elif tag == _HISTOGRAM:
                raise BadMessage("a native histogram: only plain numbers are read; leave it out by the option matchers")
        return message[first:behind], times, values

    def _run(self, at: int, end: int, times: list[Int64], values: list[Float64]) -> int:
        """Reads samples from `at` on that are as long as the first one; returns where they end."""
        size = 2 + self._message[at + 1] if at + 1 < end else 0
        if not 2 <= size < 0x80 or at + size > end:
            raise BadMessage("a sample is longer than its series")
        matrix = self._bytes[at : at + (end - at) // size * size].reshape(-1, size)
        with_value = size > 2 and bool(matrix[0, 2] == _VALUE)
        time_at = 12 if with_value else 3
        if time_at < size and matrix[0, time_at - 1] == _TIME and size - time_at <= 9:
            same = self._alike(matrix, with_value, time_at)
            if same >= _SHORT:
                rows = matrix[:same]
                times.append(_varints(rows[:, time_at:]))
                found = rows[:, 3:11].copy().view("<f8")[:, 0] if with_value else np.zeros(same)
                values.append(found.astype(np.float64, copy=False))
                return at + same * size
        time, value = self._single(at + 2, at + size)
        times.append(np.array([time], np.int64))
        values.append(np.array([value], np.float64))
        return at + size

    @staticmethod
    def _alike(matrix: npt.NDArray[np.uint8], with_value: bool, time_at: int) -> int:
        """How many of the first rows have the layout of the very first."""
        same = (matrix[:, 0] == _SAMPLE) & (matrix[:, 1] == matrix[0, 1]) & (matrix[:, time_at - 1] == _TIME)
        if with_value:
            same &= matrix[:, 2] == _VALUE
        # A time stamp fills the row: every byte but the last says that another follows.
        same &= (matrix[:, time_at:-1] >= 0x80).all(axis=1) & (matrix[:, -1] < 0x80)
        return len(matrix) if same.all() else int(np.argmin(same))

    def _single(self, at: int, end: int) -> tuple[int, float]:
        time, value = 0, 0.0
        while at < end:
            tag, begin, at, _ = field(self._message, at, end)
            if tag == _VALUE:
                (value,) = struct.unpack_from("<d", self._message, begin)
            elif tag == _TIME:
                time, _ = varint(self._message, begin)
        return time - (1 << 64) if time >> 63 else time, value


def _varints(rows: npt.NDArray[np.uint8]) -> Int64:
    """One varint per row, each as long as the row."""
    result = np.zeros(len(rows), np.int64)
    for group in range(rows.shape[1]):
        result |= (rows[:, group] & 0x7F).astype(np.int64) << (7 * group)
    return result
