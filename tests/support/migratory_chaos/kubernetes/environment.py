"""The environment of a run: a namespace, an operator that watches it, a cluster in it; existing, or made for the run.

What is made is deleted at the end. Missing definitions of the resources are installed, and stay: they belong to the
whole Kubernetes, and other clusters may use them meanwhile.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from migratory_node.chart import render_chart
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.paths import ROOT
from migratory_node.pods import make_cluster

CRDS = str(ROOT / "manifests" / "crds")
OPERATORS = "app.kubernetes.io/name=migratory-operator"
OPERATOR_CHOICES = ("auto", "own", "outside")
SMALL_CLUSTER: Object = {
    "brokers": {"replicas": 3, "drain": {"period": "5s"}},
    "topics": {"groups": 20},
    "sla": {
        "window": "5m",
        "objectives": [
            {"name": "complete", "type": "delivery", "target": "100"},
            {"name": "back", "type": "resume", "threshold": "10s", "target": "90"},
        ],
    },
}
"""The spec of a cluster that is made for a run. It fits a small node."""


class Operator:
    """An operator of the product. `kube` calls kubectl in its namespace. `deployment` is its Deployment, or None if
    it runs in no pod."""

    def __init__(self, kube: Kubectl, deployment: Object | None) -> None:
        self.deployment = deployment
        metadata = deployment["metadata"] if deployment is not None else {}
        self.name = metadata.get("name", "")
        self.kube = Kubectl(kube.kubeconfig, metadata.get("namespace", kube.namespace))

    def __str__(self) -> str:
        return f"operator {self.name} in {self.kube.namespace}" if self.deployment else "an operator outside of pods"

    def pods(self) -> list[Object]:
        labels = self.deployment["spec"]["selector"]["matchLabels"] if self.deployment is not None else {}
        return self.kube.list("pods", ",".join(f"{key}={value}" for key, value in sorted(labels.items())))


@dataclass(frozen=True)
class Environment:
    """A ready cluster, kubectl calls in its namespace (`kube`), and its operator."""

    kube: Kubectl
    cluster: str
    operator: Operator


@contextlib.contextmanager
def prepare_environment(
    kubeconfig: Path, *, namespace: str, cluster: str, operator: str, keep: bool
) -> Iterator[Environment]:
    """Yield a ready cluster. Delete what was made at the end, unless `keep`.

    :param namespace: made if it does not exist; empty: a new one with a random name.
    :param cluster: the name of an existing one; empty: one is made.
    :param operator: `own` installs an operator into the namespace, `outside` relies on one that runs elsewhere, `auto`
        uses the one in the cluster that watches the namespace, or else installs one.
    :raises KubectlError, AssertionError: the cluster does not become ready; the text says why.
    """
    kube = Kubectl(kubeconfig, namespace or f"chaos-{uuid.uuid4().hex[:8]}")
    with contextlib.ExitStack() as undo:

        def delete_later(*what: str, given: str | None = None) -> None:
            if not keep:
                undo.callback(kube, "delete", *what, "--ignore-not-found", "--timeout=120s", given=given, limit=150)

        if kube.get("namespace", kube.namespace) is None:
            kube("create", "namespace", kube.namespace)
            delete_later("namespace", kube.namespace)
        used = Operator(kube, None) if operator == "outside" else find_operator(kube) if operator == "auto" else None
        if used is None:
            values = (
                "operator.scope=namespace,crds.upgrade=false,reports.enabled=true,"
                f"reports.allowedPrometheus={{http://*:9090,https://*:9090}},networkPolicy.monitors={{{kube.namespace}}}"
            )
            manifest = render_chart("--no-hooks", "--set", values, name="chaos", namespace=kube.namespace)
            delete_later("-f", "-", given=manifest)
            used = install_operator(kube, manifest)
        if cluster:
            kube.wait_ready(cluster)
        else:
            delete_later("mgc", "quotes")
            cluster = make_cluster(kube, SMALL_CLUSTER, "quotes")
        yield Environment(kube, cluster, used)


def find_operator(kube: Kubectl) -> Operator | None:
    """Return the operator in a pod that watches the namespace; None also where other namespaces can't be read."""
    try:
        found = kube.list_all("deployments", OPERATORS)
    except KubectlError:
        return None
    for deployment in found:
        if kube.namespace in (watched_namespaces(deployment) or (kube.namespace,)):
            return Operator(kube, deployment)
    return None


def watched_namespaces(deployment: Object) -> tuple[str, ...]:
    """Return the namespaces that an operator's Deployment watches. An empty tuple means all."""
    variables = deployment["spec"]["template"]["spec"]["containers"][0].get("env", [])
    names = next((one.get("value", "") for one in variables if one["name"] == "MIGRATORY_NAMESPACES"), "")
    return tuple(name.strip() for name in names.split(",") if name.strip())


def install_operator(kube: Kubectl, manifest: str) -> Operator:
    """Install the operator of a manifest, and the resource definitions if they are missing. Wait for the operator
    and return it."""
    if kube.get("crd", "migratoryclusters.migratory.dev") is None:
        kube("apply", "--server-side", "--force-conflicts", "-k", CRDS)
    kube("apply", "-f", "-", given=manifest)
    kube("rollout", "status", "deployment/chaos", "--timeout=120s", limit=150)
    return Operator(kube, kube.get("deployment", "chaos"))
