"""Upgrade from the operator 0.1.0, whose StatefulSets used rolling updates, over a cluster under load.

`released/0.1.0.yaml` has the objects of that operator. They are applied under a paused resource, which this operator
leaves alone. Without the pause it finds a cluster whose pods, strategy and environment differ from what it wants.
The brokers are of this tree, unless MIGRATORY_RELEASED_BROKER_IMAGE names an image of that release.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.load import assert_nothing_lost, load
from migratory_node.pods import BROKER_IMAGE, ZOOKEEPER_IMAGE, is_settled

pytestmark = pytest.mark.timeout(900)
RELEASED = Path(__file__).parent / "released" / "0.1.0.yaml"
PAUSED = "migratory.dev/paused"
BROKERS = "app.kubernetes.io/component=broker"


def put_in_place(kube: Kubectl) -> None:
    """Apply a paused resource and its objects, as the operator 0.1.0 left them."""
    kube.apply(
        {
            "apiVersion": "migratory.dev/v1alpha1",
            "kind": "MigratoryCluster",
            "metadata": {"name": "quotes", "annotations": {PAUSED: "true"}},
            "spec": {"brokers": {"drain": {"period": "2s"}}, "topics": {"groups": 20}},
        }
    )
    uid = (kube.get("mgc", "quotes") or {})["metadata"]["uid"]
    objects = RELEASED.read_text()
    for placeholder, value in (
        ("NAMESPACE", kube.namespace),
        ("BROKER-IMAGE", os.environ.get("MIGRATORY_RELEASED_BROKER_IMAGE", BROKER_IMAGE)),
        ("ZOOKEEPER-IMAGE", ZOOKEEPER_IMAGE),
        ("UID", uid),
    ):
        assert placeholder in objects
        objects = objects.replace(placeholder, value)
    kube("apply", "--server-side", "--field-manager=migratory-operator", "-f", "-", given=objects)


def test_pods_of_the_operator_0_1_0_are_replaced_one_by_one_under_load(kube: Kubectl) -> None:
    put_in_place(kube)
    kube.until(lambda: kube.condition("quotes", "Ready")[0] == "True", "the cluster of before", 180)
    old = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", BROKERS)}
    assert (kube.get("statefulset", "quotes-broker") or {})["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    load(kube, "upgrade")
    kube("annotate", "mgc", "quotes", f"{PAUSED}-")
    fewest = len(old)

    def rolled() -> bool:
        nonlocal fewest
        pods = kube.list("pods", BROKERS)
        fewest = min(fewest, sum("deletionTimestamp" not in pod["metadata"] for pod in pods))
        new = [pod for pod in pods if pod["metadata"]["uid"] not in old.values()]
        return len(new) == len(old) and is_settled(kube)

    kube.until(rolled, "every broker anew", 300)
    assert fewest == len(old) - 1, "one at a time"
    brokers = kube.list("pods", BROKERS)
    assert not {pod["metadata"]["uid"] for pod in brokers} & set(old.values())
    for pod in brokers:
        environment = {entry["name"] for entry in pod["spec"]["containers"][0]["env"]}
        assert "MIGRATORY_REVISION" in environment
    for name in ("quotes-broker", "quotes-zookeeper"):
        assert (kube.get("statefulset", name) or {})["spec"]["updateStrategy"] == {"type": "OnDelete"}
    account = assert_nothing_lost(kube, "upgrade", cease=True)
    assert set(account["reconnect_reasons"]) - {"moved"}, "nobody noticed"
    print(f"clients by changes of broker: {account['clients_by_reconnects']}, {account['reconnect_reasons']}")
