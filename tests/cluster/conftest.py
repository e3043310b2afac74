"""Tests on a real Kubernetes: `make cluster-test` starts one, loads the images and runs them.

The operator is installed once, from manifests/install, as the documentation says. A cluster of three takes most of a
minute to start, so the tests of a module share one (`standing`), and each test leaves it ready.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from migratory_node.kubectl import Kubectl, KubectlError
from migratory_node.paths import ROOT, NodeError, NodePaths
from migratory_node.pods import Cluster, Pods, make_cluster, temporary_namespace
from migratory_node.prometheus import Prometheus, run_prometheus

SYSTEM = "migratory-system"
INSTALL = str(ROOT / "manifests" / "install")


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    path = Path(os.environ.get("MIGRATORY_KUBECONFIG") or NodePaths.default().kubeconfig)
    if not path.exists():
        pytest.skip("no cluster: `make cluster` starts one")
    try:
        Kubectl(path)("get", "--raw", "/readyz")
    except (KubectlError, NodeError) as error:
        pytest.skip(f"the cluster of {path} does not answer: {error}")
    return path


@pytest.fixture(scope="session")
def operator(kubeconfig: Path) -> Iterator[Kubectl]:
    """Install the operator, and uninstall it at the end unless MIGRATORY_KEEP is set. Return kubectl for its namespace.

    With MIGRATORY_OPERATOR=outside, use one that runs already, on this machine or in a debugger.
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
    """Stop the operator of all namespaces for modules that install others: a cluster must not have two."""
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
    """Create a namespace for all tests of a module."""
    yield from temporary_namespace(operator.kubeconfig)


@pytest.fixture(scope="module")
def standing(shared: Kubectl) -> Kubectl:
    """Create the cluster "quotes" of three brokers in the module's namespace."""
    make_cluster(shared)
    return shared


@pytest.fixture(scope="module")
def prometheus(shared: Kubectl) -> Iterator[Prometheus]:
    """Run Prometheus in the module's namespace, with its brokers and load pods, and the chart's rules."""
    with run_prometheus(shared) as found:
        yield found


@pytest.fixture
def kube(operator: Kubectl) -> Iterator[Kubectl]:
    """Create a namespace for one test, which must disappear within 90 seconds of its deletion."""
    yield from temporary_namespace(operator.kubeconfig)


@pytest.fixture
def cluster(kube: Kubectl) -> Cluster:
    """Return a function that creates a cluster in `kube`'s namespace."""
    return partial(make_cluster, kube)


@pytest.fixture
def pods(kube: Kubectl) -> Pods:
    return Pods(kube)
