"""By Helm: everything with one command, an upgrade, and nothing left; or an operator that may look into one namespace.

The operator of all namespaces is away meanwhile: there must never be two for one cluster.
"""

from __future__ import annotations

import json

import pytest
from migratory_node import rendered
from migratory_node.kubectl import Kubectl, Refused
from migratory_node.pods import ONE, Cluster
from migratory_node.rendered import CHART

pytestmark = pytest.mark.timeout(600)
ALL = "app.kubernetes.io/name=migratory-operator"
CRD = "migratoryclusters.migratory.dev"


def by_helm(kube: Kubectl, *arguments: str) -> str:
    return rendered.by_helm(kube.kubeconfig, kube.namespace, *arguments)


def test_one_command_brings_a_cluster_that_is_upgraded_and_uninstalled_without_a_trace(
    alone: None, kube: Kubectl
) -> None:
    wanted = ("--set", "cluster.create=true,cluster.name=quotes,cluster.spec.topics.groups=20",
              "--set", "cluster.spec.brokers.drain.period=2s")  # fmt: skip
    told = by_helm(kube, "install", "whole", str(CHART), "--wait", "--timeout=3m", *wanted)
    assert "mgc/quotes" in told, "the notes say how to wait for it"
    kube.ready("quotes")
    assert "Phase:          Succeeded" in by_helm(kube, "test", "whole", "--timeout=2m")

    # an older definition, as from an older release: the upgrade brings it up to date
    columns = (kube.get("crd", CRD) or {})["spec"]["versions"][0]["additionalPrinterColumns"]
    first = "/spec/versions/0/additionalPrinterColumns/0"
    kube("patch", "crd", CRD, "--type=json", "-p", json.dumps([{"op": "remove", "path": first}]))
    broker = (kube.get("pod", "quotes-broker-0") or {})["metadata"]["uid"]
    by_helm(kube, "upgrade", "whole", str(CHART), "--wait", "--timeout=3m", *wanted,
            "--set", "operator.podAnnotations.release=second")  # fmt: skip
    assert (kube.get("crd", CRD) or {})["spec"]["versions"][0]["additionalPrinterColumns"] == columns
    kube.ready("quotes")
    assert (kube.get("pod", "quotes-broker-0") or {})["metadata"]["uid"] == broker, "the cluster was left alone"

    by_helm(kube, "uninstall", "whole", "--wait", "--timeout=2m")
    kinds = "mgc,statefulsets,pods,services,configmaps,pdb,networkpolicies,pvc,serviceaccounts,deployments,jobs,roles"

    def left() -> list[str]:
        ours = [f"{one['kind']} {one['metadata']['name']}" for one in kube.list(kinds)]
        return [name for name in ours if name not in ("ConfigMap kube-root-ca.crt", "ServiceAccount default")]

    kube.until(lambda: not left(), "nothing left of the release", 90)
    assert not [
        one["metadata"]["name"]
        for one in kube.list("clusterroles,clusterrolebindings")
        if kube.namespace in one["metadata"]["name"]
    ]


def test_a_role_is_enough_and_the_namespace_goes_with_its_operator_gone_first(
    alone: None, kube: Kubectl, cluster: Cluster
) -> None:
    only_here = ("--skip-crds", "--set", "operator.scope=namespace,crds.upgrade=false")
    by_helm(kube, "install", "own", str(CHART), "--wait", "--timeout=3m", *only_here)
    names = [one["metadata"]["name"] for one in kube.list("clusterroles,clusterrolebindings")]
    assert not [name for name in names if kube.namespace in name]
    cluster(ONE)
    kube("delete", "service", "quotes-clients")
    kube.until(lambda: kube.get("service", "quotes-clients"), "the Service to come back", 60)
    (operator,) = kube.list("pods", ALL)
    log = kube("logs", operator["metadata"]["name"])
    refused = [line for line in log.splitlines() if "403" in line or "forbidden" in line.lower()]
    assert refused == []
    assert "WARNING" not in log, log
    account = f"system:serviceaccount:{kube.namespace}:{operator['spec']['serviceAccountName']}"
    with pytest.raises(Refused):
        kube("auth", "can-i", "list", "pods", "--all-namespaces", f"--as={account}")
    # the fixture deletes the namespace, with the cluster in it and nobody left to look after it
    kube("delete", "deployment", "own", "--wait=true")
