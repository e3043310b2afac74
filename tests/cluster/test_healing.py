"""The operator restores deleted and edited objects, leaves conditions of other writers alone, does not change a paused
cluster, and stops a rollout of ZooKeeper at its first failure.

The tests share one cluster, and each leaves it ready.
"""

from __future__ import annotations

import json

import pytest
from migratory_node.kubectl import Kubectl, Object
from migratory_node.pods import wait_settled

pytestmark = pytest.mark.timeout(600)
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


def children(kube: Kubectl) -> dict[tuple[str, str], Object]:
    kinds = "serviceaccounts,networkpolicies,services,configmaps,pdb,statefulsets"
    found = kube.list(kinds, "app.kubernetes.io/managed-by=migratory-operator")
    return {(one["kind"].lower(), one["metadata"]["name"]): one for one in found}


def test_every_object_that_is_edited_or_deleted_is_restored(standing: Kubectl) -> None:
    kube = standing
    before = children(kube)
    assert set(before) == set(CHILDREN), "the list above names every child"

    def components() -> dict[tuple[str, str], str]:
        return {key: one["metadata"]["labels"]["app.kubernetes.io/component"] for key, one in children(kube).items()}

    usual = components()
    versions = {key: one["metadata"]["resourceVersion"] for key, one in before.items()}
    for kind, name in CHILDREN:
        kube.patch(kind, name, {"metadata": {"labels": {"app.kubernetes.io/component": "nonsense"}}})
    kube.until(lambda: components() == usual, "every child to be mended", 90)
    assert not [key for key, one in children(kube).items() if one["metadata"]["resourceVersion"] == versions[key]]

    for kind, name in CHILDREN:
        kube("delete", kind, name, "--cascade=orphan" if kind == "statefulset" else "--cascade=background")
    uids = {key: one["metadata"]["uid"] for key, one in before.items()}

    def made_again() -> bool:
        found = children(kube)
        return set(found) == set(CHILDREN) and all(one["metadata"]["uid"] != uids[key] for key, one in found.items())

    kube.until(made_again, "every child to come back", 90)
    kube.wait_ready("quotes")

    def reported() -> bool:
        messages = [event["message"] for event in kube.list("events") if event["reason"] == "Restored"]
        return any("ServiceAccount quotes was deleted" in message for message in messages)

    kube.until(reported, "an Event for the ServiceAccount", 30)


def test_an_edited_stateful_set_is_restored(standing: Kubectl) -> None:
    standing("scale", "statefulset", "quotes-broker", "--replicas=2")
    standing.until(
        lambda: (standing.get("statefulset", "quotes-broker") or {})["spec"]["replicas"] == 3, "three replicas", 60
    )
    standing.wait_ready("quotes")


@pytest.mark.usefixtures("needs_operator")
def test_conditions_of_other_writers_stay(standing: Kubectl) -> None:
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
    as_auditor = ("--server-side", "--subresource=status", "--field-manager=auditor")
    standing("apply", *as_auditor, "-f", "-", given=json.dumps(body))
    standing("delete", "pod", "quotes-broker-0", "--wait=false")
    standing.until(lambda: standing.condition("quotes", "Ready")[1] != "AllReady", "one broker less", 60)
    standing.wait_ready("quotes")
    assert standing.condition("quotes", "Audited") == ("True", "ByHand")


@pytest.mark.usefixtures("needs_operator")
def test_a_paused_cluster_is_repaired_after_it_resumes(standing: Kubectl) -> None:
    standing("annotate", "mgc", "quotes", "migratory.dev/paused=true")
    standing.until(lambda: standing.condition("quotes", "Progressing") == ("False", "Paused"), "paused", 60)
    standing("delete", "poddisruptionbudget", "quotes-broker")
    standing("delete", "pod", "quotes-broker-1", "--wait=false")
    # The status is still written, so the operator has reconciled.
    standing.until(lambda: standing.condition("quotes", "Ready")[1] != "AllReady", "one broker less", 60)
    standing.wait_ready("quotes")
    assert standing.get("poddisruptionbudget", "quotes-broker") is None
    assert "Paused" in [event["reason"] for event in standing.list("events")]
    standing("annotate", "mgc", "quotes", "migratory.dev/paused-")
    standing.until(lambda: standing.get("poddisruptionbudget", "quotes-broker"), "the disruption budget", 60)


def test_a_rollout_of_zookeeper_stops_at_its_first_failure(standing: Kubectl) -> None:
    kube = standing
    kube.wait_ready("quotes")
    selector = "app.kubernetes.io/component=zookeeper"

    def uids() -> list[str]:
        return [pod["metadata"]["uid"] for pod in kube.list("pods", selector)]

    before = uids()
    kube.patch("mgc", "quotes", {"spec": {"zookeeper": {"image": "nowhere.invalid/no/such:1"}}})
    pulling = ("ErrImagePull", "ImagePullBackOff")
    kube.until(lambda: kube.condition("quotes", "Degraded")[1] in pulling, "the condition", 90)
    kube.until(lambda: kube.condition("quotes", "Progressing") == ("False", "RolloutStopped"), "it stopped", 30)
    after = uids()
    assert sum(was != now for was, now in zip(before, after, strict=True)) == 1, "two of three go on, a quorum"
    kube.until(lambda: kube.condition("quotes", "Ready")[0] == "True", "clients taken with two of three members")
    assert kube.condition("quotes", "Degraded")[1] in pulling
    assert uids() == after, "nothing else is replaced"
    kube.patch("mgc", "quotes", {"spec": {"zookeeper": {"image": None}}})
    wait_settled(kube)
    assert sum(was != now for was, now in zip(before, uids(), strict=True)) == 1, "those that ran were never touched"
