"""Pods are deleted without grace under load, and the load generator accounts for every delivery."""

from __future__ import annotations

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.load import assert_nothing_lost, load

pytestmark = pytest.mark.timeout(600)
NAME = "quotes"
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
