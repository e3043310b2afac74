"""The SLAReport of a run: created like any other, and read from its status. Without a Prometheus there is no report,
and the result says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.paths import NodePaths
from migratory_node.prometheus import run_prometheus

from migratory_chaos.engine import poll_until
from migratory_chaos.kubernetes.result import NO_REPORT
from migratory_chaos.kubernetes.target import Target

REPORT_SECONDS = 600.0
"""Seconds to wait for a report: for Spark to start, read and write on a busy machine."""
_CONTENT = ("verdict", "window", "coverage", "delivery", "objectives", "percentiles", "gaps", "reasons")
"""Keys of a status that are copied into the result. The others are about how the report was made."""


@contextmanager
def provide_prometheus(kube: Kubectl, choice: str) -> Iterator[str]:
    """Yield the URL, as pods reach it, of a Prometheus that scrapes brokers and load; empty for the one in the
    cluster's spec.

    :param choice: `own`: one is started for the run, which needs its images in the node (`make images`); `none`: empty;
      `auto`: `own` where the node is this machine, else `none`; anything else: the URL of an existing one.
    """
    if choice == "auto":
        usual = NodePaths.default().kubeconfig
        choice = "own" if usual.exists() and usual.samefile(kube.kubeconfig) else "none"
    if choice != "own":
        yield "" if choice == "none" else choice
        return
    with run_prometheus(kube) as prometheus:
        yield prometheus.url


async def create_report(target: Target, name: str, began: datetime, ended: datetime, prometheus: str) -> dict[str, Any]:
    """Create an SLAReport of the time from `began` to `ended`, and wait for it. Return its content, or the reason for
    which there is none; then `failed` says whether there should be one.

    :param prometheus: its URL as pods reach it; empty: the one of the cluster's spec.
    """
    url = prometheus or str(target.spec("sla", "prometheus", "url") or "")
    if not url:
        return no_report("no Prometheus: neither the cluster's spec.sla.prometheus.url nor --prometheus names one")
    window = max(60, round((ended - began).total_seconds()))
    wanted: Object = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "SLAReport",
        "metadata": {"name": name},
        "spec": {
            "cluster": target.name,
            "end": ended.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "window": f"{window}s",
            "prometheus": {"url": url},
            # In the driver alone. Ten minutes, scraped every second, do not fit into 1 GiB.
            "spark": {"executors": 0, "driver": {"memory": "2Gi"}},
        },
    }
    try:
        target.kube.apply(wanted)
    except KubectlError as error:
        return no_report(f"the API server rejects the SLAReport: {error}", failed=True)

    async def look() -> Object:
        return final_status(target.kube.get("slareport", name) or {})

    found = await poll_until(look, REPORT_SECONDS, 2.0, (KubectlError,))
    return read_status(found) if found else no_report(f"it did not end within {REPORT_SECONDS:g} s", failed=True)


def no_report(reason: str, failed: bool = False) -> dict[str, Any]:
    return {"verdict": NO_REPORT, "reason": reason, "failed": failed}


def final_status(report: Object) -> Object:
    """Return the status of a report that has ended, or {} while it has not. A rejected report has ended with the
    phase `Failed`."""
    status: Object = report.get("status", {})
    rejected = [one for one in status.get("conditions", []) if one["type"] == "Accepted" and one["status"] == "False"]
    if rejected:
        return {"phase": "Failed", "conditions": rejected}
    return status if status.get("phase") in ("Succeeded", "Failed") else {}


def read_status(status: Object) -> dict[str, Any]:
    """Return the report's content from its final status, or the reason for which it failed."""
    if status["phase"] != "Succeeded":
        reasons = [f"{one['reason']}: {one['message']}" for one in status["conditions"] if one["status"] == "False"]
        return no_report(f"phase {status['phase']}: {'; '.join(reasons) or 'no reason'}", failed=True)
    return {key: value for key, value in status.items() if key in _CONTENT}
