"""The decision: what is applied, deleted, said, for whatever there is."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from migratory_operator import names
from migratory_operator.decide import Plan, decide, needed
from migratory_operator.names import Object
from migratory_operator.observe import Observed, key_of
from migratory_testing.kubernetes import NOW, OLD, SETTINGS, cluster, page, pages_of, pod, pods, settled

THIRDS = pages_of(3)


def observe(resource: Object, **fields: Any) -> Observed:
    return Observed(resource=resource, now=NOW, **fields)


def whole(resource: Object | None = None, **fields: Any) -> Observed:
    """A cluster with all its pods ready, all objects there, and the status that the operator wrote of that."""
    resource = resource or cluster()
    seen = observe(resource, pods=pods(), pages=THIRDS)
    for _ in range(3):
        plan = decide(seen, SETTINGS)
        made = {key_of(thing): settled(thing) for thing in plan.apply}
        seen = replace(
            seen, objects={**seen.objects, **made}, resource={**seen.resource, "status": copy.deepcopy(plan.status)}
        )
    return replace(seen, **fields)


def condition(plan: Plan, type_: str) -> tuple[str, str]:
    found = next(one for one in plan.status["conditions"] if one["type"] == type_)
    return found["status"], found["reason"]


def message(plan: Plan, type_: str) -> str:
    return str(next(one["message"] for one in plan.status["conditions"] if one["type"] == type_))


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


def test_it_tells_once_when_it_becomes_ready_and_when_it_is_no_more() -> None:
    starting = whole()
    starting.resource["status"] = decide(observe(cluster()), SETTINGS).status
    assert [event.reason for event in decide(starting, SETTINGS).events] == ["Ready"]
    broken = whole(pods=pods(brokers=2))
    assert [(event.type, event.reason) for event in decide(broken, SETTINGS).events] == [("Warning", "NotReady")]
    broken.resource["status"] = decide(broken, SETTINGS).status
    assert decide(broken, SETTINGS).events == ()


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


def test_from_two_brokers_to_one_the_budget_goes_in_the_same_look() -> None:
    two = {"brokers": {"replicas": 2}, "delivery": {"minCopies": 1}}
    seen = whole(cluster(two), pods=pods(2), pages=pages_of(2))
    one = {"brokers": {"replicas": 1}, "delivery": {"minCopies": 1}}
    plan = decide(replace(seen, resource={**seen.resource, "spec": one}), SETTINGS)
    assert [key_of(thing) for thing in plan.delete] == [("PodDisruptionBudget", "quotes-broker")]
    assert [thing["spec"]["replicas"] for thing in plan.apply if key_of(thing) == BROKERS] == [1]


def brokers_hash(thing: Object) -> str:
    return str(thing["spec"]["template"]["metadata"]["annotations"][names.CONFIG_HASH])


BROKERS = ("StatefulSet", "quotes-broker")
TEMPLATE = {"type": "Template", "urlTemplate": "wss://{pod}.example.com/ws"}


def resized(seen: Observed, replicas: int, **brokers: Any) -> tuple[Observed, Object]:
    """What is applied as the brokers' StatefulSet for so many brokers, and what there is afterwards."""
    resource = {**seen.resource, "spec": {"brokers": {"replicas": replicas, **brokers}}}
    plan = decide(replace(seen, resource=resource), SETTINGS)
    made = {key_of(thing): thing for thing in plan.apply}
    objects = {**seen.objects, **{key: settled(thing) for key, thing in made.items()}}
    return replace(seen, resource=resource, objects=objects), made[BROKERS]


def test_more_or_fewer_brokers_are_no_reason_to_restart_any() -> None:
    seen = whole()
    usual = brokers_hash(seen.objects[BROKERS])
    for replicas in (4, 5, 7):
        seen, made = resized(seen, replicas)
        assert (made["spec"]["replicas"], brokers_hash(made)) == (replicas, usual)
        assert BROKERS not in {key_of(thing) for thing in decide(seen, SETTINGS).apply}, "and it stays so"


def five(**fields: Any) -> Observed:
    """Five brokers, all well, of which three are wanted from now on."""
    seen = whole(cluster({"brokers": {"replicas": 5}}), pods=pods(5), pages=pages_of(5))
    return replace(seen, **{"resource": {**seen.resource, "spec": {"brokers": {"replicas": 3}}}, **fields})


def next_size(seen: Observed) -> int:
    """Of the brokers' StatefulSet after this look."""
    plan = decide(seen, SETTINGS)
    made = {key_of(thing): thing for thing in plan.apply}
    return int(made.get(BROKERS, seen.objects[BROKERS])["spec"]["replicas"])


