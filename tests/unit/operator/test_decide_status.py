"""The operator's decision about a cluster: its conditions and Events."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from migratory_operator import names
from migratory_operator.api.broker_status import BrokerStatusPage
from migratory_operator.names import Object
from migratory_operator.reconcile.decide import decide
from migratory_operator.reconcile.observed import key_of
from migratory_testing.kubernetes import (
    BROKER_SET,
    HEALTHY_PAGES,
    OLD,
    SETTINGS,
    as_applied,
    cluster,
    condition,
    events_of,
    healthy_cluster,
    message,
    next_pass,
    observe,
    page,
    pod,
    pods,
    replace_pods,
)


def test_ready_and_not_ready_post_one_event_each() -> None:
    starting = healthy_cluster()
    starting.resource["status"] = decide(observe(cluster()), SETTINGS).status
    assert [event.reason for event in decide(starting, SETTINGS).events] == ["Ready"]
    broken = healthy_cluster(pods=pods(brokers=1))
    assert [(event.type, event.reason) for event in decide(broken, SETTINGS).events] == [("Warning", "NotReady")]
    broken.resource["status"] = decide(broken, SETTINGS).status
    assert decide(broken, SETTINGS).events == ()
    assert (decide(healthy_cluster(), SETTINGS).requeue_after, decide(broken, SETTINGS).requeue_after > 0) == (
        0.0,
        True,
    )


def test_ready_is_true_while_enough_brokers_serve() -> None:
    observed, plan = next_pass(healthy_cluster(), pods=pods(brokers=2))
    assert condition(plan, "Ready") == ("True", "EnoughReady")
    assert events_of(plan) == []
    assert plan.requeue_after > 0
    assert condition(next_pass(observed, pods=pods(brokers=1))[1], "Ready") == ("False", "BrokersNotReady")


def test_new_brokers_do_not_count_before_they_are_members() -> None:
    more = cluster({"brokers": {"replicas": 9}})
    observed = healthy_cluster(more, pods=pods(brokers=3))
    assert condition(decide(observed, SETTINGS), "Ready") == ("True", "EnoughReady")
    listed = {name: page(range(number, 100, 3), 9) for number, name in enumerate(HEALTHY_PAGES)}
    plan = decide(replace(observed, pages=listed), SETTINGS)
    assert condition(plan, "Ready") == ("False", "BrokersNotReady")


def test_a_healthy_roll_keeps_ready_and_warns_of_nothing() -> None:
    """One step of a roll: the pod is evicted, its groups have no coordinator for a moment, ZooKeeper elects a leader,
    the pod comes back."""
    rest = {name: each for name, each in HEALTHY_PAGES.items() if name != "quotes-broker-2"}
    no_quorum = replace_pods(
        pods(brokers=2),
        *(pod(f"quotes-zookeeper-{number}", names.ZOOKEEPER, ready=False) for number in range(2)),
    )
    observed, events = healthy_cluster(), []
    for changes in (
        {"pods": pods(revision=OLD)},
        {"pods": pods(brokers=2), "pages": rest},
        {"pods": no_quorum, "pages": rest},
        {"pods": pods(), "pages": HEALTHY_PAGES},
    ):
        later = observed.now + timedelta(seconds=5)
        observed, plan = next_pass(observed, now=later, **changes)
        assert condition(plan, "Ready")[0] == "True", changes
        events += events_of(plan)
    assert events == [("Normal", "RolloutStarted"), ("Normal", "RolloutFinished")]


def test_coordination_that_stays_away_in_a_roll_ends_ready() -> None:
    rest = {"quotes-broker-0": page(range(50))}
    observed, _ = next_pass(healthy_cluster(), pods=pods(revision=OLD))
    observed, plan = next_pass(observed, pages=rest)
    assert condition(plan, "Ready")[0] == "True"
    assert condition(plan, "CoordinationAvailable") == ("False", "GroupsWithoutCoordinator")
    _, plan = next_pass(observed, now=observed.now + timedelta(seconds=31))
    assert condition(plan, "Ready") == ("False", "GroupsWithoutCoordinator")
    assert ("Warning", "NotReady") in events_of(plan)


def test_an_invalid_spec_changes_nothing_and_names_the_field() -> None:
    observed = healthy_cluster()
    bad = {**observed.resource, "spec": {"brokers": {"replicas": 2}}}
    plan = decide(replace(observed, resource=bad), SETTINGS)
    assert (plan.apply, plan.delete) == ((), ())
    assert condition(plan, "Ready") == ("False", "InvalidSpec")
    assert "spec.brokers.replicas" in plan.status["conditions"][0]["message"]
    assert ("Warning", "InvalidSpec") in {(event.type, event.reason) for event in plan.events}


def test_fields_of_a_newer_definition_are_ignored_and_reported_once() -> None:
    observed = healthy_cluster()
    newer = {**observed.resource, "spec": {"brokers": {"replicas": 3, "tail": 1}}}
    observed, plan = next_pass(observed, resource=newer)
    assert (plan.apply, plan.delete) == ((), ())
    assert condition(plan, "Ready") == ("True", "AllReady")
    assert condition(plan, "Degraded") == ("False", "UnknownFields")
    assert "spec.brokers.tail" in message(plan, "Degraded")
    assert events_of(plan) == [("Warning", "UnknownFields")]
    assert events_of(next_pass(observed)[1]) == []


@pytest.mark.parametrize(
    ("pages", "zookeepers", "expected"),
    [
        (HEALTHY_PAGES, 3, ("True", "Coordinated")),
        (HEALTHY_PAGES, 2, ("True", "Coordinated")),
        (HEALTHY_PAGES, 1, ("False", "NoQuorum")),
        ({}, 3, ("Unknown", "NoBrokerAnswers")),
        ({"quotes-broker-0": page(range(100), zookeeper_connected=False)}, 3, ("False", "ZooKeeperUnreachable")),
        ({"quotes-broker-0": page(range(99))}, 3, ("False", "GroupsWithoutCoordinator")),
    ],
)
def test_coordination_requires_a_quorum_and_a_coordinator_for_every_group(
    pages: dict[str, Any], zookeepers: int, expected: tuple[str, str]
) -> None:
    plan = decide(healthy_cluster(pages=pages, pods=pods(zookeepers=zookeepers)), SETTINGS)
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
def test_a_pod_in_trouble_is_reported_until_it_recovers(status: Object, reason: str, text: str) -> None:
    stuck = pod("quotes-broker-2", names.BROKER, ready=False, **status)
    observed = healthy_cluster(pods=replace_pods(pods(), stuck))
    plan = decide(observed, SETTINGS)
    assert condition(plan, "Degraded") == ("True", reason)
    assert any(event.reason == reason and text in event.message for event in plan.events)
    recovered = replace(observed, resource={**observed.resource, "status": plan.status}, pods=pods())
    assert condition(decide(recovered, SETTINGS), "Degraded") == ("False", "NothingKnown")


@pytest.mark.parametrize("key", [BROKER_SET, ("Service", "quotes-clients")], ids=["of-pods", "of-none"])
def test_a_rejected_object_keeps_a_cluster_from_being_settled(key: tuple[str, str]) -> None:
    observed = healthy_cluster()
    gone = {other: item for other, item in observed.objects.items() if other != key}
    observed, plan = next_pass(observed, objects=gone, rejected={key: "exceeded quota: small"})
    error = f"the API server rejects {key[0]} {key[1]}: exceeded quota: small"
    assert (condition(plan, "Degraded"), message(plan, "Degraded")) == (("True", "ObjectRefused"), error)
    assert (condition(plan, "Progressing"), message(plan, "Progressing")) == (("False", "ObjectRefused"), error)
    assert ("Warning", "ObjectRefused") in events_of(plan)
    assert events_of(next_pass(observed)[1]) == [], "one Event, and none for a restored object"
    _, plan = next_pass(observed, rejected={key: ""})
    assert (condition(plan, "Degraded"), events_of(plan)) == (("False", "NothingKnown"), []), "a temporary failure"
    assert condition(plan, "Progressing") == ("True", "Updating")


def test_pods_that_are_not_ready_yet_are_counted() -> None:
    observed = healthy_cluster()
    starting = copy.deepcopy(observed.objects[BROKER_SET])
    starting["status"]["readyReplicas"] = 2
    plan = decide(replace(observed, objects={**observed.objects, BROKER_SET: starting}), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "Starting")
    assert message(plan, "Progressing") == "quotes-broker: 2 of 3 pods are ready"


def test_topic_groups_that_wait_for_brokers_degrade_the_cluster() -> None:
    pages = {name: replace(entry, waiting_groups=number) for number, (name, entry) in enumerate(HEALTHY_PAGES.items())}
    plan = decide(healthy_cluster(pages=pages), SETTINGS)
    assert condition(plan, "Degraded") == ("True", "GroupsWait")
    assert "(reported 3 times)" in message(plan, "Degraded")


def test_lost_data_of_zookeeper_is_reported_until_the_records_are_back() -> None:
    def pages_with(identity: str, **fields: Any) -> dict[str, BrokerStatusPage]:
        return {name: replace(entry, identity=identity, **fields) for name, entry in HEALTHY_PAGES.items()}

    observed, plan = next_pass(healthy_cluster())
    assert plan.status["zookeeper"]["identity"] == "1a"
    one = next(iter(HEALTHY_PAGES))
    mixed = {**pages_with("2b"), one: replace(HEALTHY_PAGES[one], identity="1a")}
    observed, plan = next_pass(observed, pages=mixed)
    assert condition(plan, "Degraded") == ("False", "NothingKnown"), "not all have noticed"
    mixed = {**mixed, one: replace(mixed[one], zookeeper_connected=False, lost_records=2)}
    observed, plan = next_pass(observed, pages=mixed)
    assert condition(plan, "Degraded") == ("True", "ZooKeeperDataLost")
    assert "2 topic groups have no record yet" in message(plan, "Degraded")
    assert events_of(plan) == [("Warning", "ZooKeeperDataLost")]
    observed, plan = next_pass(observed, pages=pages_with("2b"))
    assert (plan.status["zookeeper"]["identity"], events_of(plan)) == ("2b", [])
    assert plan.status["zookeeper"]["dataLostAt"] in message(plan, "Degraded")
    observed, plan = next_pass(observed, now=observed.now + timedelta(minutes=16))
    assert condition(plan, "Degraded") == ("False", "NothingKnown")
    assert events_of(plan) == []
    silent = {name: replace(entry, identity="") for name, entry in HEALTHY_PAGES.items()}
    observed, plan = next_pass(observed, pages=silent)
    assert plan.status["zookeeper"]["identity"] == "2b", "brokers of an older version do not name it"


def test_data_that_zookeeper_lost_while_the_spec_was_invalid_is_reported() -> None:
    observed, _ = next_pass(healthy_cluster())
    bad = {**observed.resource, "spec": {"brokers": {"replicas": 2}}}
    observed, plan = next_pass(observed, resource=bad)
    assert condition(plan, "Ready") == ("False", "InvalidSpec")
    pages = {name: replace(entry, identity="2b") for name, entry in HEALTHY_PAGES.items()}
    _, plan = next_pass(observed, resource={**cluster(), "status": plan.status}, pages=pages)
    assert condition(plan, "Degraded") == ("True", "ZooKeeperDataLost")


def test_no_broker_is_removed_while_records_are_lost() -> None:
    pages = {**HEALTHY_PAGES, "quotes-broker-0": replace(HEALTHY_PAGES["quotes-broker-0"], lost_records=1)}
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    plan = decide(healthy_cluster(pages=pages, pods=old), SETTINGS)
    assert plan.replace == ()
    assert "quotes-broker-0 coordinates topic groups whose records ZooKeeper lost" in message(plan, "Progressing")


def test_a_rollout_posts_events_from_its_start_to_its_end() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    observed, plan = next_pass(healthy_cluster(), pods=old)
    assert [entry.pod["metadata"]["name"] for entry in plan.replace] == ["quotes-broker-2"]
    assert (condition(plan, "Progressing"), events_of(plan)) == (("True", "RollingOut"), [("Normal", "RolloutStarted")])
    assert plan.requeue_after
    stuck: Object = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}
    failed = (*pods(0, 3), *pods(2, 0, revision=OLD), pod("quotes-broker-2", names.BROKER, ready=False, **stuck))
    observed, plan = next_pass(observed, pods=failed)
    assert (plan.replace, condition(plan, "Progressing")) == ((), ("False", "RolloutStopped"))
    assert condition(plan, "Degraded") == ("True", "ImagePullBackOff")
    assert ("Warning", "RolloutStopped") in events_of(plan)
    observed, plan = next_pass(observed)
    assert events_of(plan) == [], "once"
    learning = {**HEALTHY_PAGES, "quotes-broker-0": replace(HEALTHY_PAGES["quotes-broker-0"], member=False)}
    observed, plan = next_pass(observed, pods=pods(), pages=learning)
    assert condition(plan, "Progressing") == ("True", "RollingOut"), "all pods are up to date, but not all are healthy"
    observed, plan = next_pass(observed, pages=HEALTHY_PAGES)
    assert condition(plan, "Progressing") == ("False", "Settled")
    assert ("Normal", "RolloutFinished") in events_of(plan)
    assert events_of(next_pass(observed)[1]) == []


def test_a_stopped_rollout_degrades_the_cluster_without_known_trouble() -> None:
    slow = pod("quotes-broker-2", names.BROKER, ready=False)
    slow["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    observed = healthy_cluster(pods=(*pods(0, 3), *pods(2, 0, revision=OLD), slow))
    plan = decide(observed, SETTINGS)
    assert condition(plan, "Degraded") == ("True", "RolloutStopped")
    assert "quotes-broker-2 has not been ready for 10 minutes" in message(plan, "Degraded")


def test_a_condition_keeps_its_transition_time_while_its_status_stays() -> None:
    observed = healthy_cluster()
    for entry in observed.resource["status"]["conditions"]:
        entry["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    times = {entry["type"]: entry["lastTransitionTime"] for entry in decide(observed, SETTINGS).status["conditions"]}
    assert set(times.values()) == {"2020-01-01T00:00:00Z"}
    broken = {
        entry["type"]: entry["lastTransitionTime"]
        for entry in decide(replace(observed, pods=pods(brokers=1)), SETTINGS).status["conditions"]
    }
    assert broken["Ready"] == "2026-01-02T03:04:05Z"
    assert broken["Degraded"] == "2020-01-01T00:00:00Z"


def test_messages_fit_the_schema() -> None:
    weights = {f"x{number}": number for number in range(90)}
    plan = decide(observe(cluster({"brokers": {"weights": weights}})), SETTINGS)
    assert all(len(entry["message"]) <= 1024 for entry in plan.status["conditions"])


def add_foreign(live: Object) -> Object:
    """Return the brokers' StatefulSet after somebody has added an environment variable and a container."""
    edited = copy.deepcopy(live)
    containers = edited["spec"]["template"]["spec"]["containers"]
    containers[0]["env"].append({"name": "TRACE", "value": "1"})
    containers.append({"name": "sidecar", "image": "example/sidecar"})
    return edited


