"""What was wrong with a frame that could not be decoded: slow, thorough, and only run for bad frames.

A frame that is no JSON or no MessagePack closes the connection. Everything else refuses single messages: each is
looked at on its own, with the error that names the field, and the good ones beside it are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, get_args, get_origin

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import fields

from migratory_protocol.errors import BAD_MESSAGE, BAD_TOPIC, UNKNOWN_OP, BadMessage
from migratory_protocol.jsonwire import FieldError
from migratory_protocol.messages import LARGEST_INTEGER

_SURROGATE = re.compile("[\ud800-\udfff]")
_PLACE = re.compile(r" - at `(key in )?\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NESTED = "nested too deeply"


class Side:
    """The messages that one end may send, by operation: a number in MessagePack, a name in JSON."""

    def __init__(self, kinds: dict[Any, type[Struct]]) -> None:
        self.kinds = kinds

    def kind(self, op: object) -> type[Struct]:
        """Raises BadMessage for an operation that is none."""
        found = self.kinds.get(op) if type(op) in (int, str) else None
        if found is None:
            known = ", ".join(
                f"{kind.__name__.lower()}" if isinstance(tag, str) else f"{tag} ({kind.__name__.lower()})"
                for tag, kind in self.kinds.items()
            )
            shown = json.dumps(op)[:60] if type(op) in (int, str) else "of another type"
            raise BadMessage(UNKNOWN_OP, f"unknown operation {shown}; expected one of {known}")
        return found


def diagnose_json(
    data: bytes | bytearray, several: bool, side: Side, read: Callable[[Any], Any], error: Exception | None
) -> BadMessage:
    try:
        # the standard library's decoder lets lone surrogates through, so that they harm one message, not the frame
        value = json.loads(data)
    except RecursionError:
        return BadMessage(BAD_MESSAGE, f"not JSON that can be read: {_NESTED}", closes=True)
    except ValueError:
        return BadMessage(BAD_MESSAGE, f"the frame is not JSON: {error}", closes=True)
    values: list[Any] = value if several else [value]
    return _first(values, lambda item: _json_message(item, side, read))


def _json_message(value: object, side: Side, read: Callable[[Any], Any]) -> Any:
    if not isinstance(value, dict):
        raise BadMessage(BAD_MESSAGE, 'a message is an object with the field "op"')
    if "op" not in value:
        raise BadMessage(BAD_MESSAGE, 'missing field "op": the operation')
    kind = side.kind(value["op"])
    request, topic = value.get("request"), value.get("topic")
    try:
        message = read(value)
    except _UNDECODABLE as error:
        _refuse(kind, *_split(str(error)), request, topic)
    except FieldError as error:
        _refuse(kind, error.field, str(error), request, topic)
    # conversion passes lone surrogates on
    for name, text in _texts(value):
        if _SURROGATE.search(text):
            _refuse(kind, name, "holds a lone surrogate: expected well-formed text", request, topic)
    return message


def _texts(value: dict[Any, Any]) -> list[tuple[str, str]]:
    """Every text in a message: where it stands, and itself; unknown fields and keys are left alone."""
    found: list[tuple[str, str]] = []
    stack: list[tuple[str, Any]] = list(value.items())
    while stack:
        name, item = stack.pop()
        if isinstance(item, str):
            found.append((name, item))
        elif isinstance(item, dict):
            stack += [(f"{name}.{key}", inner) for key, inner in item.items()]
        elif isinstance(item, list):
            stack += [(f"{name}[{index}]", inner) for index, inner in enumerate(item)]
    return found


def diagnose_msgpack(
    data: bytes | bytearray, several: bool, side: Side, read: Callable[[Any], Any], error: Exception | None
) -> BadMessage:
    try:
        raws: list[Raw] = msgspec.msgpack.decode(data, type=list[Raw])
    except RecursionError:
        return BadMessage(BAD_MESSAGE, f"not MessagePack that can be read: {_NESTED}", closes=True)
    except msgspec.ValidationError:
        return BadMessage(BAD_MESSAGE, "a message is an array that begins with the number of its operation")
    except msgspec.DecodeError:
        return BadMessage(BAD_MESSAGE, f"the frame is not MessagePack: {error}", closes=True)
    if not several:
        raws = [Raw(bytes(data))]
    return _first(raws, lambda raw: _msgpack_message(raw, side, read))


def _msgpack_message(raw: Raw, side: Side, read: Callable[[Any], Any]) -> Any:
    try:
        items: list[Raw] = msgspec.msgpack.decode(raw, type=list[Raw])
    except msgspec.DecodeError:
        raise BadMessage(BAD_MESSAGE, "a message is an array that begins with the number of its operation") from None
    if not items:
        raise BadMessage(BAD_MESSAGE, "an empty array: a message begins with the number of its operation")
    kind = side.kind(_lenient(items[0]))
    known = {field.name: _lenient(item) for field, item in zip(fields(kind), items[1:], strict=False)}
    request, topic = known.get("request"), known.get("topic")
    required = [field.name for field in fields(kind) if field.required]
    if len(items) <= len(required):
        _refuse(kind, required[len(items) - 1], "missing", request, topic)
    try:
        return read(raw)
    except UnicodeDecodeError:
        for field, item in zip(fields(kind), items[1:], strict=False):
            if not _well_formed(item):
                _refuse(kind, field.name, "holds text that is not UTF-8", request, topic)
        raise BadMessage(BAD_MESSAGE, f"{_name(kind)}: text that is not UTF-8", _integer(request)) from None
    except _UNDECODABLE as error:
        place, text = _split(str(error))
        _refuse(kind, _named(kind, place), text, request, topic)
    except FieldError as error:
        _refuse(kind, error.field, str(error), request, topic)


def _lenient(raw: Raw) -> object:
    try:
        return msgspec.msgpack.decode(raw)
    except _UNDECODABLE:
        return None


def _well_formed(raw: Raw) -> bool:
    try:
        msgspec.msgpack.decode(raw)
    except UnicodeDecodeError:
        return False
    except _UNDECODABLE:
        return True
    return True


def _first(values: list[Any], message: Callable[[Any], Any]) -> BadMessage:
    """The first error, with everything of the frame on it."""
    found: list[object] = []
    for value in values:
        try:
            found.append(message(value))
        except BadMessage as error:
            found.append(error)
    for item in found:
        if isinstance(item, BadMessage):
            item.frame = tuple(found)
            return item
    raise AssertionError("a frame that was refused holds nothing wrong")


def _refuse(kind: type[Struct], place: str, text: str, request: object, topic: object) -> NoReturn:
    """`place` as in `topics[0].after`; "" for the message as a whole."""
    code = BAD_TOPIC if _is_topic(place) and "missing" not in text and "Expected" not in text else BAD_MESSAGE
    named = topic if isinstance(topic, str) and not _SURROGATE.search(topic) else None
    where = f"{_name(kind)}.{place}" if place else _name(kind)
    raise BadMessage(code, f"{where}: {text}", _integer(request), named)


def _is_topic(place: str) -> bool:
    return place.endswith("topic") or re.fullmatch(r"topics(\[\d+\])?", place) is not None


def _name(kind: type[Struct]) -> str:
    return kind.__name__.lower()


def _integer(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST_INTEGER else None


def _split(text: str) -> tuple[str, str]:
    """msgspec's error as (place, what is wrong there)."""
    found = _PLACE.search(text)
    if found is None:
        return "", text
    return found[2].lstrip("."), text[: found.start()]


def _named(kind: type[Struct], place: str) -> str:
    """A place in MessagePack, `[2][0][1]`, by the names of the fields: `topics[0].after`."""
    named = ""
    at: Any = kind
    tagged = 1
    for step in _STEP.finditer(place):
        index = step[2]
        if isinstance(at, type) and issubclass(at, Struct) and index is not None and index.isdigit():
            field = fields(at)[int(index) - tagged]
            named += ("." if named else "") + field.name
            at, tagged = field.type, 0
        else:
            named += step[0]
            at = get_args(at)[0] if get_origin(at) is list else None
    return named
