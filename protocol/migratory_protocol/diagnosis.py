"""Diagnosis of frames that cannot be decoded, for `codec.py`: slow and thorough, and only run for bad frames.

A frame that is not JSON or not MessagePack closes the connection. Otherwise each message is examined on its own: a bad
one is refused with an error that names the field, and the valid ones in the same frame are delivered.

The number of items that it examines in Python is bounded by `limits.ITEMS`, whatever the frame holds. Everything else
is left to msgspec, which skips a megabyte in some milliseconds.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as all_fields

from migratory_protocol import limits
from migratory_protocol.errors import BAD_MESSAGE, BAD_POSITION, BAD_TOPIC, UNKNOWN_OP, BadMessage
from migratory_protocol.jsonwire import FieldError, item_type, operation_name
from migratory_protocol.messages import LARGEST_INTEGER, Publish

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for undecodable input: its own errors, ill-formed UTF-8 (a `UnicodeDecodeError` before
msgspec 0.23, a `DecodeError` since), nesting that is too deep."""

MAX_BAD_MESSAGES = 16
"""The largest number of bad messages of one frame that are answered one by one. A frame with more is hostile or
garbage, and the answers would be longer than the frame."""

MAX_EXAMINED = 64
"""The largest number of messages of one frame that are examined field by field: bad ones, and requests with malformed
positions, of which only topics are refused. Each costs as much as ten valid ones."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_PATH = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]")
_EXPECTED_ARRAY = (
    f"expected an array that begins with the number of an operation, of at most {limits.TOPICS} items, "
    f"or an array of such arrays"
)

Read = Callable[[Any], Any]

fields = lru_cache(maxsize=64)(all_fields)  # called once per message, and slow


class Operations:
    """The message classes that one end may send, by operation code: a number in MessagePack, a name in JSON."""

    def __init__(self, kinds: dict[Any, type[Struct]]) -> None:
        self._kinds = kinds
        self._known = ", ".join(
            tag if isinstance(tag, str) else f"{tag} ({operation_name(kind)})" for tag, kind in kinds.items()
        )

    def find(self, op: object) -> type[Struct]:
        """Return the message class for an operation code. Raises BadMessage for an unknown one."""
        kind = self._kinds.get(op) if type(op) in (int, str) else None
        if kind is None:
            shown = f'"{op[:40]}"' if isinstance(op, str) else str(op) if type(op) is int else "of another type"
            raise BadMessage(UNKNOWN_OP, f"unknown operation {shown}; expected one of {self._known}")
        return kind


def check_count(count: int) -> None:
    """Raise BadMessage when `count`, the number of messages in a frame, is above `limits.MESSAGES`."""
    if count > limits.MESSAGES:
        text = f"the frame holds {count} messages, expected at most {limits.MESSAGES}"
        raise BadMessage(BAD_MESSAGE, text, closes=True)


def too_many_items() -> BadMessage:
    """Return the error for a frame with more than `limits.ITEMS` messages and topics together."""
    text = f"the frame holds more than {limits.ITEMS} messages and topics together, expected at most {limits.ITEMS}"
    return BadMessage(BAD_MESSAGE, text, closes=True)


def check_items(messages: Iterable[Any]) -> list[Any]:
    """Return the messages of a frame as a list. `messages` may decode each one only when it is read. Raises BadMessage,
    and reads no further, when messages and topics together are above `limits.ITEMS`."""
    checked: list[Any] = []
    left = limits.ITEMS
    for message in messages:
        left -= 1 + len(getattr(message, "topics", ()))
        if left < 0:
            raise too_many_items()
        checked.append(message)
    return checked


def read_all(values: list[Any], read: Read, examine: Callable[[Any, Exception], Any]) -> list[Any]:
    """Return all messages of a frame. If any is bad, raise the first BadMessage, whose `frame` holds all messages and
    errors. For more than `MAX_BAD_MESSAGES` bad ones, `MAX_EXAMINED` examined ones or `limits.ITEMS` items, raise a
    BadMessage that closes the connection instead.

    `read` returns the message in a value, or raises for a bad one. Then `examine` gets the value and the exception: it
    returns a message, or raises the BadMessage that explains the error.
    """
    errors: list[BadMessage] = []
    examined = itertools.count(1)

    def read_or_refuse(value: Any) -> Any:
        try:
            return read(value)
        except (*DECODE_ERRORS, FieldError, UnicodeEncodeError) as error:
            return examine_or_refuse(value, error)

    def examine_or_refuse(value: Any, failure: Exception) -> Any:
        if next(examined) > MAX_EXAMINED:
            text = f"more than {MAX_EXAMINED} messages in one frame are bad or have malformed positions"
            raise BadMessage(BAD_MESSAGE, text, closes=True)
        try:
            return examine(value, failure)
        except BadMessage as error:
            errors.append(error)
            if len(errors) > MAX_BAD_MESSAGES:
                raise BadMessage(
                    BAD_MESSAGE,
                    f"more than {MAX_BAD_MESSAGES} bad messages in one frame, the first: {errors[0]}",
                    closes=True,
                ) from None
            return error

    messages = check_items(map(read_or_refuse, values))
    if errors:
        errors[0].frame = tuple(messages)
        raise errors[0]
    return messages


def _check_length(data: bytes | bytearray, error: Exception) -> None:
    """Raise BadMessage, with the text of `error`, for a frame over `limits.MESSAGE` bytes: a diagnosis would make an
    object of each of its parts. The connection ends unless only a field is invalid."""
    if len(data) > limits.MESSAGE:
        where = f"{error.field}: " if isinstance(error, FieldError) else ""
        closes = not isinstance(error, msgspec.ValidationError | FieldError)
        raise BadMessage(BAD_MESSAGE, f"a frame of {len(data)} bytes: {where}{error}", closes=closes) from None


# ---- JSON ------------------------------------------------------------------------------------------------------


def diagnose_json(
    data: bytes | bytearray, several: bool, operations: Operations, read: Read, error: Exception
) -> list[Any]:
    """Examine a JSON frame that could not be decoded at once. Return its messages if each is valid alone, else raise
    BadMessage. The error closes the connection if the frame is not JSON, or has too many messages or too many bad ones.

    `several`: the frame holds an array of messages. `read` returns the message in a decoded JSON value. `error` is the
    exception of the failed decoding.
    """
    _check_length(data, error)
    try:
        # this decoder accepts lone surrogates, so that they fail one message and not the frame
        value = json.loads(data.decode(), parse_int=_clamp_integer, parse_constant=_refuse_constant)
    except RecursionError:
        raise BadMessage(BAD_MESSAGE, "the frame is nested too deeply", closes=True) from None
    except ValueError:
        raise BadMessage(BAD_MESSAGE, f"the frame is not JSON: {error}", closes=True) from None
    values = value if several else [value]
    check_count(len(values))

    def read_well_formed(value: Any) -> Any:
        message = read(value)
        msgspec.json.encode(value)  # raises for a lone surrogate, which `read` accepts
        return message

    return read_all(values, read_well_formed, lambda value, _: _examine_json(value, operations, read))


def _clamp_integer(digits: str) -> int:
    """Return the integer of these digits, or ±2**64 if there are 20 characters or more. No field allows such numbers,
    and thousands of digits convert slowly."""
    return int(digits) if len(digits) < 20 else -(2**64) if digits[0] == "-" else 2**64


def _refuse_constant(name: str) -> NoReturn:
    """Raise ValueError: NaN and Infinity, which Python's decoder knows, are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _examine_json(value: object, operations: Operations, read: Read) -> Any:
    """Return the message in a decoded JSON value that was refused, if it is valid after all: a lone surrogate in an
    unknown field or in a position is no error. Otherwise raise the BadMessage that names the wrong field."""
    if not isinstance(value, dict):
        raise BadMessage(BAD_MESSAGE, 'expected an object with the field "op", or an array of such objects')
    if "op" not in value:
        raise BadMessage(BAD_MESSAGE, 'missing field "op": the operation')
    kind = operations.find(value["op"])
    refuse = _Refusal(kind, value)
    ill_formed = _find_surrogate(kind, value)
    if ill_formed:
        refuse(ill_formed, "holds a lone surrogate, expected well-formed text", ill_formed=True)
    try:
        return read(value)
    except DECODE_ERRORS as error:
        path, text = _split(error)
        given = value.get(path)
        if "of length" in text and isinstance(given, str | list):
            text += f", got {len(given)}"
        refuse(path, text)
    except FieldError as error:
        refuse(error.field, str(error))
    except UnicodeEncodeError:
        refuse("", "the name of a field holds a lone surrogate, expected well-formed text")