def test_foreign_entries_are_named_and_change_nothing_else() -> None:
    observed = healthy_cluster()
    edited = add_foreign(observed.objects[BROKER_SET])
    observed, plan = next_pass(observed, objects={**observed.objects, BROKER_SET: edited})
    assert (plan.apply, condition(plan, "Progressing")) == ((), ("False", "Settled"))
    assert condition(plan, "Degraded") == ("False", "ForeignFields")
    where = "StatefulSet quotes-broker: .spec.template.spec.containers"
    assert f"{where}[name=broker].env[name=TRACE]; {where}[name=sidecar]" in message(plan, "Degraded")
    assert events_of(plan) == [("Warning", "ForeignFields")]
    assert events_of(next_pass(observed)[1]) == []


def test_an_entry_that_a_change_drops_is_not_called_foreign() -> None:
    """Regression: a plan that removed a volume of the operator's own posted a warning that others had set it."""
    observed = healthy_cluster()
    applied = copy.deepcopy(observed.objects[BROKER_SET])
    applied["spec"]["template"]["spec"]["volumes"].append({"name": "dropped", "emptyDir": {}})
    del applied["metadata"]["managedFields"]
    plan = next_pass(observed, objects={**observed.objects, BROKER_SET: as_applied(applied)})[1]
    assert BROKER_SET in [key_of(item) for item in plan.apply]
    assert "ForeignFields" not in condition(plan, "Degraded")
    assert ("Warning", "ForeignFields") not in events_of(plan)


