"""The operator's decision about a cluster: a rollout and pods in trouble are reported once, whatever happens in
between, and a restarted container alone is no trouble."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from migratory_operator import names
from migratory_operator.names import Object
from migratory_operator.reconcile.decide import decide
from migratory_operator.reconcile.observed import ObservedCluster
from migratory_testing.kubernetes import (
    OLD,
    SETTINGS,
    condition,
    events_of,
    healthy_cluster,
    next_pass,
    pod,
    pods,
    replace_pods,
)


def paused(observed: ObservedCluster, is_so: bool) -> Object:
    annotations = {names.PAUSED: "true"} if is_so else {}
    return {**observed.resource, "metadata": {**observed.resource["metadata"], "annotations": annotations}}


def with_spec(observed: ObservedCluster, spec: Object) -> Object:
    return {**observed.resource, "spec": spec}


def test_an_interrupted_rollout_posts_one_start_and_one_end() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    observed, plan = next_pass(healthy_cluster(), pods=old)
    assert events_of(plan) == [("Normal", "RolloutStarted")]
    since = plan.status["rolloutSince"]
    for other, reason in (
        (paused(observed, True), "Paused"),
        (with_spec(observed, {"topics": {"maxTopics": 7}}), "Updating"),
        (with_spec(observed, {"brokers": {"replicas": 2}}), "InvalidSpec"),
    ):
        changed, plan = next_pass(replace(observed, now=observed.now + timedelta(hours=1)), resource=other)
        assert condition(plan, "Progressing")[1] == reason
        assert plan.status["rolloutSince"] == since
        assert {"RolloutStarted", "RolloutFinished"}.isdisjoint(event.reason for event in plan.events)
        again = {**observed.resource, "status": changed.resource["status"]}
        changed, plan = next_pass(changed, resource=again)
        assert (condition(plan, "Progressing")[1], plan.status["rolloutSince"]) == ("RollingOut", since)
        assert "RolloutStarted" not in {event.reason for event in plan.events}
        changed, plan = next_pass(changed, pods=pods())
        assert ("Normal", "RolloutFinished") in events_of(plan)
        assert "rolloutSince" not in plan.status


def test_a_rollout_can_end_but_not_begin_while_paused() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    observed, _ = next_pass(healthy_cluster(), pods=old)
    _, plan = next_pass(observed, resource=paused(observed, True), pods=pods())
    assert ("Normal", "RolloutFinished") in events_of(plan)
    observed = healthy_cluster()
    _, plan = next_pass(observed, resource=paused(observed, True), pods=old)
    assert events_of(plan) == [("Normal", "Paused")]
    assert "rolloutSince" not in plan.status


def container(reason: str | None, *, restarts: int = 0, lived: int | None = None, is_ready: bool = False) -> Object:
    """Return the status of a pod whose container waits for this reason, or runs if it is None; `lived` is the length
    of its last life in seconds."""
    state: Object = {"running": {}} if reason is None else {"waiting": {"reason": reason}}
    status: Object = {"state": state, "restartCount": restarts, "ready": is_ready}
    if lived is not None:
        times = {"startedAt": "2026-01-02T03:00:00Z", "finishedAt": f"2026-01-02T03:{lived // 60:02}:{lived % 60:02}Z"}
        status["lastState"] = {"terminated": {"exitCode": 4, **times}}
    return {"containerStatuses": [status]}


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ((container("ErrImagePull"), container("ImagePullBackOff")), "ImagePullBackOff"),
        (
            (container("CrashLoopBackOff", restarts=2, lived=20), container(None, restarts=3, lived=20)),
            "CrashLoopBackOff",
        ),
    ],
)
def test_recurring_trouble_and_the_rollout_that_it_stops_are_reported_once(
    turns: tuple[Object, Object], reason: str
) -> None:
    old = (*pods(0, 3), *pods(2, 0, revision=OLD))
    observed, plan = next_pass(
        healthy_cluster(), pods=(*old, pod("quotes-broker-2", names.BROKER, ready=False, **turns[0]))
    )
    assert {("Warning", reason), ("Warning", "RolloutStopped")} <= set(events_of(plan))
    for status in (turns[1], turns[0], turns[1]):
        observed, plan = next_pass(observed, pods=(*old, pod("quotes-broker-2", names.BROKER, ready=False, **status)))
        assert (condition(plan, "Degraded"), condition(plan, "Progressing")[1]) == (("True", reason), "RolloutStopped")
        assert events_of(plan) == []


@pytest.mark.parametrize(
    "status",
    [
        container(None, restarts=1, lived=20),
        container(None, restarts=5, lived=600),
        container(None, restarts=5, lived=20, is_ready=True),
        container(None, restarts=5),
    ],
    ids=["once", "long-lived", "ready", "unknown"],
)
def test_a_restarted_container_alone_is_not_trouble(status: Object) -> None:
    starting = pod("quotes-broker-2", names.BROKER, ready=False, **status)
    assert condition(decide(healthy_cluster(pods=replace_pods(pods(), starting)), SETTINGS), "Degraded") == (
        "False",
        "NothingKnown",
    )
