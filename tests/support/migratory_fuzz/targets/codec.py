"""Messages between a client and a broker. Byte 0 selects the format and the sender; the rest is a frame.

Oracles: the result is messages, or a BadMessage with a known code and a text that names the mistake and can be sent.
Good messages beside a bad one are kept. Decoded messages can be encoded and decoded again in both formats. The fast
decoder and the diagnosing one agree. A bytearray reads like bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migratory_protocol import errors
from migratory_protocol import messages as m
from migratory_protocol.codec import CODECS, JSON, MSGPACK, BadMessage, Codec, _holds_several
from migratory_protocol.diagnosis import diagnose_json, diagnose_msgpack
from migratory_protocol.jsonwire import operation_name
from migratory_protocol.positions import LARGEST, Position, parse_position

from migratory_fuzz.labels import seen, seen_error

SHAPE = "values"
SKIP = 1
MAX_LEN = 3000
TOKENS = (
    b'"op":"', b'"publish"', b'"subscribe"', b'"unsubscribe"', b'"connect"', b'"topics":[{"topic":"', b'"data64":"',
    b'"qos":1', b'"publisher":"', b'"after":"1:2"', b'"snapshot":true', b"\\ud800", b"9223372036854775807", b"1e400",
    b"\xdc\x00\x02", b"\xc4\x01a", b"\xca\x7f\xc0\x00\x00", b"\xa1\xff",
)  # fmt: skip

_JSON, _BROKER = 1, 2
_CODES = {errors.BAD_MESSAGE, errors.UNKNOWN_OP, errors.BAD_TOPIC, errors.BAD_POSITION}
_NOTHING_WRONG = ValueError("nothing was wrong with this frame")
_OPS = "|".join(operation_name(kind) for kind in (*m.ClientMessage.__args__, *m.BrokerMessage.__args__))
# every text begins with the operation and mostly the field, or describes the expected frame or message
_NAMES = re.compile(
    rf"(?:{_OPS})(?:\.[a-z0-9_]+(?:\[(?:\d+|\.\.\.)\])*(?:\.[a-z_]+(?:\[\d+\])*)?)?: .+"
    r"|unknown operation .+|missing field \"op\": .+|expected an (?:array|object) .+|an empty array: .+"
    r"|the frame (?:is not JSON: .+|is not MessagePack: .+|is nested too deeply)"
    r"|the frame holds (?:more than )?\d+ (?:messages|commas).+"
    r"|more than 16 bad messages in one frame, the first: .+"
    r"|more than 64 messages in one frame are bad or have malformed positions",
    re.DOTALL,
)


def run(data: bytes) -> None:
    flags, frame = (data[0], data[1:]) if data else (0, b"")
    codec: Codec = JSON if flags & _JSON else MSGPACK
    decode = codec.decode_broker if flags & _BROKER else codec.decode_client
    try:
        found: list[Any] = list(decode(frame))
    except BadMessage as error:
        _refused(error, codec)
        found = list(error.frame)
    else:
        if codec is MSGPACK or _is_utf8(frame):  # the frame parser never passes on invalid text
            _thorough(codec, frame, found, bool(flags & _BROKER))
    assert found
    assert _again(decode, bytearray(frame)) == [_shown(item) for item in found]
    for item in found:
        if not isinstance(item, BadMessage):
            _written(item, codec, bool(flags & _BROKER))


def _is_utf8(frame: bytes) -> bool:
    try:
        frame.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refused(error: BadMessage, codec: Codec) -> None:
    assert error.frame[0] is error or not error.closes
    for item in error.frame:
        if isinstance(item, BadMessage):
            assert item.code in _CODES, item.code
            assert 0 < len(item.text) <= 300
            assert _NAMES.fullmatch(item.text), item.text
            said = m.Error(item.code, item.text, item.request, item.topic, item.closes)
            assert codec.decode_broker(codec.encode(said)) == [said]
            seen_error(f"{item.code} {item.text}")


def _thorough(codec: Codec, frame: bytes, found: list[Any], broker: bool) -> None:
    """Check that the diagnosing decoder reads a good frame like the fast one."""
    side = codec._broker if broker else codec._client  # type: ignore[attr-defined]
    if codec is JSON:
        several = frame.lstrip(b" \t\r\n")[:1] == b"["
        again = diagnose_json(frame, several, side._operations, side._read, _NOTHING_WRONG)
    else:
        again = diagnose_msgpack(
            frame, _holds_several(frame), side._operations, side._read, side._read_lenient, _NOTHING_WRONG
        )
    assert [_with_positions(item) for item in again] == [_with_positions(item) for item in found]


def _with_positions(item: Any) -> Any:
    """Return the message with parsed positions: the two decoders may differ in malformed ones, which nothing reads
    again."""
    if not isinstance(item, m.Subscribe):
        return item
    return m.Subscribe(item.request, [m.TopicRequest(t.topic, _position(t.after), t.snapshot) for t in item.topics])


def _position(after: object) -> str | None:
    try:
        return str(parse_position(after))
    except ValueError as error:
        _names_the_position(str(error))
        return None


def _again(decode: Any, frame: bytearray) -> list[Any]:
    try:
        return [_shown(item) for item in decode(frame)]
    except BadMessage as error:
        return [_shown(item) for item in error.frame]


def _shown(item: Any) -> Any:
    return (item.code, item.text, item.request, item.topic) if isinstance(item, BadMessage) else _with_positions(item)


def _written(item: Any, codec: Codec, broker: bool) -> None:
    seen(f"{type(item).__name__} {_outline(item)}")
    if isinstance(item, m.Subscribe):
        for request in item.topics:
            request.after = _position(request.after)
    for other in CODECS if item is not None else ():
        decode = other.decode_broker if broker else other.decode_client
        assert decode(other.encode(item)) == [item]
        assert decode(other.join([other.encode(item)] * 2)) == [item, item]


def _names_the_position(text: str) -> None:
    assert "position" in text
    assert len(text) < 300


def _outline(item: Any) -> str:
    """Return which fields are set, and their rough sizes: coverage that msgspec, being C, does not show."""
    return ",".join(_size(getattr(item, name)) for name in item.__struct_fields__)


def _size(value: Any) -> str:
    if type(value) is int:
        return f"int{value.bit_length() // 8}"
    if isinstance(value, str | bytes | list):
        return f"{type(value).__name__}{min(4, len(value) // 8)}"
    return type(value).__name__


def seeds() -> Iterator[bytes]:
    position = Position(1_700_000_000_000, LARGEST)
    server = m.Server("ws://h/ws", 7)
    client = (
        m.Connect(1, "me", "token"),
        m.Subscribe(1, [m.TopicRequest("t", "1:2"), m.TopicRequest("\N{SNOWMAN}", None, True)]),
        m.Unsubscribe(2, ["t"]),
        m.Publish("t", b"\xff\x00", sent=1.5),
        m.Publish("t", b"text", 1, "p", 2**53 - 1, 3),
        m.Ping(),
        m.Bye(),
    )
    broker = (
        m.Welcome(1, "c", "b", 2, [server], 15.0, m.Limits(1, 2, 3, 4)),
        m.Subscribed(1, [m.TopicReceipt("t", "truncated", position, 1, 5), m.TopicReceipt("u", None, code="x")]),
        m.Unsubscribed(1, ["t"]),
        m.Message("t", position, b"x", 1.5, 2.5, True),
        m.Ack("t", "p", 1, None),
        m.Nack("t", "p", 1, "retry", "later", 0.5),
        m.Servers([server]),
        m.Drain(30.0, [server], False),
        m.Error("bad_message", "text", 1, "t", True),
        m.Pong(),
        m.TokenExpiring(60.0),
    )
    for codec, flag in ((JSON, _JSON), (MSGPACK, 0)):
        for side, messages in ((0, client), (_BROKER, broker)):
            encoded = [codec.encode(message) for message in messages]
            for one in encoded:
                yield bytes((flag | side,)) + one
            yield bytes((flag | side,)) + codec.join(encoded[1:5])
    yield bytes((_JSON,)) + b'[{"op":"ping"},{"op":"shout"},{"op":"publish","topic":3,"data":""},{"op":"bye"}]'
    yield bytes((_JSON,)) + b'{"op":"publish","topic":"\\ud800","data64":"AA=="}'
    yield bytes((0,)) + b"\x94\x91\x05\x91\x63\x93\x04\xa1\xff\xc4\x00\x91\x06"