def test_brokers_leave_one_after_the_other() -> None:
    seen = five()
    plan = decide(seen, SETTINGS)
    made = {key_of(thing): thing for thing in plan.apply}
    assert made[BROKERS]["spec"]["replicas"] == 4
    assert brokers_hash(made[BROKERS]) == brokers_hash(seen.objects[BROKERS])
    assert "quotes-broker-3" in made["ConfigMap", "quotes-broker"]["data"]["broker.json"]
    assert "quotes-broker-4" not in made["ConfigMap", "quotes-broker"]["data"]["broker.json"]
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert condition(plan, "Ready") == ("True", "AllReady")
    four = {key: settled(thing) for key, thing in made.items()}
    seen = replace(seen, objects={**seen.objects, **four})
    assert next_size(seen) == 4, "the fifth is still there"
    assert next_size(replace(seen, pods=pods(4), pages=pages_of(4))) == 3


def test_the_next_broker_leaves_when_those_that_stay_are_well() -> None:
    seen = five()
    assert next_size(seen) == 4
    fewer = {name: one for name, one in seen.pages.items() if name != "quotes-broker-1"}
    assert next_size(replace(seen, pages=fewer)) == 5, "groups without a coordinator"
    unready = pod("quotes-broker-1", names.BROKER, ready=False)
    others = [one for one in pods(5) if one["metadata"]["name"] != "quotes-broker-1"]
    assert next_size(replace(seen, pods=(*others, unready))) == 5, "one that stays takes no clients"
    listed = {**seen.pages, "quotes-broker-0": page(range(0, 100, 5), 6)}
    assert next_size(replace(seen, pages=listed)) == 5, "the one before is on a list still"
    learning = {**seen.pages, "quotes-broker-1": replace(seen.pages["quotes-broker-1"], member=False)}
    plan = decide(replace(seen, pages=learning), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert "quotes-broker-1 is not a synced member of every topic group yet" in message(plan, "Progressing")
    assert plan.again, "what a broker says of itself is no event of Kubernetes"


def test_a_broker_that_never_ran_may_leave_at_once() -> None:
    others = [one for one in pods(5) if one["metadata"]["name"] != "quotes-broker-4"]
    pending = pod("quotes-broker-4", names.BROKER, ready=False, phase="Pending")
    assert next_size(five(pods=(*others, pending), pages={})) == 4


def test_another_configuration_or_address_restarts_them_also_when_their_number_changes() -> None:
    seen = whole()
    usual = brokers_hash(seen.objects[BROKERS])
    assert brokers_hash(resized(seen, 5, drain={"period": "7s"})[1]) != usual
    assert brokers_hash(resized(seen, 5, expose=TEMPLATE)[1]) != usual
    grown, _ = resized(seen, 5)
    assert brokers_hash(resized(grown, 5, expose=TEMPLATE)[1]) != usual


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


def test_an_invalid_spec_changes_nothing_and_names_the_field() -> None:
    seen = whole()
    bad = {**seen.resource, "spec": {"brokers": {"replicas": 2}}}
    plan = decide(replace(seen, resource=bad), SETTINGS)
    assert (plan.apply, plan.delete) == ((), ())
    assert condition(plan, "Ready") == ("False", "InvalidSpec")
    assert "spec.brokers.replicas" in plan.status["conditions"][0]["message"]
    assert ("Warning", "InvalidSpec") in {(event.type, event.reason) for event in plan.events}


def test_fields_that_a_newer_definition_brings_are_told_once_and_left_out() -> None:
    seen = whole()
    newer = {**seen.resource, "spec": {"brokers": {"replicas": 3, "tail": 1}}}
    seen, plan = after(seen, resource=newer)
    assert (plan.apply, plan.delete) == ((), ())
    assert condition(plan, "Ready") == ("True", "AllReady")
    assert condition(plan, "Degraded") == ("False", "UnknownFields")
    assert "spec.brokers.tail" in message(plan, "Degraded")
    assert told(plan) == [("Warning", "UnknownFields")]
    assert told(after(seen)[1]) == []


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
    others = [one for one in pods() if one["metadata"]["name"] != "quotes-broker-1"]
    plan = decide(replace(seen, pods=(*others, leaving)), SETTINGS)
    listed = next(thing for thing in plan.apply if thing["metadata"]["name"] == "quotes-servers")["data"][
        "servers.json"
    ]
    assert "quotes-broker-1" not in listed
    assert '"weight": 20' in listed
    assert [server["ready"] for server in plan.status["servers"]] == [True, False, True]


@pytest.mark.parametrize(
    ("pages", "zookeepers", "expected"),
    [
        (THIRDS, 3, ("True", "Coordinated")),
        (THIRDS, 2, ("True", "Coordinated")),
        (THIRDS, 1, ("False", "NoQuorum")),
        ({}, 3, ("Unknown", "NoBrokerAnswers")),
        ({"quotes-broker-0": page(range(100), zookeeper_connected=False)}, 3, ("False", "ZooKeeperUnreachable")),
        ({"quotes-broker-0": page(range(99))}, 3, ("False", "GroupsWithoutCoordinator")),
    ],
)
def test_coordination_is_quorum_and_a_coordinator_for_every_group(
    pages: dict[str, Any], zookeepers: int, expected: tuple[str, str]
) -> None:
    plan = decide(whole(pages=pages, pods=pods(zookeepers=zookeepers)), SETTINGS)
    assert condition(plan, "CoordinationAvailable") == expected
    assert (condition(plan, "Ready")[0] == "True") == (expected[0] == "True")


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                ]
            },
            "Unschedulable",
            "quotes-broker-2: 0/1 nodes",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            "ImagePullBackOff",
            "quotes-broker-2: no such image",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 4}},
                    }
                ]
            },
            "CrashLoopBackOff",
            "exit code 4",
        ),
    ],
)
def test_a_pod_in_trouble_is_told_in_conditions_and_an_event_and_forgotten_when_mended(
    status: Object, reason: str, text: str
) -> None:
    stuck = pod("quotes-broker-2", names.BROKER, ready=False, **status)
    others = [one for one in pods() if one["metadata"]["name"] != "quotes-broker-2"]
    seen = whole(pods=(*others, stuck))
    plan = decide(seen, SETTINGS)
    assert condition(plan, "Degraded") == ("True", reason)
    assert any(event.reason == reason and text in event.message for event in plan.events)
    after = replace(seen, resource={**seen.resource, "status": plan.status}, pods=pods())
    assert condition(decide(after, SETTINGS), "Degraded") == ("False", "NothingKnown")


