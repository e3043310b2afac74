"""Validates a cluster with errors as far as possible, so that one run reports every error.

Harmless values replace wrong ones, so that broken rules between fields are found in the same run. A rule that involves
a replaced value is not reported (`RepairedCluster.is_intact`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from migratory_resources.cluster.spec import API_VERSION, KIND, MigratoryCluster

Loc = tuple[int | str, ...]
"""The location of a value in a document, as pydantic gives it."""
Cluster_co = TypeVar("Cluster_co", bound=MigratoryCluster, covariant=True)

_MAX_ROUNDS = 4
"""Validations of one document. A field's error hides those of its parents; objectives with slices nest three deep."""
_REQUIRED: dict[Loc, Any] = {
    ("apiVersion",): API_VERSION,
    ("kind",): KIND,
    ("metadata",): {"name": "unnamed"},
    ("metadata", "name"): "unnamed",
}
_OBJECTIVES: Loc = ("spec", "sla", "objectives")
_WEIGHTS: Loc = ("spec", "brokers", "weights")
# Values with which the rest of an objective can be validated: without a threshold, for example, it would lack one.
_IN_OBJECTIVES: dict[int | str, Any] = {
    "name": "unnamed", "target": "50", "threshold": "1s", "length": "1s", "percentile": "50", "share": "50",
    "clock": "same", "rolling": "366d", "calendar": "year", "zone": "UTC",
}  # fmt: skip
_CONFLATION = ("spec", "delivery", "conflation")
_IN_CONFLATION: dict[int | str, str] = {"topics": "any", "interval": "1s"}
_SECURITY: Loc = ("spec", "security")
_PODS: tuple[Loc, ...] = (("spec", "brokers", "pod"), ("spec", "zookeeper", "pod"), ("spec", "sla", "spark", "pod"))
_DEFAULT_WEIGHT = 100


class RepairedCluster(Generic[Cluster_co]):
    """A valid cluster in which harmless values have replaced the wrong ones, at the locations `replaced`."""

    def __init__(self, cluster: Cluster_co, replaced: Iterable[Loc] = ()) -> None:
        self.cluster = cluster
        self.replaced = frozenset(replaced)

    def is_intact(self, *path: int | str) -> bool:
        """Return whether nothing was replaced at `path` of the document, inside the value there, or around it."""
        return not any(loc[: len(path)] == path or path[: len(loc)] == loc for loc in self.replaced)


def validate_with_repairs(
    model: type[Cluster_co], document: dict[str, Any]
) -> tuple[RepairedCluster[Cluster_co] | None, list[ValidationError]]:
    """Validate a document, and replace wrong values in a copy until it is valid, in at most four rounds.

    Return the repaired cluster, and the ValidationErrors of all rounds that failed; none for a valid document. The
    cluster is None if four rounds did not make it valid.
    """
    repaired = copy.deepcopy(document)
    replaced: set[Loc] = set()
    errors: list[ValidationError] = []
    for _ in range(_MAX_ROUNDS):
        try:
            return RepairedCluster(model.model_validate(repaired), replaced), errors
        except ValidationError as error:
            errors.append(error)
            for detail in error.errors(include_url=False):
                replaced.add(_repair(repaired, detail["loc"]))
    return None, errors


def _repair(document: dict[str, Any], loc: Loc) -> Loc:
    """Replace the wrong value at `loc` by a harmless one, remove it, or replace the part around it. Return the location
    of the replaced value."""
    depth = len(_OBJECTIVES)
    if loc[:depth] == _OBJECTIVES and len(loc) > depth:
        objective = _value_at(document, loc[: depth + 1])
        if loc[-1] in _IN_OBJECTIVES:
            if (parent := _value_at(document, loc[:-1])) is not None:  # None: removed with another error in it
                parent[loc[-1]] = _IN_OBJECTIVES[loc[-1]]
            return loc
        # The type, or the whole objective, is wrong: only the name can be validated.
        is_mapping = isinstance(objective, dict)
        name = objective.get("name", "unnamed") if is_mapping else "unnamed"
        _value_at(document, _OBJECTIVES)[loc[depth]] = {"name": name, "type": "delivery", "target": "50"}
        return (*loc[: depth + 1], "type") if is_mapping else loc
    if loc[: len(_SECURITY)] == _SECURITY and len(loc) > len(_SECURITY) + 1:
        # Indices in a list would shift with each removed entry: the whole field is left out.
        loc = loc[: len(_SECURITY) + 1]
        _value_at(document, _SECURITY).pop(loc[-1], None)
        return loc
    for pod in _PODS:
        if loc[: len(pod)] == pod:
            _value_at(document, pod[:-1]).pop(pod[-1], None)
            return pod
    parent = _value_at(document, loc[:-1])
    if loc[:-1] == _WEIGHTS:
        parent[loc[-1]] = _DEFAULT_WEIGHT
    elif loc[:-2] == _CONFLATION:
        parent[loc[-1]] = _IN_CONFLATION[loc[-1]]
    elif loc in _REQUIRED:
        parent[loc[-1]] = copy.deepcopy(_REQUIRED[loc])
    elif not isinstance(parent, dict) or loc[-1] in parent:
        del parent[loc[-1]]
    else:  # a required field without a harmless value
        return _repair(document, loc[:-1])
    return loc


def _value_at(document: Any, loc: Loc) -> Any:
    """Return the value at `loc`, or None if a mapping on the way does not have the key."""
    for part in loc:
        if isinstance(document, dict) and part not in document:
            return None
        document = document[part]
    return document