def _find_surrogate(kind: type[Struct], value: dict[str, Any], prefix: str = "") -> str:
    """Return the path of the first text with a lone surrogate in the known fields of the message, "" when there is
    none. `prefix` is put before the path.

    `after` of a topic request is skipped: it may be any value. There may be hundreds of thousands of structs in a list:
    those with well-formed texts are skipped without building their paths.
    """
    for field in fields(kind):
        if field.name == "after":
            continue
        part = _struct_in(field.type)
        for name in ("data", "data64") if field.type is bytes else (field.name,):
            item = value.get(name)
            if isinstance(item, str):
                if _has_surrogate(item):
                    return f"{prefix}{name}"
            elif isinstance(item, dict):
                if part is not None and (path := _find_surrogate(part, item, f"{prefix}{name}.")):
                    return path
            elif isinstance(item, list):
                for index, inner in enumerate(item):
                    if isinstance(inner, str):
                        if _has_surrogate(inner):
                            return f"{prefix}{name}[{index}]"
                    elif part is not None and isinstance(inner, dict) and any(map(_has_surrogate, inner.values())):
                        path = _find_surrogate(part, inner, f"{prefix}{name}[{index}].")
                        if path:
                            return path
    return ""


def _has_surrogate(value: object) -> bool:
    """Return whether a value is a text with a lone surrogate."""
    return isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None


