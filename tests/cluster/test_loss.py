"""Pods are deleted without grace while publications flow; the load generator accounts for every delivery."""

from __future__ import annotations

import pytest
from migratory_node.kubectl import Kubectl, Object
from migratory_node.pods import Pods, urls

pytestmark = pytest.mark.timeout(600)
NAME = "quotes"
NOW = ("--grace-period=0", "--force")


def load(kube: Kubectl, run: str, seconds: int) -> None:
    """Publishers and subscribers that verify every delivery; returns when they run."""
    Pods(kube).load(
        run, "--server", urls(kube, NAME), "--subscribers", "60", "--topics", "20", "--rate", "2",
        "--publishers", "4", "--duration", str(seconds), "--warmup", "2", "--workers", "1", "--patience", "40",
    )  # fmt: skip

    def clients() -> int:
        return sum(one.get("clients", 0) for one in (kube.get("mgc", NAME) or {})["status"]["brokers"])

    kube.until(lambda: clients() >= 60, "the load", 60)


def flawless(kube: Kubectl, run: str) -> Object:
    account = Pods(kube).account(run)
    counts = {key: account[key] for key in ("lost", "duplicates", "reordered", "unexpected", "conflicts", "unanswered")}
    assert not any(counts.values()), account["problems"]
    assert account["delivered"] == account["expected"] > 0
    assert account["acknowledged"] == account["published"] > 0
    return account


def test_a_broker_that_is_deleted_without_grace_costs_no_publication(standing: Kubectl) -> None:
    kube = standing
    load(kube, "broker-dies", 40)
    brokers = (kube.get("mgc", NAME) or {})["status"]["brokers"]
    victim = max(brokers, key=lambda one: one.get("coordinators", 0))["name"]
    uid = (kube.get("pod", victim) or {})["metadata"]["uid"]
    kube("delete", "pod", victim, *NOW)
    kube.until(lambda: (kube.get("pod", victim) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid, "a new pod")
    kube.ready(NAME)
    assert flawless(kube, "broker-dies")["reconnects"] > 0, "nobody noticed"


def test_zookeeper_pods_that_are_deleted_one_and_then_all_cost_no_publication(standing: Kubectl) -> None:
    kube = standing
    kube.ready(NAME)
    load(kube, "zookeeper-dies", 60)

    def members() -> int:
        return int((kube.get("mgc", NAME) or {})["status"]["zookeeper"]["ready"])

    kube("delete", "pod", f"{NAME}-zookeeper-0", *NOW)
    kube.until(lambda: members() < 3, "one member less", 60)
    kube.until(lambda: members() == 3, "three members", 90)
    kube("delete", "pod", *(f"{NAME}-zookeeper-{number}" for number in range(3)), *NOW)
    kube.until(lambda: kube.condition(NAME, "CoordinationAvailable")[0] == "False", "no quorum", 60)
    kube.ready(NAME)
    flawless(kube, "zookeeper-dies")
