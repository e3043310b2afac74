"""Comparison of a live object of Kubernetes with the wanted one, to decide whether to apply it; pure.

The operator owns the fields that it applied last, which the API server records in `metadata.managedFields`. What it
owns must be what it wants: every wanted value must be there, and a field or an entry that it owns and no longer wants
must go. Everything else is foreign: defaults of the API server, and what other writers have added.

Whether a list has keys follows from the record, too. Entries with a key (`k:`) or a value (`v:`) are compared one by
one, in any order, and foreign entries beside them are no difference, because an apply would leave them. Other lists
belong to one writer as a whole: they must have the same length and order. A wanted false, 0, "", empty list or empty
mapping equals an absent field, because the API server drops it. Below `resources`, equal amounts are equal in any form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migratory_resources.fields import QUANTITY
from migratory_resources.quantities import parse_amount

from migratory_operator.names import FIELD_MANAGER, Object

FieldTree = Mapping[str, Any]
"""A set of fields as `managedFields` has it (FieldsV1): `f:` names a field, `k:` an entry of a list by its key, `v:`
one by its value. The key `.` is the field itself."""


@dataclass(frozen=True)
class ForeignField:
    """A field in the spec of a live object, or an entry of a list there, that the operator does not want. It stays,
    unless it keeps the wanted object from being applied."""

    path: str
    """For people: `.spec.ports[port=9999,protocol=TCP]`."""
    pointer: str
    """For a JSON patch: `/spec/ports/1`."""


def differs(wanted: Object, live: Object | None) -> bool:
    """Return whether `wanted` must be applied: there is no live object (None), or `first_difference` finds
    something."""
    return live is None or first_difference(wanted, live) is not None


def first_difference(wanted: Object, live: Object) -> str | None:
    """Return the path of the first field in which the live object is not as the operator wants it, such as
    `.spec.ports[port=8080,protocol=TCP].targetPort`; None if there is none, "." if the operator never applied the
    object. Foreign fields are no difference."""
    owned, others = _fields_by_owner(live)
    if owned is None:
        return "."
    return next(_differences(wanted, live, owned, _union([owned, *others]), ""), None)


def foreign_fields(wanted: Object, live: Object) -> list[ForeignField]:
    """Return the fields in the spec of a live object that are not wanted and that another field manager has set, and
    the entries of lists with keys that are not wanted, except those that only the operator has set: an apply removes
    these. Nothing below a field `metadata` is returned, so no labels and annotations of a pod template, and nothing
    that belongs to the status."""
    owned, others = _fields_by_owner(live)
    ours, theirs = ((tree or {}).get("f:spec", {}) for tree in (owned, _union(others)))
    return list(_foreign(wanted.get("spec", {}), live.get("spec", {}), ours, theirs, ForeignField(".spec", "/spec")))


def _fields_by_owner(live: Object) -> tuple[FieldTree | None, list[FieldTree]]:
    """Return the fields that the operator applied, None if it never applied the object, and the fields of each other
    field manager. Fields of the status are left out."""
    owned, others = None, []
    for entry in live["metadata"].get("managedFields") or ():
        fields: FieldTree = entry.get("fieldsV1") or {}
        subresource = entry.get("subresource", "")
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not subresource:
            owned = fields
        elif subresource != "status":
            others.append(fields)
    return owned, others


def _union(trees: Sequence[FieldTree]) -> FieldTree:
    """Return the fields that are in any of these sets. The union of all owners' sets tells which lists have keys, also
    when the operator owns no entry of a list any more."""
    names = dict.fromkeys(name for tree in trees for name in tree)
    return {name: _union([tree[name] for tree in trees if name in tree]) for name in names}


def _differences(wanted: Any, live: Any, owned: FieldTree, known: FieldTree, path: str) -> Iterator[str]:
    """Yield the paths below `path` at which the live value is not as wanted.

    :param owned: the part of the fields that the operator applied which is below this path.
    :param known: the same of all owners' fields.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            # The API server drops empty mappings.
            if wanted or live is not None:
                yield path
            return
        for name, value in wanted.items():
            field = f"f:{name}"
            yield from _differences(value, live.get(name), owned.get(field, {}), known.get(field, {}), f"{path}.{name}")
        for name in _fields(owned):
            if name not in wanted and name in live:
                yield f"{path}.{name}"
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        entries = live if isinstance(live, Sequence) and not isinstance(live, str) else []
        if _keys(known):
            yield from _differences_by_key(wanted, entries, owned, known, path)
        elif len(wanted) != len(entries):
            yield path
        else:
            for index, (value, other) in enumerate(zip(wanted, entries, strict=True)):
                yield from _differences(value, other, {}, {}, f"{path}[{index}]")
    elif not (_is_same_value(wanted, live) or (".resources." in path and _is_same_amount(wanted, live))):
        yield path


