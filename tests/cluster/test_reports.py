"""An SLAReport from a real Prometheus equals the load generator's own counts.

The tests also cover a missed objective with the chart's alert until it ends, and the report's files and its rows on a
volume.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from migratory_node.kubectl import Kubectl, Object
from migratory_node.pods import SMALLEST, Pods, make_cluster, urls
from migratory_node.prometheus import CLIENT_LABELS, Prometheus, start_static_prometheus
from migratory_operator.names import ResourceOwner
from migratory_operator.reports.run import SLOT_ANNOTATION

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]  # late scrapes make a report insufficient
SMALL: Object = {"cpu": "50m"}
COMPLETE: Object = {"name": "complete", "type": "delivery", "target": "100"}
IMPOSSIBLE: Object = {"name": "fast", "type": "latency", "threshold": "1ms", "target": "100"}
EASY: Object = {"name": "fast", "type": "latency", "threshold": "1m", "target": "50"}


class Measured(NamedTuple):
    """A load that has ended: kubectl for its namespace, its Prometheus, the generator's own counts (`account`), and
    the window that contains all of it (the `start` and `end` of a report)."""

    kube: Kubectl
    prometheus: Prometheus
    account: Object
    window: Object


@pytest.fixture(scope="module")
def measured(shared: Kubectl) -> Measured:
    kube, pods = shared, Pods(shared)
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "history"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
        }
    )
    watch = start_static_prometheus(kube, "quotes")
    make_cluster(kube, {**SMALLEST, "sla": {"prometheus": {"url": watch.url}, "objectives": [COMPLETE, IMPOSSIBLE]}})
    pods.load(
        "load", "--server", urls(kube, "quotes"), "--subscribers", "20", "--topics", "5", "--rate", "5",
        "--duration", "55", "--warmup", "1", "--workers", "1", "--cluster", "quotes",
        "--metrics-listen", "0.0.0.0:9100", "--scrape-interval", "15",
    )  # fmt: skip
    kube("label", "pod", "load", *(f"{name}={value}" for name, value in CLIENT_LABELS.items()))
    kube.until(lambda: watch.value('up{job="client"}') == 1, "the load is scraped", 120)
    # Its counters start at zero within the window: the process is hardly older.
    start = int(time.time()) - 3
    account = pods.account("load", 300)
    # It can be scraped for half a minute after the last delivery.
    (container,) = (kube.get("pod", "load") or {})["status"]["containerStatuses"]
    end = container["state"]["terminated"]["finishedAt"]
    window = f"{round(datetime.fromisoformat(end).timestamp()) - start}s"
    return Measured(kube, watch, account, {"end": end, "window": window})


def report(measured: Measured, name: str, spark: Object) -> Object:
    """Create a report on the load's window, as the cluster's schedule would, wait until it has ended, and return its
    status."""
    kube = measured.kube
    owner = ResourceOwner.of(kube.get("mgc", "quotes") or {})
    metadata = {
        "name": name,
        "annotations": {SLOT_ANNOTATION: measured.window["end"]},
        "ownerReferences": [owner.reference],
    }
    spec = {"cluster": "quotes", **measured.window, "spark": spark}
    kube.apply({"apiVersion": "migratory.dev/v1alpha1", "kind": "SLAReport", "metadata": metadata, "spec": spec})

    def ended() -> Object | None:
        found: Object = (kube.get("slar", name) or {}).get("status", {})
        return found if found.get("phase") in ("Succeeded", "Failed") else None

    return kube.until(ended, f"the end of report {name}", 420) or {}


def alerts(measured: Measured, count: int) -> None:
    """Wait until exactly `count` alerts for the missed objective fire. Do nothing if the operator runs outside of
    the cluster, where it is not scraped."""
    if os.environ.get("MIGRATORY_OPERATOR") != "outside":
        kube, found = measured.kube, measured.prometheus
        labels = {"namespace": kube.namespace, "cluster": "quotes"}
        kube.until(lambda: found.value('up{job="operator"}') == 1, "the operator is scraped", 60)
        kube.until(lambda: len(found.firing("MigratorySLANotMet", **labels)) == count, f"{count} alerts", 60)


def events(kube: Kubectl) -> list[str]:
    found = kube.list("events")
    return [one["reason"] for one in found if one["involvedObject"]["kind"] == "MigratoryCluster"]


def test_a_report_has_the_load_generators_counts_and_a_miss_is_reported(measured: Measured, tmp_path: Path) -> None:
    kube, account = measured.kube, measured.account
    assert account["expected"] > 1000
    alerts(measured, 0)
    status = report(measured, "first", {"executors": 2, "executor": SMALL, "historyClaim": "history"})
    assert status["phase"] == "Succeeded", status
    counted = {key: account[key] for key in ("expected", "lost", "duplicates", "reordered")}
    assert {key: status["delivery"][key] for key in counted} == counted
    results = {one["name"]: one for one in status["objectives"]}
    complete = results["complete"]
    assert "total" in complete, status  # else the reason says why there is none
    assert (complete["total"], complete["good"]) == (account["expected"], account["delivered"])
    assert complete["verdict"] == ("met" if account["delivered"] == account["expected"] else "missed")
    assert (results["fast"]["verdict"], status["verdict"]) == ("missed", "missed")
    assert "quotes-broker-0" in {one["broker"] for one in status["latency"]}

    assert kube.until(lambda: kube.condition("quotes", "SLAMet"), "SLAMet", 60) == ("False", "ObjectivesMissed")
    kube.until(lambda: "SLAMissed" in events(kube), "the Event", 60)
    alerts(measured, 1)
    last = (kube.get("mgc", "quotes") or {})["status"]["lastReport"]
    assert last == {"name": "first", "verdict": "missed", "time": measured.window["end"]}
    assert "missed" in kube("get", "mgc", "quotes").splitlines()[1]

    files = [str(tmp_path / name) for name in ("report.json", "report.html")]
    fetch = [sys.executable, "-m", "migratory_cli.main", "sla", "fetch", "first", "-n", kube.namespace,
             "--json", files[0], "--html", files[1]]  # fmt: skip
    environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
    done = subprocess.run(fetch, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 1, done.stderr  # missed
    whole = json.loads(Path(files[0]).read_text())
    assert whole["delivery"]["expected"] == account["expected"]
    assert whole["objectives"][0]["good"] == complete["good"]
    assert "<svg" in Path(files[1]).read_text()

    kube.until(lambda: not kube.list("pods", "migratory.dev/report=first"), "no pod of the run", 90)
    listing = "import pathlib; print(*sorted(str(p) for p in pathlib.Path('/history').rglob('*.parquet')))"
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "history", "mountPath": "/history"}]
    claim: Object = {"name": "history", "persistentVolumeClaim": {"claimName": "history"}}
    Pods(kube).start("look", "-c", listing, volumes=[claim], command=["python3"], volumeMounts=mounts)
    tables = Pods(kube).end("look")[1].split()
    assert {path.split("/")[2] for path in tables} == {"objectives", "latency"}, tables


def test_a_report_made_by_hand_does_not_judge_the_cluster(measured: Measured) -> None:
    kube = measured.kube
    before = (kube.get("mgc", "quotes") or {})["status"]["lastReport"]
    spec = {"cluster": "quotes", "spark": {"image": "nowhere.invalid/no/such:1"}}
    by_hand = {"apiVersion": "migratory.dev/v1alpha1", "kind": "SLAReport", "metadata": {"name": "by-hand"}}
    kube.apply({**by_hand, "spec": spec})
    kube.until(lambda: (kube.get("slar", "by-hand") or {}).get("status", {}).get("phase") == "Failed", "its end", 120)
    assert (kube.get("mgc", "quotes") or {})["status"]["lastReport"] == before
    assert kube.condition("quotes", "SLAMet") == ("False", "ObjectivesMissed")


def test_a_met_objective_clears_condition_and_alert(measured: Measured) -> None:
    kube = measured.kube
    kube.patch("mgc", "quotes", {"spec": {"sla": {"objectives": [COMPLETE, EASY]}}})
    status = report(measured, "second", {"executors": 0})
    assert (status["phase"], status["verdict"]) == ("Succeeded", "met"), status
    assert status["delivery"]["expected"] == measured.account["expected"]
    kube.until(lambda: kube.condition("quotes", "SLAMet") == ("True", "ObjectivesMet"), "SLAMet", 60)
    kube.until(lambda: "SLARecovered" in events(kube), "the Event", 60)
    alerts(measured, 0)
