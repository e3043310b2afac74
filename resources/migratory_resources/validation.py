"""From the text of a cluster file to a MigratoryCluster: every error at once, every field without effect named."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from migratory_resources.document import DocumentError, parse_document
from migratory_resources.model import MigratoryCluster
from migratory_resources.problems import ClusterFileError, Missing, Problem, UnknownField, Unreadable
from migratory_resources.repairs import judge
from migratory_resources.rules import check_rules

KUBERNETES_ONLY = {
    "metadata.namespace": "there are no namespaces on one machine",
    "spec.brokers.resources": "processes share this machine",
    "spec.brokers.expose": "brokers listen on this machine's loopback address",
    "spec.brokers.image": "brokers are processes of this installation",
    "spec.brokers.podTemplate": "there are no pods",
    "spec.zookeeper.external": "an ensemble of its own is started",
    "spec.zookeeper.storage": "data lies in the work folder",
    "spec.zookeeper.resources": "processes share this machine",
    "spec.zookeeper.image": "ZooKeeper comes with PySpark",
    "spec.zookeeper.podTemplate": "there are no pods",
    "spec.sla.prometheus": "the runner records the metrics itself",
    "spec.sla.schedule": "reports are made on request",
    "spec.sla.zone": "the zone is an option of `migratory sla report`",
    "spec.sla.historyLimit": "reports are files that you keep",
    "spec.sla.spark": "Spark runs in one process on this machine",
    "status": "written by the operator",
}
"""Fields that have no meaning on one machine, and why."""

REFUSED = {"spec.security": "nothing but its absence: tokens, rules and TLS are not in this release, all is open"}
"""Fields that must not be passed over with a warning: the cluster would be less safe than its file says."""

_NO_EFFECT = frozenset({"metadata.labels", "metadata.annotations"})
_KNOWN = frozenset({*KUBERNETES_ONLY, *REFUSED, *_NO_EFFECT})
# As difflib counts: "replica" for "replicas", "minCopys" for "minCopies", but not "color" for "groups".
_SIMILAR = 0.7


@dataclass(frozen=True)
class Loaded:
    """A valid cluster, and a sentence for each field of the file that has no effect here."""

    cluster: MigratoryCluster
    warnings: list[str] = field(default_factory=list)


def load_cluster_file(path: Path) -> Loaded:
    """:raises ClusterFileError: unreadable or invalid; names the file in every line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ClusterFileError(str(path), [_unreadable(f"cannot be read: {error.strerror}")]) from error
    return load_cluster(data, str(path))


def load_cluster(data: bytes | str, source: str = "cluster") -> Loaded:
    """Reads one MigratoryCluster; `source` begins every line of the error.

    :raises ClusterFileError: with all problems found.
    """
    try:
        document = parse_document(data)
    except DocumentError as error:
        raise ClusterFileError(source, [_unreadable(str(error))]) from error
    problems: list[Problem] = []
    warnings: list[str] = []
    known = _keep_known(MigratoryCluster, document, "", problems, warnings)
    judged, errors = judge(MigratoryCluster, known)
    problems += [problem for found in errors for problem in problems_of(found)]
    if judged is not None:
        problems += check_rules(judged)
    if judged is None or problems:
        raise ClusterFileError(source, problems) from next(iter(errors), None)
    return Loaded(judged.cluster, warnings)


def _unreadable(why: str) -> Problem:
    return Unreadable("", None, why)


def _keep_known(
    model: type[BaseModel], data: dict[str, Any], path: str, problems: list[Problem], warnings: list[str]
) -> dict[str, Any]:
    """A copy of `data` with the fields of `model`; what is left out goes into `problems` or `warnings`."""
    names = {info.alias or name: info for name, info in model.model_fields.items()}
    kept: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{path}{key}"
        if key in names:
            kept[key] = _keep_known_below(names[key].annotation, value, here, problems, warnings)
        elif here in REFUSED:
            problems.append(Problem(here, value, REFUSED[here]))
        elif here in KUBERNETES_ONLY:
            warnings.append(f"{here} has no effect on one machine: {KUBERNETES_ONLY[here]}")
        elif here not in _NO_EFFECT:
            # Neighbours of later releases count as well: "securty" must not be passed over.
            near = [*names, *(known.removeprefix(path) for known in _KNOWN if known.startswith(path))]
            likely = difflib.get_close_matches(key, near, n=1, cutoff=_SIMILAR)
            if likely:
                problems.append(UnknownField(here, value, f"{path}{likely[0]}"))
            else:
                warnings.append(f"{here} is not known and has no effect")
    return kept


def _keep_known_below(annotation: Any, value: Any, path: str, problems: list[Problem], warnings: list[str]) -> Any:
    model = next(_models_in(annotation), None)
    if model is None:
        return value
    if isinstance(value, dict):
        return _keep_known(model, value, f"{path}.", problems, warnings)
    if isinstance(value, list):
        return [
            _keep_known(model, item, f"{path}[{index}].", problems, warnings) if isinstance(item, dict) else item
            for index, item in enumerate(value)
        ]
    return value


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def problems_of(error: ValidationError) -> Iterator[Problem]:
    """pydantic's errors in the one form that this package gives."""
    for detail in error.errors(include_url=False):
        path = path_of(detail)
        if detail["type"] == "missing":
            yield Missing(path)
        else:
            yield Problem(path, detail["input"], _allowed(detail))


def path_of(detail: ErrorDetails) -> str:
    """Where it is, as people write it: `spec.sla.objectives[0].name`."""
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _allowed(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if "allowed" in context:
        return str(context["allowed"])
    match detail["type"]:
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a mapping of fields"
        case "list_type":
            return "a list"
        case "too_long":
            return f"up to {context['max_length']} entries"
        case _:
            return str(detail["msg"])
