"""What was wrong with a frame that could not be decoded: slow, thorough, and only run for bad frames.

A frame that is no JSON or no MessagePack closes the connection. Everything else refuses single messages: each is
looked at on its own, with an error that names the field, and the good ones beside it are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, get_args, get_origin

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as all_fields

from migratory_protocol import limits
from migratory_protocol.errors import BAD_MESSAGE, BAD_POSITION, BAD_TOPIC, UNKNOWN_OP, BadMessage
from migratory_protocol.jsonwire import FieldError
from migratory_protocol.messages import LARGEST_INTEGER

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for input that it can't decode: errors of its own, ill-formed UTF-8, too deep nesting."""

REFUSALS = 16
"""Bad messages of one frame that are answered one by one; a frame with more is hostile or garbage, and answers to all
of them would be longer than the frame."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_PLACE = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]")
_BEGINNING = "expected an array that begins with the number of an operation, or an array of such arrays"

Read = Callable[[Any], Any]

fields = lru_cache(maxsize=64)(all_fields)  # asked for once per message, and slow to make


class Side:
    """The messages that one end may send, by operation: a number in MessagePack, a name in JSON."""

    def __init__(self, kinds: dict[Any, type[Struct]]) -> None:
        self._kinds = kinds
        self._known = ", ".join(
            tag if isinstance(tag, str) else f"{tag} ({_name(kind)})" for tag, kind in kinds.items()
        )

    def kind(self, op: object) -> type[Struct]:
        """Raises BadMessage for an operation that is none."""
        found = self._kinds.get(op) if type(op) in (int, str) else None
        if found is None:
            shown = f'"{op[:40]}"' if isinstance(op, str) else str(op) if type(op) is int else "of another type"
            raise BadMessage(UNKNOWN_OP, f"unknown operation {shown}; expected one of {self._known}")
        return found


def check_count(count: int) -> None:
    """Raises BadMessage when a frame holds too many messages."""
    if count > limits.MESSAGES:
        text = f"the frame holds {count} messages, expected at most {limits.MESSAGES}"
        raise BadMessage(BAD_MESSAGE, text, closes=True)


def each(values: list[Any], read: Callable[[Any], Any]) -> list[Any]:
    """All messages of a frame. Raises the first BadMessage, with everything of the frame on it."""
    check_count(len(values))
    found: list[Any] = []
    errors: list[BadMessage] = []
    for value in values:
        try:
            found.append(read(value))
        except BadMessage as error:
            found.append(error)
            errors.append(error)
            if len(errors) > REFUSALS:
                raise BadMessage(
                    BAD_MESSAGE, f"more than {REFUSALS} bad messages in one frame, the first: {errors[0]}", closes=True
                ) from None
    if errors:
        errors[0].frame = tuple(found)
        raise errors[0]
    return found


def _check_length(data: bytes | bytearray, error: Exception) -> None:
    """What is longer than other messages than publications may be is not looked into: that makes an object of each of
    its parts."""
    if len(data) > limits.MESSAGE:
        where = f"{error.field}: " if isinstance(error, FieldError) else ""
        closes = not isinstance(error, msgspec.ValidationError | FieldError)
        raise BadMessage(BAD_MESSAGE, f"a frame of {len(data)} bytes: {where}{error}", closes=closes) from None


# ---- JSON ------------------------------------------------------------------------------------------------------


def diagnose_json(data: bytes | bytearray, several: bool, side: Side, read: Read, error: Exception) -> list[Any]:
    """The messages, when each of them alone is good; raises BadMessage otherwise."""
    _check_length(data, error)
    try:
        # this decoder lets lone surrogates through, so that they harm one message and not the frame
        value = json.loads(data.decode(), parse_int=_clamped, parse_constant=_not_json)
    except RecursionError:
        raise BadMessage(BAD_MESSAGE, "the frame is nested too deeply", closes=True) from None
    except ValueError:
        raise BadMessage(BAD_MESSAGE, f"the frame is not JSON: {error}", closes=True) from None
    return each(value if several else [value], lambda item: _json_message(item, side, read))


def _clamped(digits: str) -> int:
    """Integers are exact up to 64 bits; no field takes larger ones, and thousands of digits take long to convert."""
    return int(digits) if len(digits) < 20 else -(2**64) if digits[0] == "-" else 2**64


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _json_message(value: object, side: Side, read: Read) -> Any:
    if not isinstance(value, dict):
        raise BadMessage(BAD_MESSAGE, 'expected an object with the field "op", or an array of such')
    if "op" not in value:
        raise BadMessage(BAD_MESSAGE, 'missing field "op": the operation')
    kind = side.kind(value["op"])
    refuse = _Refuse(kind, value)
    ill_formed = _ill_formed_json(kind, value)
    if ill_formed:
        refuse(ill_formed, "holds a lone surrogate, expected well-formed text", ill_formed=True)
    try:
        return read(value)
    except UNDECODABLE as error:
        refuse(*_split(error))
    except FieldError as error:
        refuse(error.field, str(error))
    except UnicodeEncodeError:
        refuse("", "the name of a field holds a lone surrogate, expected well-formed text")


def _ill_formed_json(kind: type[Struct], value: dict[str, Any], place: str = "") -> str:
    """Where a text of the message holds a lone surrogate; "" where none does. What a topic request has as `after` is
    nobody's text yet. Of parts there may be hundreds of thousands: those whose texts are plain are passed over."""
    for field in fields(kind):
        if field.name == "after":
            continue
        part = _part(field.type)
        for name in ("data", "data64") if field.type is bytes else (field.name,):
            item = value.get(name)
            if isinstance(item, str):
                if _ill_formed_text(item):
                    return f"{place}{name}"
            elif isinstance(item, dict):
                if part is not None and (found := _ill_formed_json(part, item, f"{place}{name}.")):
                    return found
            elif isinstance(item, list):
                for index, inner in enumerate(item):
                    if isinstance(inner, str):
                        if _ill_formed_text(inner):
                            return f"{place}{name}[{index}]"
                    elif part is not None and isinstance(inner, dict) and any(map(_ill_formed_text, inner.values())):
                        found = _ill_formed_json(part, inner, f"{place}{name}[{index}].")
                        if found:
                            return found
    return ""


