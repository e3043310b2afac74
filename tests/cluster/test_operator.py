"""The operator misses no change when it is killed, stopped, without resync or cut off from the API server.

It keeps the clusters of two namespaces apart.
"""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.pods import SMALLEST, Pods, make_cluster

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]
LABEL = "app.kubernetes.io/name=migratory-operator"
SECONDS = 90.0


def weights(kube: Kubectl) -> list[int]:
    return [one["weight"] for one in (kube.get("mgc", "quotes") or {})["status"]["servers"]]


def weigh(kube: Kubectl, weight: int) -> None:
    kube.patch("mgc", "quotes", {"spec": {"brokers": {"weights": {"quotes-broker-0": weight}}}})


@pytest.fixture(scope="module")
def small(operator: Kubectl, shared: Kubectl) -> Kubectl:
    """Create a cluster of one broker, kill the operator as soon as the StatefulSet exists, and return kubectl."""
    make_cluster(shared, SMALLEST, ready=False)
    shared.until(lambda: shared.list("statefulsets"), "the first StatefulSet")
    operator("delete", "pod", "-l", LABEL, "--grace-period=0", "--force")
    return shared


def test_an_operator_killed_during_a_change_completes_it(small: Kubectl) -> None:
    small.wait_ready("quotes")


def test_a_change_without_an_operator_is_applied_by_the_next(operator: Kubectl, small: Kubectl) -> None:
    small.wait_ready("quotes")
    operator("scale", "deployment", "migratory", "--replicas=0")
    operator.until(lambda: not operator.list("pods", LABEL), "no operator")
    weigh(small, 7)
    small("delete", "service", "quotes-clients")
    operator("scale", "deployment", "migratory", "--replicas=1")
    small.until(lambda: weights(small) == [7], "the change that was made meanwhile")
    small.until(lambda: small.get("service", "quotes-clients"), "what was deleted meanwhile", 60)


def test_watches_alone_suffice_without_resync(operator: Kubectl, small: Kubectl) -> None:
    """With an hour between two resyncs, the operator still applies a change of the resource and restores a deleted
    object within a minute, and logs no traceback."""
    operator("set", "env", "deployment/migratory", "MIGRATORY_RESYNC_SECONDS=3600")
    try:
        operator("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)
        small.wait_ready("quotes")
        weigh(small, 3)
        small.until(lambda: weights(small) == [3], "the change", 60)
        small("delete", "configmap", "quotes-servers")
        small.until(lambda: small.get("configmap", "quotes-servers"), "the server list to come back", 60)
        log = operator("logs", "deployment/migratory")
        assert "Traceback" not in log, log
    finally:
        operator("set", "env", "deployment/migratory", "MIGRATORY_RESYNC_SECONDS=15")
        operator("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)


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


def test_clusters_of_one_name_in_two_namespaces_are_independent(small: Kubectl, kube: Kubectl) -> None:
    small.wait_ready("quotes")
    before, weighed = untouched(small), weights(small)
    assert len(before) > 8
    make_cluster(kube, SMALLEST)
    both, server = {"first": small, "second": kube}, ("--server", "ws://quotes-clients:8080/ws")
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
    assert untouched(small) == before
    assert weights(small) == weighed
    small.wait_ready("quotes")


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


def test_an_edit_while_the_api_server_is_silent_is_applied_later(operator: Kubectl, small: Kubectl) -> None:
    small.wait_ready("quotes")
    before = weights(small)
    (pod,) = operator.list("pods", LABEL)
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
    (after,) = operator.list("pods", LABEL)
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    restarts = [one["status"]["containerStatuses"][0]["restartCount"] for one in (pod, after)]
    assert restarts[0] == restarts[1]
