"""The decision: what conditions and events say of a cluster."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from migratory_operator import names
from migratory_operator.decide import decide
from migratory_operator.names import Object
from migratory_testing.decisions import BROKERS, THIRDS, after, condition, instead, message, observe, told, whole
from migratory_testing.kubernetes import OLD, SETTINGS, cluster, page, pod, pods


def test_it_tells_once_when_it_becomes_ready_and_when_it_is_no_more() -> None:
    starting = whole()
    starting.resource["status"] = decide(observe(cluster()), SETTINGS).status
    assert [event.reason for event in decide(starting, SETTINGS).events] == ["Ready"]
    broken = whole(pods=pods(brokers=2))
    assert [(event.type, event.reason) for event in decide(broken, SETTINGS).events] == [("Warning", "NotReady")]
    broken.resource["status"] = decide(broken, SETTINGS).status
    assert decide(broken, SETTINGS).events == ()
    assert (decide(whole(), SETTINGS).again, decide(broken, SETTINGS).again > 0) == (0.0, True)


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
    seen = whole(pods=instead(pods(), stuck))
    plan = decide(seen, SETTINGS)
    assert condition(plan, "Degraded") == ("True", reason)
    assert any(event.reason == reason and text in event.message for event in plan.events)
    after = replace(seen, resource={**seen.resource, "status": plan.status}, pods=pods())
    assert condition(decide(after, SETTINGS), "Degraded") == ("False", "NothingKnown")


@pytest.mark.parametrize("key", [BROKERS, ("Service", "quotes-clients")], ids=["of-pods", "of-none"])
def test_what_is_refused_is_no_cluster_where_everything_is_as_asked_for(key: tuple[str, str]) -> None:
    seen = whole()
    gone = {other: thing for other, thing in seen.objects.items() if other != key}
    seen, plan = after(seen, objects=gone, untaken={key: "exceeded quota: small"})
    why = f"the API server does not take {key[0]} {key[1]}: exceeded quota: small"
    assert (condition(plan, "Degraded"), message(plan, "Degraded")) == (("True", "ObjectRefused"), why)
    assert (condition(plan, "Progressing"), message(plan, "Progressing")) == (("False", "ObjectRefused"), why)
    assert ("Warning", "ObjectRefused") in told(plan)
    assert told(after(seen)[1]) == [], "once, and nothing is said to be made again"
    _, plan = after(seen, untaken={key: ""})
    assert (condition(plan, "Degraded"), told(plan)) == (("False", "NothingKnown"), []), "a moment's trouble"
    assert condition(plan, "Progressing") == ("True", "Creating" if key == BROKERS else "Updating")


def test_pods_that_are_not_ready_yet_are_counted() -> None:
    seen = whole()
    starting = copy.deepcopy(seen.objects[BROKERS])
    starting["status"]["readyReplicas"] = 2
    plan = decide(replace(seen, objects={**seen.objects, BROKERS: starting}), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "Starting")
    assert message(plan, "Progressing") == "quotes-broker: 2 of 3 pods are ready"


def test_groups_that_wait_for_who_has_their_log_need_a_person() -> None:
    pages = {name: replace(one, waiting_groups=number) for number, (name, one) in enumerate(THIRDS.items())}
    plan = decide(whole(pages=pages), SETTINGS)
    assert condition(plan, "Degraded") == ("True", "GroupsWait")
    assert "(3 sightings)" in message(plan, "Degraded")


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
    assert condition(plan, "Degraded") == ("True", "ImagePullBackOff")
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
