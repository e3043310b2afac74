"""Codecs, for brokers and clients: encoding and decoding of messages in both wire formats. A frame holds one message or
an array of messages.

A valid frame takes the fast path: one call of a msgspec decoder, then a few checks that types cannot express. Large
frames are first split or counted, to bound what decoding costs. Only when decoding fails, `diagnosis.py` examines the
frame message by message to explain the error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from migratory_protocol import limits
from migratory_protocol import messages as m
from migratory_protocol.diagnosis import (
    DECODE_ERRORS,
    Operations,
    check_items,
    diagnose_json,
    diagnose_msgpack,
    too_many_items,
)
from migratory_protocol.errors import BAD_MESSAGE, BadMessage
from migratory_protocol.jsonwire import FieldError, JsonKind, build_kinds
from migratory_protocol.messages import BrokerMessage, ClientMessage, Publish
from migratory_protocol.shapes import JsonPublication, LenientSubscribe, MsgpackPublication

__all__ = ["CODECS", "JSON", "MSGPACK", "BadMessage", "Codec", "find_codec"]

Data: TypeAlias = bytes | bytearray


class Codec(ABC):
    """The interface of one wire format. `name` is "json" or "msgpack", `subprotocol` the one that is negotiated for it
    in the handshake. `binary` is whether its messages are sent in binary WebSocket frames, else in text frames."""

    name: str
    subprotocol: str
    binary: bool

    @abstractmethod
    def encode(self, message: ClientMessage | BrokerMessage) -> bytes:
        """Return one encoded message. It may be the content of a frame by itself.

        Raises UnicodeEncodeError for text with lone surrogates, which no decoder of this package accepts.
        """

    @abstractmethod
    def encode_all(self, messages: Sequence[ClientMessage | BrokerMessage]) -> bytes:
        """Encode 1 to 4096 messages, and return them as the content of one frame. Raises UnicodeEncodeError as `encode`
        does."""

    @abstractmethod
    def join(self, encoded: Sequence[bytes]) -> bytes:
        """Return the content of one frame that holds these 1 to 4096 messages, which are already encoded."""

    @abstractmethod
    def decode_client(self, data: Data) -> list[ClientMessage]:
        """Return the messages in the content of a client's frame, at least one. Raises BadMessage if any of them is
        invalid; its `frame` has the valid ones. A malformed position in a subscribe request is no error here: it is
        returned as it is, for `parse_position` to refuse.

        A frame of over `limits.MESSAGE` bytes must be one publication: decoded as many short messages, or as one with
        many parts, it would become gigabytes of objects.
        """

    @abstractmethod
    def decode_broker(self, data: Data) -> list[BrokerMessage]:
        """Return the messages in the content of a broker's frame, at least one. Raises BadMessage if any of them is
        invalid; its `frame` has the valid ones."""


_LISTS = frozenset({m.Subscribe, m.Unsubscribe, m.Subscribed, m.Unsubscribed})
_MESSAGES = Meta(max_length=limits.MESSAGES)


def _check_messages(messages: list[Any]) -> None:
    """Raise FieldError for a QoS 1 publication without a publisher or an id, or with a mark that is not from 1 to the
    id. Raise BadMessage if there are topics and, together with the messages, they are more than `limits.ITEMS`."""
    topics = 0
    for message in messages:
        if type(message) is Publish:
            if message.qos and not (message.publisher and 1 <= message.mark <= message.id):
                raise _qos1_error(message)
        elif type(message) in _LISTS:
            topics += len(message.topics)
    if topics and topics + len(messages) > limits.ITEMS:
        raise too_many_items()


def _qos1_error(message: Publish) -> FieldError:
    """Return the error for the first invalid field of a QoS 1 publication: publisher, id or mark."""
    if not message.publisher:
        return FieldError("publisher", "empty: QoS 1 needs the publisher's id")
    if message.id < 1:
        return FieldError("id", "expected a whole number from 1, the message id: QoS 1 needs one")
    return FieldError("mark", f"expected 1 to {message.id}: the lowest unanswered id, at most `id`")


def _check_large(data: Data, decoder: msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any]) -> None:
    """Raise BadMessage unless `data`, a frame over `limits.MESSAGE` bytes, is a single publication. `decoder` accepts
    any publication and ignores its fields."""
    try:
        decoder.decode(data)
    except DECODE_ERRORS:
        text = f"a frame of {len(data)} bytes: a frame over {limits.MESSAGE} bytes must be a single publication"
        raise BadMessage(BAD_MESSAGE, text, closes=True) from None


def _check_values(data: Data, publications: msgspec.json.Decoder[Any]) -> None:
    """Raise BadMessage when a JSON frame over `limits.ENVELOPE` bytes has more than `limits.JSON_VALUES` commas, unless
    it holds publications only, which `publications` decodes: their texts may have any number of commas.

    msgspec counts the items of a JSON array only after it has decoded the last one.
    """
    commas = data.count(b",")
    if commas > limits.JSON_VALUES:
        try:
            publications.decode(data)
        except DECODE_ERRORS:
            text = (
                f"the frame holds {commas} commas, expected at most {limits.JSON_VALUES} "
                f"in a frame over {limits.ENVELOPE} bytes that holds anything but publications"
            )
            raise BadMessage(BAD_MESSAGE, text, closes=True) from None


class _Msgpack(Codec):
    name = "msgpack"
    subprotocol = "migratory.v1.msgpack"
    binary = True

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._client = _MsgpackDecoders(ClientMessage, get_args(ClientMessage))
        self._broker = _MsgpackDecoders(BrokerMessage, get_args(BrokerMessage))
        self._publication = msgspec.msgpack.Decoder(MsgpackPublication)

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


def _holds_several(data: Data) -> bool:
    """Return whether `data` is a MessagePack array whose first item is an array: an array of messages, not one
    message."""
    first = data[0] if data else 0
    start = 1 if first & 0xF0 == 0x90 else 3 if first == 0xDC else 5 if first == 0xDD else len(data)
    if start >= len(data):
        return False
    second = data[start]
    return second & 0xF0 == 0x90 or 0xDC <= second <= 0xDD


_Scalar = bool | int | float | str | None
_lenient_subscribe = msgspec.msgpack.Decoder(LenientSubscribe)
_lenient_after: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    _Scalar | Annotated[list[_Scalar], Meta(max_length=limits.POSITION_PARTS)]
)


def _decode_lenient_subscribe(raw: Raw) -> m.Subscribe | None:
    """Return a subscribe request in which malformed positions are left in place, so that `parse_position` refuses each
    alone.

    Returns None when something else is wrong with the request, or when `raw` is another message.
    """
    try:
        lenient = _lenient_subscribe.decode(raw)
    except DECODE_ERRORS:
        return None
    topics = [
        m.TopicRequest(topic.topic, _decode_lenient_after(topic.after), topic.snapshot) for topic in lenient.topics
    ]
    return m.Subscribe(lenient.request, topics)


def _decode_lenient_after(raw: Raw) -> Any:
    """Return a position as it was sent: a text, a number, a bool, None, or a list of at most `limits.POSITION_PARTS` of
    these. Return any other value not decoded."""
    try:
        return _lenient_after.decode(raw)
    except DECODE_ERRORS:
        return raw  # not a position in any case


class _MsgpackDecoders:
    """The MessagePack decoders for the messages that one end, client or broker, may send. `union` is the type of all of
    them."""

    def __init__(self, union: Any, kinds: tuple[type[Struct], ...]) -> None:
        self._one = msgspec.msgpack.Decoder(union)
        self._many: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Annotated[list[union], _MESSAGES])
        self._split: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Annotated[list[Raw], _MESSAGES])
        self._operations = Operations({kind.__struct_config__.tag: kind for kind in kinds})
        self._from_client = Publish in kinds

    def decode(self, data: Data) -> list[Any]:
        """Return the messages in a frame, at least one. Raises BadMessage, with the reason, if any of them is
        invalid."""
        several = _holds_several(data)
        try:
            if not several:
                messages = [self._one.decode(data)]
            elif len(data) > limits.ENVELOPE:
                messages = check_items(map(self._one.decode, self._split.decode(data)))
            else:
                messages = self._many.decode(data)
            if self._from_client:
                _check_messages(messages)
        except (*DECODE_ERRORS, FieldError) as error:
            return diagnose_msgpack(data, several, self._operations, self._read, self._read_lenient, error)
        return messages

    def _read(self, raw: Raw) -> Any:
        """Return one message. Raises an error of msgspec, or FieldError, if it is invalid."""
        message = self._one.decode(raw)
        if self._from_client:
            _check_messages([message])
        return message

    def _read_lenient(self, raw: Raw) -> m.Subscribe | None:
        """Return a client's subscribe request that is valid except for positions, None for any other message."""
        return _decode_lenient_subscribe(raw) if self._from_client else None


