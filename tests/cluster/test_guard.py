"""The chart's policy that guards the objects of clusters (`guard.enabled`), on the API server.

The test needs an API server only: it makes an object of each kind, as the operator would, and edits it as others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from migratory_node.chart import render_chart
from migratory_node.kubectl import Kubectl, KubectlError
from migratory_operator.names import FIELD_MANAGER, Object, ResourceOwner
from migratory_operator.objects import desired
from migratory_operator.settings import OperatorSettings
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import cluster

pytestmark = pytest.mark.timeout(300)
SETTINGS = OperatorSettings(broker_image="example/broker:1", zookeeper_image="example/zookeeper:1")


@pytest.fixture(scope="module")
def guarded(kubeconfig: Path) -> Iterator[Kubectl]:
    """Create a namespace with the policy for it and the objects of a cluster, and return kubectl for it."""
    everywhere, name = Kubectl(kubeconfig), f"test-{uuid.uuid4().hex[:8]}"
    everywhere("create", "namespace", name)
    kube = Kubectl(kubeconfig, name)
    rendered = render_chart("--set", "guard.enabled=true,guard.exempt={alice}", "--show-only=templates/guard.yaml",
                            name="own", namespace=name)  # fmt: skip
    everywhere("apply", "-f", "-", given=rendered)
    everywhere(
        "create", "clusterrolebinding", name, "--clusterrole=cluster-admin", f"--serviceaccount={name}:own",
        f"--serviceaccount={name}:other", "--user=alice",
    )  # fmt: skip
    resource = cluster()
    resource["metadata"]["namespace"] = name
    model = read_cluster(resource)
    urls = dict.fromkeys(model.broker_names, "ws://example.com/ws")
    for item in desired(model, ResourceOwner.of(resource), SETTINGS, urls, frozenset(urls)):
        if item["kind"] == "ServiceMonitor":
            continue
        # No controller shall delete it for a missing owner, and no kubelet run it.
        del item["metadata"]["ownerReferences"]
        if item["kind"] == "StatefulSet":
            item["spec"]["template"]["spec"]["nodeSelector"] = {"no": "node"}
        kube("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "-f", "-", given=json.dumps(item))
    kube("create", "configmap", "theirs", "--from-literal=a=1")
    # A policy takes effect a moment after it was created.
    kube.until(
        lambda: _is_refused(kube, "service", "quotes-clients", {"spec": {"externalName": "a.b"}}), "the policy", 30
    )
    yield kube
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        everywhere("delete", kind, f"{name}-own-guard")
    everywhere("delete", "clusterrolebinding", name)
    everywhere("delete", "namespace", name, "--wait=false")


def _is_refused(kube: Kubectl, kind: str, name: str, change: Object, *options: str) -> bool:
    try:
        kube("patch", kind, name, "--type=merge", "--dry-run=server", "-p", json.dumps(change), *options)
    except KubectlError as error:
        if "belongs to a MigratoryCluster" not in str(error):
            raise
        return True
    return False


POD: Object = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
EDITS: list[tuple[str, str, Object]] = [
    ("statefulset", "quotes-broker", {"spec": {"replicas": 1}}),
    ("statefulset", "quotes-zookeeper", POD),
    ("statefulset", "quotes-broker", {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
    ("service", "quotes-clients", {"spec": {"publishNotReadyAddresses": True}}),
    ("configmap", "quotes-broker", {"data": {"broker.json": "{}"}}),
    ("networkpolicy", "quotes-broker", {"spec": {"ingress": [{}]}}),
    ("poddisruptionbudget", "quotes-broker", {"spec": {"maxUnavailable": 3}}),
]


@pytest.mark.parametrize(("kind", "name", "change"), EDITS)
def test_an_edit_is_refused_except_for_the_operator_and_exempt_users(
    guarded: Kubectl, kind: str, name: str, change: Object
) -> None:
    account = f"--as=system:serviceaccount:{guarded.namespace}"
    assert _is_refused(guarded, kind, name, change)
    assert _is_refused(guarded, kind, name, change, f"{account}:other")
    assert not _is_refused(guarded, kind, name, change, f"{account}:own")
    assert not _is_refused(guarded, kind, name, change, "--as=alice")


def test_scaling_a_stateful_set_is_refused(guarded: Kubectl) -> None:
    with pytest.raises(KubectlError, match="belongs to a MigratoryCluster"):
        guarded("scale", "statefulset", "quotes-broker", "--replicas=1")
    assert (guarded.get("statefulset", "quotes-broker") or {})["spec"]["replicas"] == 3


def test_a_restart_labels_and_objects_of_others_are_not_refused(guarded: Kubectl) -> None:
    guarded("rollout", "restart", "statefulset/quotes-broker")
    guarded("label", "service", "quotes-clients", "team=market")
    guarded.patch("configmap", "theirs", {"data": {"a": "2"}})
    labels: Any = {"metadata": {"labels": {"app.kubernetes.io/name": "migratory"}}}
    guarded.patch("configmap", "theirs", labels)
    guarded.patch("configmap", "theirs", {"data": {"a": "3"}})


def test_the_policy_is_of_the_releases_namespaces_or_of_all() -> None:
    bindings = [
        next(one for one in yaml.safe_load_all(
            render_chart("--set", f"guard.enabled=true,operator.scope={scope}", "--show-only=templates/guard.yaml")
        ) if one["kind"].endswith("Binding"))
        for scope in ("namespace", "cluster")
    ]  # fmt: skip
    assert "matchResources" not in bindings[1]["spec"]
    (match,) = bindings[0]["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert match["values"] == ["migratory-system"]
