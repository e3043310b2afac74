"""The decision: what is told of a rollout and of pods in trouble, once each, whatever comes between."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from migratory_operator import names
from migratory_operator.decide import decide
from migratory_operator.names import Object
from migratory_operator.observe import Observed
from migratory_testing.decisions import after, condition, instead, told, whole
from migratory_testing.kubernetes import OLD, SETTINGS, pod, pods


def paused(seen: Observed, is_so: bool) -> Object:
    annotations = {names.PAUSED: "true"} if is_so else {}
    return {**seen.resource, "metadata": {**seen.resource["metadata"], "annotations": annotations}}


def with_spec(seen: Observed, spec: Object) -> Object:
    return {**seen.resource, "spec": spec}


def test_whatever_comes_between_a_rollout_is_told_once_from_its_start_to_its_end() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    seen, plan = after(whole(), pods=old)
    assert told(plan) == [("Normal", "RolloutStarted")]
    since = plan.status["rolloutSince"]
    for other, reason in (
        (paused(seen, True), "Paused"),
        (with_spec(seen, {"topics": {"maxTopics": 7}}), "Updating"),
        (with_spec(seen, {"brokers": {"replicas": 2}}), "InvalidSpec"),
    ):
        changed, plan = after(replace(seen, now=seen.now + timedelta(hours=1)), resource=other)
        assert condition(plan, "Progressing")[1] == reason
        assert plan.status["rolloutSince"] == since
        assert {"RolloutStarted", "RolloutFinished"}.isdisjoint(one.reason for one in plan.events)
        again = {**seen.resource, "status": changed.resource["status"]}
        changed, plan = after(changed, resource=again)
        assert (condition(plan, "Progressing")[1], plan.status["rolloutSince"]) == ("RollingOut", since)
        assert "RolloutStarted" not in {one.reason for one in plan.events}
        changed, plan = after(changed, pods=pods())
        assert ("Normal", "RolloutFinished") in told(plan)
        assert "rolloutSince" not in plan.status


def test_one_that_ends_while_it_is_paused_has_ended_and_none_begins_then() -> None:
    old = (*pods(0, 3), *pods(3, 0, revision=OLD))
    seen, _ = after(whole(), pods=old)
    _, plan = after(seen, resource=paused(seen, True), pods=pods())
    assert ("Normal", "RolloutFinished") in told(plan)
    seen = whole()
    _, plan = after(seen, resource=paused(seen, True), pods=old)
    assert told(plan) == [("Normal", "Paused")]
    assert "rolloutSince" not in plan.status


def container(reason: str | None, *, restarts: int = 0, lived: int | None = None, is_ready: bool = False) -> Object:
    """Waiting for this reason, or running; its last life lasted so many seconds."""
    state: Object = {"running": {}} if reason is None else {"waiting": {"reason": reason}}
    found: Object = {"state": state, "restartCount": restarts, "ready": is_ready}
    if lived is not None:
        times = {"startedAt": "2026-01-02T03:00:00Z", "finishedAt": f"2026-01-02T03:{lived // 60:02}:{lived % 60:02}Z"}
        found["lastState"] = {"terminated": {"exitCode": 4, **times}}
    return {"containerStatuses": [found]}


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
def test_trouble_that_comes_and_goes_is_told_once_and_so_is_the_rollout_that_it_stops(
    turns: tuple[Object, Object], reason: str
) -> None:
    old = (*pods(0, 3), *pods(2, 0, revision=OLD))
    seen, plan = after(whole(), pods=(*old, pod("quotes-broker-2", names.BROKER, ready=False, **turns[0])))
    assert {("Warning", reason), ("Warning", "RolloutStopped")} <= set(told(plan))
    for status in (turns[1], turns[0], turns[1]):
        seen, plan = after(seen, pods=(*old, pod("quotes-broker-2", names.BROKER, ready=False, **status)))
        assert (condition(plan, "Degraded"), condition(plan, "Progressing")[1]) == (("True", reason), "RolloutStopped")
        assert told(plan) == []


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
def test_a_container_that_was_restarted_is_no_trouble_by_itself(status: Object) -> None:
    starting = pod("quotes-broker-2", names.BROKER, ready=False, **status)
    assert condition(decide(whole(pods=instead(pods(), starting)), SETTINGS), "Degraded") == ("False", "NothingKnown")
