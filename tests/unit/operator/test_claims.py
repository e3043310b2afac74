"""The volume claims of ZooKeeper's members: growth, the mark of those with data, and what follows from a lost one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from migratory_operator import names
from migratory_operator.names import HAS_DATA, Object
from migratory_operator.reconcile.decide import ClusterPlan, decide
from migratory_operator.reconcile.observed import ObservedCluster, key_of
from migratory_testing.kubernetes import (
    SETTINGS,
    cluster,
    condition,
    config_hash,
    events_of,
    healthy_cluster,
    message,
    next_pass,
    pod,
    pods,
    replace_pods,
    settled,
)

MEMBER_SET = ("StatefulSet", "quotes-zookeeper")
EARLY, LATE = "2026-01-02T03:00:00Z", "2026-01-02T03:01:00Z"


def claim(ordinal: int, size: str = "1Gi", marked: bool = True, created: str = EARLY, **status: Any) -> Object:
    """Return the claim of a member, bound to a volume of this size, as the StatefulSet's controller has made it."""
    name = f"data-quotes-zookeeper-{ordinal}"
    metadata = {
        "name": name,
        "namespace": "market",
        "uid": f"uid-of-{name}",
        "creationTimestamp": created,
        "labels": names.selector("quotes", names.ZOOKEEPER),
        "annotations": {"volume.kubernetes.io/selected-node": "n", **({HAS_DATA: "true"} if marked else {})},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Bound", "capacity": {"storage": size}, **status},
    }


def aged(items: tuple[Object, ...], created: str = EARLY) -> tuple[Object, ...]:
    return tuple({**item, "metadata": {**item["metadata"], "creationTimestamp": created}} for item in items)


def with_claims(*claims: Object, spec: Object | None = None, **fields: Any) -> ObservedCluster:
    """Return a healthy cluster with these claims and spec."""
    observed = healthy_cluster(pods=aged(pods()))
    resource = {**observed.resource, "spec": spec or {}}
    return replace(observed, **{"claims": claims, "resource": resource, **fields})


def founded(observed: ObservedCluster) -> ObservedCluster:
    """Return the cluster after the operator has applied the ConfigMaps that follow from its claims."""
    maps = [settled(item) for item in decide(observed, SETTINGS).apply if item["kind"] == "ConfigMap"]
    return replace(observed, objects={**observed.objects, **{key_of(item): item for item in maps}})


def changed_claims(plan: ClusterPlan) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in plan.apply if item["kind"] == "PersistentVolumeClaim"}


def is_founded(observed: ObservedCluster) -> bool:
    """Return whether the members' ConfigMap has the file `founded` after one decision."""
    key = ("ConfigMap", "quotes-zookeeper")
    changed = {key_of(item): item for item in decide(observed, SETTINGS).apply}
    return "founded" in changed.get(key, observed.objects[key])["data"]


THREE = tuple(claim(ordinal) for ordinal in range(3))


def test_a_claim_is_marked_once_its_member_has_served() -> None:
    unmarked = tuple(claim(ordinal, marked=False) for ordinal in range(3))
    starting = pod("quotes-zookeeper-2", names.ZOOKEEPER, ready=False)
    observed = with_claims(*unmarked, pods=aged(replace_pods(pods(), starting)))
    plan = decide(observed, SETTINGS)
    assert set(changed_claims(plan)) == {"data-quotes-zookeeper-0", "data-quotes-zookeeper-1"}
    assert changed_claims(plan)["data-quotes-zookeeper-0"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-quotes-zookeeper-0",
            "namespace": "market",
            "uid": "uid-of-data-quotes-zookeeper-0",
            "annotations": {HAS_DATA: "true"},
        },
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
    }
    assert not is_founded(observed)
    assert events_of(plan) == [], "no claim was restored"
    assert changed_claims(decide(with_claims(*THREE), SETTINGS)) == {}


def test_a_claim_that_is_newer_than_the_pod_is_not_the_pods() -> None:
    """A member's pod is observed as ready, then the pod and its claim are deleted, and the new claim is observed."""
    observed = with_claims(*THREE[:2], claim(2, marked=False, created=LATE))
    assert changed_claims(decide(observed, SETTINGS)) == {}
    used = with_claims(*THREE[:2], claim(2, marked=False, created=LATE), pods=aged(pods(), LATE))
    assert set(changed_claims(decide(used, SETTINGS))) == {"data-quotes-zookeeper-2"}


