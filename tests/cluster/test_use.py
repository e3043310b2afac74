"""What a person does first: install, apply the example, look, publish, subscribe, delete."""

from __future__ import annotations

import subprocess
import sys

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.places import ROOT
from migratory_node.pods import Cluster, Pods, listed, urls

pytestmark = pytest.mark.timeout(900)


def test_the_example_becomes_ready_and_tells_what_matters(kube: Kubectl) -> None:
    kube("apply", "-f", str(ROOT / "manifests" / "examples" / "cluster.yaml"))
    found = kube.ready("quotes")
    assert found["status"]["ready"] == "3/3"
    assert sum(broker["coordinators"] for broker in found["status"]["brokers"]) == 100
    assert [server["ready"] for server in found["status"]["servers"]] == [True, True, True]
    table = kube("get", "mgc").splitlines()
    assert table[0].split() == ["NAME", "READY", "BROKERS", "COORDINATION", "WHY", "AGE"]
    assert table[1].split()[:5] == ["quotes", "True", "3/3", "True", "AllReady"]
    assert "quotes" in kube("get", "migratory")
    reasons = [
        event["reason"] for event in kube.list("events") if event["involvedObject"]["kind"] == "MigratoryCluster"
    ]
    assert "Ready" in reasons
    assert listed(kube, "quotes") == [server["url"] for server in found["status"]["servers"]]
    kube("delete", "mgc", "quotes", "--timeout=60s")
    everything = "statefulsets,pods,services,configmaps,pdb,networkpolicies,pvc,serviceaccounts"
    kube.until(
        lambda: not [one for one in kube.list(everything) if "quotes" in one["metadata"]["name"]],
        "nothing left of the cluster",
        90,
    )


def test_a_pod_and_a_program_outside_the_pod_network_publish_and_subscribe(
    kube: Kubectl, cluster: Cluster, pods: Pods
) -> None:
    """NodePort: the address that is listed is one of the node, whoever asks."""
    host = kube.list("nodes")[0]["status"]["addresses"][0]["address"]
    name = cluster({"brokers": {"expose": {"type": "NodePort", "host": host}}})
    services = {service["metadata"]["name"]: service for service in kube.list("services")}
    ports = [services[f"{name}-broker-{number}"]["spec"]["ports"][0]["nodePort"] for number in range(3)]
    assert urls(kube, name) == ",".join(f"ws://{host}:{port}/ws" for port in ports)

    pods.start("sub", "sub", "greetings", "--count", "2", "--server", f"ws://{name}-clients:8080/ws")
    kube.until(lambda: "complete" in pods.log("sub"), "the subscription in the pod", 60)
    outside = [sys.executable, "-m", "migratory_cli.main", "pub", "greetings", "--server", urls(kube, name)]
    published = subprocess.run([*outside, "from outside"], capture_output=True, text=True, timeout=60, check=False)
    assert published.returncode == 0, published.stderr
    pods.start("pub", "pub", "greetings", "from a pod", "--server", f"ws://{name}-clients:8080/ws")
    assert pods.end("pub")[0] == "Succeeded"
    phase, log = pods.end("sub")
    assert phase == "Succeeded"
    assert "from outside" in log
    assert "from a pod" in log


def test_a_client_in_a_pod_finds_all_brokers_through_the_service(kube: Kubectl, cluster: Cluster, pods: Pods) -> None:
    name = cluster()
    pods.load("load", "--server", f"ws://{name}-clients:8080/ws", "--subscribers", "30", "--topics", "5",
              "--duration", "5", "--warmup", "1", "--workers", "1")  # fmt: skip
    account = pods.account("load")
    assert account["lost"] == account["duplicates"] == 0
    assert account["delivered"] == account["expected"] > 0
    assert sorted(account["connections"]["before"]) == [f"{name}-broker-{number}" for number in range(3)]
