"""The two custom resource definitions, made of the models; `python -m migratory_resources.crd FOLDER...` writes them.

They stay far under the 262,144 bytes that a plain `kubectl apply` can keep in its annotation (a test measures it).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from migratory_resources.crd_fields import Schema, rule
from migratory_resources.crd_rules import CLUSTER_RULES, SPEC_RULES
from migratory_resources.crd_schema import default_of, object_schema
from migratory_resources.kubernetes import KubernetesSpec
from migratory_resources.model import API_VERSION
from migratory_resources.objectives import Objective
from migratory_resources.report import LONGEST_REPORT_NAME, ReportSpec
from migratory_resources.report_status import ObjectiveResult, Percentiles, ReportStatus
from migratory_resources.status import BrokerStatus, ClusterStatus, Condition, Server

GROUP, VERSION = API_VERSION.split("/")
_KEYS: dict[Any, str] = {
    Objective: "name",
    Condition: "type",
    Server: "broker",
    BrokerStatus: "name",
    ObjectiveResult: "name",
    Percentiles: "broker",
}


def cluster_crd() -> dict[str, Any]:
    schema = _root(
        "A publish/subscribe cluster: brokers that take clients, and the ZooKeeper ensemble in which they agree.",
        object_schema(KubernetesSpec, SPEC_RULES, _KEYS)
        | {"description": "What is wanted", "default": default_of(KubernetesSpec())},
        object_schema(ClusterStatus, {}, _KEYS) | {"description": "What there is, written by the operator"},
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
            _column("Ready", ".status.conditions[?(@.type=='Ready')].status", "Brokers and coordination are as wanted"),
            _column("Brokers", ".status.ready", "Brokers that take clients, of those wanted"),
            _column(
                "Coordination",
                ".status.conditions[?(@.type=='CoordinationAvailable')].status",
                "ZooKeeper has a quorum and every topic group a coordinator",
            ),
            _column("SLA", ".status.lastReport.verdict", "Of the last report of its own objectives"),
            _column("Why", ".status.conditions[?(@.type=='Ready')].reason", "The reason of Ready"),
            _column("Age", ".metadata.creationTimestamp", "Since it was created", "date"),
            _column("Message", ".status.conditions[?(@.type=='Ready')].message", "In words", priority=1),
        ],
    )


def report_crd() -> dict[str, Any]:
    spec = object_schema(ReportSpec, SPEC_RULES, _KEYS)
    fixed = rule("self == oldSelf", "is fixed once the report exists: ask for another one")
    schema = _root(
        "One report of whether a cluster kept its objectives.",
        spec | {"description": "What is asked for", "x-kubernetes-validations": [fixed]},
        object_schema(ReportStatus, {}, _KEYS) | {"description": "What came of it, written by the operator"},
    )
    schema["required"] = ["spec"]
    schema["x-kubernetes-validations"] = [
        rule(
            f"size(self.metadata.name) <= {LONGEST_REPORT_NAME}",
            f"metadata.name: allowed: up to {LONGEST_REPORT_NAME} characters (it is a label of the report's pods)",
        )
    ]
    return _definition(
        "SLAReport",
        "slareports",
        "slar",
        schema,
        {"status": {}},
        [
            _column("Cluster", ".spec.cluster", "Whose report it is"),
            _column("Phase", ".status.phase", "Where it stands"),
            _column("Verdict", ".status.verdict", "Of all objectives together"),
            _column("Coverage", ".status.coverage.share", "Percent of the window that was scraped"),
            _column("P99", ".status.latency[?(@.broker=='')].p99", "Of deliveries, all brokers together"),
            _column("Why", ".status.conditions[?(@.type=='Complete')].reason", "The reason of Complete"),
            _column("Age", ".metadata.creationTimestamp", "Since it was asked for", "date"),
            _column("Until", ".status.window.end", "The end of the time that was judged", priority=1),
            _column("Message", ".status.conditions[?(@.type=='Complete')].message", "In words", priority=1),
        ],
    )


def write(folder: Path) -> list[Path]:
    """One file each."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for crd in (cluster_crd(), report_crd()):
        path = folder / f"{crd['spec']['names']['plural']}.yaml"
        path.write_text(text(crd))
        written.append(path)
    return written


def text(crd: dict[str, Any]) -> str:
    head = "# Generated from resources/migratory_resources by `make crds`; change it there.\n"
    return head + yaml.safe_dump(crd, sort_keys=False, width=120, allow_unicode=True)


def _root(description: str, spec: Schema, status: Schema) -> Schema:
    return {
        "description": description,
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "The version of this kind of resource"},
            "kind": {"type": "string", "description": "The kind of resource"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _definition(
    kind: str, plural: str, short: str, schema: Schema, subresources: Schema, columns: list[Schema]
) -> dict[str, Any]:
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
    column: Schema = {"name": name, "type": type_, "jsonPath": path, "description": description}
    return column | {"priority": priority} if priority else column


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        for path in write(Path(folder)):
            print(path)
