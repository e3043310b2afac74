"""Field types of the resources: each knows its bounds, and says in its error what is allowed there.

They stand in annotations (`heartbeat: Annotated[float, Duration("1s", "5m")] = 15.0`). Their error has the type
`not_allowed` and `allowed` in its context, from which `validation.py` makes a `Problem`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from migratory_resources.quantities import (
    DURATION_FORM,
    SIZE_FORM,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

IMAGE = r"[a-zA-Z0-9][-a-zA-Z0-9._/:@]{0,510}"
"""An image's name."""
QUANTITY = r"[0-9]+(\.[0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"
_DECIMAL = re.compile(r"\d{1,3}(\.\d{1,9})?", re.ASCII)


class Model(BaseModel):
    """camelCase outside, immutable, nothing converted silently. (`validation.py` names unknown fields beforehand.)"""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, strict=True, frozen=True, extra="forbid")


def not_allowed(allowed: str) -> PydanticCustomError:
    """An error of one field; `allowed` completes the sentence "allowed: ..."."""
    return PydanticCustomError("not_allowed", "allowed: {allowed}", {"allowed": allowed})


def plain_schema(validate: Callable[[Any], Any], write: Callable[[Any], str] | None = None) -> CoreSchema:
    """What a field type gives pydantic: its own judgement, and how its value is written as JSON."""
    serialization = write and core_schema.plain_serializer_function_ser_schema(
        write, return_schema=core_schema.str_schema(), when_used="json"
    )
    return core_schema.no_info_plain_validator_function(validate, serialization=serialization or None)


@dataclass(frozen=True)
class Duration:
    """Seconds inside, text with a unit outside; both bounds are included."""

    least: str
    most: str

    def validate(self, value: object) -> float:
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise not_allowed(f"{DURATION_FORM}, from {self.least} to {self.most}") from error
        if not parse_duration(self.least) <= seconds <= parse_duration(self.most):
            raise not_allowed(f"{self.least} to {self.most}")
        return seconds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate, format_duration)


@dataclass(frozen=True)
class Size:
    """Bytes inside, text with a unit (or a number of bytes) outside; both bounds are included."""

    least: str
    most: str

    def validate(self, value: object) -> int:
        try:
            size = parse_size(value)
        except ValueError as error:
            raise not_allowed(f"{SIZE_FORM}, from {self.least} to {self.most}") from error
        if not parse_size(self.least) <= size <= parse_size(self.most):
            raise not_allowed(f"{self.least} to {self.most}")
        return size

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate, format_size)


@dataclass(frozen=True)
class Whole:
    """A whole number; both bounds are included."""

    least: int
    most: int

    def validate(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise not_allowed(f"a whole number from {self.least:,} to {self.most:,}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class Words:
    """One of a few words (or numbers)."""

    words: tuple[str | int, ...]

    def validate(self, value: object) -> str | int:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in self.words:
            raise not_allowed(", ".join(str(word) for word in self.words))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class Name:
    """A DNS label: lower-case letters, digits and "-", beginning with a letter."""

    longest: int
    form: ClassVar[str] = r"[a-z](?:[-a-z0-9]*[a-z0-9])?"

    def validate(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > self.longest or not re.fullmatch(self.form, value):
            raise not_allowed(f'1 to {self.longest} of a-z, 0-9 and "-", beginning with a letter, not ending with "-"')
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class Text:
    """Text of a form that a regular expression gives; `allowed` says it in words."""

    form: str
    longest: int
    allowed: str

    def validate(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > self.longest or not re.fullmatch(self.form, value):
            raise not_allowed(self.allowed)
        if re.search("[\ud800-\udfff]", value):
            raise not_allowed(f"{self.allowed}, without surrogates: half a character, as an escape can be, is no text")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class Percentage:
    """An exact decimal above 0 and up to 100 (below it when `open_end`). Text outside: 99.9 as a YAML number is a
    binary fraction, and Kubernetes' API has no decimals."""

    open_end: bool = False

    def validate(self, value: object) -> Decimal:
        if isinstance(value, Decimal):
            number = value
        elif isinstance(value, str) and _DECIMAL.fullmatch(value):
            number = Decimal(value)
        else:
            number = Decimal(-1)
        if not (0 < number < 100 or (number == 100 and not self.open_end)):
            raise not_allowed(
                f'a decimal in quotes, above 0 and {"below" if self.open_end else "up to"} 100, such as "99.9"'
            )
        return number

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate, str)


@dataclass(frozen=True)
class Quantity:
    """An amount as Kubernetes counts resources ("100m", "256Mi"), as text; Kubernetes itself judges it further."""

    def validate(self, value: object) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        return Text(QUANTITY, 20, 'an amount such as "100m", "2" or "256Mi"').validate(text)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)
