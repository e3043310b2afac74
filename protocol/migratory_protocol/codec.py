"""Messages to bytes and back, in both wire formats. A frame holds one message or an array of messages.

Good frames take a short way: one call of a msgspec decoder, then a few checks that types alone can't make. Only when
that fails, `diagnosis.py` looks for what was wrong, message by message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, get_args

import msgspec
from msgspec import Raw, Struct

from migratory_protocol import limits
from migratory_protocol import messages as m
from migratory_protocol.diagnosis import UNDECODABLE, Side, check_count, diagnose_json, diagnose_msgpack
from migratory_protocol.errors import BAD_MESSAGE, BadMessage
from migratory_protocol.jsonwire import FieldError, JsonKind, family
from migratory_protocol.messages import BrokerMessage, ClientMessage, Publish

__all__ = ["CODECS", "JSON", "MSGPACK", "BadMessage", "Codec", "codec_named"]

Data: TypeAlias = bytes | bytearray


class Codec(ABC):
    """One wire format. `binary` says which kind of WebSocket frame carries it."""

    name: str
    subprotocol: str
    binary: bool

    @abstractmethod
    def encode(self, message: ClientMessage | BrokerMessage) -> bytes:
        """One message, without a frame. Raises UnicodeEncodeError for text with lone surrogates, which no decoder of
        this package ever lets in."""

    @abstractmethod
    def encode_all(self, messages: Sequence[ClientMessage | BrokerMessage]) -> bytes:
        """Several messages, 1 to 4096, as the content of one frame: `join` of each one's `encode`."""

    @abstractmethod
    def join(self, encoded: Sequence[bytes]) -> bytes:
        """Several encoded messages, 1 to 4096, as the content of one frame."""

    @abstractmethod
    def decode_client(self, data: Data) -> list[ClientMessage]:
        """The messages of a frame that a client sent, at least one. Raises BadMessage. A frame of over `limits.MESSAGE`
        bytes must be one publication: of short messages, or parts of one, it would make gigabytes of objects."""

    @abstractmethod
    def decode_broker(self, data: Data) -> list[BrokerMessage]:
        """The messages of a frame that a broker sent, at least one. Raises BadMessage."""


def _check(found: list[Any]) -> None:
    """What types can't say: a QoS 1 publication has a publisher, an id, and a mark that is not above the id."""
    for message in found:
        if type(message) is not Publish or not message.qos:
            continue
        if not (message.publisher and 1 <= message.mark <= message.id):
            raise _wrong(message)


def _wrong(message: Publish) -> FieldError:
    """Which of the three it is, of a publication that has not all of them."""
    if not message.publisher:
        return FieldError("publisher", "empty: QoS 1 needs the publisher's id")
    if message.id < 1:
        return FieldError("id", "expected a whole number from 1, the message id: QoS 1 needs one")
    return FieldError("mark", f"expected 1 to {message.id}, the lowest id that waits for an answer, at most `id`")


def _check_large(data: Data, decoder: msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any]) -> None:
    """`decoder` takes any publication, and makes nothing of it."""
    try:
        decoder.decode(data)
    except UNDECODABLE:
        text = f"a frame of {len(data)} bytes: over {limits.MESSAGE} it must be one publication and nothing else"
        raise BadMessage(BAD_MESSAGE, text, closes=True) from None


class _MsgpackPublication(Struct, array_like=True, tag_field="op", tag=Publish.__struct_config__.tag):
    pass


class _JsonPublication(Struct, tag_field="op", tag=Publish.__name__.lower()):
    pass


class _Msgpack(Codec):
    name = "msgpack"
    subprotocol = "migratory.v1.msgpack"
    binary = True

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._client = _MsgpackSide(ClientMessage, get_args(ClientMessage))
        self._broker = _MsgpackSide(BrokerMessage, get_args(BrokerMessage))
        self._publication = msgspec.msgpack.Decoder(_MsgpackPublication)

    def encode(self, message: ClientMessage | BrokerMessage) -> bytes:
        return self._encoder.encode(message)

    def encode_all(self, messages: Sequence[ClientMessage | BrokerMessage]) -> bytes:
        return self._encoder.encode(messages)

    def join(self, encoded: Sequence[bytes]) -> bytes:
        count = len(encoded)
        header = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
        return header + b"".join(encoded)

    def decode_client(self, data: Data) -> list[ClientMessage]:
        if len(data) > limits.MESSAGE:
            _check_large(data, self._publication)
        return self._client.decode(data)

    def decode_broker(self, data: Data) -> list[BrokerMessage]:
        return self._broker.decode(data)


def _holds_array(data: Data) -> bool:
    """A MessagePack array whose first item is an array as well: several messages, not one."""
    first = data[0] if data else 0
    at = 1 if first & 0xF0 == 0x90 else 3 if first == 0xDC else 5 if first == 0xDD else len(data)
    if at >= len(data):
        return False
    second = data[at]
    return second & 0xF0 == 0x90 or 0xDC <= second <= 0xDD


class _AnyTopicRequest(Struct, array_like=True):
    """A topic request with whatever stands in the place of its position."""

    topic: str
    after: Raw = Raw(b"\xc0")
    snapshot: bool = False