def test_a_change_reaches_the_pods_beside_foreign_entries() -> None:
    observed = healthy_cluster()
    objects = {**observed.objects, BROKER_SET: add_foreign(observed.objects[BROKER_SET])}
    changed = {**observed.resource, "spec": {"brokers": {"image": "example/broker:2"}}}
    observed, plan = next_pass(observed, objects=objects, resource=changed)
    (applied,) = plan.apply
    assert applied["spec"]["template"]["spec"]["containers"][0]["image"] == "example/broker:2"
    live = copy.deepcopy(objects[BROKER_SET])
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "example/broker:2"
    live["status"]["updateRevision"] = "revision-3"
    _, plan = next_pass(observed, objects={**objects, BROKER_SET: live})
    assert condition(plan, "Progressing") == ("True", "RollingOut")
    assert [replacement.pod["metadata"]["name"] for replacement in plan.replace] == ["quotes-broker-2"]


def test_an_apply_without_effect_is_degraded_and_holds_no_rollout_up() -> None:
    observed = healthy_cluster(pods=pods(revision=OLD))
    live = copy.deepcopy(observed.objects[BROKER_SET])
    live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    path = ".spec.template.spec.terminationGracePeriodSeconds"
    objects = {**observed.objects, BROKER_SET: live}
    assert condition(decide(replace(observed, objects=objects), SETTINGS), "Progressing") == ("True", "Updating")
    plan = decide(replace(observed, objects=objects, ineffective={BROKER_SET: path}), SETTINGS)
    assert condition(plan, "Degraded") == ("True", "ApplyIneffective")
    assert f"StatefulSet quotes-broker was applied and {path} is still" in message(plan, "Degraded")
    assert condition(plan, "Progressing") == ("True", "RollingOut")
    assert len(plan.replace) == 1
    settled = decide(replace(observed, objects=objects, ineffective={BROKER_SET: path}, pods=pods()), SETTINGS)
    assert condition(settled, "Progressing") == ("False", "ApplyIneffective")


