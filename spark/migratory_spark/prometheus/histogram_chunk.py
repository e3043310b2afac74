"""Decodes chunks of native histograms: encodings 2 (whole numbers) and 3 (floating-point numbers). Pure.

Layout (tsdb/chunkenc/histogram.go, float_histogram.go): a count of samples (2 bytes), two bits that say what is known
of the counter's restart, and from the fourth byte on as bits: the layout of the buckets, and the samples. Time stamps
and whole numbers are differences of differences in `varbit` code, which has one bit for zero and up to 72 for others.
Sums and all numbers of encoding 3 are XORed with those before, as in xor.py.

A chunk is turned into a text of 0 and 1, from which a regular expression takes the numbers of all buckets of a sample
at once. Decoding a step of all chunks together, as xor.py does, would not pay: a sample has hundreds of numbers, and
histograms are few.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np

from migratory_spark.prometheus.blocks import STALE, Float64, Int64, Objects
from migratory_spark.prometheus.native_histogram import (
    CUSTOM_SCHEMA,
    HistogramLayout,
    NativeHistogram,
    ResetHint,
    bucket_indexes,
)
from migratory_spark.prometheus.xor import BadChunk

INTEGER, FLOAT = 2, 3
"""Numbers of the encodings in the protocol."""

_HEADER_BYTES = 3
_GAUGE = 3
"""The two bits of the header of a chunk with gauges. All others say nothing certain of the chunk's first sample."""
_PREFIXES = ((1, 3), (2, 6), (3, 9), (4, 12), (5, 18), (6, 25), (7, 56))
"""Number of ones before the zero of a varbit code, and the bits of the number that follows; eight ones: 64 bits."""
_VARBIT = "|".join(["0", *(f"{'1' * ones}0[01]{{{size}}}" for ones, size in _PREFIXES), "1{8}[01]{64}"])
_SIZES = {1: 0, 72: 64} | {ones + 1 + size: size for ones, size in _PREFIXES}
"""Bits of the number by the length of its code, which no two kinds of code share."""
_ONE = re.compile(_VARBIT)
_CACHED_BITS = 17
"""Bits of the longest codes whose numbers are remembered."""


class _Numbers(dict[str, int]):
    """The signed numbers of varbit codes, each computed once if the code is short."""

    def __missing__(self, code: str) -> int:
        size = _SIZES[len(code)]
        number = int(code[-size:], 2)
        # Half of the range and below is positive, in 64 bits less than half.
        if number > (1 << (size - 1)) or (size == 64 and number >> 63):
            number -= 1 << size
        if len(code) <= _CACHED_BITS:
            self[code] = number
        return number


_NUMBERS = _Numbers({"0": 0})


@lru_cache(maxsize=1024)
def _codes(count: int) -> re.Pattern[str]:
    """Return the expression for `count` varbit codes."""
    return re.compile(f"(?:{_VARBIT}){{{count}}}")


class _Bits:
    """The bits of a chunk, which are read from the first to the last. Raises BadChunk at their end."""

    def __init__(self, data: bytes) -> None:
        self.text = format(int.from_bytes(data, "big"), f"0{8 * len(data)}b")
        self._at = 0

    def take(self, size: int) -> int:
        """Read a number of `size` bits."""
        end = self._at + size
        if end > len(self.text):
            raise BadChunk("a chunk ends before its last sample")
        number, self._at = int(self.text[self._at : end], 2), end
        return number

    def signed(self) -> int:
        return _NUMBERS[self._code()]

    def unsigned(self) -> int:
        code = self._code()
        return int(code[-_SIZES[len(code)] :], 2)

    def signed_numbers(self, count: int) -> list[int]:
        """Read `count` signed numbers."""
        if not count:
            return []
        whole = _codes(count).match(self.text, self._at)
        if whole is None:
            raise BadChunk("a chunk ends before its last sample")
        begin, self._at = self._at, whole.end()
        return [_NUMBERS[code] for code in _ONE.findall(self.text, begin, self._at)]

    def _code(self) -> str:
        code = _ONE.match(self.text, self._at)
        if code is None:
            raise BadChunk("a chunk ends before its last sample")
        self._at = code.end()
        return code.group()


class _Changing:
    """A floating-point number that is written as its XOR with the one before. `bits` are its 64 bits."""

    def __init__(self, bits: _Bits) -> None:
        self._source = bits
        self.bits = bits.take(64)
        self._leading = self._trailing = 0

    def read(self) -> int:
        """Read the next number, and return its bits."""
        take = self._source.take
        if take(1):
            if take(1):
                self._leading, size = take(5), take(6) or 64
                self._trailing = 64 - self._leading - size
                if self._trailing < 0:
                    raise BadChunk("a chunk's value is longer than 64 bits")
            self.bits ^= take(64 - self._leading - self._trailing) << self._trailing
        return self.bits


