"""The operator misses no change when it is killed, stopped, without resync or cut off from the API server."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.pods import SMALLEST, make_cluster, weigh, weights

pytestmark = [pytest.mark.own_operator, pytest.mark.timeout(600)]
LABEL = "app.kubernetes.io/name=migratory-operator"
SECONDS = 90.0


@pytest.fixture(scope="module")
def small(own_operator: Kubectl) -> Kubectl:
    """Create a cluster of one broker, kill the operator as soon as the StatefulSet exists, and return kubectl."""
    kube = own_operator
    make_cluster(kube, SMALLEST, ready=False)
    kube.until(lambda: kube.list("statefulsets"), "the first StatefulSet")
    kube("delete", "pod", "-l", LABEL, "--grace-period=0", "--force")
    return kube


def test_an_operator_killed_during_a_change_completes_it(small: Kubectl) -> None:
    small.wait_ready("quotes")


def test_a_change_without_an_operator_is_applied_by_the_next(small: Kubectl) -> None:
    small.wait_ready("quotes")
    small("scale", "deployment", "own", "--replicas=0")
    small.until(lambda: not small.list("pods", LABEL), "no operator")
    weigh(small, 7)
    small("delete", "service", "quotes-clients")
    small("scale", "deployment", "own", "--replicas=1")
    small.until(lambda: weights(small) == [7], "the change that was made meanwhile")
    small.until(lambda: small.get("service", "quotes-clients"), "what was deleted meanwhile", 60)


def test_watches_alone_suffice_without_resync(small: Kubectl) -> None:
    """With an hour between two resyncs, the operator still applies a change of the resource and restores a deleted
    object within a minute, and logs no traceback."""
    small("set", "env", "deployment/own", "MIGRATORY_RESYNC_SECONDS=3600")
    try:
        small("rollout", "status", "deployment/own", "--timeout=120s", limit=150)
        small.wait_ready("quotes")
        weigh(small, 3)
        small.until(lambda: weights(small) == [3], "the change", 60)
        small("delete", "configmap", "quotes-servers")
        small.until(lambda: small.get("configmap", "quotes-servers"), "the server list to come back", 60)
        log = small("logs", "deployment/own")
        assert "Traceback" not in log, log
    finally:
        small("set", "env", "deployment/own", "MIGRATORY_RESYNC_SECONDS=2")
        small("rollout", "status", "deployment/own", "--timeout=120s", limit=150)


@contextmanager
def cut_off(address: str) -> Iterator[None]:
    """While the context lasts, drop the packets from a pod's address to the API server, as on a broken network path,
    where nothing is refused or closed. Fail at the end if nothing was dropped."""
    rule = ["-s", address, "-p", "tcp", "--dport", "6443", "-j", "DROP"]
    chains = ("FORWARD", "INPUT")
    for chain in chains:
        subprocess.run(["iptables", "-I", chain, *rule], check=True)
    try:
        yield
        dropped = "".join(
            subprocess.run(["iptables", "-vnL", chain], capture_output=True, text=True, check=True).stdout
            for chain in chains
        )
        counted = [line.split()[0] for line in dropped.splitlines() if address in line and "DROP" in line]
        assert any(count != "0" for count in counted), f"nothing was dropped:\n{dropped}"
    finally:
        for chain in chains:
            subprocess.run(["iptables", "-D", chain, *rule], check=True)


def test_an_edit_while_the_api_server_is_silent_is_applied_later(small: Kubectl) -> None:
    small.wait_ready("quotes")
    before = weights(small)
    (pod,) = small.list("pods", LABEL)
    address = pod["status"]["podIP"]
    with cut_off(address):
        weigh(small, 42)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            # Its own health endpoints answer meanwhile, so it is not restarted.
            with urllib.request.urlopen(f"http://{address}:8080/healthz", timeout=5) as answer:
                assert answer.status == 200
            time.sleep(5)  # of the fault's own length
        assert weights(small) == before, "it was cut off"
    small.until(lambda: weights(small) == [42], "the edit", 90)
    (after,) = small.list("pods", LABEL)
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    restarts = [one["status"]["containerStatuses"][0]["restartCount"] for one in (pod, after)]
    assert restarts[0] == restarts[1]