def _struct_in(kind: Any) -> type[Struct] | None:
    """Return the struct class of a field with this type, or of the items of its list. None if there is no struct."""
    inner = item_type(kind) or kind
    return inner if isinstance(inner, type) and issubclass(inner, Struct) else None


# ---- MessagePack -----------------------------------------------------------------------------------------------


def diagnose_msgpack(
    data: bytes | bytearray, several: bool, operations: Operations, read: Read, read_lenient: Read, error: Exception
) -> list[Any]:
    """Examine a MessagePack frame that could not be decoded at once. Return its messages if each is valid alone, else
    raise BadMessage. The error closes the connection if the frame is not MessagePack, or has too many messages or too
    many bad ones.

    `several`: the frame holds an array of messages. `read` returns the message in a raw value. `read_lenient` returns a
    subscribe request that is valid except for positions, and None for any other message. `error` is the exception of
    the failed decoding.
    """
    _check_length(data, error)

    def examine(raw: Raw, failure: Exception) -> Any:
        # ill-formed text is no ValidationError, and is refused even in a position
        message = read_lenient(raw) if isinstance(failure, msgspec.ValidationError) else None
        return message if message is not None else _explain_msgpack(raw, operations, failure)

    try:
        msgspec.msgpack.decode(data, type=Raw)
    except RecursionError:
        raise BadMessage(BAD_MESSAGE, "the frame is nested too deeply", closes=True) from None
    except msgspec.DecodeError:
        raise BadMessage(BAD_MESSAGE, f"the frame is not MessagePack: {error}", closes=True) from None
    if not several:
        return read_all([Raw(bytes(data))], read, examine)
    check_count(_array_length(data))
    return read_all(_raws.decode(data), read, examine)


def _array_length(data: bytes | bytearray) -> int:
    """Return the number of items that the header of a MessagePack array says. `data` begins with that header."""
    size = {0xDC: 2, 0xDD: 4}.get(data[0], 0)
    return int.from_bytes(data[1 : 1 + size]) if size else data[0] & 0x0F


def _length(raw: Raw) -> int:
    """Return the number of characters of a text, or the number of items of an array."""
    value = _value(raw)
    return len(value) if isinstance(value, str) else _array_length(bytes(raw))


def _explain_msgpack(raw: Raw, operations: Operations, error: Exception) -> NoReturn:
    """Raise the BadMessage that names the wrong field of a message. `error` is the exception of its decoding."""
    items = _items(raw)
    if not items:
        raise BadMessage(BAD_MESSAGE, _EXPECTED_ARRAY)
    kind = operations.find(_value(items[0]))
    given = list(zip(fields(kind), items[1:], strict=False))
    refuse = _Refusal(kind, {field.name: _value(item) for field, item in given})
    if isinstance(error, FieldError):
        refuse(error.field, str(error))
    if not isinstance(error, msgspec.ValidationError):  # the frame is MessagePack: only a text can be ill-formed
        refuse(_find_ill_formed(given), "holds text that is not UTF-8", ill_formed=True)
    missing = [field.name for field in fields(kind) if field.required][len(given) :]
    if missing:
        refuse(missing[0], "missing")
    path, text = _split(error)
    name = _name_path(kind, path)
    if "of length" in text:
        text += "".join(f", got {_length(item)}" for field, item in given if field.name == name)
    refuse(name, text)


