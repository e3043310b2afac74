"""Whatever is deleted or edited comes back; an operator that died, or was blind, makes good what it missed."""

from __future__ import annotations

import json

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.pods import Cluster

pytestmark = pytest.mark.timeout(900)
CHILDREN = [
    ("serviceaccount", "quotes"),
    ("networkpolicy", "quotes-broker"),
    ("networkpolicy", "quotes-zookeeper"),
    ("service", "quotes-broker"),
    ("service", "quotes-clients"),
    ("service", "quotes-zookeeper"),
    ("configmap", "quotes-servers"),
    ("configmap", "quotes-broker"),
    ("configmap", "quotes-zookeeper"),
    ("poddisruptionbudget", "quotes-broker"),
    ("poddisruptionbudget", "quotes-zookeeper"),
    ("statefulset", "quotes-broker"),
    ("statefulset", "quotes-zookeeper"),
]


def test_every_child_that_is_deleted_or_edited_comes_back(kube: Kubectl, cluster: Cluster) -> None:
    cluster()
    names = {(kind, name) for kind, name in CHILDREN}
    made = {
        (one["kind"].lower(), one["metadata"]["name"])
        for one in kube.list(
            "serviceaccounts,networkpolicies,services,configmaps,pdb,statefulsets",
            "app.kubernetes.io/managed-by=migratory-operator",
        )
    }
    assert made == names, "the list above names every child"
    for kind, name in CHILDREN:
        before = kube.get(kind, name)
        assert before is not None
        kube.patch(kind, name, {"metadata": {"labels": {"app.kubernetes.io/component": "nonsense"}}})
        component = before["metadata"]["labels"]["app.kubernetes.io/component"]

        def mended(kind: str = kind, name: str = name, component: str = component) -> bool:
            found = kube.get(kind, name) or {"metadata": {}}
            return bool(found["metadata"].get("labels", {}).get("app.kubernetes.io/component") == component)

        kube.until(mended, f"{kind} {name} to be mended", 60)
        kube("delete", kind, name, "--cascade=orphan" if kind == "statefulset" else "--wait=true")

        def made_again(kind: str = kind, name: str = name, uid: str = before["metadata"]["uid"]) -> bool:
            found = kube.get(kind, name)
            return found is not None and found["metadata"]["uid"] != uid

        kube.until(made_again, f"{kind} {name} to come back", 60)
    kube.ready("quotes")
    told = [event["message"] for event in kube.list("events") if event["reason"] == "Restored"]
    assert any("StatefulSet quotes-broker was gone" in message for message in told)


def test_a_field_of_a_statefulset_that_somebody_changed_is_as_asked_for_again(kube: Kubectl, cluster: Cluster) -> None:
    cluster()
    kube("scale", "statefulset", "quotes-broker", "--replicas=2")
    kube.until(lambda: (kube.get("statefulset", "quotes-broker") or {})["spec"]["replicas"] == 3, "three replicas", 60)
    kube.ready("quotes")


def test_an_operator_that_is_killed_amid_a_change_completes_it(
    operator: Kubectl, kube: Kubectl, cluster: Cluster
) -> None:
    cluster(ready=False)
    kube.until(lambda: kube.list("statefulsets"), "the first StatefulSet")
    operator("delete", "pod", "-l", "app.kubernetes.io/name=migratory-operator", "--grace-period=0", "--force")
    kube.ready("quotes")
    # a change while there is no operator at all
    operator("scale", "deployment", "migratory", "--replicas=0")
    operator.until(lambda: not operator.list("pods", "app.kubernetes.io/name=migratory-operator"), "no operator")
    kube.patch("mgc", "quotes", {"spec": {"brokers": {"weights": {"quotes-broker-2": 7}}}})
    operator("scale", "deployment", "migratory", "--replicas=1")
    kube.until(
        lambda: [one["weight"] for one in (kube.get("mgc", "quotes") or {})["status"]["servers"]] == [100, 100, 7],
        "the change that was made meanwhile",
    )


def test_another_writers_condition_stays(kube: Kubectl, cluster: Cluster) -> None:
    cluster()
    theirs = {
        "type": "Audited",
        "status": "True",
        "reason": "ByHand",
        "message": "all is well",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "quotes"},
        "status": {"conditions": [theirs]},
    }
    kube("apply", "--server-side", "--subresource=status", "--field-manager=auditor", "-f", "-", given=json.dumps(body))
    kube("delete", "pod", "quotes-broker-0", "--wait=true")
    kube.until(lambda: kube.condition("quotes", "Ready")[0] == "False", "not ready", 60)
    kube.ready("quotes")
    assert kube.condition("quotes", "Audited") == ("True", "ByHand")


def test_paused_nothing_is_mended_until_it_goes_on(kube: Kubectl, cluster: Cluster) -> None:
    cluster()
    kube("annotate", "mgc", "quotes", "migratory.dev/paused=true")
    kube.until(lambda: kube.condition("quotes", "Progressing") == ("False", "Paused"), "paused", 60)
    kube("delete", "poddisruptionbudget", "quotes-broker")
    kube("delete", "pod", "quotes-broker-1", "--wait=true")
    # the status goes on, so the operator has looked
    kube.until(lambda: kube.condition("quotes", "Ready")[0] == "False", "not ready", 60)
    kube.ready("quotes")
    assert kube.get("poddisruptionbudget", "quotes-broker") is None
    kube("annotate", "mgc", "quotes", "migratory.dev/paused-")
    kube.until(lambda: kube.get("poddisruptionbudget", "quotes-broker"), "the disruption budget", 60)


def test_watches_alone_suffice_while_they_work(operator: Kubectl, kube: Kubectl, cluster: Cluster) -> None:
    """With an hour between two looks at everything, what is created, changed and deleted is noticed all the same."""
    operator("set", "env", "deployment/migratory", "MIGRATORY_RESYNC_SECONDS=3600")
    try:
        operator("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)
        cluster({"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}})
        kube.patch("mgc", "quotes", {"spec": {"brokers": {"weights": {"quotes-broker-0": 3}}}})
        servers = lambda: (kube.get("mgc", "quotes") or {})["status"]["servers"]  # noqa: E731
        kube.until(lambda: [one["weight"] for one in servers()] == [3], "the change", 60)
        kube("delete", "configmap", "quotes-servers")
        kube.until(lambda: kube.get("configmap", "quotes-servers"), "the server list to come back", 60)
        log = operator("logs", "deployment/migratory")
        assert "Traceback" not in log, log
    finally:
        operator("set", "env", "deployment/migratory", "MIGRATORY_RESYNC_SECONDS=15")
        operator("rollout", "status", "deployment/migratory", "--timeout=120s", limit=150)
