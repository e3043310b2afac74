"""The environment of a run: a namespace, an operator that watches it, a cluster in it; existing, or made for the run.

What is made is deleted at the end. Missing definitions of the resources are installed, and stay: they belong to the
whole Kubernetes, and other clusters may use them meanwhile.
"""

from __future__ import annotations

import contextlib
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from migratory_node.chart import render_chart
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.paths import ROOT

CRDS = str(ROOT / "manifests" / "crds")
CLUSTER = "quotes"
"""The name of a cluster that is made."""
OPERATORS = "app.kubernetes.io/name=migratory-operator"
READY_SECONDS = 300.0
OperatorChoice = Literal["auto", "own", "outside"]


@dataclass(frozen=True)
class Operator:
    """An operator. `deployment` is empty for one that does not run in a pod. `selector` selects its pods."""

    kubeconfig: Path
    namespace: str = ""
    deployment: str = ""
    selector: str = ""

    @property
    def in_pod(self) -> bool:
        return bool(self.deployment)

    def kube(self) -> Kubectl:
        return Kubectl(self.kubeconfig, self.namespace)

    def pods(self) -> list[Object]:
        return self.kube().list("pods", self.selector)

    def describe(self) -> str:
        return f"operator {self.deployment} in {self.namespace}" if self.in_pod else "an operator outside of pods"


@dataclass(frozen=True)
class Environment:
    """A ready cluster, its namespace (`kube`) and its operator."""

    kube: Kubectl
    cluster: str
    operator: Operator


def image_tag() -> str:
    """Return the tag of this tree's images."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


@contextlib.contextmanager
def prepare_environment(
    kubeconfig: Path, namespace: str, cluster: str, choice: OperatorChoice, tag: str, spec: Object, keep: bool
) -> Iterator[Environment]:
    """Yield a ready cluster. Delete what was made at the end, unless `keep`.

    :param namespace: made if it does not exist; empty: a new one with a random name.
    :param cluster: the name of an existing one; empty: one is made of `spec`.
    :param choice: `own` installs an operator into the namespace, `outside` relies on one that runs elsewhere, `auto`
        uses the one in the cluster that watches the namespace, or else installs one.
    :raises KubectlError, AssertionError: the cluster does not become ready; the text says why.
    """
    kube = Kubectl(kubeconfig, namespace or f"chaos-{uuid.uuid4().hex[:8]}")
    made = kube.get("namespace", kube.namespace) is None
    if made:
        kube("create", "namespace", kube.namespace)
    own_operator = own_cluster = False
    try:
        operator = Operator(kubeconfig) if choice == "outside" else None
        if choice == "auto":
            operator = find_operator(kube)
        if operator is None:
            own_operator = True
            operator = install_operator(kube, tag)
        if not cluster:
            own_cluster = True
            kube.apply(resource(spec))
        _wait_ready(kube, cluster or CLUSTER)
        yield Environment(kube, cluster or CLUSTER, operator)
    finally:
        if not keep:
            if made:
                kube("delete", "namespace", kube.namespace, "--timeout=120s", limit=150)
            else:
                if own_cluster:
                    kube("delete", "mgc", CLUSTER, "--ignore-not-found", "--timeout=90s", limit=120)
                if own_operator:
                    kube("delete", "-f", "-", "--ignore-not-found", given=_operator_manifest(kube, tag), limit=120)


def _wait_ready(kube: Kubectl, name: str) -> None:
    """Wait until a cluster is ready. :raises AssertionError: not in time, or the operator rejects the spec"""

    def settled() -> bool:
        conditions = (kube.get("mgc", name) or {}).get("status", {}).get("conditions", [])
        found = {one["type"]: one for one in conditions}
        ready = found.get("Ready", {})
        if ready.get("reason") == "InvalidSpec":
            raise AssertionError(f"the operator rejects the spec of {name}: {ready['message']}")
        return bool(ready.get("status") == "True")

    kube.until(settled, f"{name} ready", READY_SECONDS)
    kube.wait_ready(name, READY_SECONDS)


def resource(spec: Object) -> Object:
    return {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": CLUSTER},
        "spec": spec,
    }


def find_operator(kube: Kubectl) -> Operator | None:
    """Return the operator in a pod that watches the namespace; None also where other namespaces can't be read."""
    try:
        found = kube.list_all("deployments", OPERATORS)
    except KubectlError:
        return None
    for deployment in found:
        if kube.namespace in (watched_namespaces(deployment) or (kube.namespace,)):
            return _operator_of(kube, deployment)
    return None


def _operator_of(kube: Kubectl, deployment: Object) -> Operator:
    metadata, labels = deployment["metadata"], deployment["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return Operator(kube.kubeconfig, metadata["namespace"], metadata["name"], selector)


def watched_namespaces(deployment: Object) -> tuple[str, ...]:
    """Return the namespaces that an operator's Deployment watches; empty: all."""
    variables = deployment["spec"]["template"]["spec"]["containers"][0].get("env", [])
    names = next((one.get("value", "") for one in variables if one["name"] == "MIGRATORY_NAMESPACES"), "")
    return tuple(name.strip() for name in names.split(",") if name.strip())


def install_operator(kube: Kubectl, tag: str) -> Operator:
    """Install the chart's operator for this namespace alone."""
    if kube.get("crd", "migratoryclusters.migratory.dev") is None:
        kube("apply", "--server-side", "--force-conflicts", "-k", CRDS)
    kube("apply", "-f", "-", given=_operator_manifest(kube, tag))
    kube("rollout", "status", "deployment/chaos", "--timeout=120s", limit=150)
    return _operator_of(kube, kube.get("deployment", "chaos") or {})


def _operator_manifest(kube: Kubectl, tag: str) -> str:
    only = ("--no-hooks", "--set", "operator.scope=namespace,crds.upgrade=false", "--set-string", f"image.tag={tag}")
    return render_chart(*only, name="chaos", namespace=kube.namespace)
