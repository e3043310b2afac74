"""The custom resource definitions: equal to what the models give, small enough and structural.

They accept the examples, refuse what their rules forbid, and drop fields of a newer schema.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from migratory_resources import load_cluster_file
from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.cluster.spec import API_VERSION, MigratoryCluster
from migratory_resources.crd.definitions import cluster_crd, report_crd, to_yaml
from migratory_resources.crd.rules import SPEC_RULES
from migratory_resources.crd.schema import SchemaError, object_schema
from migratory_resources.fields import Duration, ResourceModel
from migratory_resources.report.spec import ReportSpec
from migratory_resources.validation.custom_resources import read_cluster, read_report, unknown_cluster_fields
from migratory_resources.validation.loading import KUBERNETES_ONLY
from migratory_resources.validation.problems import ClusterFileError
from pydantic import BaseModel, Field

ROOT = Path(__file__).parents[3]
CRDS = {"migratoryclusters": cluster_crd(), "slareports": report_crd()}


def schema(name: str) -> dict[str, Any]:
    root_schema: dict[str, Any] = CRDS[name]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root_schema


def parts(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the schema of this schema and of every schema within it."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from parts(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from parts(node[key], f"{path}[]")


@pytest.mark.parametrize("folder", ["manifests/crds", "charts/migratory/crds"])
@pytest.mark.parametrize("name", CRDS)
def test_the_files_are_up_to_date(name: str, folder: str) -> None:
    path = ROOT / folder / f"{name}.yaml"
    assert path.read_text() == to_yaml(CRDS[name]), "run `make crds`"


@pytest.mark.parametrize("name", CRDS)
def test_a_definition_fits_the_annotation_of_kubectl_apply(name: str) -> None:
    annotation = json.dumps(CRDS[name], separators=(",", ":"))
    assert len(annotation.encode()) < 262_144 / 2


@pytest.mark.parametrize("name", CRDS)
def test_every_part_is_structural_described_and_bounded(name: str) -> None:
    for path, part in parts(schema(name)):
        assert ("type" in part) != ("x-kubernetes-int-or-string" in part), path
        assert not {"$ref", "title", "oneOf", "nullable"} & set(part), path
        if path and not path.endswith("[]"):
            assert part.get("description") or path == ".metadata", path
        match part.get("type"):
            case "array":
                assert "maxItems" in part, path
            case "string" if not path.startswith((".apiVersion", ".kind")):
                assert "maxLength" in part or "enum" in part, path


def test_the_defaults_of_the_schema_are_those_of_the_models() -> None:
    filled = fill(schema("migratoryclusters")["properties"]["spec"], {})
    resource = {"apiVersion": API_VERSION, "kind": "MigratoryCluster", "metadata": {"name": "quotes"}}
    assert read_cluster({**resource, "spec": filled}) == read_cluster(resource)


def fill(node: dict[str, Any], value: Any) -> Any:
    """Return the value with a schema's defaults filled in as an API server does: those of missing fields, then those
    inside of them."""
    if isinstance(value, dict) and "properties" in node:
        value = dict(value)
        for name, child in node["properties"].items():
            if name not in value and "default" in child:
                value[name] = child["default"]
            if name in value:
                value[name] = fill(child, value[name])
    return value


@pytest.mark.parametrize("name", ["cluster.yaml", "demo.yaml", "secured.yaml"])
def test_the_examples_are_valid_locally_and_on_kubernetes(name: str) -> None:
    path = ROOT / "manifests" / "examples" / name
    example = read_cluster(yaml.safe_load(path.read_text()))
    local = load_cluster_file(path).cluster
    assert example.model_dump(include=field_set(local)) == local.model_dump()


def test_the_example_autoscaler_fits_the_scale_subresource_and_the_default_copies() -> None:
    folder = ROOT / "manifests" / "autoscaling"
    spec = yaml.safe_load((folder / "hpa.yaml").read_text())["spec"]
    (version,) = cluster_crd()["spec"]["versions"]
    assert version["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    assert "selector" in version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    target = spec["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (API_VERSION, "MigratoryCluster")
    for replicas in (spec["minReplicas"], spec["maxReplicas"]):
        read_cluster({**target, "metadata": {"name": "quotes"}, "spec": {"brokers": {"replicas": replicas}}})
    (metric,) = spec["metrics"]
    (rule,) = yaml.safe_load((folder / "adapter.yaml").read_text())["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert f"`{rule['name']['as']}`" in (ROOT / "docs" / "reference" / "metrics.md").read_text()


def test_the_example_report_has_every_field() -> None:
    path = ROOT / "manifests" / "examples" / "slareport.yaml"
    document = yaml.safe_load(path.read_text())
    read = read_report(document)
    assert read.cluster == "quotes"
    text = path.read_text()
    missing = [
        info.alias or name for name, info in ReportSpec.model_fields.items() if f"{info.alias or name}:" not in text
    ]
    assert missing == []


def field_set(model: BaseModel) -> dict[str, Any]:
    return {
        name: field_set(value) if isinstance(value := getattr(model, name), BaseModel) else True
        for name in type(model).model_fields
    }


def test_every_kubernetes_only_field_has_a_warning() -> None:
    def fields(model: type[BaseModel], path: str) -> Iterator[str]:
        for name, info in model.model_fields.items():
            here = f"{path}{info.alias or name}"
            yield here
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                yield from fields(info.annotation, f"{here}.")

    added = set(fields(KubernetesCluster, "")) - set(fields(MigratoryCluster, ""))
    unwarned = {field for field in added if not any(f"{field}.".startswith(f"{known}.") for known in KUBERNETES_ONLY)}
    assert unwarned == set()


def test_every_rule_is_in_the_schema() -> None:
    text = to_yaml(CRDS["migratoryclusters"])
    for rules in SPEC_RULES.values():
        for rule in rules:
            assert rule["message"].splitlines()[0][:40] in " ".join(text.split())


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"brokers": {"replicas": 0}}, "spec.brokers.replicas"),
        ({"brokers": {"replicas": 2}}, "spec.brokers.replicas"),
        ({"brokers": {"expose": {"type": "NodePort"}}}, "spec.brokers.expose.host"),
        ({"brokers": {"expose": {"urlTemplate": "ws://{pod}.example.com/ws"}}}, "spec.brokers.expose.urlTemplate"),
        (
            {"brokers": {"expose": {"type": "Template", "urlTemplate": "ws://all/ws"}}},
            "spec.brokers.expose.urlTemplate",
        ),
        ({"brokers": {"resources": {"limits": {"memory": "much"}}}}, "spec.brokers.resources.limits.memory"),
        (
            {"brokers": {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1023Mi"}}}},
            "spec.brokers.resources.limits.memory",
        ),
        (
            {"zookeeper": {"resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "0.049"}}}},
            "spec.zookeeper.resources.limits.cpu",
        ),
        ({"brokers": {"resources": {"limits": {"memory": "511Mi"}}}}, "spec.brokers.resources.limits.memory"),
        ({"brokers": {"weights": {"q-broker-3": 1}}}, "spec.brokers.weights"),
        ({"brokers": {"image": "two words"}}, "spec.brokers.image"),
        ({"zookeeper": {"external": "zk"}}, "spec.zookeeper.external"),
        ({"zookeeper": {"external": "zk:2181", "chroot": "/a/../b"}}, "spec.zookeeper.chroot"),
        ({"zookeeper": {"chroot": "/a"}}, "spec.zookeeper"),
        ({"security": {"zookeeper": {}}}, "spec.security.zookeeper.passwordSecret"),
        ({"zookeeper": {"storage": {"size": "1Ki"}}}, "spec.zookeeper.storage.size"),
    ],
)
def test_a_spec_that_an_older_schema_accepted_is_refused_with_the_field(spec: dict[str, Any], path: str) -> None:
    resource = {"apiVersion": API_VERSION, "kind": "MigratoryCluster", "metadata": {"name": "q"}, "spec": spec}
    with pytest.raises(ClusterFileError) as caught:
        read_cluster(resource)
    assert [problem.path for problem in caught.value.problems] == [path]


@pytest.mark.parametrize("request_memory", ["1Gi", "1024Mi", "1000000k", "1073741824"])
def test_a_limit_equal_to_its_request_is_accepted(request_memory: str) -> None:
    resources = {"requests": {"memory": request_memory, "cpu": "1"}, "limits": {"memory": "1Gi", "cpu": "1000m"}}
    resource = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "q"},
        "spec": {"brokers": {"resources": resources}, "zookeeper": {"resources": {"limits": {"cpu": "1m"}}}},
    }
    assert read_cluster(resource).spec.brokers.resources.requests.memory == request_memory


def test_fields_of_a_newer_schema_are_dropped_and_named() -> None:
    objectives = [{"name": "a", "type": "delivery", "target": "50", "since": "ever"}]
    spec = {"brokers": {"replicas": 5, "tail": {"long": 1}}, "later": {"x": 1}, "sla": {"objectives": objectives}}
    resource = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "q"},
        "spec": spec,
    }
    before = copy.deepcopy(resource)
    assert unknown_cluster_fields(resource) == ["spec.brokers.tail", "spec.later", "spec.sla.objectives[0].since"]
    read = read_cluster(resource)
    assert (read.spec.brokers.replicas, len(read.spec.sla.objectives)) == (5, 1)
    assert resource == before, "the argument must not change"
    assert unknown_cluster_fields({**resource, "spec": {"brokers": {"replicas": 3}}}) == []
    with pytest.raises(ClusterFileError) as caught:
        read_cluster({**resource, "spec": {**spec, "zookeeper": {"replicas": 2}}})
    assert [problem.path for problem in caught.value.problems] == ["spec.zookeeper.replicas"]


def test_a_field_without_description_or_of_unknown_type_is_refused() -> None:
    class Silent(ResourceModel):
        wait: Annotated[float, Duration("1s", "2s")] = 1.0

    class Strange(ResourceModel):
        wait: complex = Field(default=1j, description="No such thing in YAML")

    with pytest.raises(SchemaError, match=r"Silent\.wait has no description"):
        object_schema(Silent, {})
    with pytest.raises(SchemaError, match="complex"):
        object_schema(Strange, {})
