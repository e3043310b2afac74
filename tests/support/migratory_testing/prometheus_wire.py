"""An encoder of the answers of a Prometheus server, independent of the product's decoder.

It writes XOR chunks, chunks of native histograms and both kinds of answers to remote reads, and parses the requests. It
is simple and slow.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import pyarrow as pa

Labels = dict[str, str]
Samples = Sequence[tuple[int, float]]

STALE_BITS = 0x7FF0000000000002
"""The bits of the number that marks the end of a series."""


def bits(number: int, size: int) -> str:
    """Return the lowest `size` bits of a number as text of 0 and 1, the highest first."""
    return format(number & ((1 << size) - 1), f"0{size}b") if size else ""


def packed(text: str) -> bytes:
    """Return the bytes of a text of 0 and 1, to whose end zeros are added up to a whole byte."""
    text += "0" * (-len(text) % 8)
    return int(text or "0", 2).to_bytes(len(text) // 8, "big")


def bits_of(value: float) -> int:
    """Return the 64 bits of a float as a whole number."""
    return int(struct.unpack(">Q", struct.pack(">d", value))[0])


def of_bits(bits: int) -> float:
    """Return the float with these 64 bits."""
    return float(struct.unpack(">d", struct.pack(">Q", bits))[0])


def uvarint(number: int) -> bytes:
    """Return a number, modulo 2^64, as a varint of protobuf."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Return a signed number as a zigzag varint, as Go's `binary.PutVarint` writes it."""
    return uvarint((number << 1) ^ (number >> 63))


def chunk(samples: Samples) -> bytes:
    """Return the samples as an XOR chunk, encoded as in Prometheus's tsdb/chunkenc/xor.go."""
    out = ""
    before, delta = 0, 0
    last, leading, trailing = 0, None, 0
    for number, (time, value) in enumerate(samples):
        new = bits_of(value)
        if number == 0:
            out += _bits_of_bytes(zigzag(time)) + bits(new, 64)
        else:
            change = time - before - delta
            delta = time - before
            out += _bits_of_bytes(uvarint(delta)) if number == 1 else _change(change)
            text, leading, trailing = _value(new ^ last, leading, trailing)
            out += text
        before, last = time, new
    return struct.pack(">H", len(samples)) + packed(out)


def _bits_of_bytes(data: bytes) -> str:
    return "".join(bits(byte, 8) for byte in data)


def _change(change: int) -> str:
    """Return the bits of the change of the interval between samples, as an XOR chunk has them."""
    if change == 0:
        return "0"
    for prefix, size in (("10", 14), ("110", 17), ("1110", 20)):
        if -((1 << (size - 1)) - 1) <= change <= 1 << (size - 1):
            return prefix + bits(change, size)
    return "1111" + bits(change, 64)


def _value(changed: int, leading: int | None, trailing: int) -> tuple[str, int | None, int]:
    """Return the bits of a value, as an XOR chunk has them, and the numbers of leading and trailing zeros for the next
    one. `changed` is the value's bits XOR those of the value before."""
    if changed == 0:
        return "0", leading, trailing
    front = min(31, 64 - changed.bit_length())
    back = (changed & -changed).bit_length() - 1
    if leading is not None and front >= leading and back >= trailing:
        return "10" + bits(changed >> trailing, 64 - leading - trailing), leading, trailing
    size = 64 - front - back
    return "11" + bits(front, 5) + bits(size & 63, 6) + bits(changed >> back, size), front, back