# not any object, see `messages.After`
_name_or_number = msgspec.msgpack.Decoder(int | str)
_text: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    str | Annotated[list[str], Meta(max_length=limits.POSITION_PARTS)]
)
_raws: msgspec.msgpack.Decoder[list[Raw]] = msgspec.msgpack.Decoder(
    Annotated[list[Raw], Meta(max_length=limits.TOPICS)]
)


class _RawTopicRequest(Struct, array_like=True):
    """The first two fields of a topic request in MessagePack, not decoded."""

    topic: Raw
    after: Raw = Raw(b"\xc0")


_raw_topic_request = msgspec.msgpack.Decoder(_RawTopicRequest)


def _value(raw: Raw) -> object:
    """Return the value if it is a whole number or a text, None for every other value."""
    try:
        return _name_or_number.decode(raw)
    except DECODE_ERRORS:
        return None


def _find_ill_formed(given: list[tuple[FieldInfo, Raw]]) -> str:
    """Return the path of the first text that is not UTF-8 among the fields in `given`, such as `topics[0].topic`. ""
    when it is in another place."""
    for field, raw in given:
        items = _items(raw) if field.name == "topics" else []
        if not items and _is_ill_formed(raw):
            return field.name
        for index, item in enumerate(items):
            try:
                request = _raw_topic_request.decode(item)
            except msgspec.ValidationError:
                if _is_ill_formed(item):
                    return f"topics[{index}]"
                continue
            for name in ("topic", "after"):
                if _is_ill_formed(getattr(request, name)):
                    return f"topics[{index}].{name}"
    return ""


def _items(raw: Raw) -> list[Raw]:
    """Return the items of an array, not decoded; [] for any other value, and for more than `limits.TOPICS` items."""
    try:
        return _raws.decode(raw)
    except msgspec.ValidationError:
        return []


def _is_ill_formed(raw: Raw) -> bool:
    """Return whether the value is a text that is not UTF-8, or a list of at most `limits.POSITION_PARTS` texts of which
    one is not."""
    try:
        _text.decode(raw)
    except msgspec.ValidationError:
        return False
    except DECODE_ERRORS:
        return True
    return False


def _name_path(kind: type[Struct], path: str) -> str:
    """Return a path of array indexes, such as `[2][0][1]`, with field names in place of indexes: `topics[0].after`."""
    named = ""
    at: Any = kind
    for depth, step in enumerate(_STEP.finditer(path)):
        if isinstance(at, type) and issubclass(at, Struct) and step[1].isdigit():
            field = fields(at)[int(step[1]) - (0 if depth else 1)]  # a message begins with its operation
            named += f".{field.name}" if named else field.name
            at = field.type
        else:
            named += step[0]
            at = item_type(at)
    return named


# ---- both ------------------------------------------------------------------------------------------------------


class _Refusal:
    """The parts of a bad message that its error names: class, request, topic and publication, each only if it is
    readable. A call raises the BadMessage for one field."""

    def __init__(self, kind: type[Struct], given: dict[str, Any]) -> None:
        self._kind = kind
        request, topic = given.get("request"), given.get("topic")
        self._request = request if type(request) is int and 0 <= request <= LARGEST_INTEGER else None
        self._topic = topic if isinstance(topic, str) and not _SURROGATE.search(topic) else None
        self._publication = None
        publisher, number = given.get("publisher"), given.get("id")
        if (
            kind is Publish and given.get("qos") == 1 and self._topic is not None
            and isinstance(publisher, str) and publisher and not _SURROGATE.search(publisher)
            and type(number) is int and 1 <= number <= LARGEST_INTEGER
        ):  # fmt: skip
            self._publication = self._topic, publisher, number

    def __call__(self, path: str, text: str, *, ill_formed: bool = False) -> NoReturn:
        """Raise BadMessage for the field at `path`, such as `topics[0].after`, or "" for the message as a whole.
        `ill_formed`: the field is text that is not well-formed."""
        code = BAD_MESSAGE
        if ill_formed and re.fullmatch(r"topic|topics\[\d+\](\.topic)?", path):
            code = BAD_TOPIC
        elif ill_formed and path.endswith(".after"):
            code = BAD_POSITION
        where = f"{operation_name(self._kind)}.{path}" if path else operation_name(self._kind)
        raise BadMessage(code, f"{where}: {text}", self._request, self._topic, self._publication)


def _split(error: Exception) -> tuple[str, str]:
    """Return the message of a msgspec error as (path of the field, what is wrong there). The path is "" if none is
    named."""
    text = str(error)
    match = _PATH.search(text)
    if match is None:
        return "", text
    return match[1].lstrip("."), text[: match.start()]
