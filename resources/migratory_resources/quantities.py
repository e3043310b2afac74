"""Parses and formats durations ("4s", "250ms", "2m") and sizes ("256Mi") as Kubernetes writes them; seconds and bytes
once parsed."""

from __future__ import annotations

import re
from decimal import Decimal

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNIT_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86_400)}

_SIZE = re.compile(r"(\d+)(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
_UNIT_BYTES = {
    "": 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}
_MAX_LENGTH = 40
"""Characters of a quantity. Longer than any that makes sense: bounds the arithmetic on hostile input."""

DURATION_FORM = 'a duration with its unit, such as "250ms", "4s", "2m", "1h" or "1m30s"'
SIZE_FORM = 'a size such as "64Ki", "256Mi" or "1Gi", or a whole number of bytes'


def parse_duration(value: object) -> float:
    """Return the duration in seconds. Parts may follow one another, largest unit first ("1m30s"). Only 0 needs no unit.

    :raises ValueError: the value is not a duration; the message is DURATION_FORM, which says what is allowed.
    """
    if value in ("0", 0) and not isinstance(value, bool):
        return 0.0
    if not isinstance(value, str) or len(value) > _MAX_LENGTH:
        raise ValueError(DURATION_FORM)
    total, end, previous_unit = Decimal(0), 0, None
    for part in _DURATION.finditer(value):
        unit = _UNIT_SECONDS[part[2]]
        if part.start() != end or (previous_unit is not None and unit >= previous_unit):
            raise ValueError(DURATION_FORM)
        total += Decimal(part[1]) * unit
        end, previous_unit = part.end(), unit
    if end != len(value) or not value:
        raise ValueError(DURATION_FORM)
    return float(total)


def parse_size(value: object) -> int:
    """Return the size in bytes, from text with or without a unit or from a number of bytes.

    :raises ValueError: the value is not a size, such as a negative number; the message is SIZE_FORM, which says what is
        allowed.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str) or len(value) > _MAX_LENGTH:
        raise ValueError(SIZE_FORM)
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(SIZE_FORM)
    return int(match[1]) * _UNIT_BYTES[match[2] or ""]


def parse_amount(text: str) -> Decimal:
    """Return the number of cores or bytes that a Kubernetes quantity stands for; "100m" is 0.1. The text must have the
    form `fields.QUANTITY`."""
    number, unit = re.fullmatch(r"([0-9.]+)(.*)", text).groups()  # type: ignore[union-attr]
    return Decimal(number) * (Decimal("0.001") if unit == "m" else _UNIT_BYTES[unit])


def format_duration(seconds: float) -> str:
    """Return the duration in the largest unit that leaves a whole number, such as "90s" or "2m", or in milliseconds
    with a fraction if no unit does. `parse_duration` accepts the result."""
    exact = Decimal(str(seconds))
    if exact == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        if exact % _UNIT_SECONDS[unit] == 0:
            return f"{int(exact / _UNIT_SECONDS[unit])}{unit}"
    return f"{(exact / _UNIT_SECONDS['ms']).normalize():f}ms"


def format_size(size: int) -> str:
    """Return the size with the largest binary unit that leaves a whole number, such as "256Mi", or else in bytes
    without a unit. `parse_size` accepts the result."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size and size % _UNIT_BYTES[unit] == 0:
            return f"{size // _UNIT_BYTES[unit]}{unit}"
    return str(size)
