"""Names of the maximum length (case A16), and scaling, with disruption budgets that fit (case A15).

After scaling, clients are balanced, no client has moved more often than necessary, and none moves any more.
"""

from __future__ import annotations

import json

import pytest
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.load import CLIENTS, assert_clients_balance, assert_nothing_lost, load, mark
from migratory_node.pods import SMALLEST, Cluster, wait_settled

pytestmark = pytest.mark.timeout(600)
BROKERS = "app.kubernetes.io/component=broker"


def evict(kube: Kubectl, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": kube.namespace}}
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/eviction"
    kube("create", "--raw", path, "-f", "-", given=json.dumps(body))


def resize(kube: Kubectl, replicas: int) -> None:
    kube("scale", "mgc", "quotes", f"--replicas={replicas}")
    wait_settled(kube)
    kube.until(lambda: len(kube.list("pods", BROKERS)) == replicas, f"{replicas} broker pods", 60)


def test_two_clusters_with_long_similar_names_are_independent(kube: Kubectl, cluster: Cluster) -> None:
    first, second = "m" * 39 + "a", "m" * 39 + "b"
    cluster(SMALLEST, first, ready=False)
    cluster(SMALLEST, second, ready=False)
    for name in (first, second):
        kube.wait_ready(name)
        selector = f"app.kubernetes.io/instance={name}"
        assert {pod["metadata"]["name"] for pod in kube.list("pods", selector)} == {
            f"{name}-broker-0",
            f"{name}-zookeeper-0",
        }
        endpoints = kube.get("endpoints", f"{name}-clients") or {}
        targets = [address["targetRef"]["name"] for subset in endpoints["subsets"] for address in subset["addresses"]]
        assert targets == [f"{name}-broker-0"]


@pytest.mark.usefixtures("needs_operator")
def test_a_disruption_budget_exists_only_with_several_brokers(kube: Kubectl, cluster: Cluster) -> None:
    # Enough time to hand over all topic groups: with one copy, those that a broker still coordinates are lost with it.
    cluster({**SMALLEST, "brokers": {"replicas": 1, "drain": {"period": "30s"}}, "zookeeper": {"replicas": 3}})

    def budgets() -> dict[str, Object]:
        return {budget["metadata"]["name"]: budget for budget in kube.list("pdb")}

    assert set(budgets()) == {"quotes-zookeeper"}
    (only,) = kube.list("pods", BROKERS)
    evict(kube, "quotes-broker-0")
    kube.until(lambda: kube.condition("quotes", "Ready")[1] != "AllReady", "one broker less", 60)
    kube.wait_ready("quotes")

    before = kube.list("pods", BROKERS)[0]["metadata"]["uid"]
    assert before != only["metadata"]["uid"]
    resize(kube, 3)
    assert kube.list("pods", BROKERS)[0]["metadata"]["uid"] == before, "two more are no reason to restart the first"
    kube.until(
        lambda: [one["status"].get("disruptionsAllowed") for one in budgets().values()] == [1, 1], "the budgets", 60
    )
    for component in ("broker", "zookeeper"):
        evict(kube, f"quotes-{component}-0")
        with pytest.raises(KubectlError, match="disruption budget"):
            evict(kube, f"quotes-{component}-1")
    kube.until(lambda: kube.condition("quotes", "Ready")[1] != "AllReady", "one broker less", 60)
    kube.wait_ready("quotes")

    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", BROKERS)}
    resize(kube, 1)
    assert set(budgets()) == {"quotes-zookeeper"}
    (left,) = kube.list("pods", BROKERS)
    assert left["metadata"]["uid"] == uids["quotes-broker-0"]
    with pytest.raises(KubectlError, match=r"spec\.brokers\.replicas"):
        kube.patch("mgc", "quotes", {"spec": {"brokers": {"replicas": 0}}})
    assert (kube.get("mgc", "quotes") or {})["spec"]["brokers"]["replicas"] == 1


def test_scaling_from_three_to_five_and_back_under_load(kube: Kubectl, cluster: Cluster) -> None:
    cluster()
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", BROKERS)}
    for replicas in (2, 0):
        with pytest.raises(KubectlError, match=r"spec\.brokers\.replicas"):
            kube("scale", "mgc", "quotes", f"--replicas={replicas}")
    load(kube, "sizes")
    assert_clients_balance(kube)
    mark(kube, "sizes", "more")
    resize(kube, 5)
    brokers = {one["name"]: one for one in (kube.get("mgc", "quotes") or {})["status"]["brokers"]}
    assert all(brokers[f"quotes-broker-{number}"]["ready"] for number in range(5))
    assert_clients_balance(kube)
    mark(kube, "sizes", "fewer")
    resize(kube, 3)
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", BROKERS)} == before
    assert_clients_balance(kube)
    account = assert_nothing_lost(kube, "sizes", cease=True)
    more, fewer = (entry["clients_by_reconnects"] for entry in account["marks"])
    print(f"clients by moves, from three to five: {more}, and back: {fewer}, {account['reconnect_reasons']}")
    assert set(account["reconnect_reasons"]) <= {"moved", "drained"}, "nobody lost a link"
    # 64 clients on five brokers: none has more than 14.
    assert set(more) == {"1"}
    assert more["1"] >= CLIENTS - 3 * 14
    # Brokers are removed one at a time, and all know from the start which ones: no client moves to one of them.
    assert set(fewer) == {"1"}
