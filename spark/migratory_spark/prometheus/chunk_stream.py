"""Remote read's streamed answers: frames of XOR chunks to blocks. Pure: bytes in, blocks out.

A frame is a length, a CRC and a `ChunkedReadResponse`; series come sorted, one per frame, a long one in several frames.
The CRC is not decoration: when a server fails in the middle of an answer it writes the error's text behind the frames.
Chunks come whole, also where they reach over the window's ends, so blocks are cut to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import google_crc32c
import numpy as np

from migratory_spark.prometheus import xor
from migratory_spark.prometheus.blocks import Block, decoded
from migratory_spark.prometheus.protobuf import BadMessage, field

CHUNKS = 2000
"""Chunks that are decoded together: enough for NumPy, few enough for the processor's cache; 240,000 samples usually."""

_LONGEST_FRAME = 1 << 28  # servers write about 1 MiB
_XOR = 1
_TIMES = b"\x08\x10"  # tags of a chunk's first and last time


def frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The messages of a stream that arrives in pieces of any size. Raises BadMessage, with what a server wrote instead
    of a frame."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        at = 0
        while (found := _frame(buffer, at)) is not None:
            message, at = found
            yield message
        del buffer[:at]
    if buffer:
        raise BadMessage(f"the stream ends inside a frame: {_readable(bytes(buffer))}")


def _frame(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    size = shift = 0
    begin = at
    while True:
        if at == len(buffer):
            return None
        byte = buffer[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 35:
            raise BadMessage(f"no frame but: {_readable(bytes(buffer[begin:]))}")
    if size > _LONGEST_FRAME:
        raise BadMessage(f"a frame of {size} bytes, which is none: {_readable(bytes(buffer[begin:]))}")
    end = at + 4 + size
    if end > len(buffer):
        return None
    message = bytes(buffer[at + 4 : end])
    if google_crc32c.value(message) != int.from_bytes(buffer[at : at + 4], "big"):
        raise BadMessage(f"a frame's checksum is wrong: {_readable(bytes(buffer[begin:]))}")
    return message, end


def _readable(data: bytes) -> str:
    return repr(data[:200].decode(errors="replace"))


def blocks(messages: Iterable[bytes], start_ms: int, end_ms: int, chunks: int = CHUNKS) -> Iterator[Block]:
    """Whole series, about `chunks` chunks at once, cut to [start, end). Raises BadMessage."""
    group = _Group()
    for message in messages:
        for key, found in _series(message):
            # The series before is complete as soon as another begins.
            if key != group.last and len(group.chunks) >= chunks:
                yield group.block().between(start_ms, end_ms)
                group = _Group()
            group.add(key, found)
    if group.keys:
        yield group.block().between(start_ms, end_ms)


class _Group:
    """Series of which the chunks are held but not decoded."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.keys: list[bytes] = []
        self._per_series: list[int] = []

    @property
    def last(self) -> bytes | None:
        return self.keys[-1] if self.keys else None

    def add(self, key: bytes, found: list[bytes]) -> None:
        if key != self.last:
            self.keys.append(key)
            self._per_series.append(0)
        self._per_series[-1] += len(found)
        self.chunks += found

    def block(self) -> Block:
        try:
            times, values, per_chunk = xor.decode(self.chunks)
        except xor.BadChunk as error:
            raise BadMessage(str(error)) from error
        series = [decoded(key) for key in self.keys]
        ends = np.cumsum(np.array(self._per_series, np.int64))
        running = np.concatenate(([0], np.cumsum(per_chunk)))
        counts = np.diff(running[ends], prepend=0)
        return Block(series, counts, times, values)


def _series(message: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """Encoded labels and XOR chunks of each series in a `ChunkedReadResponse`."""
    at, end = 0, len(message)
    while at < end:
        tag, begin, at, _ = field(message, at, end)
        if tag == 0x0A:
            yield _one(message, begin, at)


def _one(message: bytes, at: int, end: int) -> tuple[bytes, list[bytes]]:
    first = at
    behind = at  # of the labels
    found = []
    while at < end:
        tag, begin, at, _ = field(message, at, end)
        if tag == 0x0A:
            behind = at
        elif tag == 0x12:
            found.append(_chunk(message, begin, at))
    return message[first:behind], found


def _chunk(message: bytes, at: int, end: int) -> bytes:
    kind, data = 0, b""
    while at < end:
        # Two of four fields are times, which the chunk has as well: they are passed over without a call.
        if message[at] in _TIMES:
            at += 1
            while at < end and message[at] >= 0x80:
                at += 1
            at += 1
            continue
        tag, begin, at, value = field(message, at, end)
        if tag == 0x18:
            kind = value
        elif tag == 0x22:
            data = message[begin:at]
    if at > end:
        raise BadMessage("a chunk's time is longer than the chunk")
    if kind != _XOR:
        raise BadMessage(
            f"a chunk of kind {kind}: only plain numbers are read; leave native histograms out by the option matchers"
        )
    return data
