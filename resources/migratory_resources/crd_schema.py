"""From pydantic models to a structural schema, as custom resources have them.

Written for the models of this package: fields are models, lists, mappings, field types of `fields.py`, text, numbers
and booleans, each of them with a description. What it does not know it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from migratory_resources.crd_fields import Schema, field_schema
from migratory_resources.fields import Duration, Name, Percentage, Quantity, Size, Text, Whole, Words

FIELD_TYPES = (Duration, Name, Percentage, Quantity, Size, Text, Whole, Words)
_PLAIN: dict[object, Schema] = {
    str: {"type": "string", "maxLength": 1024},
    int: {"type": "integer", "format": "int64"},
    bool: {"type": "boolean"},
}
# Of a list or mapping without a bound of its own. The API server multiplies what a rule costs by it.
_MOST_ENTRIES = 100


class SchemaError(TypeError):
    """A model has something that no schema is known for."""


def object_schema(
    model: type[BaseModel],
    rules: Mapping[type[BaseModel], Sequence[Schema]],
    keys: Mapping[type[BaseModel], str] | None = None,
) -> Schema:
    """The schema of `model` and all below it.

    :param rules: `x-kubernetes-validations` by model; a subclass has those of its bases.
    :param keys: models whose lists are mappings in truth, by the property that names an entry.
    """
    return _Writer(rules, keys or {}).model(model)


def default_of(model: BaseModel) -> Schema:
    """A whole model as a default: rules are held against it as it is written, before anything is filled in."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class _Writer:
    def __init__(self, rules: Mapping[type[BaseModel], Sequence[Schema]], keys: Mapping[type[BaseModel], str]) -> None:
        self._rules = rules
        self._keys = keys

    def model(self, model: type[BaseModel]) -> Schema:
        properties, required = {}, []
        for name, info in model.model_fields.items():
            outside = info.alias or name
            if not info.description:
                raise SchemaError(f"{model.__name__}.{name} has no description")
            properties[outside] = {"description": info.description, **self._field(info)}
            if info.is_required():
                required.append(outside)
        schema: Schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        validations = [rule for base in reversed(model.__mro__) for rule in self._rules.get(base, ())]
        if validations:
            schema["x-kubernetes-validations"] = validations
        return schema

    def _field(self, info: FieldInfo) -> Schema:
        annotation = info.annotation
        if info.metadata and (kind := _field_type(info.metadata)) is not None:
            schema = dict(field_schema(kind))
        else:
            schema = self._type(annotation)
        for part in info.metadata:
            if (most := getattr(part, "max_length", None)) is not None and schema.get("type") == "array":
                schema["maxItems"] = most
        default = info.get_default(call_default_factory=True, validated_data={})
        if default is not PydanticUndefined and default is not None:
            schema["default"] = _default(info, default)
        return schema

    def _type(self, annotation: Any) -> Schema:
        if annotation in _PLAIN:
            return dict(_PLAIN[annotation])
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.model(annotation)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            kind = _field_type(arguments[1:])
            return self._type(arguments[0]) if kind is None else dict(field_schema(kind))
        if origin in (Union, UnionType):
            inner = [part for part in arguments if part is not type(None)]
            if len(inner) == 1:
                return self._type(inner[0])
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin is list:
            items = self._type(arguments[0])
            schema: Schema = {"type": "array", "maxItems": _MOST_ENTRIES, "items": items}
            if (key := self._keys.get(arguments[0])) is not None:
                schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
            return schema
        if origin is dict and arguments[0] is str:
            return {
                "type": "object",
                "maxProperties": _MOST_ENTRIES,
                "additionalProperties": self._type(arguments[1]),
            }
        raise SchemaError(f"no schema is known for {annotation!r}")


def _field_type(metadata: Sequence[object]) -> object | None:
    return next((part for part in metadata if isinstance(part, FIELD_TYPES)), None)


def _default(info: FieldInfo, default: object) -> Any:
    """As it stands in YAML."""
    if isinstance(default, BaseModel):
        return default_of(default)
    annotation: Any = info.annotation
    for part in info.metadata:
        annotation = Annotated[annotation, part]
    return TypeAdapter(annotation).dump_python(default, mode="json", by_alias=True)
