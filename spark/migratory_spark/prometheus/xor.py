"""Decodes Prometheus's XOR chunks (Gorilla compression), thousands of chunks at once. Pure.

A chunk can only be read bit after bit, which is far too slow in Python. But chunks are independent: all of them advance
together, sample by sample, and each step is a few dozen NumPy operations over all chunks. That decodes several million
samples a second in one process.

Layout (tsdb/chunkenc/xor.go): a count of samples (2 bytes), then as bits: the first time stamp as a zig-zag varint and
the first value's 64 bits; the second time stamp's difference as a varint and its value; from then on the difference of
differences. A value is XORed with the one before, and only the bits that changed are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_PADDING = 16
"""Zero bytes after the last chunk, because a window may be read beyond its last bit."""
_MAX_VARINT = 10
_ONE = np.uint64(1)


class BadChunk(ValueError):
    """Raised when bytes are not an XOR chunk, or end before the last sample."""


def decode(chunks: Sequence[bytes]) -> tuple[Int64, npt.NDArray[np.float64], Int64]:
    """Return the time stamps (ms since 1970) and values of all chunks, one chunk after another, and the number of
    samples of each chunk.

    Values have exactly the encoded bits, even those of NaN. Raises BadChunk.
    """
    if not chunks:
        return np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int64)
    if min(map(len, chunks)) < 2:
        raise BadChunk("a chunk is shorter than its count of samples")
    return _ChunkDecoder(chunks).read()


class _ChunkDecoder:
    """A decoder of many chunks. They are sorted by their number of samples, the longest first, so that the chunks that
    have a sample number k are always the first ones. Raises BadChunk if a chunk is too short for its number of
    samples."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, chunks), np.int64, len(chunks))
        self.buffer = np.frombuffer(b"".join(chunks) + bytes(_PADDING), np.uint8)
        # For every byte, the eight bytes from there on as a big-endian number.
        self.windows = np.ndarray((len(self.buffer) - 7,), ">u8", self.buffer, strides=(1,))
        begins = np.cumsum(sizes) - sizes
        self.counts = (self.buffer[begins].astype(np.int64) << 8) | self.buffer[begins + 1]
        self.order = np.argsort(-self.counts, kind="stable")
        self.sorted_counts = self.counts[self.order]
        self.at = (begins[self.order] + 2) * 8  # bits
        self.ends = (begins[self.order] + sizes[self.order]) * 8
        # Every sample has at least two bits. A higher count is a lie that would cost time and memory.
        if np.any(self.counts * 2 > sizes * 8):
            raise BadChunk("a chunk is too short for its count of samples")

    def read(self) -> tuple[Int64, npt.NDArray[np.float64], Int64]:
        """Return time stamps and values of all chunks in the order given, and the number of samples of each chunk.
        Raises BadChunk."""
        total = int(self.counts.sum())
        times = np.empty(total, np.int64)
        values = np.empty(total, np.uint64)
        if total:
            self._read_all(times, values)
        if np.any(self.at > self.ends):
            raise BadChunk("a chunk ends before its last sample")
        return times, values.view(np.float64), self.counts

    def _read_all(self, times: Int64, values: UInt64) -> None:
        """Read all samples, and write each chunk's times and values to where `read` returns them. Raises BadChunk."""
        # Where each chunk's next sample goes.
        output_index = (np.cumsum(self.counts) - self.counts)[self.order]
        # active[k] chunks have more than k samples.
        longest = int(self.sorted_counts[0])
        active = len(self.counts) - np.searchsorted(self.sorted_counts[::-1], np.arange(longest), side="right")
        count = int(active[0])
        time = self._decode_zigzag(self._read_varint(count))
        value = self._read_bits64(count)
        self.at[:count] += 64
        times[output_index[:count]], values[output_index[:count]] = time, value
        if longest == 1:
            return
        count = int(active[1])
        delta = self._read_varint(count).view(np.int64)
        time = time[:count] + delta
        leading = np.zeros(count, np.uint64)
        trailing = np.zeros(count, np.uint64)
        value = self._read_value(value[:count], leading, trailing)
        times[output_index[:count] + 1], values[output_index[:count] + 1] = time, value
        for k in range(2, longest):
            if (now := int(active[k])) != count:
                count = now
                time, value, delta = time[:count], value[:count], delta[:count]
                leading, trailing = leading[:count], trailing[:count]
            delta = delta + self._read_change(count)
            time = time + delta
            value = self._read_value(value, leading, trailing)
            to = output_index[:count] + k
            times[to], values[to] = time, value

    def _window(self, at: Int64) -> UInt64:
        """Return at least 57 bits from each bit position on, in the highest bits of a 64-bit number."""
        # A position beyond the end is an error that `read` reports; until then no byte beyond the buffer may be read.
        byte = np.minimum(at >> 3, len(self.windows) - 1)
        bits: UInt64 = self.windows[byte].astype(np.uint64) << (at & 7).view(np.uint64)
        return bits

    def _read_bits64(self, count: int) -> UInt64:
        """Return the next 64 bits of the first `count` chunks, without advancing in the chunks."""
        at = self.at[:count]
        return self._window(at) & ~np.uint64(0xFF) | (self._window(at + 56) >> np.uint64(56))

    def _read_varint(self, count: int) -> UInt64:
        """Read and return the next variable-length number of the first `count` chunks: little-endian groups of seven
        bits, each in eight bits at any bit position. Raises BadChunk."""
        at = self.at[:count]
        result = np.zeros(count, np.uint64)
        unfinished = np.ones(count, bool)
        for group in range(_MAX_VARINT):
            byte = self._window(at) >> np.uint64(56)
            result[unfinished] |= ((byte & np.uint64(0x7F)) << np.uint64(7 * group))[unfinished]
            at[unfinished] += 8
            unfinished &= byte >= 0x80
            if not unfinished.any():
                return result
        raise BadChunk("a chunk's time stamp is longer than 64 bits")

    @staticmethod
    def _decode_zigzag(number: UInt64) -> Int64:
        return (number >> _ONE).view(np.int64) ^ -(number & _ONE).view(np.int64)

    def _read_change(self, count: int) -> Int64:
        """Read and return the next difference of differences of the first `count` chunks: `0` none; `10`, `110`, `1110`
        and 14, 17, 20 bits; `1111` and 64 bits."""
        at = self.at[:count]
        window = self._window(at)
        result = np.zeros(count, np.int64)
        if not (changed := (window >> np.uint64(63)).view(np.int64)).any():
            at += 1
            return result
        where = np.flatnonzero(changed)
        at += 1
        selected = window[where]
        prefix = (selected >> np.uint64(60)).view(np.int64)
        kind = _PREFIX[prefix]
        size, skip = _SIZE[kind], _SKIP[kind]
        number = ((selected << skip.view(np.uint64)) >> (64 - size).view(np.uint64)).view(np.int64)
        # An unsigned number of `size` bits; above half the range it is negative.
        result[where] = np.where(number > (1 << (size - 1)), number - (1 << size), number)
        at[where] += skip - 1 + _TAKEN[kind]
        if (full_width := where[prefix == 15]).size:
            at_whole = at[full_width]
            high = self._window(at_whole) & ~np.uint64(0xFF)
            result[full_width] = (high | (self._window(at_whole + 56) >> np.uint64(56))).view(np.int64)
            at[full_width] += 64
        return result

    def _read_value(self, value: UInt64, leading: UInt64, trailing: UInt64) -> UInt64:
        """Read and return the next value of the first chunks, as many as `value` has, from their last values: `0`
        unchanged; `10` changed bits in the previous position; `11` position and changed bits.

        Update `leading` and `trailing`, the numbers of unchanged bits before and after the changed ones. Raises
        BadChunk.
        """
        count = len(value)
        at = self.at[:count]
        window = self._window(at)
        control = window >> np.uint64(62)
        where = np.flatnonzero(control >= 2)
        at += 1
        if not where.size:
            return value
        selected = window[where]
        fresh = (selected >> np.uint64(62)) == 3
        front = np.where(fresh, (selected >> np.uint64(57)) & np.uint64(31), leading[where])
        bits = (selected >> np.uint64(51)) & np.uint64(63)
        bits = np.where(bits == 0, np.uint64(64), bits)
        back = np.where(fresh, np.uint64(64) - front - bits, trailing[where])
        leading[where], trailing[where] = front, back
        begin = at[where] + np.where(fresh, 12, 1)
        length = np.uint64(64) - front - back
        if np.any(fresh & (front + bits > np.uint64(64))):
            raise BadChunk("a chunk's value is longer than 64 bits")
        changed = self._window(begin)
        if (long := np.flatnonzero(length > 56)).size:
            low_bits = self._window(begin[long] + 56) >> np.uint64(56)
            changed[long] = changed[long] & ~np.uint64(0xFF) | low_bits
        changed >>= np.uint64(64) - length
        changed <<= back
        at[where] = begin + length.view(np.int64)
        result = value.copy()
        result[where] ^= changed
        return result


def _table(of: Any) -> Int64:
    return np.array(of, np.int64)


# By the first four bits: the kind of prefix. By kind: bits of prefix, width of the number, bits to skip after it.
_PREFIX = _table([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4])
_SKIP = _table([1, 2, 3, 4, 4])
_SIZE = _table([1, 14, 17, 20, 1])
_TAKEN = _table([0, 14, 17, 20, 0])  # the 64 bits are read by themselves
