"""Pods are deleted without grace and a volume is lost under load, and the load generator accounts for every
delivery."""

from __future__ import annotations

import json
import re

import pytest
from migratory_node import volumes
from migratory_node.kubectl import Kubectl, KubectlError
from migratory_node.load import BROKERS, assert_nothing_lost, load
from migratory_node.pods import wait_settled

pytestmark = pytest.mark.timeout(600)
NAME = "quotes"
MEMBERS = "app.kubernetes.io/component=zookeeper"
NOW = ("--grace-period=0", "--force")


def test_deleting_a_broker_without_grace_loses_no_publication(standing: Kubectl) -> None:
    kube = standing
    load(kube, "broker-dies", 40)
    brokers = (kube.get("mgc", NAME) or {})["status"]["brokers"]
    victim = max(brokers, key=lambda one: one.get("coordinators", 0))["name"]
    uid = (kube.get("pod", victim) or {})["metadata"]["uid"]
    kube("delete", "pod", victim, *NOW)
    kube.until(lambda: (kube.get("pod", victim) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid, "a new pod")
    kube.wait_ready(NAME)
    assert set(assert_nothing_lost(kube, "broker-dies")["reconnect_reasons"]) - {"moved"}, "nobody noticed"


@pytest.mark.usefixtures("needs_operator")
def test_deleting_one_and_then_all_zookeeper_pods_loses_no_publication(standing: Kubectl) -> None:
    kube = standing
    kube.wait_ready(NAME)
    load(kube, "zookeeper-dies", 60)

    def members() -> int:
        return int((kube.get("mgc", NAME) or {})["status"]["zookeeper"]["ready"])

    kube("delete", "pod", f"{NAME}-zookeeper-0", *NOW)
    kube.until(lambda: members() < 3, "one member less", 60)
    kube.until(lambda: members() == 3, "three members", 90)
    kube("delete", "pod", *(f"{NAME}-zookeeper-{number}" for number in range(3)), *NOW)
    kube.until(lambda: kube.condition(NAME, "CoordinationAvailable")[0] == "False", "no quorum", 60)
    kube.wait_ready(NAME)
    assert_nothing_lost(kube, "zookeeper-dies")


@pytest.mark.usefixtures("needs_operator")
def test_volumes_grow_and_a_lost_one_is_replaced_without_losing_a_publication(standing: Kubectl) -> None:
    kube = standing
    kube.wait_ready(NAME)
    members = [f"{NAME}-zookeeper-{number}" for number in range(3)]
    uids = {member: (kube.get("pod", member) or {})["metadata"]["uid"] for member in members}
    load(kube, "volumes")

    def claims(*path: str) -> list[object]:
        found: list[object] = []
        for member in members:
            value: object = kube.get("pvc", f"data-{member}")
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            found.append(value)
        return found

    def allow_growth(allowed: bool) -> None:
        change = json.dumps({"allowVolumeExpansion": allowed})
        kube("patch", "storageclass", volumes.CLASS, "--type=merge", "--patch", change)

    kube.until(lambda: claims("metadata", "annotations", "migratory.dev/has-data") == ["true"] * 3, "the marks", 60)
    allow_growth(False)
    try:
        kube.patch("mgc", NAME, {"spec": {"zookeeper": {"storage": {"size": "2Gi", "whenDeleted": "Retain"}}}})
        kube.until(lambda: kube.condition(NAME, "Degraded") == ("True", "ObjectRefused"), "the refusal", 60)
        with pytest.raises(KubectlError, match=r"spec\.zookeeper\.storage\.size.*present size or more"):
            kube.patch("mgc", NAME, {"spec": {"zookeeper": {"storage": {"size": "1Gi"}}}})
    finally:
        allow_growth(True)
    kube.until(lambda: claims("status", "capacity", "storage") == ["2Gi"] * 3, "larger volumes", 90)
    kube.until(lambda: kube.condition(NAME, "Degraded")[0] == "False", "nothing degraded", 60)
    kube.until(lambda: claims("metadata", "ownerReferences") == [None] * 3, "claims that are retained", 60)
    assert {member: (kube.get("pod", member) or {})["metadata"]["uid"] for member in members} == uids

    lost = f"data-{members[1]}"
    uid = (kube.get("pvc", lost) or {})["metadata"]["uid"]
    kube("delete", "pvc", lost, "--wait=false")
    kube("delete", "pod", members[1], *NOW)
    kube.until(lambda: (kube.get("pvc", lost) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid, "a new claim")
    kube.until(lambda: claims("metadata", "annotations", "migratory.dev/has-data") == ["true"] * 3, "its mark", 90)
    kube.until(lambda: claims("status", "capacity", "storage") == ["2Gi"] * 3, "a volume of the size", 60)
    answer = kube("exec", members[1], "--", "sh", "-c", "cat /data/myid; tr '\\0' ' ' </proc/1/cmdline")
    assert answer.startswith("2\n")
    assert "-Dzookeeper.db.autocreate=false" in answer
    kube.patch("mgc", NAME, {"spec": {"zookeeper": {"storage": {"whenDeleted": "Delete"}}}})
    kube.until(lambda: None not in claims("metadata", "ownerReferences"), "claims that are deleted", 60)
    kube.wait_ready(NAME)
    assert_nothing_lost(kube, "volumes", cease=True)


def voting(kube: Kubectl) -> set[str]:
    """Return the ids of the members that vote, as the first member says."""
    ask = "exec 3<>/dev/tcp/127.0.0.1/2181; echo conf >&3; cat <&3"
    answer = kube("exec", f"{NAME}-zookeeper-0", "--", "bash", "-c", ask)
    return set(re.findall(r"^server\.(\d+)=\S+:participant", answer, re.MULTILINE))


@pytest.mark.usefixtures("needs_operator")
def test_the_ensemble_shrinks_to_one_member_and_grows_again_without_losing_a_publication(standing: Kubectl) -> None:
    kube = standing
    kube.wait_ready(NAME)
    brokers = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", BROKERS)}
    load(kube, "resize")
    for replicas in (1, 3):
        kube.patch("mgc", NAME, {"spec": {"zookeeper": {"replicas": replicas}}})
        kube.until(lambda: kube.condition(NAME, "Progressing")[1] == "ZooKeeperResizing", "the first step", 60)
        wait_settled(kube)
        members = [f"{NAME}-zookeeper-{number}" for number in range(replicas)]
        kube.until(lambda: len(kube.list("pods", MEMBERS)) == replicas, f"{replicas} members", 60)  # noqa: B023
        kube.until(lambda: len(kube.list("pvc", MEMBERS)) == replicas, f"{replicas} claims", 60)  # noqa: B023
        assert sorted(pod["metadata"]["name"] for pod in kube.list("pods", MEMBERS)) == members
        assert voting(kube) == {str(number + 1) for number in range(replicas)}
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", BROKERS)} == brokers
    assert_nothing_lost(kube, "resize", cease=True)
