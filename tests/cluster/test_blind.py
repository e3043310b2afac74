"""The API server does not answer the operator for 90 seconds; an edit made meanwhile is carried out afterwards."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.pods import Cluster

pytestmark = pytest.mark.timeout(900)
SECONDS = 90.0


@contextmanager
def cut_off(address: str) -> Iterator[None]:
    """Packets of a pod to the API server vanish, as in a network that has lost a path: nothing is refused or closed."""
    rule = ["FORWARD", "-s", address, "-p", "tcp", "--dport", "6443", "-j", "DROP"]
    chains = [rule, ["INPUT", *rule[1:]]]
    for chain in chains:
        subprocess.run(["iptables", "-I", *chain], check=True)
    try:
        yield
        dropped = subprocess.run(["iptables", "-vnL", "INPUT"], capture_output=True, text=True, check=True).stdout
        assert any(address in line and line.split()[0] != "0" for line in dropped.splitlines()), "nothing was dropped"
    finally:
        for chain in chains:
            subprocess.run(["iptables", "-D", *chain], check=True)


def test_an_edit_while_the_api_server_is_silent_is_carried_out(
    operator: Kubectl, kube: Kubectl, cluster: Cluster
) -> None:
    cluster({"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}})
    (pod,) = operator.list("pods", "app.kubernetes.io/name=migratory-operator")
    address = pod["status"]["podIP"]
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    with cut_off(address):
        kube.patch("mgc", "quotes", {"spec": {"brokers": {"weights": {"quotes-broker-0": 42}}}})
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            # its own pages answer all the while, so it is not restarted
            with urllib.request.urlopen(f"http://{address}:8080/healthz", timeout=3) as answer:
                assert answer.status == 200
            time.sleep(5)
        assert (kube.get("mgc", "quotes") or {})["status"]["servers"][0]["weight"] == 100, "it was cut off"
    kube.until(lambda: (kube.get("mgc", "quotes") or {})["status"]["servers"][0]["weight"] == 42, "the edit", 90)
    (after,) = operator.list("pods", "app.kubernetes.io/name=migratory-operator")
    assert after["status"]["containerStatuses"][0]["restartCount"] == restarts
