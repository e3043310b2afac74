"""Where a run takes place: a namespace, an operator that looks after it, a cluster in it; found, or made for the run.

What is made is gone at the end. The definitions of the resources are brought where they are missing, and stay: they are
the whole Kubernetes', and other clusters may have come meanwhile.
"""

from __future__ import annotations

import contextlib
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from migratory_node.kubectl import Kubectl, Object, Refused
from migratory_node.places import ROOT
from migratory_node.rendered import template

CRDS = str(ROOT / "manifests" / "crds")
CLUSTER = "quotes"
OPERATORS = "app.kubernetes.io/name=migratory-operator"
READY_SECONDS = 300.0
How = Literal["auto", "own", "outside"]


@dataclass(frozen=True)
class Operator:
    """`deployment` is empty for one that does not run in a pod: it can't be struck. `selector`: of its pods."""

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

    def says(self) -> str:
        return f"operator {self.deployment} in {self.namespace}" if self.in_pod else "an operator outside of pods"


@dataclass(frozen=True)
class Place:
    """`made`: the namespace was made for this run."""

    kube: Kubectl
    cluster: str
    operator: Operator
    made: bool


def version() -> str:
    """The images' tag."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


@contextlib.contextmanager
def place(
    kubeconfig: Path, namespace: str, cluster: str, how: How, tag: str, spec: Object, keep: bool
) -> Iterator[Place]:
    """A ready cluster.

    :param namespace: made when there is none of the name, and then deleted at the end; empty: one by chance.
    :param cluster: the name of one that is there; empty: one is made, and then deleted at the end.
    :param how: `own` installs an operator into the namespace, `outside` relies on one that runs elsewhere, `auto` takes
        the one in the cluster that looks after the namespace, or else installs one.
    :raises Refused, AssertionError: it can't be had; the text says why.
    """
    kube = Kubectl(kubeconfig, namespace or f"chaos-{uuid.uuid4().hex[:8]}")
    made = not _there(kube)
    if made:
        kube("create", "namespace", kube.namespace)
    own_operator = own_cluster = False
    try:
        operator = Operator(kubeconfig) if how == "outside" else None
        if how == "auto":
            operator = find_operator(kube)
        if operator is None:
            own_operator = True
            operator = install(kube, tag)
        if not cluster:
            own_cluster = True
            kube.apply(resource(spec))
        _ready(kube, cluster or CLUSTER)
        yield Place(kube, cluster or CLUSTER, operator, made)
    finally:
        if not keep:
            if made:
                kube("delete", "namespace", kube.namespace, "--timeout=120s", limit=150)
            else:
                if own_cluster:
                    kube("delete", "mgc", CLUSTER, "--ignore-not-found", "--timeout=90s", limit=120)
                if own_operator:
                    kube("delete", "-f", "-", "--ignore-not-found", given=_operator(kube, tag), limit=120)


def _ready(kube: Kubectl, name: str) -> None:
    """:raises AssertionError: not in time, or the operator can't use this spec and says why."""

    def settled() -> bool:
        conditions = (kube.get("mgc", name) or {}).get("status", {}).get("conditions", [])
        found = {one["type"]: one for one in conditions}
        ready = found.get("Ready", {})
        if ready.get("reason") == "InvalidSpec":
            raise AssertionError(f"the operator can't use the spec of {name}: {ready['message']}")
        return bool(ready.get("status") == "True")

    kube.until(settled, f"{name} ready", READY_SECONDS)
    kube.ready(name, READY_SECONDS)


def _there(kube: Kubectl) -> bool:
    return kube.get("namespace", kube.namespace) is not None


def resource(spec: Object) -> Object:
    return {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": CLUSTER},
        "spec": spec,
    }


def find_operator(kube: Kubectl) -> Operator | None:
    """One in a pod, by what its Deployment says it looks after. None also where other namespaces can't be read."""
    try:
        found = kube.list_all("deployments", OPERATORS)
    except Refused:
        return None
    for deployment in found:
        if kube.namespace in (looked_after(deployment) or (kube.namespace,)):
            return _operator_of(kube, deployment)
    return None


def _operator_of(kube: Kubectl, deployment: Object) -> Operator:
    metadata, labels = deployment["metadata"], deployment["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return Operator(kube.kubeconfig, metadata["namespace"], metadata["name"], selector)


def looked_after(deployment: Object) -> tuple[str, ...]:
    """Namespaces; empty: all."""
    variables = deployment["spec"]["template"]["spec"]["containers"][0].get("env", [])
    names = next((one.get("value", "") for one in variables if one["name"] == "MIGRATORY_NAMESPACES"), "")
    return tuple(name.strip() for name in names.split(",") if name.strip())


def install(kube: Kubectl, tag: str) -> Operator:
    """The chart's operator, for this namespace alone."""
    if kube.get("crd", "migratoryclusters.migratory.dev") is None:
        kube("apply", "--server-side", "--force-conflicts", "-k", CRDS)
    kube("apply", "-f", "-", given=_operator(kube, tag))
    kube("rollout", "status", "deployment/chaos", "--timeout=120s", limit=150)
    return _operator_of(kube, kube.get("deployment", "chaos") or {})


def _operator(kube: Kubectl, tag: str) -> str:
    only = ("--no-hooks", "--set", "operator.scope=namespace,crds.upgrade=false", "--set-string", f"image.tag={tag}")
    return template(*only, name="chaos", namespace=kube.namespace)
