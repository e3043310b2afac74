"""The SLAReport of the run's own time: asked for like any other, and read from its status. Without a Prometheus there
is none, and the result says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from migratory_node.kubectl import Kubectl, Object, Refused
from migratory_node.places import Places
from migratory_node.prometheus import watching

from migratory_chaos_k8s.result import NO_REPORT
from migratory_chaos_k8s.target import Target, until

SECONDS = 600.0
"""For Spark to start, read and write."""
ENDED = ("Succeeded", "Failed")
_TOLD = ("window", "coverage", "delivery", "objectives", "percentiles", "gaps", "reasons")
"""Of a status; the rest is about how the report was made."""


@contextmanager
def watched(kube: Kubectl, asked: str) -> Iterator[str]:
    """The URL of a Prometheus that scrapes the cluster's brokers and the load, as pods reach it; empty when there is
    none but what the cluster's spec names.

    :param asked: `own`: one is brought for the time of the run, which needs its images in the node (`make images`);
        `none`; `auto`: one is brought where the node is this machine's; anything else: the URL of one that is there.
    """
    if asked == "auto":
        usual = Places.usual().kubeconfig
        asked = "own" if usual.exists() and usual.samefile(kube.kubeconfig) else "none"
    if asked != "own":
        yield "" if asked == "none" else asked
        return
    with watching(kube) as prometheus:
        yield prometheus.url


def report(target: Target, name: str, began: datetime, ended: datetime, prometheus: str) -> dict[str, Any]:
    """What the report says, or why there is none; `failed` when there should be one.

    :param prometheus: its URL as pods reach it; empty: the one that the cluster's spec names.
    """
    url = prometheus or _prometheus_of(target)
    if not url:
        return none("no Prometheus: neither the cluster's spec.sla.prometheus.url nor --prometheus names one")
    window = max(60, round((ended - began).total_seconds()))
    asked: Object = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "SLAReport",
        "metadata": {"name": name},
        "spec": {
            "cluster": target.name,
            "end": ended.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "window": f"{window}s",
            "prometheus": {"url": url},
            # In the driver alone. Scraped every second, ten minutes were too much for 1 GiB.
            "spark": {"executors": 0, "driver": {"memory": "2Gi"}},
        },
    }
    try:
        target.kube("apply", "-f", "-", given=json.dumps(asked))
    except Refused as error:
        return none(f"the API server refuses it: {error}", failed=True)
    found = until(lambda: ended_status(target, name), SECONDS, poll=2.0)
    if not found:
        return none(f"it did not end within {SECONDS:g} s", failed=True)
    return read(name, found)


def none(reason: str, failed: bool = False) -> dict[str, Any]:
    return {"verdict": NO_REPORT, "reason": reason, "failed": failed}


def read(name: str, status: Object) -> dict[str, Any]:
    """From a status that is final."""
    if status.get("phase") != "Succeeded":
        conditions = status.get("conditions", [])
        why = next(
            (f"{one['reason']}: {one['message']}" for one in conditions if one["status"] == "False"), "no reason"
        )
        return {**none(f"phase {status.get('phase')}: {why}", failed=True), "name": name}
    told = {key: value for key, value in status.items() if key in _TOLD}
    return {"name": name, "verdict": status["verdict"], **told}


def ended_status(target: Target, name: str) -> Object:
    """Empty while it is under way."""
    status: Object = (target.kube.get("slareport", name) or {}).get("status", {})
    refused = [one for one in status.get("conditions", []) if one["type"] == "Accepted" and one["status"] == "False"]
    if refused:
        return {"phase": "Failed", "conditions": refused}
    return status if status.get("phase") in ENDED else {}


def _prometheus_of(target: Target) -> str:
    sla = target.resource()["spec"].get("sla") or {}
    return str((sla.get("prometheus") or {}).get("url", ""))