def decode(kind: int, data: bytes) -> tuple[Int64, Float64, Objects]:
    """Return the time stamps (ms since 1970) of a chunk's samples, their numbers of observations, and the samples as
    NativeHistogram. For a stale marker the number is the marker, and the sample None. Raises BadChunk and BadHistogram.

    :param kind: INTEGER or FLOAT.
    """
    if len(data) < _HEADER_BYTES:
        raise BadChunk("a chunk is shorter than its header")
    samples = int.from_bytes(data[:2], "big")
    times, values = np.empty(samples, np.int64), np.empty(samples)
    histograms = np.empty(samples, object)
    if not samples:
        return times, values, histograms
    bits = _Bits(data[_HEADER_BYTES:])
    layout = _layout(bits)
    rows, parts = (_read_integers if kind == INTEGER else _read_floats)(bits, layout, samples)
    counts, zero_counts, sums, negative, positive = parts
    times[:] = rows
    stale = sums.view(np.uint64) == np.uint64(STALE)
    values[:] = np.where(stale, sums, counts)
    is_gauge = data[2] >> 6 == _GAUGE
    filled = iter(range(len(positive)))
    for sample in range(samples):
        if not stale[sample]:
            row = next(filled)
            # Of the first sample of a chunk, Prometheus itself says nothing: the chunk before may be missing.
            hint: ResetHint = "gauge" if is_gauge else "no" if sample else "unknown"
            histograms[sample] = NativeHistogram(
                layout, float(counts[sample]), float(sums[sample]), float(zero_counts[sample]),
                negative[row], positive[row], hint,
            )  # fmt: skip
    return times, values, histograms


_Parts = tuple[Float64, Float64, Float64, Float64, Float64]
"""Numbers of observations, those in the zero bucket, and sums, by sample; counts of negative and positive buckets, by
sample that is no stale marker."""


def _layout(bits: _Bits) -> HistogramLayout:
    match bits.take(8):
        case 0:
            zero_threshold = 0.0
        case 255:
            zero_threshold = _as_float(bits.take(64))
        case power:
            zero_threshold = math.ldexp(0.5, power - 243)
    schema = bits.signed()
    positive, negative = (_indexes(bits) for _ in range(2))
    custom_bounds: tuple[float, ...] = ()
    if schema == CUSTOM_SCHEMA:
        custom_bounds = tuple(_custom_bound(bits) for _ in range(_bounded(bits, bits.unsigned())))
    return HistogramLayout(schema, zero_threshold, negative, positive, custom_bounds)


def _indexes(bits: _Bits) -> tuple[int, ...]:
    spans = []
    for _ in range(_bounded(bits, bits.unsigned())):
        length = bits.unsigned()
        spans.append((bits.signed(), length))
    # A sample has at least one bit for each bucket.
    return bucket_indexes(spans, len(bits.text))


def _bounded(bits: _Bits, count: int) -> int:
    """Return the number, or raise BadChunk if the chunk has not as many bits."""
    if count > len(bits.text):
        raise BadChunk("a chunk is too short for its buckets")
    return count


def _custom_bound(bits: _Bits) -> float:
    """Read a bound: in thousandths, plus one, or after a zero as a floating-point number."""
    thousandths = bits.unsigned()
    return (thousandths - 1) / 1000 if thousandths else _as_float(bits.take(64))


def _as_float(bits: int) -> float:
    return float(np.uint64(bits).view(np.float64))


def _read_integers(bits: _Bits, layout: HistogramLayout, samples: int) -> tuple[list[int], _Parts]:
    """Read all samples of a chunk with whole numbers. Return their time stamps and parts."""
    buckets = len(layout.positive) + len(layout.negative)
    heads = [(bits.signed(), bits.unsigned(), bits.unsigned())]
    changing_sum = _Changing(bits)
    sums = [changing_sum.bits]
    rows = [bits.signed_numbers(buckets)]
    time, count, zero_count = heads[0]
    time_step = count_step = zero_step = 0
    for _ in range(1, samples):
        time_step, count_step, zero_step = (
            time_step + bits.signed(), count_step + bits.signed(), zero_step + bits.signed(),
        )  # fmt: skip
        time, count, zero_count = time + time_step, count + count_step, zero_count + zero_step
        heads.append((time, count, zero_count))
        sums.append(changing_sum.read())
        # A stale marker has no buckets.
        if sums[-1] != STALE:
            rows.append(bits.signed_numbers(buckets))
    changes = np.array(rows, np.int64).reshape(len(rows), buckets)
    changes[1:] = np.cumsum(changes[1:], axis=0)
    # Each bucket is written as its difference to the one before it.
    by_bucket = np.cumsum(changes, axis=0)
    positive = np.cumsum(by_bucket[:, : len(layout.positive)], axis=1).astype(np.float64)
    negative = np.cumsum(by_bucket[:, len(layout.positive) :], axis=1).astype(np.float64)
    times, counts, zero_counts = ([head[part] for head in heads] for part in range(3))
    if sums[0] == STALE:
        positive, negative = positive[1:], negative[1:]
    sums_array = np.array(sums, np.uint64).view(np.float64)
    return times, (np.array(counts, np.float64), np.array(zero_counts, np.float64), sums_array, negative, positive)


def _read_floats(bits: _Bits, layout: HistogramLayout, samples: int) -> tuple[list[int], _Parts]:
    """Read all samples of a chunk with floating-point numbers. Return their time stamps and parts."""
    times, step = [bits.signed()], 0
    heads = [_Changing(bits) for _ in range(3)]
    buckets = [_Changing(bits) for _ in range(len(layout.positive) + len(layout.negative))]
    head_rows = [[head.bits for head in heads]]
    rows = [[bucket.bits for bucket in buckets]]
    for _ in range(1, samples):
        step += bits.signed()
        times.append(times[-1] + step)
        head_rows.append([head.read() for head in heads])
        if head_rows[-1][2] != STALE:
            rows.append([bucket.read() for bucket in buckets])
    if head_rows[0][2] == STALE:
        rows = rows[1:]
    counts, zero_counts, sums = np.array(head_rows, np.uint64).view(np.float64).T.copy()
    by_bucket = np.array(rows, np.uint64).reshape(len(rows), len(buckets)).view(np.float64)
    return times, (
        counts, zero_counts, sums, by_bucket[:, len(layout.positive) :], by_bucket[:, : len(layout.positive)]
    )  # fmt: skip
