"""Parses streamed responses of remote read: frames of chunks to blocks of samples. Pure: bytes in, blocks out.

A frame is a length, a CRC and a `ChunkedReadResponse`. Series come sorted, one per frame, a long one in several frames.
The CRC must be checked: a server that fails in the middle of a response writes the error's text behind the frames.
Chunks come whole even if they exceed the window, so blocks are cut to the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import google_crc32c
import numpy as np

from migratory_spark.prometheus import histogram_chunk, xor
from migratory_spark.prometheus.blocks import Float64, Int64, Objects, SampleBlock, decode_labels
from migratory_spark.prometheus.errors import excerpt
from migratory_spark.prometheus.native_histogram import BadHistogram
from migratory_spark.prometheus.protobuf import BadProtobuf, NotSupported, field

CHUNKS = 2000
"""Chunks that are decoded together, usually 240,000 samples: many enough for NumPy, few enough for the CPU's cache."""

_MAX_FRAME_BYTES = 1 << 28
"""Bytes of the largest frame that is accepted; servers write about 1 MiB."""
_XOR = 1
_KINDS = (_XOR, histogram_chunk.INTEGER, histogram_chunk.FLOAT)
_TIME_TAGS = b"\x08\x10"
"""Tags of a chunk's first and last time."""

_Chunk = tuple[int, bytes]
"""Kind and data of a chunk."""


def frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the messages in the frames of a stream that arrives in pieces of any size.

    Raises BadProtobuf if a frame is incomplete or its CRC is wrong, with the text that a server wrote instead of a
    frame.
    """
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        at = 0
        while (next_frame := _next_frame(buffer, at)) is not None:
            message, at = next_frame
            yield message
        del buffer[:at]
    if buffer:
        raise BadProtobuf(f"the stream ends inside a frame: {excerpt(bytes(buffer))}")


def _next_frame(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    """Return the message of the frame that begins at index `at`, and the index after the frame; None if the frame is
    not complete yet. Raises BadProtobuf."""
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
            raise BadProtobuf(f"expected a frame, got: {excerpt(bytes(buffer[begin:]))}")
    if size > _MAX_FRAME_BYTES:
        raise BadProtobuf(f"a frame of {size} bytes, which is impossible: {excerpt(bytes(buffer[begin:]))}")
    end = at + 4 + size
    if end > len(buffer):
        return None
    message = bytes(buffer[at + 4 : end])
    if google_crc32c.value(message) != int.from_bytes(buffer[at : at + 4], "big"):
        raise BadProtobuf(f"a frame's checksum is wrong: {excerpt(bytes(buffer[begin:]))}")
    return message, end


def blocks(messages: Iterable[bytes], start_ms: int, end_ms: int, chunks: int = CHUNKS) -> Iterator[SampleBlock]:
    """Yield blocks of whole series, of about `chunks` chunks each, cut to [start, end) (ms since 1970). A block may be
    empty. Raises BadProtobuf."""
    group = _ChunkGroup()
    for message in messages:
        for key, of_series in _parse_response(message):
            # The series before is complete as soon as another begins.
            if key != group.last and len(group.chunks) >= chunks:
                yield group.block().between(start_ms, end_ms)
                group = _ChunkGroup()
            group.add(key, of_series)
    if group.keys:
        yield group.block().between(start_ms, end_ms)


class _ChunkGroup:
    """Several series with their chunks, which are decoded together."""

    def __init__(self) -> None:
        self.chunks: list[_Chunk] = []
        self.keys: list[bytes] = []
        self._per_series: list[int] = []

    @property
    def last(self) -> bytes | None:
        """The encoded labels of the last series, None if there is none."""
        return self.keys[-1] if self.keys else None

    def add(self, key: bytes, chunks: list[_Chunk]) -> None:
        """Add chunks of the series with the encoded labels `key`: of the last series again, or of a new one."""
        if key != self.last:
            self.keys.append(key)
            self._per_series.append(0)
        self._per_series[-1] += len(chunks)
        self.chunks += chunks

    def block(self) -> SampleBlock:
        """Decode all chunks, and return the series and samples as one block. Raises BadProtobuf."""
        try:
            times, values, per_chunk, histograms = _decode(self.chunks)
        except (xor.BadChunk, BadHistogram) as error:
            raise BadProtobuf(str(error)) from error
        series = [decode_labels(key) for key in self.keys]
        ends = np.cumsum(np.array(self._per_series, np.int64))
        running = np.concatenate(([0], np.cumsum(per_chunk)))
        counts = np.diff(running[ends], prepend=0)
        return SampleBlock(series, counts, times, values, histograms=histograms)


def _decode(chunks: list[_Chunk]) -> tuple[Int64, Float64, Int64, Objects | None]:
    """Return the time stamps (ms since 1970) and values of all chunks, one chunk after another, the number of samples
    of each chunk, and the native histograms, None if there are none. Raises BadChunk and BadHistogram."""
    if all(kind == _XOR for kind, _ in chunks):
        return *xor.decode([data for _, data in chunks]), None
    times, values, counts = xor.decode([data for kind, data in chunks if kind == _XOR])
    ends = np.cumsum(counts)[:-1]
    of_numbers = zip(np.split(times, ends), np.split(values, ends), strict=True)
    parts: list[tuple[Int64, Float64, Objects]] = []
    for kind, data in chunks:
        if kind == _XOR:
            chunk_times, chunk_values = next(of_numbers)
            parts.append((chunk_times, chunk_values, np.full(len(chunk_times), None)))
        else:
            parts.append(histogram_chunk.decode(kind, data))
    times, values, histograms = (np.concatenate(each) for each in zip(*parts, strict=True))
    return times, values, np.array([len(part[0]) for part in parts], np.int64), histograms


def _parse_response(message: bytes) -> Iterator[tuple[bytes, list[_Chunk]]]:
    """Yield encoded labels and chunks of each series in a `ChunkedReadResponse`. Raises BadProtobuf."""
    at, end = 0, len(message)
    while at < end:
        tag, begin, at, _ = field(message, at, end)
        if tag == 0x0A:
            yield _parse_series(message, begin, at)


def _parse_series(message: bytes, at: int, end: int) -> tuple[bytes, list[_Chunk]]:
    """Return encoded labels and chunks of the series from index `at` to `end`. Raises BadProtobuf."""
    first = at
    behind = at  # of the labels
    chunks = []
    while at < end:
        tag, begin, at, _ = field(message, at, end)
        if tag == 0x0A:
            behind = at
        elif tag == 0x12:
            chunks.append(_parse_chunk(message, begin, at))
    return message[first:behind], chunks


def _parse_chunk(message: bytes, at: int, end: int) -> _Chunk:
    """Return kind and data of the chunk from index `at` to `end`. Raises BadProtobuf, and NotSupported for a chunk of a
    kind that is unknown here."""
    kind, data = 0, b""
    while at < end:
        # Two of the four fields are times, which the chunk repeats: they are skipped without a function call.
        if message[at] in _TIME_TAGS:
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
        raise BadProtobuf("a chunk's time is longer than the chunk")
    if kind not in _KINDS:
        raise NotSupported(f"a chunk of the unknown kind {kind}: set option api to remote_read_samples")
    return kind, data
