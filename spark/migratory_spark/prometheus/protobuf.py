"""The protobuf encoding of remote read (prompb/remote.proto, prompb/types.proto), without generated classes. Pure.

Encodes `ReadRequest`, and parses what responses consist of: numbers, fields and labels. `chunk_stream.py` and
`sample_response.py` parse the responses with it. They read samples and chunks, which are most of the bytes, with NumPy,
because a generated class per sample would cost ten times as much.
"""

from __future__ import annotations

from collections.abc import Sequence

from migratory_spark.prometheus.selectors import OPERATORS, Matcher

SAMPLES, STREAMED_XOR_CHUNKS = 0, 1
"""Types of response that a request accepts."""

_MASK64 = (1 << 64) - 1


class BadProtobuf(ValueError):
    """Raised when bytes are not a message of the expected type."""


class NotSupported(ValueError):
    """Raised for valid content that cannot be read here. The message says what to do. A retry would not help."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length number that begins at index `at`, and the index after it. Raises BadProtobuf."""
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
                raise BadProtobuf("a number of more than 64 bits")
    except IndexError:
        raise BadProtobuf("the message ends inside a number") from None


def field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Parse the field at index `at` of a message that ends at index `end`.

    Return its tag (number and wire type), the indexes at which its content begins and ends, and the value if it is a
    number of variable length, else 0. Raises BadProtobuf.
    """
    # Tags and most lengths have one byte. A response has millions of them, so they are read without a function call.
    if at + 1 >= end:
        raise BadProtobuf("a field is longer than its message")
    tag = data[at]
    at += 1
    if tag >= 0x80:
        tag, at = varint(data, at - 1)
        if at >= end:
            raise BadProtobuf("a field is longer than its message")
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
        case wire_type:
            raise BadProtobuf(f"a field of the unknown wire type {wire_type}")
    if at > end:
        raise BadProtobuf("a field is longer than its message")
    return tag, begin, at, value


def labels(data: bytes) -> list[tuple[str, str]]:
    """Return the pairs of name and value in a sequence of encoded `Label` fields (tag 0x0a). Raises BadProtobuf."""
    pairs = []
    at, end = 0, len(data)
    while at < end:
        tag, inside, at, _ = field(data, at, end)
        if tag != 0x0A:
            raise BadProtobuf(f"the field {tag >> 3} among labels")
        name = value = b""
        while inside < at:
            tag, begin, inside, _ = field(data, inside, at)
            if tag == 0x0A:
                name = data[begin:inside]
            elif tag == 0x12:
                value = data[begin:inside]
        try:
            pairs.append((name.decode(), value.decode()))
        except UnicodeDecodeError as error:
            raise BadProtobuf("a label that is not UTF-8") from error
    return pairs


def read_request(selector: Sequence[Matcher], start_ms: int, end_ms: int, accepted: Sequence[int]) -> bytes:
    """Return an encoded `ReadRequest` for one selector, from `start_ms` to `end_ms`, both included.

    :param accepted: the accepted types of response, the preferred first.
    """
    query = b"\x08" + _encode_varint(start_ms) + b"\x10" + _encode_varint(end_ms)
    for matcher in selector:
        kind = OPERATORS.index(matcher.operator)
        parts = _encode_bytes(2, matcher.label.encode()) + _encode_bytes(3, matcher.value.encode())
        query += _encode_bytes(3, (b"\x08" + _encode_varint(kind) if kind else b"") + parts)
    return _encode_bytes(1, query) + _encode_bytes(2, bytes(accepted))


def _encode_varint(number: int) -> bytes:
    number &= _MASK64
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _encode_bytes(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content