def test_a_removed_limit_is_removed_from_the_pods() -> None:
    observed = healthy_cluster(cluster({"brokers": {"resources": {"limits": {"cpu": "1"}}}}))
    plan = decide(replace(observed, resource={**observed.resource, "spec": {}}), SETTINGS)
    (applied,) = plan.apply
    assert "cpu" not in applied["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_each_deleted_object_gets_an_event_also_when_a_pass_sees_only_some_of_the_deletions() -> None:
    observed = healthy_cluster()
    before = dict(observed.objects)
    some = {key: item for key, item in before.items() if key != BROKER_SET}
    observed, first = next_pass(observed, objects=some)
    assert condition(first, "Progressing") == ("True", "Updating")
    _, second = next_pass(observed, objects={BROKER_SET: before[BROKER_SET]})
    restored = [event.message for plan in (first, second) for event in plan.events if event.reason == "Restored"]
    assert len(restored) == len(before)


@pytest.mark.parametrize("reason", ["ObjectRefused", "Paused", "InvalidSpec"])
def test_objects_that_never_existed_are_created_and_not_restored(reason: str) -> None:
    present = {key: item for key, item in healthy_cluster().objects.items() if key != BROKER_SET}
    observed, plan = {
        "ObjectRefused": lambda: next_pass(
            observe(cluster(), objects=present), rejected={BROKER_SET: "exceeded quota: small"}
        ),
        "Paused": lambda: next_pass(observe(cluster(annotations={names.PAUSED: "true"}))),
        "InvalidSpec": lambda: next_pass(observe(cluster({"brokers": {"replicas": 2}}))),
    }[reason]()
    assert condition(plan, "Progressing") == ("False", reason)
    repaired = {**cluster(), "status": plan.status}
    _, plan = next_pass(observed, resource=repaired, rejected={})
    assert BROKER_SET in [(item["kind"], item["metadata"]["name"]) for item in plan.apply]
    assert condition(plan, "Progressing") == ("True", "Creating")
    assert "Restored" not in [event.reason for event in plan.events]


def test_an_object_that_was_deleted_while_the_operator_was_paused_is_restored() -> None:
    observed, _ = next_pass(healthy_cluster(cluster(annotations={names.PAUSED: "true"})))
    resumed = {**cluster(), "status": observed.resource["status"]}
    _, plan = next_pass(observed, resource=resumed, objects={})
    assert condition(plan, "Progressing") == ("True", "Updating")
    assert ("Normal", "Restored") in events_of(plan)