def message(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message: its number, and its content with its length."""
    return uvarint(number << 3 | 2) + uvarint(len(content)) + content


def number(field: int, value: int) -> bytes:
    """Return a field of a protobuf message with a whole number."""
    return uvarint(field << 3) + uvarint(value)


def labels(pairs: Labels) -> bytes:
    """Return a series' labels, sorted by name, as fields of a protobuf message."""
    return b"".join(
        message(1, message(1, name.encode()) + message(2, value.encode())) for name, value in sorted(pairs.items())
    )


def frame(content: bytes) -> bytes:
    """Return a frame of a streamed answer: length, checksum and content."""
    checksum: int = google_crc32c.value(content)
    return uvarint(len(content)) + checksum.to_bytes(4, "big") + content


def streamed(series: Iterable[tuple[Labels, Samples]], per_chunk: int = 120, per_frame: int = 1000) -> bytes:
    """Return the streamed answer to a remote read, with `per_chunk` samples in a chunk and at most `per_frame`
    chunks in a frame."""
    found = b""
    for pairs, samples in series:
        pieces = [samples[at : at + per_chunk] for at in range(0, len(samples), per_chunk)]
        for first in range(0, len(pieces), per_frame):
            inside = b"".join(
                message(2, number(1, part[0][0]) + number(2, part[-1][0]) + number(3, 1) + message(4, chunk(part)))
                for part in pieces[first : first + per_frame]
            )
            found += frame(message(1, labels(pairs) + inside) + number(2, 0))
    return found


def plain(series: Iterable[tuple[Labels, Samples]]) -> bytes:
    """Return the answer to a remote read as one uncompressed `ReadResponse`. A field that is zero is left out, as Go's
    encoder does."""
    inside = b""
    for pairs, samples in series:
        told = labels(pairs)
        for time, value in samples:
            one = b"" if bits_of(value) in (0, 1 << 63) else b"\x09" + struct.pack("<d", value)
            told += message(2, one + (number(2, time) if time else b""))
        inside += message(1, told)
    return message(1, inside)


def snappy(content: bytes) -> bytes:
    found: bytes = pa.compress(content, codec="snappy", asbytes=True)
    return found


def fields(data: bytes) -> list[tuple[int, Any]]:
    """Return the number and the value of each field of a protobuf message."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        tag, at = _read(data, at)
        value, at = _read(data, at)
        if tag & 7 == 2:
            found.append((tag >> 3, data[at : at + value]))
            at += value
        else:
            found.append((tag >> 3, value))
    return found


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at offset `at`, and the offset after it."""
    result = shift = 0
    while True:
        result |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return result, at
        shift += 7


def window_of(request: bytes) -> tuple[int, int]:
    """Return the first and the last time, in ms, that a snappy-compressed `ReadRequest` asks for."""
    size, _ = _read(request, 0)
    told = dict(fields(pa.decompress(request, decompressed_size=size, codec="snappy", asbytes=True)))
    query = dict(fields(told[1]))
    return query[1], query[2]


# ---- native histograms -----------------------------------------------------------------------------------------------

Spans = Sequence[tuple[int, int]]
"""Offset and length of each span of buckets, as Prometheus has them."""


@dataclass(slots=True, kw_only=True)
class Native:
    """One sample of a native histogram. `positive` and `negative` are the counts of the buckets in the spans. A stale
    marker has the marker as its `sum`."""

    time: int
    count: float
    sum: float
    zero_count: float = 0
    positive: Sequence[float] = ()
    negative: Sequence[float] = ()
    reset_hint: int = 0


@dataclass(slots=True, kw_only=True)
class Shape:
    """The buckets of native histograms that are encoded together. `bounds` are those of the schema -53."""

    schema: int
    positive: Spans = ()
    negative: Spans = ()
    zero_threshold: float = 2.0**-128
    bounds: Sequence[float] = ()


def varbit(number: int, signed: bool = True) -> str:
    """Return a number in the code of Prometheus's tsdb/chunkenc/varbit.go."""
    if not number:
        return "0"
    for prefix, size in (("10", 3), ("110", 6), ("1110", 9), ("11110", 12), ("111110", 18), ("1111110", 25)):
        if -((1 << (size - 1)) - 1) <= number <= 1 << (size - 1) if signed else number < 1 << size:
            return prefix + bits(number, size)
    size = 56
    if -((1 << (size - 1)) - 1) <= number <= 1 << (size - 1) if signed else number < 1 << size:
        return "1" * 7 + "0" + bits(number, size)
    return "1" * 8 + bits(number, 64)


def histogram_chunk(shape: Shape, samples: Sequence[Native], header: int = 0, floats: bool = False) -> bytes:
    """Return the samples as a chunk of whole numbers, or of floating-point numbers with `floats`, encoded as in
    Prometheus's tsdb/chunkenc/histogram.go and float_histogram.go. `header` are the two bits about restarts."""
    out = _threshold(shape.zero_threshold) + varbit(shape.schema)
    for spans in (shape.positive, shape.negative):
        out += varbit(len(spans), False)
        out += "".join(varbit(length, False) + varbit(offset) for offset, length in spans)
    if shape.schema == -53:
        out += varbit(len(shape.bounds), False) + "".join(map(_bound, shape.bounds))
    out += _float_samples(samples) if floats else _integer_samples(samples)
    return struct.pack(">HB", len(samples), header << 6) + packed(out)


def _threshold(threshold: float) -> str:
    if not threshold:
        return bits(0, 8)
    fraction, exponent = math.frexp(threshold)
    if fraction == 0.5 and -242 <= exponent <= 11:
        return bits(exponent + 243, 8)
    return bits(255, 8) + bits(bits_of(threshold), 64)


def _bound(bound: float) -> str:
    thousandths = round(bound * 1000)
    if 0 <= thousandths <= 33_554_430 and thousandths / 1000 == bound:
        return varbit(thousandths + 1, False)
    return "0" + bits(bits_of(bound), 64)


def _deltas(counts: Sequence[float]) -> list[int]:
    return [int(count - before) for before, count in zip((0, *counts), counts, strict=False)]


def _integer_samples(samples: Sequence[Native]) -> str:
    out = ""
    heads: list[tuple[int, ...]] = []
    rows: list[list[int]] = []
    last, leading, trailing = 0, None, 0
    for number, sample in enumerate(samples):
        heads.append((sample.time, int(sample.count), int(sample.zero_count)))
        new = bits_of(sample.sum)
        if number == 0:
            out += varbit(heads[0][0]) + varbit(heads[0][1], False) + varbit(heads[0][2], False) + bits(new, 64)
        else:
            out += "".join(varbit(change) for change in _second_change(heads))
            text, leading, trailing = _value(new ^ last, leading, trailing)
            out += text
        last = new
        if number and new == STALE_BITS:
            continue
        rows.append(_deltas(sample.positive) + _deltas(sample.negative))
        out += "".join(varbit(change) for change in _second_change(rows))
    return out


def _second_change(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the last row as it is written: itself if it is the first, else the change of its difference to the row
    before."""
    if len(rows) == 1:
        return list(rows[0])
    step = [new - old for old, new in zip(rows[-2], rows[-1], strict=True)]
    if len(rows) == 2:
        return step
    return [new - (b - a) for a, b, new in zip(rows[-3], rows[-2], step, strict=True)]


def _float_samples(samples: Sequence[Native]) -> str:
    out = varbit(samples[0].time)
    states: list[tuple[int, int | None, int]] = []
    times: list[Sequence[int]] = [[samples[0].time]]
    for number, sample in enumerate(samples):
        numbers = [sample.count, sample.zero_count, sample.sum]
        if not number or bits_of(sample.sum) != STALE_BITS:
            numbers += [*sample.positive, *sample.negative]
        if not number:
            states = [(bits_of(each), None, 0) for each in numbers]
            out += "".join(bits(state[0], 64) for state in states)
            continue
        times.append([sample.time])
        out += varbit(_second_change(times)[0])
        for place, each in enumerate(numbers):
            last, leading, trailing = states[place]
            text, leading, trailing = _value(bits_of(each) ^ last, leading, trailing)
            states[place] = bits_of(each), leading, trailing
            out += text
    return out


def plain_histogram(shape: Shape, sample: Native, floats: bool = False, with_bounds: bool = True) -> bytes:
    """Return the field of a series in a plain answer to a remote read that has this histogram. Prometheus leaves the
    bounds of the schema -53 out, as without `with_bounds`."""

    def real(field: int, value: float) -> bytes:
        return uvarint(field << 3 | 1) + struct.pack("<d", value) if bits_of(value) else b""

    def spans(field: int, of_side: Spans) -> bytes:
        return b"".join(
            message(field, uvarint(1 << 3) + zigzag(offset) + number(2, length)) for offset, length in of_side
        )

    def reals(field: int, values: Sequence[float]) -> bytes:
        return message(field, struct.pack(f"<{len(values)}d", *values)) if values else b""

    def deltas(field: int, counts: Sequence[float]) -> bytes:
        return message(field, b"".join(map(zigzag, _deltas(counts)))) if counts else b""

    if bits_of(sample.sum) == STALE_BITS:
        shape = Shape(schema=0, zero_threshold=0)
    inside = real(2, sample.count) if floats else number(1, int(sample.count))
    inside += real(3, sample.sum) + uvarint(4 << 3) + zigzag(shape.schema) + real(5, shape.zero_threshold)
    inside += real(7, sample.zero_count) if floats else number(6, int(sample.zero_count))
    inside += spans(8, shape.negative)
    inside += reals(10, sample.negative) if floats else deltas(9, sample.negative)
    inside += spans(11, shape.positive)
    inside += reals(13, sample.positive) if floats else deltas(12, sample.positive)
    inside += number(14, sample.reset_hint) + number(15, sample.time)
    return message(4, inside + (reals(16, shape.bounds) if with_bounds else b""))


def chunk_field(kind: int, data: bytes) -> bytes:
    """Return the field of a streamed series that has this chunk."""
    return message(2, number(1, 0) + number(2, 0) + number(3, kind) + message(4, data))
