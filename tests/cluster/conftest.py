"""Tests on a real Kubernetes: `make cluster`, then `make cluster-test`. Each has a namespace of its own.

The operator is installed once, from manifests/install, as its documentation says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from migratory_node.kubectl import Kubectl, Object, Refused
from migratory_node.places import ROOT, NodeError, Places
from migratory_node.pods import Cluster, Pods, own_namespace

SYSTEM = "migratory-system"


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    path = Path(os.environ.get("MIGRATORY_KUBECONFIG") or Places.usual().kubeconfig)
    if not path.exists():
        pytest.skip("no cluster: `make cluster` starts one")
    try:
        Kubectl(path)("get", "--raw", "/readyz")
    except (Refused, NodeError) as error:
        pytest.skip(f"the cluster of {path} does not answer: {error}")
    return path


@pytest.fixture(scope="session")
def operator(kubeconfig: Path) -> Iterator[Kubectl]:
    """In its namespace, installed and ready; uninstalled at the end unless MIGRATORY_KEEP is set.

    With MIGRATORY_OPERATOR=outside it is one that runs already, on this machine or in a debugger.
    """
    kube = Kubectl(kubeconfig, SYSTEM)
    if os.environ.get("MIGRATORY_OPERATOR") == "outside":
        yield kube
        return
    kube("apply", "-k", str(ROOT / "manifests" / "install"))
    kube("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)
    yield kube
    if not os.environ.get("MIGRATORY_KEEP"):
        kube("delete", "-k", str(ROOT / "manifests" / "install"), "--ignore-not-found", "--timeout=120s", limit=150)


@pytest.fixture
def kube(operator: Kubectl) -> Iterator[Kubectl]:
    """A namespace of its own, which must be gone within a minute of its deletion."""
    yield from own_namespace(operator.kubeconfig)


@pytest.fixture
def cluster(kube: Kubectl) -> Cluster:
    """Makes a cluster that fits a small node, and gives its name; waits until it is ready unless told otherwise."""

    def make(spec: Object | None = None, name: str = "quotes", *, ready: bool = True) -> str:
        small: Object = {"topics": {"groups": 20}, "brokers": {"drain": {"period": "2s"}}, **(spec or {})}
        kube.apply(
            {
                "apiVersion": "migratory.dev/v1alpha1",
                "kind": "MigratoryCluster",
                "metadata": {"name": name},
                "spec": small,
            }
        )
        if ready:
            kube.ready(name)
        return name

    return make


@pytest.fixture
def pods(kube: Kubectl) -> Pods:
    return Pods(kube)
