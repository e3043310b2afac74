"""Invalid resources are rejected with the name of the field; impossible ones are reported, and become ready when
corrected."""

from __future__ import annotations

import json

import pytest
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.pods import SMALLEST, make_cluster

pytestmark = pytest.mark.timeout(600)


def apply(kube: Kubectl, spec: Object, name: str = "q", *, dry: bool = True) -> None:
    resource = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": name},
        "spec": spec,
    }
    kube("apply", "-f", "-", *(["--dry-run=server"] if dry else []), given=json.dumps(resource))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"brokers": {"replicas": 0}}, "spec.brokers.replicas"),
        ({"brokers": {"replicas": 100}}, "spec.brokers.replicas"),
        ({"brokers": {"replicas": 2}}, "spec.brokers.replicas"),
        ({"brokers": {"replicas": 3}, "delivery": {"minCopies": 3}}, "spec.brokers.replicas"),
        ({"brokers": {"replica": 3}}, 'unknown field "spec.brokers.replica"'),
        ({"brokers": {"weights": {"q-broker-0": 1001}}}, "spec.brokers.weights"),
        ({"brokers": {"replicas": 1, "weights": {"q-broker-0": 0}}, "delivery": {"minCopies": 1}},
         "spec.brokers.weights"),
        ({"brokers": {"weights": {"q-broker-3": 1}}}, "spec.brokers.weights"),
        ({"brokers": {"weights": {"q-broker-x": 1}}}, "NAME-broker-0 to NAME-broker-(replicas - 1)"),
        ({"brokers": {"resources": {"limits": {"memory": "511Mi"}}}},
         "topics.cache.maxBytes + limits.queueTotal or more"),
        ({"brokers": {"drain": {"period": "11m"}}}, "spec.brokers.drain.period"),
        ({"brokers": {"drain": {"period": "5"}}}, "spec.brokers.drain.period"),
        ({"brokers": {"expose": {"type": "NodePort"}}}, "spec.brokers.expose"),
        ({"brokers": {"expose": {"type": "Ingress"}}}, "spec.brokers.expose.type"),
        ({"brokers": {"resources": {"limits": {"memory": "much"}}}}, "spec.brokers.resources.limits.memory"),
        ({"brokers": {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1023Mi"}}}},
         "spec.brokers.resources.limits.memory"),
        ({"zookeeper": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1999m"}}}},
         "spec.zookeeper.resources.limits.cpu"),
        ({"zookeeper": {"replicas": 2}}, "spec.zookeeper.replicas"),
        ({"zookeeper": {"external": "zk"}}, "spec.zookeeper.external"),
        ({"zookeeper": {"chroot": "/east"}}, "spec.zookeeper.chroot"),
        ({"zookeeper": {"sessionTimeout": "999ms"}}, "spec.zookeeper.sessionTimeout"),
        ({"topics": {"cache": {"minAge": "30s"}}}, "spec.topics.cache.minAge"),
        ({"topics": {"cache": {"maxAge": "50s"}}}, "spec.topics.cache.maxAge"),
        ({"topics": {"cache": {"maxAge": "8d"}}}, "spec.topics.cache.maxAge"),
        ({"topics": {"cache": {"maxBytes": "512Ki"}}}, "spec.topics.cache.maxBytes"),
        ({"topics": {"cache": {"maxBytes": "2Mi"}}, "limits": {"maxPayload": "4Mi", "queuePerClient": "4Mi"}},
         "spec.topics.cache.maxBytes"),
        ({"limits": {"queuePerClient": "512Ki"}}, "spec.limits.queuePerClient"),
        ({"limits": {"queueTotal": 1048575}}, "spec.limits.queueTotal"),
        ({"brokers": {"ioProcesses": 3}, "limits": {"queueTotal": "2Mi"}}, "spec.limits.queueTotal"),
        ({"delivery": {"duplicateWindow": "10s"}}, "spec.delivery.duplicateWindow"),
        ({"delivery": {"onHistoryLoss": "cry"}}, "spec.delivery.onHistoryLoss"),
        ({"sla": {"objectives": [{"name": "a", "type": "latency", "target": "99"}]}}, "spec.sla.objectives[0]"),
        ({"sla": {"objectives": [{"name": "a", "type": "delivery", "target": "101"}]}},
         "spec.sla.objectives[0].target"),
        ({"sla": {"objectives": [{"name": "a", "type": "delivery", "target": "1"}] * 2}}, "spec.sla.objectives[1]"),
        ({"security": {"tokens": {"secretName": "t"}}}, 'unknown field "spec.security.tokens.secretName"'),
        ({"security": {"origins": ["app.example.com"]}}, "spec.security.origins[0]"),
    ],
)  # fmt: skip
def test_invalid_resources_are_rejected_with_the_field(shared: Kubectl, spec: Object, expected: str) -> None:
    with pytest.raises(KubectlError) as refused:
        apply(shared, spec)
    assert expected in str(refused.value)
    assert "some validation rules were not checked" not in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        ({"brokers": {"replicas": 0}}, ["greater than or equal to 1", "must be 2 x delivery.minCopies - 1 or more"]),
        ({"zookeeper": {"replicas": 2}}, ["allowed: 1, 3, 5"]),
        ({"brokers": {"image": "two words"}}, ["allowed: an image's name"]),
    ],
)
def test_refusals_say_in_words_what_is_allowed_and_nothing_else(
    shared: Kubectl, spec: Object, messages: list[str]
) -> None:
    with pytest.raises(KubectlError) as refused:
        apply(shared, spec)
    lines = [line for line in str(refused.value).splitlines() if "spec." in line]
    assert len(lines) == len(messages), refused.value
    assert all(message in line for message, line in zip(messages, lines, strict=True)), refused.value


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"topics": {"cache": {"minAge": "1m", "maxAge": "7d"}}},
        {"topics": {"cache": {"maxBytes": 8388608, "maxAge": "1h30m"}}},
        {"zookeeper": {"external": "zk-0.zk:2181,zk-1.zk:2181", "chroot": "/east"}},
        {"zookeeper": {"external": "zk:2281"}, "security": {"tls": {"zookeeper": {"secretName": "zk"}}}},
        {"security": {"tls": {"zookeeper": {"secretName": "zk"}}}},
        {"security": {"zookeeper": {"passwordSecret": {"name": "zk", "key": "password"}}}},
        {"brokers": {"expose": {"type": "Template", "urlTemplate": "wss://{pod}.example.com/ws"}}},
        {"brokers": {"replicas": 1}, "delivery": {"minCopies": 1}, "zookeeper": {"replicas": 1}},
    ],
)
def test_valid_resources_are_accepted(shared: Kubectl, spec: Object) -> None:
    apply(shared, spec)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topics": {"groups": 21}}, "spec.topics.groups"),
        ({"zookeeper": {"storage": {"className": "fast"}}}, "spec.zookeeper.storage.className"),
        ({"zookeeper": {"external": "zk:2181"}}, "spec.zookeeper.external"),
        ({"security": {"tls": {"zookeeper": {"secretName": "t"}}}}, "spec.security.tls.zookeeper"),
    ],
)
def test_immutable_fields_cannot_be_changed(shared: Kubectl, change: Object, expected: str) -> None:
    shared.apply(paused({"topics": {"groups": 20}}))
    with pytest.raises(KubectlError) as refused:
        shared.patch("mgc", "fixed", {"spec": change})
    assert expected in str(refused.value)
    assert "is immutable: delete and create the cluster" in str(refused.value)


