"""Converts pydantic models to the structural schema of a custom resource definition.

Written for the models of this package: fields are models, lists, mappings with text keys, field types of `fields.py`,
text, whole numbers, booleans, and `Literal`s of text, each of them possibly optional. Every field that is converted
needs a description. Anything else raises SchemaError.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from migratory_resources.crd.field_schemas import Schema, explained, field_schema
from migratory_resources.fields import (
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

FIELD_TYPES = (ByteSize, DnsLabel, Duration, IpNetwork, OneOf, PatternText, Percentage, Quantity, WholeNumber)
_PLAIN: dict[object, Schema] = {
    str: {"type": "string", "maxLength": 1024},
    int: {"type": "integer", "format": "int64"},
    bool: {"type": "boolean"},
}
_MAX_ENTRIES = 100
"""Entries of a list or mapping without a bound of its own. The API server multiplies the cost of a rule by it."""


class SchemaError(TypeError):
    """Raised for a model with a field that can't be converted to a schema."""


def object_schema(
    model: type[BaseModel],
    rules: Mapping[type[BaseModel], Sequence[Schema]],
    keys: Mapping[type[BaseModel], str] | None = None,
    shallow: Collection[type[BaseModel]] = (),
) -> Schema:
    """Return the schema of `model` and of everything in it. Raise SchemaError if a field has no description or an
    unknown type.

    :param rules: `x-kubernetes-validations` by model; a subclass inherits those of its bases.
    :param keys: models whose lists have the list type "map", with the property that identifies an entry.
    :param shallow: models of which the schema has only the required fields, and lets all others through: a definition
        has a limited size.
    """
    return _SchemaBuilder(rules, keys or {}, shallow).model(model)


def default_of(model: BaseModel) -> Schema:
    """Return all values of a model except None, as the `default` of its schema. The API server checks rules against the
    default before it adds nested defaults, so the default must be whole."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class _SchemaBuilder:
    """A converter of models to schemas, with the parameters of `object_schema`."""

    def __init__(
        self,
        rules: Mapping[type[BaseModel], Sequence[Schema]],
        keys: Mapping[type[BaseModel], str],
        shallow: Collection[type[BaseModel]],
    ) -> None:
        self._rules = rules
        self._keys = keys
        self._shallow = frozenset(shallow)
        self._depth = 0
        """Number of lists and mappings around the present schema."""

    def model(self, model: type[BaseModel]) -> Schema:
        """Return the schema of a model with its rules. Raise SchemaError if a field has no description or an unknown
        type."""
        properties, required = {}, []
        for name, info in model.model_fields.items():
            property_name = info.alias or name
            if model in self._shallow and not info.is_required():
                continue
            if not info.description:
                raise SchemaError(f"{model.__name__}.{name} has no description")
            properties[property_name] = {"description": info.description, **self._field(info)}
            if info.is_required():
                required.append(property_name)
        schema: Schema = {"type": "object", **({"properties": properties} if properties else {})}
        if model in self._shallow:
            schema["x-kubernetes-preserve-unknown-fields"] = True
        if required:
            schema["required"] = required
        validations = [rule for base in reversed(model.__mro__) for rule in self._rules.get(base, ())]
        if validations:
            schema["x-kubernetes-validations"] = validations
        return schema

    def _field(self, info: FieldInfo) -> Schema:
        """Return the schema of a field: that of its type, with its bound on entries and its default. Raise SchemaError
        for an unknown type."""
        annotation = info.annotation
        if info.metadata and (kind := _field_type(info.metadata)) is not None:
            schema = dict(field_schema(kind))
            schema = schema if self._depth else explained(kind, schema)
        else:
            schema = self._type(annotation)
        for part in info.metadata:
            if (max_length := getattr(part, "max_length", None)) is not None and (
                bound := {"maxItems", "maxProperties"} & set(schema)
            ):
                schema[bound.pop()] = max_length
        default = info.get_default(call_default_factory=True, validated_data={})
        if default is not PydanticUndefined and default is not None:
            schema["default"] = _default(info, default)
        return schema

    def _type(self, annotation: Any) -> Schema:
        """Return the schema of a type, as an annotation gives it. Raise SchemaError for an unknown one."""
        if annotation in _PLAIN:
            return dict(_PLAIN[annotation])
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.model(annotation)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            kind = _field_type(arguments[1:])
            if kind is None:
                return self._type(arguments[0])
            field = dict(field_schema(kind))
            return field if self._depth else explained(kind, field)
        if origin in (Union, UnionType):
            inner = [part for part in arguments if part is not type(None)]
            if len(inner) == 1:
                return self._type(inner[0])
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin is list:
            items = self._entries(arguments[0])
            schema: Schema = {"type": "array", "maxItems": _MAX_ENTRIES, "items": items}
            if (key := self._keys.get(arguments[0])) is not None:
                schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
            return schema
        if origin is dict and arguments[0] is str:
            return {
                "type": "object",
                "maxProperties": _MAX_ENTRIES,
                "additionalProperties": self._entries(arguments[1]),
            }
        raise SchemaError(f"no schema for {annotation!r}")

    def _entries(self, annotation: Any) -> Schema:
        """Return the schema of the entries of a list or mapping. Raise SchemaError for an unknown type."""
        self._depth += 1
        try:
            return self._type(annotation)
        finally:
            self._depth -= 1


def _field_type(metadata: Sequence[object]) -> object | None:
    """Return the field type of `fields.py` in the metadata of an annotation, None if there is none."""
    return next((part for part in metadata if isinstance(part, FIELD_TYPES)), None)


def _default(info: FieldInfo, default: object) -> Any:
    """Return a field's default as it is written in YAML, such as "15s" for 15 seconds."""
    if isinstance(default, BaseModel):
        return default_of(default)
    annotation: Any = info.annotation
    for part in info.metadata:
        annotation = Annotated[annotation, part]
    return TypeAdapter(annotation).dump_python(default, mode="json", by_alias=True)
