"""Installation, upgrade and removal with Helm; operators of one namespace each, and two of the same namespace.

The operator of all namespaces is stopped meanwhile: a cluster must not have two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from migratory_node import chart
from migratory_node.chart import CHART, install_operator
from migratory_node.kubectl import Kubectl, KubectlError
from migratory_node.pods import SMALLEST, Namespaces, make_cluster, weigh, weights

pytestmark = [pytest.mark.own_operator, pytest.mark.timeout(600)]
ALL = "app.kubernetes.io/name=migratory-operator"
CRD = "migratoryclusters.migratory.dev"


def run_helm(kube: Kubectl, *arguments: str) -> str:
    return chart.run_helm(kube.kubeconfig, kube.namespace, *arguments)


def test_helm_installs_upgrades_and_uninstalls_a_cluster(no_operator: None, kube: Kubectl) -> None:
    wanted = ("--set", "cluster.create=true,cluster.name=quotes,cluster.spec.topics.groups=20",
              "--set", "cluster.spec.brokers.drain.period=2s")  # fmt: skip
    told = run_helm(kube, "install", "whole", str(CHART), "--wait", "--timeout=3m", *wanted)
    assert "mgc/quotes" in told, "the notes say how to wait for it"
    assert kube.condition("quotes", "Ready")[0] == "True", "the installation ended when the cluster was ready"
    kube.wait_ready("quotes")
    assert "Phase:          Succeeded" in run_helm(kube, "test", "whole", "--timeout=2m")

    # An older definition, as of an older release: the upgrade updates it.
    columns = (kube.get("crd", CRD) or {})["spec"]["versions"][0]["additionalPrinterColumns"]
    first = "/spec/versions/0/additionalPrinterColumns/0"
    kube("patch", "crd", CRD, "--type=json", "-p", json.dumps([{"op": "remove", "path": first}]))
    broker = (kube.get("pod", "quotes-broker-0") or {})["metadata"]["uid"]
    run_helm(kube, "upgrade", "whole", str(CHART), "--wait", "--timeout=3m", *wanted,
            "--set", "operator.podAnnotations.release=second")  # fmt: skip
    assert (kube.get("crd", CRD) or {})["spec"]["versions"][0]["additionalPrinterColumns"] == columns
    kube.wait_ready("quotes")
    assert (kube.get("pod", "quotes-broker-0") or {})["metadata"]["uid"] == broker, "the cluster was left alone"

    run_helm(kube, "uninstall", "whole", "--wait", "--timeout=2m")
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


@pytest.fixture(scope="module")
def two(no_operator: None, namespaces: Namespaces) -> Iterator[tuple[Kubectl, Kubectl]]:
    """Create two namespaces, each with its own operator and a ready cluster of the same name. Yield kubectl for
    each."""
    with namespaces() as first, namespaces() as second:
        for kube in (first, second):
            install_operator(kube)
            make_cluster(kube, SMALLEST, ready=False)
        for kube in (first, second):
            kube.wait_ready("quotes")
        yield first, second
        # The namespaces are deleted with the clusters in them, and without an operator.
        for kube in (first, second):
            kube("delete", "deployment", "own", "--wait=true")


def account(kube: Kubectl) -> str:
    (operator,) = kube.list("pods", ALL)
    return f"--as=system:serviceaccount:{kube.namespace}:{operator['spec']['serviceAccountName']}"


def test_an_operator_of_one_namespace_needs_only_a_role(two: tuple[Kubectl, Kubectl]) -> None:
    kube, other = two
    names = [one["metadata"]["name"] for one in kube.list("clusterroles,clusterrolebindings")]
    assert not [name for name in names if kube.namespace in name]
    kube("delete", "service", "quotes-clients")
    kube.until(lambda: kube.get("service", "quotes-clients"), "the Service to come back", 60)
    (operator,) = kube.list("pods", ALL)
    log = kube("logs", operator["metadata"]["name"])
    refused = [line for line in log.splitlines() if "403" in line or "forbidden" in line.lower()]
    assert refused == []
    assert "WARNING" not in log, log
    assert kube("auth", "can-i", "list", "pods", account(kube)).strip() == "yes"
    with pytest.raises(KubectlError):
        kube("auth", "can-i", "list", "pods", "--all-namespaces", account(kube))
    with pytest.raises(KubectlError):
        other("auth", "can-i", "list", "pods", account(kube))


def has_weight(kube: Kubectl, weight: int) -> bool:
    return weights(kube) == [weight]


def test_operators_of_two_namespaces_are_independent(two: tuple[Kubectl, Kubectl]) -> None:
    kube, other = two

    kube("scale", "deployment", "own", "--replicas=0")
    kube.until(lambda: not kube.list("pods", ALL), "no operator in the first namespace")
    for weight in (7, 8):
        for where in two:
            where("delete", "service", "quotes-clients", "--ignore-not-found")
            weigh(where, weight)
        other.until(lambda: other.get("service", "quotes-clients"), "the Service of its own to come back", 60)
        other.until(partial(has_weight, other, weight), "the change of its own", 60)
        assert kube.get("service", "quotes-clients") is None, "the other operator made it"
        assert has_weight(kube, 100), "the other operator wrote it"
    kube("scale", "deployment", "own", "--replicas=1")
    kube.until(lambda: has_weight(kube, 8) and kube.get("service", "quotes-clients"), "what was left undone", 90)

    ours = "app.kubernetes.io/instance=quotes"
    uids = {one["metadata"]["uid"] for one in other.list("pods,statefulsets,services,configmaps", ours)}
    assert len(uids) > 5
    kube("delete", "mgc", "quotes", "--timeout=60s", limit=90)
    kube.until(lambda: not kube.list("pods,statefulsets,services,configmaps", ours), "nothing left", 90)
    assert {one["metadata"]["uid"] for one in other.list("pods,statefulsets,services,configmaps", ours)} == uids
    other.wait_ready("quotes")


def test_of_two_operators_of_a_namespace_one_waits_says_so_and_takes_over(no_operator: None, kube: Kubectl) -> None:
    only_here = "operator.resyncSeconds=2,crds.upgrade=false,metrics.enabled=false"
    for release in ("first", "second"):
        run_helm(kube, "install", release, str(CHART), "--skip-crds", "--set", only_here, "--wait", "--timeout=2m")
    make_cluster(kube, SMALLEST)

    def holder() -> str:
        lease = kube.get("lease", "migratory-operator") or {"spec": {}}
        return str(lease["spec"].get("holderIdentity", "")).split("/")[1]

    serving = holder()
    waiting = "second" if serving == "first" else "first"

    def told() -> list[str]:
        return [one["message"] for one in kube.list("events") if one["reason"] == "TwoOperators"]

    (message,) = kube.until(told, "the Event", 60)
    assert message.startswith(f"the operator {kube.namespace}/{waiting}/")
    versions = {one["metadata"]["resourceVersion"] for one in kube.list("statefulsets,configmaps")}
    log = kube("logs", f"deployment/{waiting}")
    assert f"waiting: another operator, {kube.namespace}/{serving}/" in log
    assert "applied" not in log
    assert {one["metadata"]["resourceVersion"] for one in kube.list("statefulsets,configmaps")} == versions

    run_helm(kube, "uninstall", serving, "--wait", "--timeout=2m")
    weigh(kube, 7)
    kube.until(lambda: has_weight(kube, 7), "a change by the one that waited", 60)
    assert holder() == waiting
    kube("delete", "mgc", "quotes", "--timeout=60s", limit=90)
    kube("delete", "deployment", waiting, "--wait=true")
