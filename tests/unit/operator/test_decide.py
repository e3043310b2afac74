"""The operator's decision about a cluster: objects to apply, delete or leave alone, the server list, and when no pod is
replaced."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from migratory_operator import names
from migratory_operator.reconcile.decide import ClusterPlan, decide, required_keys
from migratory_operator.reconcile.observed import key_of
from migratory_testing.kubernetes import (
    BROKER_SET,
    OLD,
    SETTINGS,
    cluster,
    condition,
    config_hash,
    healthy_cluster,
    observe,
    pod,
    pods,
    replace_pods,
)


def test_a_new_cluster_gets_all_objects_and_a_status() -> None:
    plan = decide(observe(cluster()), SETTINGS)
    assert {key_of(item) for item in plan.apply} == set(required_keys(cluster(), SETTINGS))
    assert condition(plan, "Ready") == ("False", "BrokersNotReady")
    assert condition(plan, "Progressing") == ("True", "Creating")
    assert condition(plan, "Degraded") == ("False", "NothingKnown")
    assert condition(plan, "CoordinationAvailable") == ("False", "NoQuorum")
    assert plan.status["ready"] == "0/3"
    assert plan.events == ()


def test_a_healthy_cluster_needs_no_changes() -> None:
    plan = decide(healthy_cluster(), SETTINGS)
    assert (plan.apply, plan.delete, plan.events) == ((), (), ())
    assert condition(plan, "Ready") == ("True", "AllReady")
    assert condition(plan, "Progressing") == ("False", "Settled")
    assert plan.status["ready"] == "3/3"
    assert plan.status["observedGeneration"] == 1
    assert plan.status["brokers"][0] == {"name": "quotes-broker-0", "ready": True, "clients": 7, "coordinators": 34}
    assert [server["ready"] for server in plan.status["servers"]] == [True, True, True]


@pytest.mark.parametrize("key", required_keys(cluster(), SETTINGS), ids=lambda key: f"{key[0]}-{key[1]}")
def test_a_deleted_object_is_restored(key: tuple[str, str]) -> None:
    observed = healthy_cluster()
    plan = decide(replace(observed, objects={k: item for k, item in observed.objects.items() if k != key}), SETTINGS)
    assert [key_of(item) for item in plan.apply] == [key]
    assert [event.message for event in plan.events] == [f"{key[0]} {key[1]} was deleted and is created again"]


@pytest.mark.parametrize("key", required_keys(cluster(), SETTINGS), ids=lambda key: f"{key[0]}-{key[1]}")
def test_an_edited_object_is_applied_again(key: tuple[str, str]) -> None:
    observed = healthy_cluster()
    edited = copy.deepcopy(observed.objects[key])
    edited["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody"
    plan = decide(replace(observed, objects={**observed.objects, key: edited}), SETTINGS)
    assert [key_of(item) for item in plan.apply] == [key]


def test_fields_that_others_add_stay() -> None:
    observed = healthy_cluster()
    objects = copy.deepcopy(dict(observed.objects))
    for item in objects.values():
        item["metadata"]["labels"]["team"] = "market"
        item["metadata"]["resourceVersion"] = "7"
    service = objects["Service", "quotes-clients"]["spec"]
    service |= {"clusterIP": "10.96.0.7", "sessionAffinity": "None"}
    assert decide(replace(observed, objects=objects), SETTINGS).apply == ()


def test_an_unwanted_object_is_deleted_if_the_cluster_owns_it() -> None:
    observed = healthy_cluster(cluster({"brokers": {"expose": {"type": "NodePort", "host": "n"}}}))
    observed = replace(observed, resource={**observed.resource, "spec": {"zookeeper": {"replicas": 3}}})
    gone = decide(observed, SETTINGS).delete
    assert [key_of(item) for item in gone] == [("Service", f"quotes-broker-{number}") for number in range(3)]
    foreign = {
        key: {**item, "metadata": {**item["metadata"], "ownerReferences": []}} for key, item in observed.objects.items()
    }
    assert decide(replace(observed, objects=foreign), SETTINGS).delete == ()


def test_a_stateful_set_without_hashes_gets_new_pods() -> None:
    observed = healthy_cluster()
    live = copy.deepcopy(observed.objects[BROKER_SET])
    usual = config_hash(live)
    live["metadata"]["annotations"] = {}
    live["spec"]["template"]["metadata"]["annotations"] = {names.CONFIG_HASH: "of another release"}
    plan = decide(replace(observed, objects={**observed.objects, BROKER_SET: live}), SETTINGS)
    assert [config_hash(item) for item in plan.apply] == [usual]
    live = copy.deepcopy(observed.objects[BROKER_SET])
    live["spec"]["template"]["metadata"]["annotations"] = {}
    plan = decide(replace(observed, objects={**observed.objects, BROKER_SET: live}), SETTINGS)
    assert [config_hash(item) for item in plan.apply] == [usual]


def test_a_deleted_resource_is_left_to_the_garbage_collector() -> None:
    assert decide(healthy_cluster(cluster(deletionTimestamp="2026-01-01T00:00:00Z")), SETTINGS) == ClusterPlan()


def test_a_paused_cluster_gets_only_a_status() -> None:
    observed = healthy_cluster(cluster(annotations={names.PAUSED: "true"}), objects={}, pods=pods(brokers=1))
    plan = decide(observed, SETTINGS)
    assert (plan.apply, plan.delete) == ((), ())
    assert condition(plan, "Progressing") == ("False", "Paused")
    assert plan.status["ready"] == "1/3"


def test_an_object_of_another_owner_is_reported_and_not_applied() -> None:
    plan = decide(observe(cluster(), conflicting=frozenset({("Service", "quotes-clients")})), SETTINGS)
    assert ("Service", "quotes-clients") not in {key_of(item) for item in plan.apply}
    assert condition(plan, "Degraded") == ("True", "NameTaken")
    assert plan.events[0].message.startswith("Service quotes-clients belongs to another owner")


def test_brokers_wait_for_all_addresses_and_running_ones_stay() -> None:
    observed = healthy_cluster()
    resource = {**observed.resource, "spec": {"brokers": {"expose": {"type": "LoadBalancer"}}}}
    plan = decide(replace(observed, resource=resource), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "WaitingForAddresses")
    assert plan.delete == ()
    assert plan.requeue_after
    applied = {key_of(item) for item in plan.apply}
    assert ("Service", "quotes-broker-0") in applied
    assert ("StatefulSet", "quotes-broker") not in applied


def test_the_server_list_has_the_ready_brokers() -> None:
    observed = healthy_cluster(cluster({"brokers": {"weights": {"quotes-broker-0": 20}}}))
    leaving = pod("quotes-broker-1", names.BROKER)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = decide(replace(observed, pods=replace_pods(pods(), leaving)), SETTINGS)
    listed = next(item for item in plan.apply if item["metadata"]["name"] == "quotes-servers")["data"]["servers.json"]
    assert "quotes-broker-1" not in listed
    assert '"weight": 20' in listed
    assert [server["ready"] for server in plan.status["servers"]] == [True, False, True]


def test_no_pod_is_replaced_while_its_configuration_changes() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    observed = healthy_cluster(pods=old)
    changed = {**observed.resource, "spec": {"topics": {"maxTopics": 7}}}
    plan = decide(replace(observed, resource=changed), SETTINGS)
    assert (plan.replace, condition(plan, "Progressing")) == ((), ("True", "Updating"))
    gone = {key: item for key, item in observed.objects.items() if key != ("ConfigMap", "quotes-zookeeper")}
    assert decide(replace(observed, objects=gone), SETTINGS).replace == ()
    listed = {key: item for key, item in observed.objects.items() if key != ("ConfigMap", "quotes-servers")}
    assert decide(replace(observed, objects=listed), SETTINGS).replace, "pods do not read the server list"


def test_no_pod_of_a_paused_cluster_is_replaced() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    assert decide(healthy_cluster(cluster(annotations={names.PAUSED: "true"}), pods=old), SETTINGS).replace == ()
