"""What can still be judged of a cluster file with errors: harmless values take the place of wrong ones, so that broken
rules between fields are told of in the same breath. What a harmless value takes part in is not told (`Judged.right`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from migratory_resources.model import API_VERSION, KIND, MigratoryCluster

Loc = tuple[int | str, ...]
Cluster_co = TypeVar("Cluster_co", bound=MigratoryCluster, covariant=True)

_TURNS = 4
"""A field's error hides those of what it is part of; an objective with slices is three levels deep."""
_REQUIRED: dict[Loc, Any] = {
    ("apiVersion",): API_VERSION,
    ("kind",): KIND,
    ("metadata",): {"name": "unnamed"},
    ("metadata", "name"): "unnamed",
}
_OBJECTIVES: Loc = ("spec", "sla", "objectives")
_WEIGHTS: Loc = ("spec", "brokers", "weights")
# Values with which the rest of an objective can be judged: without a threshold it would be told that it needs one.
_IN_OBJECTIVES: dict[int | str, Any] = {
    "name": "unnamed", "target": "50", "threshold": "1s", "length": "1s", "percentile": "50", "share": "50",
    "clock": "same", "rolling": "366d", "calendar": "year", "zone": "UTC",
}  # fmt: skip
_CONFLATION = ("spec", "delivery", "conflation")
_IN_CONFLATION: dict[int | str, str] = {"topics": "any", "interval": "1s"}
_USUAL_WEIGHT = 100


class Judged(Generic[Cluster_co]):
    """A cluster with harmless values in place of wrong ones, which are at `wrong`."""

    def __init__(self, cluster: Cluster_co, wrong: Iterable[Loc] = ()) -> None:
        self.cluster = cluster
        self.wrong = frozenset(wrong)

    def right(self, *path: int | str) -> bool:
        """Whether the value there is the file's own, with all that is in it."""
        return not any(one[: len(path)] == path or path[: len(one)] == one for one in self.wrong)


def judge(model: type[Cluster_co], document: dict[str, Any]) -> tuple[Judged[Cluster_co] | None, list[ValidationError]]:
    """What pydantic says of the document, until nothing new comes up; None where that does not end."""
    repaired = copy.deepcopy(document)
    wrong: set[Loc] = set()
    errors: list[ValidationError] = []
    for _ in range(_TURNS):
        try:
            return Judged(model.model_validate(repaired), wrong), errors
        except ValidationError as error:
            errors.append(error)
            for detail in error.errors(include_url=False):
                wrong.add(_repair(repaired, detail["loc"]))
    return None, errors


def _repair(document: dict[str, Any], loc: Loc) -> Loc:
    """Where the value is that must not be judged any more."""
    above = len(_OBJECTIVES)
    if loc[:above] == _OBJECTIVES and len(loc) > above:
        objective = _at(document, loc[: above + 1])
        if loc[-1] in _IN_OBJECTIVES:
            if (around := _at(document, loc[:-1])) is not None:  # else gone with another of its errors
                around[loc[-1]] = _IN_OBJECTIVES[loc[-1]]
            return loc
        # Its type, or all of it: nothing but its name can be judged.
        named = isinstance(objective, dict)
        name = objective.get("name", "unnamed") if named else "unnamed"
        _at(document, _OBJECTIVES)[loc[above]] = {"name": name, "type": "delivery", "target": "50"}
        return (*loc[: above + 1], "type") if named else loc
    place: Any = _at(document, loc[:-1])
    if loc[:-1] == _WEIGHTS:
        place[loc[-1]] = _USUAL_WEIGHT
    elif loc[:-2] == _CONFLATION:
        place[loc[-1]] = _IN_CONFLATION[loc[-1]]
    elif loc in _REQUIRED:
        place[loc[-1]] = copy.deepcopy(_REQUIRED[loc])
    elif not isinstance(place, dict) or loc[-1] in place:
        del place[loc[-1]]
    else:  # required, and there is no harmless value
        return _repair(document, loc[:-1])
    return loc


def _at(document: Any, loc: Loc) -> Any:
    """None where there is nothing."""
    for part in loc:
        if isinstance(document, dict) and part not in document:
            return None
        document = document[part]
    return document