def paused(spec: Object) -> Object:
    """Return a resource with this spec that is paused, so that the operator creates nothing for it."""
    return {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "fixed", "annotations": {"migratory.dev/paused": "true"}},
        "spec": spec,
    }


@pytest.mark.parametrize("name", ["m" * 41, "m" * 52, "m" * 63, "m" * 64, "1st", "a.b"])
def test_a_name_that_is_too_long_is_rejected_with_the_limit(shared: Kubectl, name: str) -> None:
    with pytest.raises(KubectlError, match=r"metadata\.name: allowed: 1 to 40"):
        apply(shared, {}, name)


IMAGE, SIZE, TAKEN = "image", "size", "taken"


@pytest.fixture(scope="module")
def impossible(shared: Kubectl) -> Kubectl:
    """Create three clusters that are valid but cannot run: with an image that does not exist, with too much CPU, and
    with a ConfigMap's name in use. Return kubectl."""
    shared("create", "configmap", f"{TAKEN}-servers", "--from-literal=mine=yes")
    one = SMALLEST["brokers"]
    make_cluster(shared, {**SMALLEST, "brokers": {**one, "image": "nowhere.invalid/no/such:1"}}, IMAGE, ready=False)
    much = {"requests": {"cpu": "900"}}
    make_cluster(shared, {**SMALLEST, "brokers": {**one, "resources": much}}, SIZE, ready=False)
    make_cluster(shared, SMALLEST, TAKEN, ready=False)
    return shared


def warned(kube: Kubectl, name: str) -> set[str]:
    """Return the reasons of all warning events about a cluster."""
    return {
        event["reason"]
        for event in kube.list("events")
        if event["type"] == "Warning"
        and (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("MigratoryCluster", name)
    }


def test_a_missing_image_is_reported_until_it_is_corrected(impossible: Kubectl) -> None:
    kube = impossible
    pulling = {"ErrImagePull", "ImagePullBackOff"}
    kube.until(lambda: kube.condition(IMAGE, "Degraded")[1] in pulling, "the condition", 90)
    kube.until(lambda: warned(kube, IMAGE) & pulling, "the Event", 30)
    kube.patch("mgc", IMAGE, {"spec": {"brokers": {"image": None}}})
    kube.wait_ready(IMAGE)
    kube.until(lambda: kube.condition(IMAGE, "Degraded")[0] == "False", "nothing degraded", 30)


def test_an_unschedulable_pod_is_reported_until_its_request_is_lowered(impossible: Kubectl) -> None:
    kube = impossible
    kube.until(lambda: kube.condition(SIZE, "Degraded") == ("True", "Unschedulable"), "the condition", 90)
    kube.until(lambda: "Unschedulable" in warned(kube, SIZE), "the Event", 30)
    kube.patch("mgc", SIZE, {"spec": {"brokers": {"resources": {"requests": {"cpu": "50m"}}}}})
    kube.wait_ready(SIZE)


def test_a_name_of_another_owner_is_reported_until_it_is_free(impossible: Kubectl) -> None:
    kube, name = impossible, f"{TAKEN}-servers"
    kube.until(lambda: kube.condition(TAKEN, "Degraded") == ("True", "NameTaken"), "the condition", 120)
    kube.until(lambda: "NameTaken" in warned(kube, TAKEN), "the Event", 30)
    assert (kube.get("configmap", name) or {})["data"] == {"mine": "yes"}
    kube("delete", "configmap", name)
    kube.until(lambda: "servers.json" in (kube.get("configmap", name) or {"data": {}})["data"], "the server list", 60)
    kube.until(lambda: kube.condition(TAKEN, "Degraded")[0] == "False", "nothing degraded", 60)
