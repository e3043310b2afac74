"""The few pieces of protobuf's encoding that remote read needs. Pure.

The messages (prompb/remote.proto, prompb/types.proto) have a handful of fields. Their bulk, samples and chunks, is
taken apart by NumPy elsewhere; a generated class per sample would cost ten times as much.
"""

from __future__ import annotations

from collections.abc import Sequence

from migratory_spark.prometheus.selectors import OPERATORS, Matcher

SAMPLES, STREAMED_XOR_CHUNKS = 0, 1
"""Types of answer that can be asked for."""

_MASK64 = (1 << 64) - 1


class BadMessage(ValueError):
    """The bytes are no message of the kind that was expected."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends. Raises BadMessage."""
    result = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result & _MASK64, at
            shift += 7
            if shift > 63:
                raise BadMessage("a number of more than 64 bits")
    except IndexError:
        raise BadMessage("the message ends inside a number") from None


def field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The field at `at` of a message that ends at `end`: its number and wire type together (the tag), where its
    content begins and ends, and a varint's value (else 0). Raises BadMessage."""
    # Tags and most lengths have one byte; an answer has millions of them, so they are not read by a call each.
    if at + 1 >= end:
        raise BadMessage("a field is longer than its message")
    tag = data[at]
    at += 1
    if tag >= 0x80:
        tag, at = varint(data, at - 1)
    value, begin = 0, at
    match tag & 7:
        case 2:
            size = data[at]
            begin = at + 1
            if size >= 0x80:
                size, begin = varint(data, at)
            at = begin + size
        case 0:
            value, at = varint(data, at)
        case 1:
            at += 8
        case 5:
            at += 4
        case other:
            raise BadMessage(f"a field of the unknown wire type {other}")
    if at > end:
        raise BadMessage("a field is longer than its message")
    return tag, begin, at, value


def labels(data: bytes) -> list[tuple[str, str]]:
    """The pairs of a run of `Label` fields (tag 0x0a each). Raises BadMessage."""
    found = []
    at, end = 0, len(data)
    while at < end:
        tag, inside, at, _ = field(data, at, end)
        if tag != 0x0A:
            raise BadMessage(f"the field {tag >> 3} among labels")
        name = value = b""
        while inside < at:
            tag, begin, inside, _ = field(data, inside, at)
            if tag == 0x0A:
                name = data[begin:inside]
            elif tag == 0x12:
                value = data[begin:inside]
        try:
            found.append((name.decode(), value.decode()))
        except UnicodeDecodeError as error:
            raise BadMessage("a label that is no UTF-8") from error
    return found


def read_request(selector: Sequence[Matcher], start_ms: int, end_ms: int, accepted: Sequence[int]) -> bytes:
    """A `ReadRequest` for one selector; `end_ms` is included, as the protocol has it."""
    query = b"\x08" + _varint(start_ms) + b"\x10" + _varint(end_ms)
    for matcher in selector:
        kind = OPERATORS.index(matcher.operator)
        parts = _bytes(2, matcher.label.encode()) + _bytes(3, matcher.value.encode())
        query += _bytes(3, (b"\x08" + _varint(kind) if kind else b"") + parts)
    return _bytes(1, query) + _bytes(2, bytes(accepted))


def _varint(number: int) -> bytes:
    number &= _MASK64
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content
