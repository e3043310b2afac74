"""Pod templates: what is allowed in them, and the field that each error names."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_resources import ClusterFileError
from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.validation.custom_resources import read_cluster, read_report, unknown_cluster_fields
from migratory_resources.validation.loading import load_cluster

HEAD = {"apiVersion": "migratory.dev/v1alpha1", "kind": "MigratoryCluster", "metadata": {"name": "q"}}
WHOLE: dict[str, Any] = {
    "labels": {"team": "market", "example.com/tier": ""},
    "annotations": {"prometheus.io/scrape": "true"},
    "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/q"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"team": "market"}}}
            ]
        }
    },
    "tolerations": [{"key": "dedicated", "value": "market", "effect": "NoSchedule"}, {"operator": "Exists"}],
    "priorityClassName": "high",
    "topologySpreadConstraints": [{"topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    "env": [
        {"name": "ZONE", "value": "eu"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
    ],
    "volumes": [{"name": "spool", "emptyDir": {"sizeLimit": "64Mi"}}, {"name": "ca", "configMap": {"name": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "initContainers": [{"name": "mesh", "image": "example/mesh:1", "restartPolicy": "Always"}],
    "containers": [
        {
            "name": "shipper",
            "image": "example/shipper:1",
            "ports": [{"containerPort": 9100}],
            "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}},
            "volumeMounts": [{"name": "spool", "mountPath": "/tmp"}],
            "readinessProbe": {"httpGet": {"port": 9100}},
        }
    ],
}


def problems(place: str, pod: dict[str, Any]) -> list[str]:
    """Return the errors of a cluster with this pod template, each as the operator writes it."""
    spec: dict[str, Any] = {"spark": {"pod": pod}} if place == "sla" else {"pod": pod}
    try:
        read_cluster({**HEAD, "spec": {place: spec}})
    except ClusterFileError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("place", ["brokers", "zookeeper", "sla"])
def test_a_template_with_every_field_is_accepted(place: str) -> None:
    left_out = {"brokers": (), "zookeeper": ("serviceAccountAnnotations",), "sla": ("containers",)}[place]
    pod = {field: value for field, value in WHOLE.items() if field not in left_out}
    assert problems(place, pod) == []
    for field in left_out:
        path = f"spec.{'sla.spark' if place == 'sla' else place}.pod.{field}"
        spec = {"spark": {"pod": WHOLE}} if place == "sla" else {"pod": WHOLE}
        assert unknown_cluster_fields({**HEAD, "spec": {place: spec}}) == [path]


CONTAINER = {"name": "a", "image": "example/a:1"}
FIELD = {"fieldRef": {"fieldPath": "status.hostIP"}}
ANYWAY = {"whenUnsatisfiable": "ScheduleAnyway"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"labels": {"app.kubernetes.io/instance": "x"}}, "labels", "'app.kubernetes.io/instance'"),
    ({"labels": {"migratory.dev/x": "x"}}, "labels", "neither the operator nor Kubernetes"),
    ({"labels": {"two words": "x"}}, "labels", "a name with an optional domain"),
    ({"labels": {"team": "two words"}}, "labels.team", "up to 63"),
    ({"annotations": {"migratory.dev/config": "x"}}, "annotations", "neither the operator nor Kubernetes"),
    (
        {"annotations": {"container.apparmor.security.beta.kubernetes.io/broker": "unconfined"}},
        "annotations",
        "neither the operator nor Kubernetes",
    ),
    ({"annotations": {"a": 1}}, "annotations.a", "in quotes"),
    ({"env": [{"name": "POD_NAME", "value": "x"}]}, "env[0].name", "POD_NAME"),
    ({"env": [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]}, "env[1].name", "no other entry"),
    ({"env": [{"name": "A", "value": "x", "valueFrom": FIELD}]}, "env[0].valueFrom", "either value or valueFrom"),
    ({"env": [{"name": "A", "valueFrom": {}}]}, "env[0].valueFrom", "exactly one of configMapKeyRef"),
    ({"volumes": [{"name": "tmp", "emptyDir": {}}]}, "volumes[0].name", "tmp"),
    ({"volumes": [{"name": "a"}]}, "volumes[0]", "exactly one of configMap, secret, emptyDir"),
    ({"volumes": [{"name": "a", "emptyDir": {}, "csi": {"driver": "b"}}]}, "volumes[0]", "exactly one of"),
    ({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}, "volumeMounts[0].name", "there are none"),
    (
        {"volumes": [{"name": "a", "emptyDir": {}}], "volumeMounts": [{"name": "a", "mountPath": "/tmp/a"}]},
        "volumeMounts[0].mountPath",
        "neither inside of nor around",
    ),
    (
        {"volumes": [{"name": "a", "emptyDir": {}}], "volumeMounts": [{"name": "a", "mountPath": "/etc"}]},
        "volumeMounts[0].mountPath",
        "neither inside of nor around",
    ),
    (
        {"volumes": [{"name": "a", "emptyDir": {}}], "volumeMounts": [{"name": "a", "mountPath": "/a/../tmp"}]},
        "volumeMounts[0].mountPath",
        'without ".."',
    ),
    ({"initContainers": [CONTAINER, CONTAINER]}, "initContainers[1].name", "no other entry"),
    (
        {"initContainers": [{**CONTAINER, "readinessProbe": {"tcpSocket": {"port": 1}}}]},
        "initContainers[0].readinessProbe",
        "restartPolicy Always",
    ),
    (
        {"initContainers": [{**CONTAINER, "securityContext": {"runAsUser": 0}}]},
        "initContainers[0].securityContext.runAsUser",
        "from 1 to",
    ),
    (
        {
            "initContainers": [
                {**CONTAINER, "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1023Mi"}}}
            ]
        },
        "initContainers[0].resources.limits.memory",
        "1Gi",
    ),
    ({"initContainers": [{**CONTAINER, "envFrom": [{}]}]}, "initContainers[0].envFrom[0]", "exactly one of"),
    (
        {"initContainers": [{**CONTAINER, "restartPolicy": "Always", "startupProbe": {}}]},
        "initContainers[0].startupProbe",
        "exactly one of",
    ),
    ({"tolerations": [{"effect": "NoExecute"}]}, "tolerations[0].operator", "Exists, when there is no key"),
    ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "tolerations[0].tolerationSeconds", "NoExecute"),
    ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations[0].value", "no value"),
    ({"topologySpreadConstraints": [ANYWAY]}, "topologySpreadConstraints[0].topologyKey", "missing"),
    ({"affinity": {"nodeAffinity": {"required": []}}}, "affinity.nodeAffinity.required", ""),
    ({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, "imagePullSecrets[1].name", "no other entry"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "path", "words"), REFUSED, ids=[path for _, path, _ in REFUSED])
def test_what_is_wrong_is_named_and_said_in_words(pod: dict[str, Any], path: str, words: str) -> None:
    if not words:  # a misspelt field is ignored and named, as anywhere in the resource
        assert unknown_cluster_fields({**HEAD, "spec": {"brokers": {"pod": pod}}}) == [f"spec.brokers.pod.{path}"]
        return
    (problem,) = problems("brokers", pod)
    assert problem.startswith(f"spec.brokers.pod.{path}: ")
    assert words in problem


def test_containers_share_neither_names_nor_ports() -> None:
    (problem,) = problems("brokers", {"containers": [{**CONTAINER, "name": "broker"}]})
    assert problem.startswith("spec.brokers.pod.containers[0].name: 'broker' is not allowed")
    (problem,) = problems("brokers", {"containers": [CONTAINER], "initContainers": [CONTAINER]})
    assert problem.startswith("spec.brokers.pod.initContainers[0].name: 'a' is not allowed")
    admin = {**CONTAINER, "ports": [{"containerPort": 8082}]}
    (problem,) = problems("brokers", {"containers": [admin]})
    assert problem.startswith("spec.brokers.pod.containers[0].ports[0].containerPort: 8082 is not allowed")
    assert "the operator's container" in problem
    assert problems("brokers", {"containers": [{**admin, "ports": [{"containerPort": 8082, "protocol": "UDP"}]}]}) == []
    assert problems("brokers", {"initContainers": [admin]}) == [], "its port is free before the broker starts"
    assert problems("zookeeper", {"containers": [admin]}) == []


def test_several_errors_in_one_list_are_all_reported() -> None:
    pod = {"containers": [{"name": "A", "image": "a"}, {"name": "b", "image": "two words"}]}
    both = problems("brokers", {**pod, "env": [{"name": "POD_NAME"}]})
    assert [text.partition(":")[0] for text in both] == [
        "spec.brokers.pod.containers[0].name", "spec.brokers.pod.containers[1].image"
    ]  # fmt: skip


def test_a_reports_own_template_is_checked_as_well() -> None:
    pod = {"env": [{"name": "SPARK_LOCAL_DIRS", "value": "/a"}]}
    with pytest.raises(ClusterFileError, match=r"spec\.spark\.pod\.env\[0\]\.name: 'SPARK_LOCAL_DIRS'"):
        read_report({"metadata": {"name": "r"}, "spec": {"cluster": "q", "spark": {"pod": pod}}})


def test_one_machine_has_no_pods_and_says_so() -> None:
    text = """
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {name: q}
spec:
  brokers: {pod: {labels: {team: market}}}
  zookeeper: {pod: {labels: {team: market}}}
"""
    assert load_cluster(text).warnings == [
        "spec.brokers.pod has no effect on one machine: there are no pods",
        "spec.zookeeper.pod has no effect on one machine: there are no pods",
    ]
    assert load_cluster(text, model=KubernetesCluster).warnings == []
