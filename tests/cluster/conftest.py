"""Tests on a real Kubernetes: `make cluster-test` starts one, loads the images and runs them.

The operator is installed once, from manifests/install, as the documentation says, with values for the tests' reports. A
cluster of three takes most of a minute to start, so the tests of a module share one (`standing`), and each test leaves
it ready. Tests mostly wait, so several modules run at the same time: first those that share this operator, then those
with operators of their own (marked `own_operator`), during which this one is stopped. Those marked `alone` follow one
by one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import pytest
from migratory_node.chart import install_operator
from migratory_node.kubectl import Kubectl, KubectlError
from migratory_node.paths import ROOT, NodeError, NodePaths
from migratory_node.pods import Cluster, Namespaces, Pods, create_namespace, delete_namespace, make_cluster
from migratory_node.prometheus import Prometheus, run_prometheus

SYSTEM = "migratory-system"
INSTALL = str(ROOT / "tests" / "cluster" / "install")


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
def operator(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Iterator[Kubectl]:
    """Install the operator, and uninstall it at the end unless MIGRATORY_KEEP is set. Return kubectl for its namespace.

    Workers of pytest-xdist share the operator, which the first of them installs, and leave it at the end. With
    MIGRATORY_OPERATOR=outside, use one that runs already, on this machine or in a debugger.
    """
    kube = Kubectl(kubeconfig, SYSTEM)
    if os.environ.get("MIGRATORY_OPERATOR") == "outside":
        yield kube
        return
    installed = tmp_path_factory.getbasetemp().parent / f"installed-{testrun_uid}"
    with (installed.parent / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists():
            kube("apply", "-k", INSTALL)
            installed.touch()
    kube("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)
    yield kube
    if not {"MIGRATORY_KEEP", "PYTEST_XDIST_WORKER"} & set(os.environ):
        kube("delete", "-k", INSTALL, "--timeout=120s", limit=150)
        left = [
            one["metadata"]["name"]
            for one in kube.list("crd,clusterroles,clusterrolebindings,namespaces,persistentvolumes")
            if "migratory" in one["metadata"]["name"] or one["metadata"]["name"].startswith("test-")
        ]
        assert left == [], "uninstalling leaves nothing"


@pytest.fixture(scope="session")
def namespaces(operator: Kubectl) -> Iterator[Namespaces]:
    """Return a context manager that creates a namespace, yields kubectl for it, and deletes it at the end of the
    context.

    The next tests do not wait for the deletion; a failed deletion is raised at the end of the session.
    """
    deletions: list[Future[None]] = []

    @contextmanager
    def namespace() -> Iterator[Kubectl]:
        kube = create_namespace(operator.kubeconfig)
        try:
            yield kube
        finally:
            deletions.append(pool.submit(delete_namespace, kube))
        if "MIGRATORY_TEST_NAMESPACE" in os.environ:  # the next test creates it again
            deletions[-1].result()

    with ThreadPoolExecutor() as pool:
        yield namespace
        for deletion in deletions:
            deletion.result()


@pytest.fixture(scope="module")
def operator_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IO[str]]:
    """Open and yield the file whose lock test processes share: `needs_operator` locks it shared, `kills_operator`
    exclusively."""
    with (tmp_path_factory.getbasetemp().parent / "operator.lock").open("w") as lock:
        yield lock


@pytest.fixture
def needs_operator(operator_lock: IO[str]) -> Iterator[None]:
    """Keep tests that kill the operator from running at the same time, for a test that waits for a status that soon
    changes again: an operator that is just starting would not write it."""
    fcntl.flock(operator_lock, fcntl.LOCK_SH)
    yield
    fcntl.flock(operator_lock, fcntl.LOCK_UN)


@pytest.fixture
def kills_operator(operator_lock: IO[str]) -> Iterator[None]:
    """Let a test kill the operator: wait until no test with `needs_operator` runs, and hold new ones up until this
    test has ended."""
    fcntl.flock(operator_lock, fcntl.LOCK_EX)
    yield
    fcntl.flock(operator_lock, fcntl.LOCK_UN)


@pytest.fixture(scope="module")
def no_operator(operator: Kubectl) -> Iterator[None]:
    """Stop the operator of all namespaces while a module runs that installs other operators: a cluster must not have
    two.

    With pytest-xdist it stays stopped, for the other workers' modules; the next run installs it again.
    """
    if os.environ.get("MIGRATORY_OPERATOR") == "outside":
        yield
        return
    operator("scale", "deployment", "migratory", "--replicas=0")
    operator.until(lambda: not operator.list("pods", "app.kubernetes.io/name=migratory-operator"), "no operator")
    yield
    if "PYTEST_XDIST_WORKER" not in os.environ:
        operator("scale", "deployment", "migratory", "--replicas=1")
        operator("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)


@pytest.fixture(scope="module")
def own_operator(no_operator: None, shared: Kubectl) -> Iterator[Kubectl]:
    """Install an operator of the module's namespace by Helm, as the deployment "own", and return kubectl for it."""
    install_operator(shared)
    yield shared
    # The namespace is deleted with its clusters, and without an operator.
    shared("delete", "deployment", "own", "--wait=true")


@pytest.fixture(scope="module")
def shared(namespaces: Namespaces) -> Iterator[Kubectl]:
    """Create a namespace for all tests of a module, and yield kubectl for it."""
    with namespaces() as kube:
        yield kube


@pytest.fixture(scope="module")
def standing(shared: Kubectl) -> Kubectl:
    """Create the cluster "quotes" of three brokers in the module's namespace, and return kubectl for it."""
    make_cluster(shared)
    return shared


@pytest.fixture(scope="module")
def prometheus(shared: Kubectl) -> Iterator[Prometheus]:
    """Run Prometheus in the module's namespace, with the chart's rules, and yield it. It scrapes the namespace's
    brokers and load pods."""
    with run_prometheus(shared) as found:
        yield found


@pytest.fixture
def kube(namespaces: Namespaces) -> Iterator[Kubectl]:
    """Create a namespace for one test, and yield kubectl for it."""
    with namespaces() as kube:
        yield kube


@pytest.fixture
def cluster(kube: Kubectl) -> Cluster:
    """Return a function that creates a cluster in the namespace of `kube`."""
    return partial(make_cluster, kube)


@pytest.fixture
def pods(kube: Kubectl) -> Pods:
    return Pods(kube)
