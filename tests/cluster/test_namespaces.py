"""Clusters of one name in two namespaces are independent."""

from __future__ import annotations

from functools import partial

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.pods import SMALLEST, Pods, make_cluster, weigh, weights

pytestmark = pytest.mark.timeout(600)


def untouched(kube: Kubectl) -> dict[str, object]:
    """Return values that differ after anybody has written to one of the cluster's objects, or replaced or restarted
    one of its pods."""
    kinds = "serviceaccounts,networkpolicies,services,configmaps,pdb,statefulsets"
    objects = kube.list(kinds, "app.kubernetes.io/managed-by=migratory-operator")
    found: dict[str, object] = {
        f"{one['kind']} {one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in objects
    }
    for pod in kube.list("pods", "app.kubernetes.io/instance=quotes"):
        restarts = [container["restartCount"] for container in pod["status"].get("containerStatuses", ())]
        found[f"Pod {pod['metadata']['name']}"] = (pod["metadata"]["uid"], restarts)
    return found


def subscribed(kube: Kubectl) -> bool:
    return "complete" in Pods(kube).log("sub")


def test_clusters_of_one_name_in_two_namespaces_are_independent(shared: Kubectl, kube: Kubectl) -> None:
    make_cluster(shared, SMALLEST)
    # The operator notes in the minute after a cluster is ready that the ensemble has data, in ZooKeeper's ConfigMap.
    shared.until(lambda: "founded" in (shared.get("configmap", "quotes-zookeeper") or {})["data"], "the note", 60)
    before, weighed = untouched(shared), weights(shared)
    assert len(before) > 8
    make_cluster(kube, SMALLEST)
    both, server = {"first": shared, "second": kube}, ("--server", "ws://quotes-clients:8080/ws")
    for where in both.values():
        Pods(where).start("sub", "sub", "greetings", "--count", "1", *server)
    for where in both.values():
        where.until(partial(subscribed, where), "the subscription", 60)
    for name, where in both.items():
        Pods(where).start("pub", "pub", "greetings", f"in the {name}", *server)
    for name, where in both.items():
        phase, log = Pods(where).end("sub")
        assert phase == "Succeeded", log
        assert [other for other in both if f"in the {other}" in log] == [name]

    weigh(kube, 9)
    kube("delete", "service", "quotes-clients")
    kube.until(
        lambda: kube.get("service", "quotes-clients") and weights(kube) == [9], "what is asked of the second", 60
    )
    kube("delete", "mgc", "quotes", "--timeout=60s", limit=90)
    kube.until(lambda: not untouched(kube), "nothing left of the second", 90)
    assert untouched(shared) == before
    assert weights(shared) == weighed
    shared.wait_ready("quotes")
