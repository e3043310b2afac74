"""Reads custom resources, as the Kubernetes API returns them, into models. Used by the operator.

The API server has validated them against its schema, which may be older or newer than this release. Fields that this
release does not know are left out: during an upgrade the definitions are newer for a while, and their defaults are in
every resource. `unknown_cluster_fields` and `unknown_report_fields` name them for a condition.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.objectives import find_contradictions
from migratory_resources.report.spec import ReportSpec
from migratory_resources.validation.loading import path_of, problems_of
from migratory_resources.validation.pods import check_pod
from migratory_resources.validation.problems import ClusterFileError, FieldProblem
from migratory_resources.validation.repairs import validate_with_repairs
from migratory_resources.validation.rules import check_rules


def read_cluster(resource: dict[str, Any]) -> KubernetesCluster:
    """Return the validated cluster, without its status, unknown fields, and metadata other than the name.

    :raises ClusterFileError: the cluster is invalid; the error has all problems.
    """
    name = resource["metadata"]["name"]
    repaired, errors = validate_with_repairs(KubernetesCluster, _known_cluster(resource)[0])
    problems = [problem for error in errors for problem in problems_of(error)]
    if repaired is not None:
        problems += check_rules(repaired)
    if repaired is None or problems:
        raise ClusterFileError(name, problems) from next(iter(errors), None)
    return repaired.cluster


def unknown_cluster_fields(resource: dict[str, Any]) -> list[str]:
    """Return the sorted paths of the cluster's fields that this release does not know, such as `spec.brokers.color`."""
    return _known_cluster(resource)[1]


def read_report(resource: dict[str, Any]) -> ReportSpec:
    """Return the validated spec of an SLAReport, without unknown fields.

    :raises ClusterFileError: the spec is invalid. The error has all wrong fields or, if there are none, all
        contradictions between objectives, and all broken rules of its pods.
    """
    name = resource["metadata"]["name"]
    try:
        spec = ReportSpec.model_validate(drop_unknown_fields(ReportSpec, resource.get("spec", {}))[0])
    except ValidationError as error:
        problems = [replace(problem, path=f"spec.{problem.path}".rstrip(".")) for problem in problems_of(error)]
        raise ClusterFileError(name, problems) from error
    problems = [
        FieldProblem(f"spec.objectives[{index}].{field}", value, allowed)
        for index, field, value, allowed in find_contradictions(spec.objectives)
    ]
    problems += check_pod("spec.spark.pod", spec.spark.pod if spec.spark is not None else None)
    if problems:
        raise ClusterFileError(name, problems)
    return spec


def unknown_report_fields(resource: dict[str, Any]) -> list[str]:
    """Return the sorted paths of the report's fields that this release does not know, such as `spec.color`."""
    return [f"spec.{path}" for path in drop_unknown_fields(ReportSpec, resource.get("spec", {}))[1]]


def drop_unknown_fields(model: type[BaseModel], document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a copy of the document without the fields that the model does not have, and the sorted paths of these
    fields. Other errors in the document stay."""
    known = copy.deepcopy(document)
    try:
        model.model_validate(known)
    except ValidationError as error:
        # One validation reports all of them: nothing inside an unknown field is validated.
        extra = [detail for detail in error.errors(include_url=False) if detail["type"] == "extra_forbidden"]
        for detail in extra:
            *parents, last = detail["loc"]
            parent: Any = known
            for part in parents:
                parent = parent[part]
            del parent[last]
        return known, sorted(path_of(detail) for detail in extra)
    return known, []


def _known_cluster(resource: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the cluster as a document for its model, without unknown fields, and the sorted paths of the unknown
    fields."""
    document = {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "metadata": {"name": resource["metadata"]["name"]},
        "spec": resource.get("spec", {}),
    }
    return drop_unknown_fields(KubernetesCluster, document)
