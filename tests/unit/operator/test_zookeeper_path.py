"""The node of a cluster in an external ensemble: with the namespace in it, and kept where a cluster has another one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from migratory_operator.names import Object
from migratory_operator.reconcile.decide import ClusterPlan, decide
from migratory_operator.reconcile.observed import ObservedCluster, key_of
from migratory_testing.kubernetes import SETTINGS, as_applied, cluster, config_hash, healthy_cluster, observe, pods

EXTERNAL: Object = {"external": "zk-0:2181,zk-1:2181"}
CONFIG = ("ConfigMap", "quotes-broker")
BROKERS = ("StatefulSet", "quotes-broker")


def zookeeper_of(plan: ClusterPlan) -> Object:
    """Return the section `zookeeper` of the brokers' configuration that the plan applies."""
    (config,) = [item for item in plan.apply if key_of(item) == CONFIG]
    found: Object = json.loads(config["data"]["broker.json"])["zookeeper"]
    return found


def of_an_older_operator() -> ObservedCluster:
    """Return a healthy cluster whose brokers and status name no node, as older operators left it."""
    observed = healthy_cluster(cluster({"zookeeper": EXTERNAL}), pods=pods(zookeepers=0))
    config_map = observed.objects[CONFIG]
    config = json.loads(config_map["data"]["broker.json"])
    del config["zookeeper"]["path"]
    data = {**config_map["data"], "broker.json": json.dumps(config, indent=2) + "\n"}
    status = {**observed.status, "zookeeper": {"replicas": 0, "ready": 0}}
    objects = {**observed.objects, CONFIG: {**config_map, "data": data}}
    return replace(observed, objects=objects, resource={**observed.resource, "status": status})


@pytest.mark.parametrize(
    ("spec", "namespace", "path"),
    [
        (EXTERNAL, "market", "/migratory.dev/market/quotes"),
        (EXTERNAL, "staging", "/migratory.dev/staging/quotes"),
        ({**EXTERNAL, "chroot": "/east/1"}, "market", "/east/1/migratory.dev/market/quotes"),
    ],
)
def test_a_new_cluster_has_its_namespace_in_its_node(spec: Object, namespace: str, path: str) -> None:
    plan = decide(observe(cluster({"zookeeper": spec}, namespace=namespace)), SETTINGS)
    assert zookeeper_of(plan)["path"] == path
    assert plan.status["zookeeper"]["path"] == path


def test_an_ensemble_of_the_clusters_own_needs_no_path() -> None:
    plan = decide(observe(cluster()), SETTINGS)
    assert "path" not in zookeeper_of(plan)
    assert "path" not in plan.status["zookeeper"]


def test_a_cluster_of_an_older_operator_keeps_its_node_and_its_pods() -> None:
    observed = of_an_older_operator()
    plan = decide(observed, SETTINGS)
    assert CONFIG not in [key_of(item) for item in plan.apply]
    assert plan.status["zookeeper"]["path"] == "/migratory/quotes"
    # Recorded, it survives the loss of the ConfigMap, and the StatefulSet shows it without a record.
    lost = {key: item for key, item in observed.objects.items() if key != CONFIG}
    for resource in (observed.resource, {**observed.resource, "status": plan.status}):
        later = decide(replace(observed, objects=lost, resource=resource), SETTINGS)
        assert "path" not in zookeeper_of(later)
        assert later.status["zookeeper"]["path"] == "/migratory/quotes"


def test_the_node_stays_while_the_status_is_not_written_yet() -> None:
    resource = cluster({"zookeeper": EXTERNAL})
    first = decide(observe(resource), SETTINGS)
    interrupted = observe(resource, objects={key_of(item): as_applied(item) for item in first.apply})
    again = decide(interrupted, SETTINGS)
    assert again.status["zookeeper"]["path"] == "/migratory.dev/market/quotes"
    assert CONFIG not in [key_of(item) for item in again.apply]


@pytest.mark.parametrize("text", ["{", "[]", '{"zookeeper": 7}'])
def test_a_damaged_configuration_is_written_again_with_the_recorded_node(text: str) -> None:
    observed = healthy_cluster(cluster({"zookeeper": EXTERNAL}), pods=pods(zookeepers=0))
    damaged = {**observed.objects[CONFIG], "data": {"broker.json": text}}
    plan = decide(replace(observed, objects={**observed.objects, CONFIG: damaged}), SETTINGS)
    assert zookeeper_of(plan)["path"] == "/migratory.dev/market/quotes"
    without_record = {**observed.resource, "status": {}}
    plan = decide(replace(observed, objects={**observed.objects, CONFIG: damaged}, resource=without_record), SETTINGS)
    assert "path" not in zookeeper_of(plan)


def test_the_path_is_part_of_what_brokers_read_at_start() -> None:
    def hash_with(spec: Object) -> str:
        plan = decide(observe(cluster({"zookeeper": spec})), SETTINGS)
        (brokers,) = [item for item in plan.apply if key_of(item) == BROKERS]
        return config_hash(brokers)

    assert hash_with({**EXTERNAL, "chroot": "/east"}) != hash_with(EXTERNAL)
