"""An operator that may look into one namespace alone: it works, and asks for nothing that it may not have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.pods import Cluster
from migratory_node.rendered import template

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def alone(operator: Kubectl) -> Iterator[None]:
    """The operator of all namespaces is away meanwhile."""
    operator("scale", "deployment", "migratory", "--replicas=0")
    operator.until(lambda: not operator.list("pods", "app.kubernetes.io/name=migratory-operator"), "no operator")
    yield
    operator("scale", "deployment", "migratory", "--replicas=1")


def test_a_role_is_enough_and_the_namespace_goes_with_its_operator_gone_first(
    alone: None, kube: Kubectl, cluster: Cluster
) -> None:
    made = template(
        "--no-hooks", "--set", "operator.scope=namespace,crds.upgrade=false", name="own", namespace=kube.namespace
    )
    assert "kind: ClusterRole" not in made
    kube("apply", "-f", "-", given=made)
    kube("rollout", "status", "deployment/own", "--timeout=120s", limit=150)
    cluster()
    kube("delete", "service", "quotes-clients")
    kube.until(lambda: kube.get("service", "quotes-clients"), "the Service to come back", 60)
    log = kube("logs", "deployment/own")
    refused = [line for line in log.splitlines() if "403" in line or "forbidden" in line.lower()]
    assert refused == []
    assert "WARNING" not in log, log
    # the fixture deletes the namespace, with the cluster in it and nobody left to look after it
    kube("delete", "deployment", "own", "--wait=true")
