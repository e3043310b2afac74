"""What a field type is in a custom resource's schema: its form, and its bounds as CEL.

Kubernetes keeps durations and sizes as text, so a bound is a rule and no `minimum`. Texts have a greatest length, from
which the API server computes what a rule may cost.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from migratory_resources.fields import QUANTITY, Duration, Name, Percentage, Quantity, Size, Text, Whole, Words
from migratory_resources.quantities import parse_duration

Schema = dict[str, Any]

DURATION = (
    r"^(0|[0-9]{1,6}d|([0-9]{1,6}(\.[0-9]{1,3})?h)?([0-9]{1,6}(\.[0-9]{1,3})?m)?([0-9]{1,9}(\.[0-9]{1,3})?s)?"
    r"([0-9]{1,9}(\.[0-9]{1,3})?ms)?)$"
)
SIZE = r"^[0-9]{1,16}(Ki|Mi|Gi|Ti|k|M|G|T)?$"
_LONGEST_QUANTITY = 20
_DAY = 86_400_000


def millis(path: str) -> str:
    """CEL for the duration at `path`, in milliseconds. CEL knows no days.

    No text is put together on the way: the API server would take it for as long as text can be, and refuse the rule
    for what it might cost.
    """
    days = f"int({path}.substring(0, size({path}) - 1)) * {_DAY}"
    return f"({path}.endsWith('d') ? {days} : duration({path}).getMilliseconds())"


def size(path: str) -> str:
    """CEL for the size at `path`, which may be text or a number."""
    return f"quantity(string({path}))"


def rule(cel: str, message: str, field: str | None = None) -> Schema:
    """One of `x-kubernetes-validations`; `field` is the path, from where the rule stands, that the error names."""
    validation = {"rule": cel, "message": message}
    if field is not None:
        validation["fieldPath"] = f".{field}"
    return validation


@singledispatch
def field_schema(kind: object) -> Schema:
    """The schema of a field type of `fields.py`."""
    raise TypeError(f"{kind!r} is no field type that has a schema")


@field_schema.register
def _(kind: Duration) -> Schema:
    least, most = (round(parse_duration(bound) * 1000) for bound in (kind.least, kind.most))
    cel = f"{millis('self')} >= {least} && {millis('self')} <= {most}"
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": _LONGEST_QUANTITY,
        "pattern": DURATION,
        "x-kubernetes-validations": [rule(cel, f"allowed: {kind.least} to {kind.most}")],
    }


@field_schema.register
def _(kind: Size) -> Schema:
    cel = " && ".join(
        (
            f"{size('self')}.compareTo(quantity('{kind.least}')) >= 0",
            f"{size('self')}.compareTo(quantity('{kind.most}')) <= 0",
        )
    )
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": _LONGEST_QUANTITY,
        "pattern": SIZE,
        "x-kubernetes-validations": [rule(cel, f"allowed: {kind.least} to {kind.most}")],
    }


@field_schema.register
def _(kind: Quantity) -> Schema:
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": _LONGEST_QUANTITY,
        "pattern": f"^{QUANTITY}$",
    }


@field_schema.register
def _(kind: Whole) -> Schema:
    return {
        "type": "integer",
        "format": "int64" if kind.most >= 2**31 else "int32",
        "minimum": kind.least,
        "maximum": kind.most,
    }


@field_schema.register
def _(kind: Words) -> Schema:
    if all(isinstance(word, int) for word in kind.words):
        return {"type": "integer", "format": "int32", "enum": list(kind.words)}
    return {"type": "string", "enum": list(kind.words)}


@field_schema.register
def _(kind: Name) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": kind.longest, "pattern": f"^{kind.form}$"}


@field_schema.register
def _(kind: Text) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": kind.longest, "pattern": f"^({kind.form})$"}


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
