"""The JSON family of wire structs, made from the classes in `messages.py`.

An object for every array; `op`, the class's name in lower case, for the number. Fields keep their names and types, with
three exceptions:

- a payload is `data`, text, when its bytes are UTF-8, and `data64`, base64, when they are not;
- a position is the text "epoch:sequence", a lone sequence number the text of its digits: JavaScript's numbers would
  lose digits above 2**53;
- a field with its default value is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from migratory_protocol.messages import After, SequenceNumber
from migratory_protocol.positions import LARGEST, Position, parse_position

M = TypeVar("M", bound=Struct)
Convert = Callable[[Any], Any]


class FieldError(ValueError):
    """A field that has the right type and a wrong value; `field` is its name."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class JsonKind:
    """The wire struct of one class of messages, and the way there and back."""

    __slots__ = ("_fields", "_payload", "_same", "message", "wire")

    def __init__(self, message: type[Struct], wires: dict[type[Struct], JsonKind]) -> None:
        self.message = message
        self._fields: list[tuple[str, Any, Convert | None, Convert | None]] = []
        self._payload = False
        shape: list[Any] = []
        for field in fields(message):
            if field.name == "payload" and field.type is bytes:
                self._payload = True
                shape += [("data", str | UnsetType, UNSET), ("data64", bytes | UnsetType, UNSET)]
                continue
            wire_type, write, read = _convert(field.type, field.name, wires)
            shape.append(_shape(field, wire_type, write))
            self._fields.append((field.name, field.default, write, read))
        # Of parts that look alike in both forms there may be tens of thousands in one message: all fields at once.
        names = [name for name, *_ in self._fields]
        converted = self._payload or any(read is not None for *_, read in self._fields)
        self._same = None if converted or len(names) < 2 else attrgetter(*names)
        op = message.__name__.lower() if message.__struct_config__.tag is not None else None
        self.wire: type[Struct] = msgspec.defstruct(
            message.__name__, shape, kw_only=True, omit_defaults=True, tag=op, tag_field="op" if op else None
        )

    def to_wire(self, message: Struct) -> Struct:
        values: dict[str, Any] = {}
        for name, default, write, _ in self._fields:
            value = getattr(message, name)
            if value != default:
                values[name] = value if write is None else write(value)
        if self._payload:
            payload: bytes = message.payload  # type: ignore[attr-defined]
            try:
                values["data"] = payload.decode()
            except UnicodeDecodeError:
                values["data64"] = payload
        return self.wire(**values)

    def from_wire(self, wire: Any) -> Any:
        """Raises FieldError for a value that its type alone does not rule out."""
        if self._same is not None:
            return self.message(*self._same(wire))
        values = {
            name: getattr(wire, name) if read is None else read(getattr(wire, name))
            for name, _, _, read in self._fields
        }
        if self._payload:
            values["payload"] = _payload(wire.data, wire.data64)
        return self.message(**values)


def family(messages: tuple[type[Struct], ...], parts: tuple[type[Struct], ...]) -> dict[type[Struct], JsonKind]:
    """The kinds of `messages` by their class; `parts` are the structs inside of them."""
    known: dict[type[Struct], JsonKind] = {}
    for part in parts:
        known[part] = JsonKind(part, known)
    return {message: JsonKind(message, known) for message in messages}


def _shape(field: FieldInfo, wire_type: Any, write: Convert | None) -> tuple[Any, ...]:
    if field.required:
        return (field.name, wire_type)
    return (field.name, wire_type, field.default if write is None else write(field.default))


def _payload(text: str | UnsetType, binary: bytes | UnsetType) -> bytes:
    if text is UNSET and binary is UNSET:
        raise FieldError("data", "missing: a payload is `data`, text, or `data64`, base64")
    if text is not UNSET and binary is not UNSET:
        raise FieldError("data64", "both `data` and `data64` are there: a payload is one of them")
    if isinstance(binary, bytes):
        return binary
    return str(text).encode()


def _convert(kind: Any, name: str, wires: dict[type[Struct], JsonKind]) -> tuple[Any, Convert | None, Convert | None]:
    """The wire type of a field, and how its values get there and back (None: as they are)."""
    if kind == After:
        return object, None, None  # in JSON anything does no harm
    if kind is Position:
        return str, str, lambda text: _position(name, text)
    if kind is SequenceNumber:
        return str, str, lambda text: _sequence(name, text)
    if get_origin(kind) in (Union, UnionType) and Position in get_args(kind):
        return (
            str | None,
            lambda position: None if position is None else str(position),
            lambda text: None if text is None else _position(name, text),
        )
    if get_origin(kind) is list and (part := wires.get(get_args(kind)[0])) is not None:
        return (
            list[part.wire],  # type: ignore[name-defined]
            lambda items: [part.to_wire(item) for item in items],
            lambda items: [part.from_wire(item) for item in items],
        )
    if (part := wires.get(kind)) is not None:
        return part.wire, part.to_wire, part.from_wire
    return kind, None, None


def _position(name: str, text: str) -> Position:
    try:
        return parse_position(text)
    except ValueError as error:
        raise FieldError(name, str(error)) from None


def _sequence(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= LARGEST:
        return int(text)
    raise FieldError(name, f"expected a sequence number as text, decimal digits, from 0 to {LARGEST}")