def told(plan: Plan) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in plan.events]


def after(seen: Observed, **fields: Any) -> tuple[Observed, Plan]:
    """What is seen next, and what comes of it; the status is what came of it before."""
    now = replace(seen, **fields)
    plan = decide(now, SETTINGS)
    return replace(now, resource={**now.resource, "status": plan.status}), plan


def test_a_rollout_is_told_from_its_start_to_its_end() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    seen, plan = after(whole(), pods=old)
    assert [one.pod["metadata"]["name"] for one in plan.replace] == ["quotes-broker-2"]
    assert (condition(plan, "Progressing"), told(plan)) == (("True", "RollingOut"), [("Normal", "RolloutStarted")])
    assert plan.again
    stuck: Object = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}
    failed = (*pods(0, 3), *pods(2, 0, revision=OLD), pod("quotes-broker-2", names.BROKER, ready=False, **stuck))
    seen, plan = after(seen, pods=failed)
    assert (plan.replace, condition(plan, "Progressing")) == ((), ("False", "RolloutStopped"))
    assert condition(plan, "Degraded") == ("True", "ErrImagePull")
    assert ("Warning", "RolloutStopped") in told(plan)
    seen, plan = after(seen)
    assert told(plan) == [], "once"
    learning = {**THIRDS, "quotes-broker-0": replace(THIRDS["quotes-broker-0"], member=False)}
    seen, plan = after(seen, pods=pods(), pages=learning)
    assert condition(plan, "Progressing") == ("True", "RollingOut"), "every pod is new, but not all is well"
    seen, plan = after(seen, pages=THIRDS)
    assert condition(plan, "Progressing") == ("False", "Settled")
    assert ("Normal", "RolloutFinished") in told(plan)
    assert told(after(seen)[1]) == []


def test_a_rollout_that_stops_without_a_known_trouble_is_degraded_all_the_same() -> None:
    slow = pod("quotes-broker-2", names.BROKER, ready=False)
    slow["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    seen = whole(pods=(*pods(0, 3), *pods(2, 0, revision=OLD), slow))
    plan = decide(seen, SETTINGS)
    assert condition(plan, "Degraded") == ("True", "RolloutStopped")
    assert "quotes-broker-2 has not been ready for 10 minutes" in message(plan, "Degraded")


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


def test_the_size_comes_before_the_pods_and_a_broker_that_is_unwell_before_the_size() -> None:
    old = pods(5, 3, revision=OLD)
    plan = decide(five(pods=old), SETTINGS)
    assert (next_size(five(pods=old)), plan.replace) == (4, ())
    unready = pod("quotes-broker-1", names.BROKER, ready=False, revision=OLD)
    others = [one for one in pods(5, 0, revision=OLD) if one["metadata"]["name"] != "quotes-broker-1"]
    seen = five(pods=(*pods(0, 3), *others, unready))
    assert next_size(seen) == 5
    assert [one.pod["metadata"]["name"] for one in decide(seen, SETTINGS).replace] == ["quotes-broker-1"]


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    seen = whole()
    for one in seen.resource["status"]["conditions"]:
        one["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    times = {one["type"]: one["lastTransitionTime"] for one in decide(seen, SETTINGS).status["conditions"]}
    assert set(times.values()) == {"2020-01-01T00:00:00Z"}
    broken = {
        one["type"]: one["lastTransitionTime"]
        for one in decide(replace(seen, pods=pods(brokers=2)), SETTINGS).status["conditions"]
    }
    assert broken["Ready"] == "2026-01-02T03:04:05Z"
    assert broken["Degraded"] == "2020-01-01T00:00:00Z"


def test_a_message_fits_the_schema_whatever_the_spec_was() -> None:
    weights = {f"x{number}": number for number in range(90)}
    plan = decide(observe(cluster({"brokers": {"weights": weights}})), SETTINGS)
    assert all(len(one["message"]) <= 1024 for one in plan.status["conditions"])
