"""Tests on a real Kubernetes: `make cluster-test` starts one, brings the images and runs them.

The operator is installed once, from manifests/install, as its documentation says. A cluster of three takes most of a
minute to come up, so a module that needs one has one for all its tests (`standing`): each leaves it ready.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from migratory_node.kubectl import Kubectl, Refused
from migratory_node.places import ROOT, NodeError, Places
from migratory_node.pods import Cluster, Pods, make_cluster, own_namespace
from migratory_node.prometheus import Prometheus, watching

SYSTEM = "migratory-system"
INSTALL = str(ROOT / "manifests" / "install")


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
    """In its namespace, installed and ready; uninstalled at the end unless MIGRATORY_KEEP is set, and nothing stays.

    With MIGRATORY_OPERATOR=outside it is one that runs already, on this machine or in a debugger.
    """
    kube = Kubectl(kubeconfig, SYSTEM)
    if os.environ.get("MIGRATORY_OPERATOR") == "outside":
        yield kube
        return
    kube("apply", "-k", INSTALL)
    kube("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)
    yield kube
    if not os.environ.get("MIGRATORY_KEEP"):
        kube("delete", "-k", INSTALL, "--timeout=120s", limit=150)
        left = [
            one["metadata"]["name"]
            for one in kube.list("crd,clusterroles,clusterrolebindings,namespaces,persistentvolumes")
            if "migratory" in one["metadata"]["name"] or one["metadata"]["name"].startswith("test-")
        ]
        assert left == [], "uninstalling leaves nothing"


@pytest.fixture(scope="module")
def alone(operator: Kubectl) -> Iterator[None]:
    """The operator of all namespaces is away, for modules that install others: there must be no two for one cluster."""
    if os.environ.get("MIGRATORY_OPERATOR") == "outside":
        yield
        return
    operator("scale", "deployment", "migratory", "--replicas=0")
    operator.until(lambda: not operator.list("pods", "app.kubernetes.io/name=migratory-operator"), "no operator")
    yield
    operator("scale", "deployment", "migratory", "--replicas=1")
    operator("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)


@pytest.fixture(scope="module")
def shared(operator: Kubectl) -> Iterator[Kubectl]:
    """One namespace for all tests of a module."""
    yield from own_namespace(operator.kubeconfig)


@pytest.fixture(scope="module")
def standing(shared: Kubectl) -> Kubectl:
    """The module's namespace, in which there is a cluster "quotes" of three brokers."""
    make_cluster(shared)
    return shared


@pytest.fixture(scope="module")
def prometheus(shared: Kubectl) -> Iterator[Prometheus]:
    """In the module's namespace: all brokers and load pods there, the chart's rules and alerts."""
    with watching(shared) as found:
        yield found


@pytest.fixture
def kube(operator: Kubectl) -> Iterator[Kubectl]:
    """A namespace of the test's own, which must be gone within a minute and a half of its deletion."""
    yield from own_namespace(operator.kubeconfig)


@pytest.fixture
def cluster(kube: Kubectl) -> Cluster:
    """Makes a cluster in `kube`'s namespace."""
    return partial(make_cluster, kube)


@pytest.fixture
def pods(kube: Kubectl) -> Pods:
    return Pods(kube)
