"""Loads a cluster file into a MigratoryCluster, for the local runner, `migratory explain` and `migratory validate`:
reports every error at once, and every field without effect."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from migratory_resources.cluster.spec import MigratoryCluster
from migratory_resources.validation.document import DocumentError, parse_document, read_document
from migratory_resources.validation.problems import (
    ClusterFileError,
    FieldProblem,
    MissingField,
    UnknownField,
    UnreadableFile,
)
from migratory_resources.validation.repairs import validate_with_repairs
from migratory_resources.validation.rules import check_rules

KUBERNETES_ONLY = {
    "metadata.namespace": "one machine has no namespaces",
    "spec.brokers.resources": "the processes share this machine",
    "spec.brokers.expose": "the brokers listen on this machine's loopback address",
    "spec.brokers.image": "the brokers are processes of this installation",
    "spec.brokers.pod": "there are no pods",
    "spec.zookeeper.external": "the runner starts its own ensemble",
    "spec.security.tls.zookeeper": "the runner starts its own ensemble; `up --dev-tls` gives it TLS",
    "spec.zookeeper.chroot": "the runner starts its own ensemble",
    "spec.zookeeper.storage": "the data is in the work folder",
    "spec.zookeeper.resources": "the processes share this machine",
    "spec.zookeeper.image": "ZooKeeper comes with PySpark",
    "spec.zookeeper.pod": "there are no pods",
    "spec.sla.prometheus": "the runner records the metrics itself",
    "spec.sla.schedule": "reports are made on request",
    "spec.sla.zone": "the zone is an option of `migratory sla report`",
    "spec.sla.historyLimit": "reports are files that you keep",
    "spec.sla.spark": "Spark runs in one process on this machine",
    "status": "the operator writes it",
}
"""Fields that have no effect on one machine, and why."""

STRICT = "spec.security."
"""Path below which an unknown field is an error and not a warning: without it the cluster would be less secure than its
file says."""

_OBJECT_METADATA = frozenset(
    f"metadata.{name}"
    for name in (
        "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
        "generateName", "generation", "labels", "managedFields", "ownerReferences", "resourceVersion", "selfLink",
        "uid",
    )
)  # fmt: skip
"""Fields that the metadata of every object of Kubernetes may have, without those that MigratoryCluster uses or
KUBERNETES_ONLY names (`ObjectMeta` in the Kubernetes API reference). No cluster needs them, so nobody is warned."""
_KNOWN = frozenset({*KUBERNETES_ONLY, *_OBJECT_METADATA})
_SIMILARITY = 0.7
"""The difflib ratio to a known name from which on an unknown field counts as a misspelling, such as "replica" for
"replicas" and "minCopys" for "minCopies"."""


@dataclass(frozen=True)
class LoadedCluster:
    """A valid cluster, and a sentence for each field of its file that the model does not have: those that Kubernetes
    alone uses (KUBERNETES_ONLY), and those that nobody knows. Other fields that the metadata of any object may have
    get none."""

    cluster: MigratoryCluster
    kubernetes_only: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """A sentence for each field that has no effect on one machine."""
        return [*self.kubernetes_only, *self.unknown]


@dataclass(frozen=True)
class _Findings:
    """The problems that `_known_fields` finds in a file, and the sentences as in `LoadedCluster`."""

    problems: list[FieldProblem] = field(default_factory=list)
    kubernetes_only: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def load_cluster_file(path: Path, model: type[MigratoryCluster] = MigratoryCluster) -> LoadedCluster:
    """Read and validate a cluster file.

    :param model: `MigratoryCluster`, or a subclass that has more fields, such as `KubernetesCluster`.
    :raises ClusterFileError: the file is unreadable or invalid; every line of the message names the file.
    """
    try:
        data = read_document(path)
    except OSError as error:
        raise ClusterFileError(str(path), [_unreadable(f"cannot be read: {error.strerror}")]) from error
    return load_cluster(data, str(path), model)


def load_cluster(
    data: bytes | str, source: str = "cluster", model: type[MigratoryCluster] = MigratoryCluster
) -> LoadedCluster:
    """Parse and validate the text of one MigratoryCluster.

    :param source: the name of the file, which begins every line of an error.
    :param model: `MigratoryCluster`, or a subclass that has more fields, such as `KubernetesCluster`.
    :raises ClusterFileError: the text is invalid; the error has all problems.
    """
    try:
        document = parse_document(data)
    except DocumentError as error:
        raise ClusterFileError(source, [_unreadable(str(error))]) from error
    found = _Findings()
    known = _known_fields(model, document, "", found)
    problems = found.problems
    repaired, errors = validate_with_repairs(model, known)
    problems += [problem for error in errors for problem in problems_of(error)]
    if repaired is not None:
        problems += check_rules(repaired)
    if repaired is None or problems:
        raise ClusterFileError(source, problems) from next(iter(errors), None)
    return LoadedCluster(repaired.cluster, found.kubernetes_only, found.unknown)


def _unreadable(message: str) -> FieldProblem:
    return UnreadableFile("", None, message)


def _known_fields(model: type[BaseModel], data: dict[str, Any], path: str, found: _Findings) -> dict[str, Any]:
    """Return a copy of `data` with only the fields of `model`. Append each other field to `found`, as a problem if it
    is probably a misspelling or is below STRICT, else as a sentence; those of _OBJECT_METADATA not at all.

    :param path: the path of `data` in the file, with a dot at the end, or "".
    """
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    known: dict[str, Any] = {}
    for key, value in data.items():
        field_path = f"{path}{key}"
        if key in fields:
            known[key] = _known_fields_below(fields[key].annotation, value, field_path, found)
        elif field_path in KUBERNETES_ONLY:
            found.kubernetes_only.append(f"{field_path} has no effect on one machine: {KUBERNETES_ONLY[field_path]}")
        elif field_path not in _OBJECT_METADATA:
            candidates = [*fields, *(other.removeprefix(path) for other in _KNOWN if other.startswith(path))]
            closest = difflib.get_close_matches(key, candidates, n=1, cutoff=_SIMILARITY)
            if closest:
                found.problems.append(UnknownField(field_path, value, f"{path}{closest[0]}"))
            elif path.startswith(STRICT):
                allowed = f"{', '.join(fields)} only; other settings of security are not in this release"
                found.problems.append(FieldProblem(field_path, value, allowed))
            else:
                found.unknown.append(f"{field_path} is not known and has no effect")
    return known


def _known_fields_below(annotation: Any, value: Any, path: str, found: _Findings) -> Any:
    """Do the same as `_known_fields` for the value of a field, a model or a list of models. Return another value
    unchanged.

    :param annotation: the type of the field.
    :param path: the path of the value in the file.
    """
    model = next(_models_in(annotation), None)
    if model is None:
        return value
    if isinstance(value, dict):
        return _known_fields(model, value, f"{path}.", found)
    if isinstance(value, list):
        return [
            _known_fields(model, item, f"{path}[{index}].", found) if isinstance(item, dict) else item
            for index, item in enumerate(value)
        ]
    return value


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type, such as that of a list of models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def problems_of(error: ValidationError) -> Iterator[FieldProblem]:
    """Yield each error in pydantic's ValidationError as a FieldProblem, or as a MissingField for a required field that
    is missing."""
    for detail in error.errors(include_url=False):
        path = path_of(detail)
        if detail["type"] == "missing":
            yield MissingField(path)
        else:
            yield FieldProblem(path, detail["input"], _allowed(detail))


def path_of(detail: ErrorDetails) -> str:
    """Return the location of a pydantic error as people write it: `spec.sla.objectives[0].name`."""
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _allowed(detail: ErrorDetails) -> str:
    """Return what is allowed where pydantic found an error, in words for users."""
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
