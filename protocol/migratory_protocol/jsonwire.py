"""The JSON wire format, for `codec.py`, derived from the message classes in `messages.py`.

A message is an object in place of an array, and its `op` is the class's name in snake case in place of the number.
Fields keep their names and types, with three exceptions:

- a payload is `data`, text, when its bytes are UTF-8, and `data64`, base64, when they are not;
- a position is the string "epoch:sequence", a single sequence number a string of its digits, because JavaScript's
  numbers lose digits above 2**53;
- a field with its default value is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from migratory_protocol.messages import After, SequenceNumber
from migratory_protocol.positions import LARGEST, Position, parse_position

M = TypeVar("M", bound=Struct)
Convert = Callable[[Any], Any]


class FieldError(ValueError):
    """The error for a field that has the right type and an invalid value. `field` is the field's name."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class JsonKind:
    """The conversion of one message class to and from its JSON form, a struct class (`wire`) that is made here. `wires`
    has the conversions of the structs that the message contains."""

    __slots__ = ("_copied", "_fields", "_payload", "message", "wire")

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
        # A message may hold tens of thousands of structs that need no conversion: copy all fields of one at once.
        names = [name for name, *_ in self._fields]
        converted = self._payload or any(read is not None for *_, read in self._fields)
        self._copied = None if converted or len(names) < 2 else attrgetter(*names)
        op = operation_name(message) if message.__struct_config__.tag is not None else None
        self.wire: type[Struct] = msgspec.defstruct(
            message.__name__, shape, kw_only=True, omit_defaults=True, tag=op, tag_field="op" if op else None
        )

    def to_wire(self, message: Struct) -> Struct:
        """Return the JSON form of a message, a struct to be encoded. The encoder leaves out fields with their default
        value."""
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
        """Return the message that a decoded JSON struct stands for. Raises FieldError for an invalid value of the right
        type."""
        if self._copied is not None:
            return self.message(*self._copied(wire))
        values = {
            name: getattr(wire, name) if read is None else read(getattr(wire, name))
            for name, _, _, read in self._fields
        }
        if self._payload:
            values["payload"] = _read_payload(wire.data, wire.data64)
        return self.message(**values)


def operation_name(message: type[Struct]) -> str:
    """Return the `op` of a message class: its name in snake case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.__name__).lower()


def build_kinds(messages: tuple[type[Struct], ...], parts: tuple[type[Struct], ...]) -> dict[type[Struct], JsonKind]:
    """Return the `JsonKind` of each of `messages`, by class. `parts` are the classes of structs that messages contain;
    a part that contains another one comes after it."""
    known: dict[type[Struct], JsonKind] = {}
    for part in parts:
        known[part] = JsonKind(part, known)
    return {message: JsonKind(message, known) for message in messages}


def item_type(kind: Any) -> Any:
    """Return the type of the items of a bounded list, `Annotated[list[...], ...]`. Return None for any other type, such
    as a list without bounds."""
    listed = get_args(kind)[0] if get_origin(kind) is Annotated else None
    return get_args(listed)[0] if get_origin(listed) is list else None


def _shape(field: FieldInfo, wire_type: Any, write: Convert | None) -> tuple[Any, ...]:
    """Return a field of the JSON form, for `msgspec.defstruct`: its name, its type, and its default value if it has
    one."""
    if field.required:
        return (field.name, wire_type)
    return (field.name, wire_type, field.default if write is None else write(field.default))


def _read_payload(text: str | UnsetType, binary: bytes | UnsetType) -> bytes:
    """Return the payload from the fields `data` and `data64`. Raises FieldError unless exactly one of them is given."""
    if text is UNSET and binary is UNSET:
        raise FieldError("data", "missing: give the payload as `data`, text, or as `data64`, base64")
    if text is not UNSET and binary is not UNSET:
        raise FieldError("data64", "`data` and `data64` are both given; use one of them")
    if isinstance(binary, bytes):
        return binary
    return str(text).encode()


def _convert(kind: Any, name: str, wires: dict[type[Struct], JsonKind]) -> tuple[Any, Convert | None, Convert | None]:
    """Return for a field of type `kind` its type in JSON, and the functions that convert a value to and from JSON
    (None: unchanged)."""
    if kind == After:
        # Any JSON value is harmless, see `messages.After`.
        return object, lambda after: str(after) if isinstance(after, Position) else after, None
    if kind is Position:
        return str, str, lambda text: _read_position(name, text)
    if kind is SequenceNumber:
        return str, str, lambda text: _read_sequence(name, text)
    if get_origin(kind) in (Union, UnionType) and Position in get_args(kind):
        return (
            str | None,
            lambda position: None if position is None else str(position),
            lambda text: None if text is None else _read_position(name, text),
        )
    if (part := wires.get(item_type(kind))) is not None:
        return (
            Annotated[list[part.wire], *kind.__metadata__],  # type: ignore[name-defined]
            lambda items: [part.to_wire(item) for item in items],
            lambda items: [part.from_wire(item) for item in items],
        )
    if (part := wires.get(kind)) is not None:
        return part.wire, part.to_wire, part.from_wire
    return kind, None, None


def _read_position(name: str, text: str) -> Position:
    """Return the position in a text. Raises FieldError for the field `name` if it is malformed."""
    try:
        return parse_position(text)
    except ValueError as error:
        raise FieldError(name, str(error)) from None


def _read_sequence(name: str, text: str) -> int:
    """Return the sequence number in a text. Raises FieldError for the field `name` if it is malformed or too large."""
    if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= LARGEST:
        return int(text)
    raise FieldError(name, f"expected a sequence number from 0 to {LARGEST}, as a string of decimal digits")
