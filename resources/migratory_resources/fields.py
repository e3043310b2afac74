"""Field types of the resources: each one checks its bounds, and its error says what is allowed.

They stand in annotations (`heartbeat: Annotated[float, Duration("1s", "5m")] = 15.0`). Their errors are
PydanticCustomErrors of the type `not_allowed` with `allowed` in their context, from which `validation.loading` makes a
`FieldProblem`.
"""

from __future__ import annotations

import ipaddress
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
"""The name of a container image."""
QUANTITY = r"[0-9]+(\.[0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"
"""The form of a Kubernetes resource quantity, such as "100m" or "256Mi". Exponents and the units from P on are not
accepted."""
_DECIMAL = re.compile(r"\d{1,3}(\.\d{1,9})?", re.ASCII)


class ResourceModel(BaseModel):
    """The base of every model of a resource. Its fields have camelCase names in files. An instance can't be changed. A
    value of another type is not converted, and an unknown field is an error."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, strict=True, frozen=True, extra="forbid")


def not_allowed(allowed: str) -> PydanticCustomError:
    """Return the error of a field with a value that is not allowed; `allowed` completes the sentence "allowed: ..."."""
    return PydanticCustomError("not_allowed", "allowed: {allowed}", {"allowed": allowed})


def plain_schema(validate: Callable[[Any], Any], serialize: Callable[[Any], str] | None = None) -> CoreSchema:
    """Return the pydantic schema of a field type.

    :param validate: returns the value for the model from the one in the file, or raises.
    :param serialize: returns the text for JSON from the value in the model; None to write the value unchanged.
    """
    serialization = serialize and core_schema.plain_serializer_function_ser_schema(
        serialize, return_schema=core_schema.str_schema(), when_used="json"
    )
    return core_schema.no_info_plain_validator_function(validate, serialization=serialization or None)


@dataclass(frozen=True)
class Duration:
    """The type of a field with a duration from `minimum` to `maximum`, both included: seconds in the model, text with a
    unit in files."""

    minimum: str
    maximum: str

    def validate(self, value: object) -> float:
        """Return the duration in seconds. Raise PydanticCustomError if the value is not a duration with a unit (only 0
        needs none), or is outside the bounds."""
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise not_allowed(f"{DURATION_FORM}, from {self.minimum} to {self.maximum}") from error
        if not parse_duration(self.minimum) <= seconds <= parse_duration(self.maximum):
            raise not_allowed(f"{self.minimum} to {self.maximum}")
        return seconds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate, format_duration)


@dataclass(frozen=True)
class ByteSize:
    """The type of a field with a size from `minimum` to `maximum`, both included: bytes in the model, text with a unit
    or a number of bytes in files."""

    minimum: str
    maximum: str

    def validate(self, value: object) -> int:
        """Return the size in bytes. Raise PydanticCustomError if the value is not a size, or is outside the bounds."""
        try:
            size = parse_size(value)
        except ValueError as error:
            raise not_allowed(f"{SIZE_FORM}, from {self.minimum} to {self.maximum}") from error
        if not parse_size(self.minimum) <= size <= parse_size(self.maximum):
            raise not_allowed(f"{self.minimum} to {self.maximum}")
        return size

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate, format_size)


@dataclass(frozen=True)
class WholeNumber:
    """The type of a field with a whole number from `minimum` to `maximum`, both included."""

    minimum: int
    maximum: int

    def validate(self, value: object) -> int:
        """Return the number unchanged. Raise PydanticCustomError if the value is not an int (a bool is not one), or is
        outside the bounds."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise not_allowed(f"a whole number from {self.minimum:,} to {self.maximum:,}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class OneOf:
    """The type of a field with one of a fixed set of words or numbers."""

    values: tuple[str | int, ...]

    def validate(self, value: object) -> str | int:
        """Return the value unchanged. Raise PydanticCustomError if it is not one of `values`; a bool is none."""
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in self.values:
            raise not_allowed(", ".join(str(allowed) for allowed in self.values))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class DnsLabel:
    """The type of a field with a DNS label of up to `max_length` characters: lower-case letters, digits and "-",
    beginning with a letter, not ending with "-"."""

    max_length: int
    pattern: ClassVar[str] = r"[a-z](?:[-a-z0-9]*[a-z0-9])?"

    def validate(self, value: object) -> str:
        """Return the label unchanged. Raise PydanticCustomError if the value is not such a label."""
        if not isinstance(value, str) or len(value) > self.max_length or not re.fullmatch(self.pattern, value):
            raise not_allowed(
                f'1 to {self.max_length} of a-z, 0-9 and "-", beginning with a letter, not ending with "-"'
            )
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class PatternText:
    """The type of a field with text of up to `max_length` characters that the regular expression `pattern` matches as a
    whole; `allowed` describes the pattern in words, for errors."""

    pattern: str
    max_length: int
    allowed: str

    def validate(self, value: object) -> str:
        """Return the text unchanged. Raise PydanticCustomError if it is not text, too long, has a surrogate code point,
        or does not match."""
        if not isinstance(value, str) or len(value) > self.max_length or not re.fullmatch(self.pattern, value):
            raise not_allowed(self.allowed)
        if re.search("[\ud800-\udfff]", value):
            raise not_allowed(f"{self.allowed}, without surrogate code points (an escape such as \\ud800)")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class IpNetwork:
    """The type of a field with a network of IPv4 or IPv6 addresses, or one address, as text."""

    pattern: ClassVar[str] = r"[0-9A-Fa-f:.]{2,39}(/[0-9]{1,3})?"
    max_length: ClassVar[int] = 43

    def validate(self, value: object) -> str:
        """Return the text of the network unchanged. Raise PydanticCustomError if it is not a network, or has bits after
        its prefix (10.0.0.1/8)."""
        allowed = 'a network such as "10.0.0.0/8" or "2001:db8::/32", or an address'
        text = PatternText(self.pattern, self.max_length, allowed).validate(value)
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            raise not_allowed(f"{allowed} ({error})") from error
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)


@dataclass(frozen=True)
class Percentage:
    """The type of a field with an exact decimal above 0 and up to 100, or below 100 if `open_end` is set.

    A percentage is text in files: 99.9 as a YAML number is a binary fraction, and the Kubernetes API has no decimals.
    """

    open_end: bool = False

    def validate(self, value: object) -> Decimal:
        """Return the exact decimal, from text with up to nine decimal places or from a Decimal. Raise
        PydanticCustomError for anything else, and outside the bounds."""
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
    """The type of a field with a Kubernetes resource quantity ("100m", "256Mi") as text. Only its form is checked here;
    Kubernetes checks it further."""

    def validate(self, value: object) -> str:
        """Return the quantity as text, also if it is an int. Raise PydanticCustomError if it does not have the form
        QUANTITY."""
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        return PatternText(QUANTITY, 20, 'an amount such as "100m", "2" or "256Mi"').validate(text)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return plain_schema(self.validate)