def _differences_by_key(
    wanted: Sequence[Any], live: Sequence[Any], owned: FieldTree, known: FieldTree, path: str
) -> Iterator[str]:
    """Yield the paths below `path` at which a live list with keys is not as wanted: an entry is missing or differs, or
    one that the operator applied and no longer wants is still there."""
    for value in wanted:
        key = _key_of(value, _keys(known))
        # Several entries of one key are possible, and the last one counts for most readers.
        entries = [entry for entry in live if _has_key(entry, key)]
        if not entries:
            yield f"{path}{_key_text(key)}"
        for entry in entries:
            yield from _differences(value, entry, _below(owned, key), _below(known, key), f"{path}{_key_text(key)}")
    for key in _keys(owned):
        is_wanted = any(_has_key(value, key) for value in wanted)
        if not is_wanted and any(_has_key(entry, key) for entry in live):
            yield f"{path}{_key_text(key)}"


def _foreign(wanted: Any, live: Any, ours: FieldTree, theirs: FieldTree, at: ForeignField) -> Iterator[ForeignField]:
    """Yield the foreign fields of `live` below the path `at`, as `foreign_fields` describes them.

    :param ours: the part of the fields that the operator applied which is below this path.
    :param theirs: the same of the fields of other field managers.
    """
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        for name in [*wanted, *(name for name in _fields(theirs) if name in live and name not in wanted)]:
            # A pod template's annotations are used by others on purpose: `kubectl rollout restart`.
            if name == "metadata":
                continue
            here = ForeignField(f"{at.path}.{name}", f"{at.pointer}/{name.replace('~', '~0').replace('/', '~1')}")
            if name not in wanted:
                yield here
                continue
            field = f"f:{name}"
            yield from _foreign(wanted[name], live.get(name), ours.get(field, {}), theirs.get(field, {}), here)
    elif isinstance(live, Sequence) and not isinstance(live, str) and (keys := [*_keys(ours), *_keys(theirs)]):
        for index, entry in enumerate(live):
            key = _key_of(entry, keys)
            here = ForeignField(f"{at.path}{_key_text(key)}", f"{at.pointer}/{index}")
            value = next((value for value in wanted if _has_key(value, key)), None)
            if value is not None:
                yield from _foreign(value, entry, _below(ours, key), _below(theirs, key), here)
            elif key not in _keys(ours) or key in _keys(theirs):
                yield here


def _fields(tree: FieldTree) -> list[str]:
    return [name[2:] for name in tree if name.startswith("f:")]


def _keys(tree: FieldTree) -> list[Any]:
    """Return the keys of a list's entries in a set of fields: mappings, or single values for a list that is a set;
    empty if the list has no keys."""
    return [json.loads(name[2:]) for name in tree if name.startswith(("k:", "v:"))]


def _below(tree: FieldTree, key: Any) -> FieldTree:
    """Return the part of a list's set of fields for the entry with this key, {} if there is none."""
    return next(
        (part for name, part in tree.items() if name.startswith(("k:", "v:")) and json.loads(name[2:]) == key), {}
    )


def _key_of(entry: Any, keys: Sequence[Any]) -> Any:
    """Return the key of an entry of a list. The names of the fields that form a key are those of `keys`, which are keys
    of other entries of the list."""
    if isinstance(entry, Mapping) and isinstance(keys[0], Mapping):
        return {name: entry[name] for name in keys[0] if name in entry}
    return entry


def _has_key(entry: Any, key: Any) -> bool:
    if isinstance(entry, Mapping) and isinstance(key, Mapping):
        return all(entry.get(name) == value for name, value in key.items())
    return bool(entry == key)


def _key_text(key: Any) -> str:
    if isinstance(key, Mapping):
        return f"[{','.join(f'{name}={value}' for name, value in key.items())}]"
    return f"[{key}]"


def _is_same_value(wanted: Any, live: Any) -> bool:
    # The API server drops false, 0 and "" in many places. True and 1 are different.
    return (type(wanted) is type(live) and wanted == live) or (not wanted and live is None)


def _is_same_amount(wanted: Any, live: Any) -> bool:
    # The API server writes amounts of CPU and memory in its own form: 1024Mi becomes 1Gi.
    amounts = [text for text in (wanted, live) if isinstance(text, str) and re.fullmatch(QUANTITY, text)]
    return len(amounts) == 2 and parse_amount(amounts[0]) == parse_amount(amounts[1])
