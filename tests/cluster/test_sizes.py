"""Names at the limit, one broker, and disruption budgets that keep no node from being drained."""

from __future__ import annotations

import json

import pytest
from migratory_node.kubectl import Kubectl, Object, Refused
from migratory_node.pods import Cluster

pytestmark = pytest.mark.timeout(900)
ONE: Object = {"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}}


def evict(kube: Kubectl, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": kube.namespace}}
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/eviction"
    kube("create", "--raw", path, "-f", "-", given=json.dumps(body))


def test_two_clusters_with_long_and_similar_names_live_side_by_side(kube: Kubectl, cluster: Cluster) -> None:
    first, second = "m" * 39 + "a", "m" * 39 + "b"
    cluster(ONE, first, ready=False)
    cluster(ONE, second, ready=False)
    for name in (first, second):
        kube.ready(name)
        selector = f"app.kubernetes.io/instance={name}"
        assert {pod["metadata"]["name"] for pod in kube.list("pods", selector)} == {
            f"{name}-broker-0",
            f"{name}-zookeeper-0",
        }
        endpoints = kube.get("endpoints", f"{name}-clients") or {}
        targets = [address["targetRef"]["name"] for subset in endpoints["subsets"] for address in subset["addresses"]]
        assert targets == [f"{name}-broker-0"]


def test_one_broker_may_be_evicted(kube: Kubectl, cluster: Cluster) -> None:
    cluster(ONE)
    assert kube.list("pdb") == []
    evict(kube, "quotes-broker-0")
    evict(kube, "quotes-zookeeper-0")


def test_of_three_brokers_one_may_be_evicted_and_no_second_meanwhile(kube: Kubectl, cluster: Cluster) -> None:
    cluster()
    kube.until(
        lambda: all(budget["status"].get("disruptionsAllowed") == 1 for budget in kube.list("pdb")), "the budgets", 60
    )
    evict(kube, "quotes-broker-0")
    with pytest.raises(Refused, match="disruption budget"):
        evict(kube, "quotes-broker-1")
    evict(kube, "quotes-zookeeper-0")
    with pytest.raises(Refused, match="disruption budget"):
        evict(kube, "quotes-zookeeper-1")
    kube.ready("quotes")
