"""The decision: which objects are applied, deleted and left alone, and which pods replaced."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from migratory_operator import names
from migratory_operator.decide import Plan, decide, needed
from migratory_operator.observe import key_of
from migratory_testing.decisions import BROKERS, brokers_hash, condition, instead, observe, whole
from migratory_testing.kubernetes import OLD, SETTINGS, cluster, pod, pods


def test_from_nothing_everything_is_made_and_the_status_says_so() -> None:
    plan = decide(observe(cluster()), SETTINGS)
    assert {key_of(thing) for thing in plan.apply} == set(needed(cluster(), SETTINGS))
    assert condition(plan, "Ready") == ("False", "BrokersNotReady")
    assert condition(plan, "Progressing") == ("True", "Creating")
    assert condition(plan, "Degraded") == ("False", "NothingKnown")
    assert condition(plan, "CoordinationAvailable") == ("False", "NoQuorum")
    assert plan.status["ready"] == "0/3"
    assert plan.events == ()


def test_a_whole_cluster_is_left_alone() -> None:
    plan = decide(whole(), SETTINGS)
    assert (plan.apply, plan.delete, plan.events) == ((), (), ())
    assert condition(plan, "Ready") == ("True", "AllReady")
    assert condition(plan, "Progressing") == ("False", "Settled")
    assert plan.status["ready"] == "3/3"
    assert plan.status["observedGeneration"] == 1
    assert plan.status["brokers"][0] == {"name": "quotes-broker-0", "ready": True, "clients": 7, "coordinators": 34}
    assert [server["ready"] for server in plan.status["servers"]] == [True, True, True]


@pytest.mark.parametrize("key", needed(cluster(), SETTINGS), ids=lambda key: f"{key[0]}-{key[1]}")
def test_whatever_is_deleted_comes_back(key: tuple[str, str]) -> None:
    seen = whole()
    plan = decide(replace(seen, objects={k: thing for k, thing in seen.objects.items() if k != key}), SETTINGS)
    assert [key_of(thing) for thing in plan.apply] == [key]
    assert [event.message for event in plan.events] == [f"{key[0]} {key[1]} was gone and is made again"]


@pytest.mark.parametrize("key", needed(cluster(), SETTINGS), ids=lambda key: f"{key[0]}-{key[1]}")
def test_whatever_is_edited_is_made_right(key: tuple[str, str]) -> None:
    seen = whole()
    edited = copy.deepcopy(seen.objects[key])
    edited["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody"
    plan = decide(replace(seen, objects={**seen.objects, key: edited}), SETTINGS)
    assert [key_of(thing) for thing in plan.apply] == [key]


def test_what_others_add_stays() -> None:
    seen = whole()
    objects = copy.deepcopy(dict(seen.objects))
    for thing in objects.values():
        thing["metadata"]["labels"]["team"] = "market"
        thing["metadata"]["resourceVersion"] = "7"
    service = objects["Service", "quotes-clients"]["spec"]
    service |= {"clusterIP": "10.96.0.7", "sessionAffinity": "None"}
    assert decide(replace(seen, objects=objects), SETTINGS).apply == ()


def test_what_is_not_wanted_any_more_goes_if_it_is_ours() -> None:
    seen = whole(cluster({"brokers": {"expose": {"type": "NodePort", "host": "n"}}}))
    seen = replace(seen, resource={**seen.resource, "spec": {"zookeeper": {"replicas": 3}}})
    gone = decide(seen, SETTINGS).delete
    assert [key_of(thing) for thing in gone] == [("Service", f"quotes-broker-{number}") for number in range(3)]
    foreign = {
        key: {**thing, "metadata": {**thing["metadata"], "ownerReferences": []}} for key, thing in seen.objects.items()
    }
    assert decide(replace(seen, objects=foreign), SETTINGS).delete == ()


def test_a_stateful_set_that_says_nothing_of_what_its_pods_read_gets_new_pods() -> None:
    seen = whole()
    live = copy.deepcopy(seen.objects[BROKERS])
    usual = brokers_hash(live)
    live["metadata"]["annotations"] = {}
    live["spec"]["template"]["metadata"]["annotations"] = {names.CONFIG_HASH: "of another release"}
    plan = decide(replace(seen, objects={**seen.objects, BROKERS: live}), SETTINGS)
    assert [brokers_hash(thing) for thing in plan.apply] == [usual]
    live = copy.deepcopy(seen.objects[BROKERS])
    live["spec"]["template"]["metadata"]["annotations"] = {}
    plan = decide(replace(seen, objects={**seen.objects, BROKERS: live}), SETTINGS)
    assert [brokers_hash(thing) for thing in plan.apply] == [usual]


def test_a_deleted_resource_is_left_to_the_garbage_collector() -> None:
    assert decide(whole(cluster(deletionTimestamp="2026-01-01T00:00:00Z")), SETTINGS) == Plan()


def test_paused_nothing_is_touched_but_the_status_goes_on() -> None:
    seen = whole(cluster(annotations={names.PAUSED: "true"}), objects={}, pods=pods(brokers=1))
    plan = decide(seen, SETTINGS)
    assert (plan.apply, plan.delete) == ((), ())
    assert condition(plan, "Progressing") == ("False", "Paused")
    assert plan.status["ready"] == "1/3"


def test_a_name_that_is_taken_is_named_and_not_touched() -> None:
    plan = decide(observe(cluster(), taken=frozenset({("Service", "quotes-clients")})), SETTINGS)
    assert ("Service", "quotes-clients") not in {key_of(thing) for thing in plan.apply}
    assert condition(plan, "Degraded") == ("True", "NameTaken")
    assert plan.events[0].message.startswith("Service quotes-clients belongs to something else")


def test_brokers_wait_for_all_addresses_and_running_ones_stay_meanwhile() -> None:
    seen = whole()
    resource = {**seen.resource, "spec": {"brokers": {"expose": {"type": "LoadBalancer"}}}}
    plan = decide(replace(seen, resource=resource), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "WaitingForAddresses")
    assert plan.delete == ()
    assert plan.again
    applied = {key_of(thing) for thing in plan.apply}
    assert ("Service", "quotes-broker-0") in applied
    assert ("StatefulSet", "quotes-broker") not in applied


def test_the_server_list_names_who_takes_clients() -> None:
    seen = whole(cluster({"brokers": {"weights": {"quotes-broker-0": 20}}}))
    leaving = pod("quotes-broker-1", names.BROKER)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = decide(replace(seen, pods=instead(pods(), leaving)), SETTINGS)
    listed = next(thing for thing in plan.apply if thing["metadata"]["name"] == "quotes-servers")["data"][
        "servers.json"
    ]
    assert "quotes-broker-1" not in listed
    assert '"weight": 20' in listed
    assert [server["ready"] for server in plan.status["servers"]] == [True, False, True]


def test_no_pod_is_replaced_while_what_it_is_made_from_changes() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    seen = whole(pods=old)
    changed = {**seen.resource, "spec": {"topics": {"maxTopics": 7}}}
    plan = decide(replace(seen, resource=changed), SETTINGS)
    assert (plan.replace, condition(plan, "Progressing")) == ((), ("True", "Updating"))
    gone = {key: thing for key, thing in seen.objects.items() if key != ("ConfigMap", "quotes-zookeeper")}
    assert decide(replace(seen, objects=gone), SETTINGS).replace == ()
    listed = {key: thing for key, thing in seen.objects.items() if key != ("ConfigMap", "quotes-servers")}
    assert decide(replace(seen, objects=listed), SETTINGS).replace, "the server list is no part of a pod"


def test_paused_no_pod_is_replaced() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    assert decide(whole(cluster(annotations={names.PAUSED: "true"}), pods=old), SETTINGS).replace == ()
