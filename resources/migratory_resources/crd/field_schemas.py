"""Schemas of the field types in a custom resource definition: their patterns, and their bounds as CEL rules.

CEL is the language of the rules that the API server checks. A duration is text and a size is text or a number, so their
bounds are CEL rules; only whole numbers have `minimum` and `maximum`. Texts have a `maxLength`, from which the API
server estimates the cost of a rule.
"""

from __future__ import annotations

import json
from functools import singledispatch
from typing import Any

from migratory_resources.fields import (
    QUANTITY,
    ByteSize,
    DnsLabel,
    Duration,
    IpNetwork,
    OneOf,
    PatternText,
    Percentage,
    Quantity,
    WholeNumber,
)
from migratory_resources.quantities import parse_duration

Schema = dict[str, Any]

DURATION = (
    r"^(0|[0-9]{1,6}d|([0-9]{1,6}(\.[0-9]{1,3})?h)?([0-9]{1,6}(\.[0-9]{1,3})?m)?([0-9]{1,9}(\.[0-9]{1,3})?s)?"
    r"([0-9]{1,9}(\.[0-9]{1,3})?ms)?)$"
)
SIZE = r"^[0-9]{1,16}(Ki|Mi|Gi|Ti|k|M|G|T)?$"
_MAX_QUANTITY_LENGTH = 20
"""Characters of a duration, size or quantity. The API server estimates the cost of its rules from it."""
_MAX_WORD_LENGTH = 64
"""Characters of a word that is one of a few."""
_DAY_MS = 86_400_000


def millis(path: str) -> str:
    """Return a CEL expression for the number of milliseconds of the duration at the CEL path `path`. CEL knows no days,
    so that days are computed.

    The expression concatenates no text: the API server would assume the longest possible text, and reject the rule for
    its estimated cost.
    """
    days = f"int({path}.substring(0, size({path}) - 1)) * {_DAY_MS}"
    return f"({path}.endsWith('d') ? {days} : duration({path}).getMilliseconds())"


def size(path: str) -> str:
    """Return a CEL expression for the size at the CEL path `path`, which may be text or a number."""
    return f"quantity(string({path}))"


def rule(cel: str, message: str, field: str | None = None) -> Schema:
    """Return an entry of `x-kubernetes-validations`, which the API server checks.

    :param cel: a CEL expression that must be true.
    :param message: what is allowed.
    :param field: the path, relative to the rule's place, that the error names.
    """
    validation = {"rule": cel, "message": message}
    if field is not None:
        validation["fieldPath"] = f".{field}"
    return validation


@singledispatch
def field_schema(kind: object) -> Schema:
    """Return the JSON schema of a field of this type, with the bounds that the API server can check. Raise TypeError if
    `kind` is not an instance of a field type of `fields.py`."""
    raise TypeError(f"{kind!r} is not a field type with a schema")


@field_schema.register
def _(kind: Duration) -> Schema:
    minimum, maximum = (round(parse_duration(bound) * 1000) for bound in (kind.minimum, kind.maximum))
    cel = f"{millis('self')} >= {minimum} && {millis('self')} <= {maximum}"
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": _MAX_QUANTITY_LENGTH,
        "pattern": DURATION,
        "x-kubernetes-validations": [rule(cel, f"allowed: {kind.minimum} to {kind.maximum}")],
    }


@field_schema.register
def _(kind: ByteSize) -> Schema:
    cel = " && ".join(
        (
            f"{size('self')}.compareTo(quantity('{kind.minimum}')) >= 0",
            f"{size('self')}.compareTo(quantity('{kind.maximum}')) <= 0",
        )
    )
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": _MAX_QUANTITY_LENGTH,
        "pattern": SIZE,
        "x-kubernetes-validations": [rule(cel, f"allowed: {kind.minimum} to {kind.maximum}")],
    }


@field_schema.register
def _(kind: Quantity) -> Schema:
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": _MAX_QUANTITY_LENGTH,
        "pattern": f"^{QUANTITY}$",
    }


@field_schema.register
def _(kind: WholeNumber) -> Schema:
    return {
        "type": "integer",
        "format": "int64" if kind.maximum >= 2**31 else "int32",
        "minimum": kind.minimum,
        "maximum": kind.maximum,
    }


@field_schema.register
def _(kind: OneOf) -> Schema:
    # Not an `enum`: with one that does not match, the API server checks no rules, and adds a message that says so.
    allowed = rule(f"self in {list(kind.values)}", f"allowed: {', '.join(map(str, kind.values))}")
    if all(isinstance(value, int) for value in kind.values):
        return {"type": "integer", "format": "int32", "x-kubernetes-validations": [allowed]}
    return {"type": "string", "maxLength": _MAX_WORD_LENGTH, "x-kubernetes-validations": [allowed]}


@field_schema.register
def _(kind: DnsLabel) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": kind.max_length, "pattern": f"^{kind.pattern}$"}


@field_schema.register
def _(kind: PatternText) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": kind.max_length, "pattern": f"^({kind.pattern})$"}


def explained(kind: object, schema: Schema) -> Schema:
    """Return the schema of a PatternText with its pattern turned into a rule that says in words what is allowed: the
    API server explains a `pattern` by the regular expression alone. Return the schema of another type unchanged.

    It is not for fields within lists and mappings, where such a rule would be too costly.

    :param kind: the field type.
    :param schema: its schema, as `field_schema` returns it.
    """
    if not isinstance(kind, PatternText):
        return schema
    matches = rule(f"self.matches({json.dumps(schema['pattern'])})", f"allowed: {kind.allowed}")
    kept = {key: value for key, value in schema.items() if key not in ("pattern", "minLength")}
    return {**kept, "x-kubernetes-validations": [matches]}


@field_schema.register
def _(kind: IpNetwork) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": kind.max_length, "pattern": f"^{kind.pattern}$"}


@field_schema.register
def _(kind: Percentage) -> Schema:
    cel = f"double(self) > 0.0 && double(self) {'<' if kind.open_end else '<='} 100.0"
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": 13,
        "pattern": r"^[0-9]{1,3}(\.[0-9]{1,9})?$",
        "x-kubernetes-validations": [
            rule(cel, f"a decimal in quotes, above 0 and {'below' if kind.open_end else 'up to'} 100")
        ],
    }