def _ill_formed_text(value: object) -> bool:
    return isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None


def _part(kind: Any) -> type[Struct] | None:
    """The struct in a field, or in the list in a field."""
    inner = get_args(kind)[0] if get_origin(kind) is list else kind
    return inner if isinstance(inner, type) and issubclass(inner, Struct) else None


# ---- MessagePack -----------------------------------------------------------------------------------------------


def diagnose_msgpack(data: bytes | bytearray, several: bool, side: Side, read: Read, error: Exception) -> list[Any]:
    """The messages, when each of them alone is good; raises BadMessage otherwise."""
    _check_length(data, error)
    try:
        msgspec.msgpack.decode(data, type=Raw)
    except RecursionError:
        raise BadMessage(BAD_MESSAGE, "the frame is nested too deeply", closes=True) from None
    except msgspec.DecodeError:
        raise BadMessage(BAD_MESSAGE, f"the frame is not MessagePack: {error}", closes=True) from None
    raws = msgspec.msgpack.decode(data, type=list[Raw]) if several else [Raw(bytes(data))]
    return each(raws, lambda raw: _msgpack_message(raw, side, read))


def _msgpack_message(raw: Raw, side: Side, read: Read) -> Any:
    items = _items(raw)
    if not items:
        raise BadMessage(BAD_MESSAGE, _BEGINNING)
    kind = side.kind(_value(items[0]))
    given = list(zip(fields(kind), items[1:], strict=False))
    refuse = _Refuse(kind, {field.name: _value(item) for field, item in given})
    try:
        return read(raw)
    except UnicodeDecodeError:
        refuse(_ill_formed(given), "holds text that is not UTF-8", ill_formed=True)
    except UNDECODABLE as error:
        missing = [field.name for field in fields(kind) if field.required][len(given) :]
        if missing:
            refuse(missing[0], "missing")
        place, text = _split(error)
        refuse(_named(kind, place), text)
    except FieldError as error:
        refuse(error.field, str(error))


# Never just anything: see `messages.After`.
_name_or_number = msgspec.msgpack.Decoder(int | str)
_text = msgspec.msgpack.Decoder(str | list[str])


def _value(raw: Raw) -> object:
    """A number or a text; None for everything else."""
    try:
        return _name_or_number.decode(raw)
    except UNDECODABLE:
        return None


def _ill_formed(given: list[tuple[FieldInfo, Raw]]) -> str:
    """Where the text that is not UTF-8 stands; "" if that cannot be told."""
    for field, raw in given:
        items = _items(raw) if field.name == "topics" else []
        if not items and _holds_ill_formed(raw):
            return field.name
        for index, item in enumerate(items):
            parts = _items(item)
            if not parts and _holds_ill_formed(item):
                return f"topics[{index}]"
            for name, part in zip(("topic", "after"), parts, strict=False):
                if _holds_ill_formed(part):
                    return f"topics[{index}].{name}"
    return ""


def _items(raw: Raw) -> list[Raw]:
    try:
        return msgspec.msgpack.decode(raw, type=list[Raw])
    except msgspec.ValidationError:
        return []


def _holds_ill_formed(raw: Raw) -> bool:
    try:
        _text.decode(raw)
    except UnicodeDecodeError:
        return True
    except UNDECODABLE:
        return False
    return False


def _named(kind: type[Struct], place: str) -> str:
    """A place in MessagePack, `[2][0][1]`, by the names of the fields: `topics[0].after`."""
    named = ""
    at: Any = kind
    for depth, step in enumerate(_STEP.finditer(place)):
        if isinstance(at, type) and issubclass(at, Struct) and step[1].isdigit():
            field = fields(at)[int(step[1]) - (0 if depth else 1)]  # a message has its operation before the fields
            named += f".{field.name}" if named else field.name
            at = field.type
        else:
            named += step[0]
            at = get_args(at)[0] if get_origin(at) is list else None
    return named


# ---- both ------------------------------------------------------------------------------------------------------


class _Refuse:
    """Raises the BadMessage for a message of this kind, with the request and the topic that the message named."""

    def __init__(self, kind: type[Struct], given: dict[str, Any]) -> None:
        self._kind = kind
        request, topic = given.get("request"), given.get("topic")
        self._request = request if type(request) is int and 0 <= request <= LARGEST_INTEGER else None
        self._topic = topic if isinstance(topic, str) and not _SURROGATE.search(topic) else None

    def __call__(self, place: str, text: str, *, ill_formed: bool = False) -> NoReturn:
        """`place` as in `topics[0].after`, "" for the message as a whole."""
        code = BAD_MESSAGE
        if ill_formed and re.fullmatch(r"topic|topics\[\d+\](\.topic)?", place):
            code = BAD_TOPIC
        elif ill_formed and place.endswith(".after"):
            code = BAD_POSITION
        where = f"{_name(self._kind)}.{place}" if place else _name(self._kind)
        raise BadMessage(code, f"{where}: {text}", self._request, self._topic)


def _name(kind: type[Struct]) -> str:
    return kind.__name__.lower()


def _split(error: Exception) -> tuple[str, str]:
    """msgspec's error as (place, what is wrong there)."""
    text = str(error)
    found = _PLACE.search(text)
    if found is None:
        return "", text
    return found[1].lstrip("."), text[: found.start()]
