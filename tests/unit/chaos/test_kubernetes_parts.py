"""Parts of a chaos run in Kubernetes: the namespaces that an operator watches, when a pod counts as ready, and the
reason of a failed SLAReport."""

from __future__ import annotations

from typing import Any

from migratory_chaos.kubernetes.environment import watched_namespaces
from migratory_chaos.kubernetes.report import read_status
from migratory_node.pods import is_ready


def deployment(namespaces: str | None) -> dict[str, Any]:
    env = [
        {"name": "X", "value": "y"},
        *([{"name": "MIGRATORY_NAMESPACES", "value": namespaces}] if namespaces is not None else []),
    ]
    return {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}


def test_watched_namespaces_are_the_named_ones_or_all() -> None:
    assert watched_namespaces(deployment(None)) == watched_namespaces(deployment("")) == ()
    assert watched_namespaces(deployment("one, two")) == ("one", "two")


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    pod: dict[str, Any] = {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert is_ready(pod)
    assert not is_ready({**pod, "metadata": {"deletionTimestamp": "now"}})
    assert not is_ready({"metadata": {}})


def test_read_status_gives_the_reason_of_a_failed_report() -> None:
    conditions = [{"type": "Complete", "status": "False", "reason": "DriverEvicted", "message": "no memory"}]
    status = read_status({"phase": "Failed", "conditions": conditions})
    assert (status["verdict"], status["failed"]) == ("no report", True)
    assert "DriverEvicted: no memory" in status["reason"]
    delivery = {"expected": 3, "received": 3, "lost": 0}
    good = read_status({"phase": "Succeeded", "verdict": "met", "delivery": delivery, "conditions": []})
    assert (good["verdict"], good["delivery"]) == ("met", delivery)
