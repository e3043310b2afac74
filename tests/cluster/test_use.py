"""First use of the operator: install, apply the example, read the status, publish, subscribe, delete."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.paths import ROOT
from migratory_node.pods import Pods, listed_urls, urls

pytestmark = pytest.mark.timeout(600)
EVERYTHING = "statefulsets,pods,services,configmaps,pdb,networkpolicies,pvc,serviceaccounts"


@pytest.fixture(scope="module")
def example(shared: Kubectl) -> Iterator[Kubectl]:
    """Apply the example cluster and yield kubectl once it is ready. Afterwards delete the cluster, and check that
    nothing of it is left."""
    shared("apply", "-f", str(ROOT / "manifests" / "examples" / "cluster.yaml"))
    shared.wait_ready("quotes")
    yield shared
    shared("delete", "mgc", "quotes", "--timeout=60s")
    shared.until(
        lambda: not [one for one in shared.list(EVERYTHING) if "quotes" in one["metadata"]["name"]],
        "nothing left of the cluster",
        90,
    )


def test_the_example_becomes_ready_with_a_full_status(example: Kubectl) -> None:
    kube = example
    found = kube.wait_ready("quotes")
    assert found["status"]["ready"] == "3/3"
    # The schema must have every field that the operator writes: others are pruned silently.
    assert set(found["status"]) == {
        "observedGeneration", "replicas", "readyBrokers", "ready", "selector", "servers", "brokers", "zookeeper",
        "conditions",
    }  # fmt: skip
    assert all(set(broker) == {"name", "ready", "clients", "coordinators"} for broker in found["status"]["brokers"])
    assert sum(broker["coordinators"] for broker in found["status"]["brokers"]) == 100
    assert [server["ready"] for server in found["status"]["servers"]] == [True, True, True]
    table = kube("get", "mgc").splitlines()
    assert table[0].split() == ["NAME", "READY", "BROKERS", "COORDINATION", "SLA", "REASON", "AGE"]
    assert table[1].split()[:5] == ["quotes", "True", "3/3", "True", "AllReady"]
    assert "quotes" in kube("get", "migratory")
    reasons = [
        event["reason"] for event in kube.list("events") if event["involvedObject"]["kind"] == "MigratoryCluster"
    ]
    assert "Ready" in reasons
    assert listed_urls(kube, "quotes") == [server["url"] for server in found["status"]["servers"]]


def test_the_image_of_brokers_runs_compiled_cores(example: Kubectl) -> None:
    said = example("exec", "quotes-broker-0", "--", "migratory", "--version")
    assert said.rstrip().endswith(", compiled cores")


def test_a_client_in_a_pod_reaches_all_brokers_through_the_service(example: Kubectl) -> None:
    pods = Pods(example)
    pods.load("load", "--server", "ws://quotes-clients:8080/ws", "--subscribers", "30", "--topics", "5",
              "--duration", "5", "--warmup", "1", "--workers", "1")  # fmt: skip
    account = pods.account("load")
    assert account["lost"] == account["duplicates"] == 0
    assert account["delivered"] == account["expected"] > 0
    assert sorted(account["connections"]["before"]) == [f"quotes-broker-{number}" for number in range(3)]


def test_clients_inside_and_outside_the_pod_network_exchange_messages(example: Kubectl) -> None:
    """With brokers exposed as NodePorts, the addresses of the cluster are the node's, and a client outside the pod
    network and one in a pod both reach a subscriber in a pod."""
    kube, pods = example, Pods(example)
    host = kube.list("nodes")[0]["status"]["addresses"][0]["address"]
    exposed = {"expose": {"type": "NodePort", "host": host}, "drain": {"period": "2s"}}
    kube.patch("mgc", "quotes", {"spec": {"brokers": exposed}})
    kube.until(lambda: urls(kube, "quotes").startswith(f"ws://{host}:"), "the outer addresses", 60)
    kube.wait_ready("quotes")
    kube.until(lambda: kube.condition("quotes", "Progressing") == ("False", "Settled"), "all brokers anew", 300)
    services = {service["metadata"]["name"]: service for service in kube.list("services")}
    ports = [services[f"quotes-broker-{number}"]["spec"]["ports"][0]["nodePort"] for number in range(3)]
    assert urls(kube, "quotes") == ",".join(f"ws://{host}:{port}/ws" for port in ports)

    pods.start("sub", "sub", "greetings", "--count", "2", "--server", "ws://quotes-clients:8080/ws")
    kube.until(lambda: "complete" in pods.log("sub"), "the subscription in the pod", 60)
    outside = [sys.executable, "-m", "migratory_cli.main", "pub", "greetings", "--server", urls(kube, "quotes")]
    published = subprocess.run([*outside, "from outside"], capture_output=True, text=True, timeout=60, check=False)
    assert published.returncode == 0, published.stderr
    pods.start("pub", "pub", "greetings", "from a pod", "--server", "ws://quotes-clients:8080/ws")
    assert pods.end("pub")[0] == "Succeeded"
    phase, log = pods.end("sub")
    assert phase == "Succeeded"
    assert "from outside" in log
    assert "from a pod" in log