@pytest.mark.parametrize(
    ("marked", "spec", "founded"),
    [
        ((0, 1, 2), {}, True),
        ((0, 2), {}, True),
        ((1,), {}, False),
        ((), {}, False),
        ((0,), {"zookeeper": {"replicas": 1}}, False),
        ((0, 1, 2), {"zookeeper": {"storage": {"ephemeral": True}}}, True),
    ],
)
def test_members_without_data_may_vote_only_without_a_majority_that_has_some(
    marked: tuple[int, ...], spec: Object, founded: bool
) -> None:
    claims = tuple(claim(ordinal, marked=ordinal in marked) for ordinal in range(3))
    assert is_founded(with_claims(*claims, spec=spec)) == founded


def test_deleted_claims_and_those_of_other_members_do_not_count() -> None:
    deleted = {**THREE[0], "metadata": {**THREE[0]["metadata"], "deletionTimestamp": LATE}}
    assert not is_founded(with_claims(deleted, claim(1, marked=False), THREE[2], claim(3)))


def test_founding_and_losing_a_volume_replaces_no_pod() -> None:
    fresh = with_claims()
    founded = with_claims(*THREE)
    for observed in (fresh, founded):
        assert MEMBER_SET not in {key_of(item) for item in decide(observed, SETTINGS).apply}
        assert decide(observed, SETTINGS).replace == ()
    assert is_founded(founded)
    assert not is_founded(fresh)


def test_a_larger_size_grows_the_claims_and_nothing_else() -> None:
    spec = {"zookeeper": {"storage": {"size": "2Gi"}}}
    pending = claim(1, phase="Pending")
    observed = with_claims(THREE[0], pending, claim(2, "3Gi"), spec=spec)
    plan = decide(observed, SETTINGS)
    (grown,) = changed_claims(plan).values()
    assert grown["metadata"]["name"] == "data-quotes-zookeeper-0"
    assert grown["spec"] == {"resources": {"requests": {"storage": "2Gi"}}}
    assert grown["metadata"]["annotations"] == {HAS_DATA: "true"}, "the API server removes what an apply leaves out"
    assert MEMBER_SET not in {key_of(item) for item in plan.apply}, "the template of a StatefulSet is immutable"
    assert plan.replace == ()


def test_a_new_cluster_gets_claims_of_its_size() -> None:
    plan = decide(
        ObservedCluster(cluster({"zookeeper": {"storage": {"size": "2Gi"}}}), healthy_cluster().now), SETTINGS
    )
    (made,) = [item for item in plan.apply if key_of(item) == MEMBER_SET]
    assert made["spec"]["volumeClaimTemplates"][0]["spec"]["resources"] == {"requests": {"storage": "2Gi"}}


def test_growth_is_progress_and_its_failure_is_reported() -> None:
    growing = claim(1, "2Gi", capacity={"storage": "1Gi"})
    plan = decide(founded(with_claims(THREE[0], growing, THREE[2])), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "VolumesGrowing")
    assert message(plan, "Progressing") == "data-quotes-zookeeper-1 has 1Gi of 2Gi"
    assert condition(plan, "Degraded") == ("False", "NothingKnown")
    assert plan.apply == ()
    error = {"type": "ControllerResizeError", "status": "True", "message": "the pool is full"}
    failed = {**growing, "status": {**growing["status"], "conditions": [{"type": "Resizing", "status": "True"}, error]}}
    plan = decide(founded(with_claims(THREE[0], failed, THREE[2])), SETTINGS)
    assert condition(plan, "Degraded") == ("True", "VolumeResizeFailed")
    assert message(plan, "Degraded") == "data-quotes-zookeeper-1: the pool is full"


def test_a_storage_class_that_does_not_allow_growth_is_reported() -> None:
    refusal = "only dynamically provisioned pvc can be resized and the storageclass must support resize"
    observed = founded(with_claims(*THREE, spec={"zookeeper": {"storage": {"size": "2Gi"}}}))
    rejected = {("PersistentVolumeClaim", "data-quotes-zookeeper-0"): refusal}
    _, plan = next_pass(observed, rejected=rejected)
    assert condition(plan, "Degraded") == ("True", "ObjectRefused")
    assert message(plan, "Degraded").endswith(f"PersistentVolumeClaim data-quotes-zookeeper-0: {refusal}")
    assert condition(plan, "Progressing") == ("False", "ObjectRefused")
    assert condition(plan, "Ready") == ("True", "AllReady")


@pytest.mark.parametrize("retention", ["Delete", "Retain"])
def test_claims_are_deleted_or_retained_with_the_cluster(retention: str) -> None:
    observed = with_claims(*THREE, spec={"zookeeper": {"storage": {"whenDeleted": retention}}})
    key = MEMBER_SET
    changed = {key_of(item): item for item in decide(observed, SETTINGS).apply}
    policy = changed.get(key, observed.objects[key])["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": retention, "whenScaled": "Delete"}
    assert (key in changed) == (retention == "Retain")
    if key in changed:
        assert config_hash(changed[key]) == config_hash(observed.objects[key])