class _AnySubscribe(Struct, array_like=True, tag_field="op", tag=m.Subscribe.__struct_config__.tag):
    request: m.RequestId
    topics: list[_AnyTopicRequest]


_any_subscribe = msgspec.msgpack.Decoder(_AnySubscribe)
_any_after = msgspec.msgpack.Decoder(bool | int | float | str | list[bool | int | float | str | None] | None)


def _subscribe(raw: Raw) -> m.Subscribe | None:
    """The request whose positions alone are malformed: what can be told of them is for `parse_position`."""
    try:
        found = _any_subscribe.decode(raw)
    except UNDECODABLE:
        return None
    return m.Subscribe(
        found.request, [m.TopicRequest(topic.topic, _after(topic.after), topic.snapshot) for topic in found.topics]
    )


def _after(raw: Raw) -> Any:
    try:
        return _any_after.decode(raw)
    except UNDECODABLE:
        return raw  # in any case no position


class _MsgpackSide:
    """The decoders of what one end sends."""

    def __init__(self, union: Any, kinds: tuple[type[Struct], ...]) -> None:
        self._one = msgspec.msgpack.Decoder(union)
        self._many = msgspec.msgpack.Decoder(list[union])
        self._side = Side({kind.__struct_config__.tag: kind for kind in kinds})
        self._checks = Publish in kinds

    def decode(self, data: Data) -> list[Any]:
        several = _holds_array(data)
        try:
            if several:
                found: list[Any] = self._many.decode(data)
                check_count(len(found))
            else:
                found = [self._one.decode(data)]
            if self._checks:
                _check(found)
        except (*UNDECODABLE, FieldError) as error:
            return diagnose_msgpack(data, several, self._side, self._read, error)
        return found

    def _read(self, raw: Raw) -> Any:
        try:
            message = self._one.decode(raw)
        except msgspec.ValidationError:
            message = _subscribe(raw) if self._checks else None
            if message is None:
                raise
        _check([message])
        return message


class _Json(Codec):
    name = "json"
    subprotocol = "migratory.v1.json"
    binary = False

    def __init__(self) -> None:
        parts = (m.Server, m.TopicRequest, m.Limits, m.TopicReceipt)
        self._kinds = family(get_args(ClientMessage) + get_args(BrokerMessage), parts)
        self._encoder = msgspec.json.Encoder()
        self._client = _JsonSide([self._kinds[kind] for kind in get_args(ClientMessage)])
        self._broker = _JsonSide([self._kinds[kind] for kind in get_args(BrokerMessage)])
        self._publication = msgspec.json.Decoder(_JsonPublication)

    def encode(self, message: ClientMessage | BrokerMessage) -> bytes:
        return self._encoder.encode(self._kinds[type(message)].to_wire(message))

    def encode_all(self, messages: Sequence[ClientMessage | BrokerMessage]) -> bytes:
        kinds = self._kinds
        return self._encoder.encode([kinds[type(message)].to_wire(message) for message in messages])

    def join(self, encoded: Sequence[bytes]) -> bytes:
        return b"[" + b",".join(encoded) + b"]"

    def decode_client(self, data: Data) -> list[ClientMessage]:
        if len(data) > limits.MESSAGE:
            _check_large(data, self._publication)
        return self._client.decode(data)

    def decode_broker(self, data: Data) -> list[BrokerMessage]:
        return self._broker.decode(data)


class _JsonSide:
    """The decoders of what one end sends."""

    def __init__(self, kinds: list[JsonKind]) -> None:
        union: Any = kinds[0].wire
        for kind in kinds[1:]:
            union = union | kind.wire
        self._union = union
        self._one = msgspec.json.Decoder(union)
        self._many = msgspec.json.Decoder(list[union])
        self._kinds = {kind.wire: kind for kind in kinds}
        self._side = Side({kind.wire.__struct_config__.tag: kind.message for kind in kinds})

    def decode(self, data: Data) -> list[Any]:
        several = data.lstrip(b" \t\r\n")[:1] == b"["
        try:
            wires = self._many.decode(data) if several else [self._one.decode(data)]
            check_count(len(wires))
            found = [self._kinds[type(wire)].from_wire(wire) for wire in wires]
            _check(found)
        except (*UNDECODABLE, FieldError) as error:
            found = diagnose_json(data, several, self._side, self._read, error)
        if not found:
            raise BadMessage(BAD_MESSAGE, "an empty array: a frame holds one message, or an array of them")
        return found

    def _read(self, value: object) -> Any:
        wire = msgspec.convert(value, self._union)
        message = self._kinds[type(wire)].from_wire(wire)
        _check([message])
        return message


JSON: Final[Codec] = _Json()
MSGPACK: Final[Codec] = _Msgpack()
CODECS: Final = (MSGPACK, JSON)


def codec_named(name: str) -> Codec:
    """The codec of this name ("json", "msgpack") or subprotocol. Raises ValueError."""
    for codec in CODECS:
        if name in (codec.name, codec.subprotocol):
            return codec
    raise ValueError(f"{name!r} is no wire format: expected json or msgpack")
