"""Builds the two custom resource definitions, and the files that contain them.

They stay far below the 262,144 bytes that a plain `kubectl apply` can store in its annotation (a test measures it).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from migratory_resources.cluster.kubernetes import KubernetesClusterSpec
from migratory_resources.cluster.spec import API_VERSION
from migratory_resources.cluster.status import BrokerStatus, ClusterStatus, Condition, ServerStatus
from migratory_resources.crd.field_schemas import Schema, rule
from migratory_resources.crd.rules import CLUSTER_RULES, SPEC_RULES
from migratory_resources.crd.schema import default_of, object_schema
from migratory_resources.objectives import Objective
from migratory_resources.pods import (
    Affinity,
    Container,
    EnvSource,
    EnvVariable,
    InitContainer,
    LocalReference,
    Volume,
    VolumeMount,
)
from migratory_resources.report.spec import MAX_REPORT_NAME_LENGTH, ReportSpec
from migratory_resources.report.status import ReportedLatency, ReportedObjective, ReportStatus

GROUP, VERSION = API_VERSION.split("/")
_LIST_KEYS: dict[Any, str] = {
    Objective: "name",
    Condition: "type",
    ServerStatus: "broker",
    BrokerStatus: "name",
    ReportedObjective: "name",
    ReportedLatency: "broker",
    LocalReference: "name",
    EnvVariable: "name",
    Volume: "name",
    VolumeMount: "mountPath",
    Container: "name",
    InitContainer: "name",
}
_SHALLOW = (Affinity, Container, EnvSource, InitContainer, Volume)
"""Models that the API server does not know in full: the definitions would be several times as large. The operator
checks them, and refuses what is wrong as it does with contradictions."""


def cluster_crd() -> dict[str, Any]:
    """Return the custom resource definition of MigratoryCluster, as data for YAML."""
    schema = _root(
        "A publish/subscribe cluster: brokers, and the ZooKeeper ensemble through which they elect coordinators.",
        object_schema(KubernetesClusterSpec, SPEC_RULES, _LIST_KEYS, _SHALLOW)
        | {"description": "Desired state", "default": default_of(KubernetesClusterSpec())},
        object_schema(ClusterStatus, {}, _LIST_KEYS) | {"description": "Observed state, written by the operator"},
    )
    schema["x-kubernetes-validations"] = list(CLUSTER_RULES)
    return _definition(
        "MigratoryCluster",
        "migratoryclusters",
        "mgc",
        schema,
        {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.brokers.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        [
            _column(
                "Ready",
                ".status.conditions[?(@.type=='Ready')].status",
                "Enough brokers accept clients and topic groups are coordinated",
            ),
            _column("Brokers", ".status.ready", "Brokers that accept clients, of the desired number"),
            _column(
                "Coordination",
                ".status.conditions[?(@.type=='CoordinationAvailable')].status",
                "Whether ZooKeeper has a quorum and every topic group a coordinator",
            ),
            _column("SLA", ".status.lastReport.verdict", "Verdict of the last report of the cluster's schedule"),
            _column("Reason", ".status.conditions[?(@.type=='Ready')].reason", "Reason of the condition Ready"),
            _column("Age", ".metadata.creationTimestamp", "Time since the creation", "date"),
            _column(
                "Message",
                ".status.conditions[?(@.type=='Ready')].message",
                "Message of the condition Ready",
                priority=1,
            ),
        ],
    )


def whole_cluster_schema() -> Schema:
    """Return the schema of a cluster's spec with everything that the operator checks of its form, for tools that know
    no limit of its size."""
    return object_schema(KubernetesClusterSpec, SPEC_RULES, _LIST_KEYS)


def report_crd() -> dict[str, Any]:
    """Return the custom resource definition of SLAReport, as data for YAML."""
    spec = object_schema(ReportSpec, SPEC_RULES, _LIST_KEYS, _SHALLOW)
    immutable = rule("self == oldSelf", "is immutable: create another report")
    schema = _root(
        "A report on whether a cluster met its objectives.",
        spec | {"description": "Desired report", "x-kubernetes-validations": [immutable]},
        object_schema(ReportStatus, {}, _LIST_KEYS) | {"description": "Result, written by the operator"},
    )
    schema["required"] = ["spec"]
    schema["x-kubernetes-validations"] = [
        rule(
            f"size(self.metadata.name) <= {MAX_REPORT_NAME_LENGTH}",
            f"metadata.name: allowed: up to {MAX_REPORT_NAME_LENGTH} characters (the report's pods have it as a label)",
        )
    ]
    return _definition(
        "SLAReport",
        "slareports",
        "slar",
        schema,
        {"status": {}},
        [
            _column("Cluster", ".spec.cluster", "The cluster that is judged"),
            _column("Phase", ".status.phase", "Phase of the report"),
            _column("Verdict", ".status.verdict", "Verdict on all objectives together"),
            _column("Coverage", ".status.coverage.share", "Percent of the window that was scraped"),
            _column(
                "P99",
                ".status.latency[?(@.broker=='')].p99",
                "99th percentile of the latency of deliveries, all brokers together",
            ),
            _column("Reason", ".status.conditions[?(@.type=='Complete')].reason", "Reason of the condition Complete"),
            _column("Age", ".metadata.creationTimestamp", "Time since the creation", "date"),
            _column("Window End", ".status.window.end", "End of the window that was judged", priority=1),
            _column(
                "Message",
                ".status.conditions[?(@.type=='Complete')].message",
                "Message of the condition Complete",
                priority=1,
            ),
        ],
    )


def write_definitions(folder: Path) -> list[Path]:
    """Write each definition to a file `PLURAL.yaml` in the folder, which is created if it does not exist. Return the
    paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for crd in (cluster_crd(), report_crd()):
        path = folder / f"{crd['spec']['names']['plural']}.yaml"
        path.write_text(to_yaml(crd))
        written.append(path)
    return written


def to_yaml(crd: dict[str, Any]) -> str:
    """Return a definition as YAML, below a comment that says from where it is generated."""
    head = "# Generated from resources/migratory_resources by `make crds`; change it there.\n"
    return head + yaml.safe_dump(crd, sort_keys=False, width=120, allow_unicode=True)


def _root(description: str, spec: Schema, status: Schema) -> Schema:
    """Return the schema of a whole resource from those of its spec and status."""
    return {
        "description": description,
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "API version of the resource"},
            "kind": {"type": "string", "description": "Kind of the resource"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _definition(
    kind: str, plural: str, short: str, schema: Schema, subresources: Schema, columns: list[Schema]
) -> dict[str, Any]:
    """Return a custom resource definition with one version.

    :param schema: the schema of the whole resource.
    :param columns: what `kubectl get` shows, as `_column` returns it.
    """
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "migratory", "app.kubernetes.io/component": "crd"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["all", "migratory"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _column(name: str, path: str, description: str, type_: str = "string", priority: int = 0) -> Schema:
    """Return a column of `kubectl get`. With a `priority` above 0 it is shown with `--output=wide` only.

    :param path: the JSON path of the value in the resource.
    """
    column: Schema = {"name": name, "type": type_, "jsonPath": path, "description": description}
    return column | {"priority": priority} if priority else column