class _Json(Codec):
    name = "json"
    subprotocol = "migratory.v1.json"
    binary = False

    def __init__(self) -> None:
        parts = (m.Server, m.TopicRequest, m.Limits, m.TopicReceipt)
        self._kinds = build_kinds(get_args(ClientMessage) + get_args(BrokerMessage), parts)
        self._encoder = msgspec.json.Encoder()
        self._client = _JsonDecoders([self._kinds[kind] for kind in get_args(ClientMessage)])
        self._broker = _JsonDecoders([self._kinds[kind] for kind in get_args(BrokerMessage)])
        self._publication = msgspec.json.Decoder(JsonPublication)
        self._publications = msgspec.json.Decoder(JsonPublication | list[JsonPublication])

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
        elif len(data) > limits.ENVELOPE:
            _check_values(data, self._publications)
        return self._client.decode(data)

    def decode_broker(self, data: Data) -> list[BrokerMessage]:
        return self._broker.decode(data)


class _JsonDecoders:
    """The JSON decoders for the messages that one end, client or broker, may send."""

    def __init__(self, kinds: list[JsonKind]) -> None:
        union: Any = kinds[0].wire
        for kind in kinds[1:]:
            union = union | kind.wire
        self._union = union
        self._one = msgspec.json.Decoder(union)
        self._many: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Annotated[list[union], _MESSAGES])
        self._kinds = {kind.wire: kind for kind in kinds}
        self._operations = Operations({kind.wire.__struct_config__.tag: kind.message for kind in kinds})

    def decode(self, data: Data) -> list[Any]:
        """Return the messages in a frame, at least one. Raises BadMessage, with the reason, if any of them is
        invalid."""
        several = data.lstrip(b" \t\r\n")[:1] == b"["
        try:
            wires = self._many.decode(data) if several else [self._one.decode(data)]
            messages = [self._kinds[type(wire)].from_wire(wire) for wire in wires]
            _check_messages(messages)
        except (*DECODE_ERRORS, FieldError) as error:
            messages = diagnose_json(data, several, self._operations, self._read, error)
        if not messages:
            raise BadMessage(BAD_MESSAGE, "an empty array: a frame holds one message, or an array of messages")
        return messages

    def _read(self, value: object) -> Any:
        """Return the message in a decoded JSON value. Raises an error of msgspec, or FieldError, if it is invalid."""
        wire = msgspec.convert(value, self._union)
        message = self._kinds[type(wire)].from_wire(wire)
        _check_messages([message])
        return message


JSON: Final[Codec] = _Json()
MSGPACK: Final[Codec] = _Msgpack()
CODECS: Final = (MSGPACK, JSON)


def find_codec(name: str) -> Codec:
    """Return the codec with this name ("json", "msgpack") or subprotocol. Raises ValueError for another one."""
    for codec in CODECS:
        if name in (codec.name, codec.subprotocol):
            return codec
    raise ValueError(f"{name!r} is not a wire format; use json or msgpack")
