"""The report controller against a fake API server: runs, results, schedules and the cluster's status and metrics.

Also `sla fetch` of a result, and its error without a kubeconfig.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from migratory_cli.main import main
from migratory_operator.api.kubernetes import ApiError, KubernetesApi
from migratory_operator.leases import Leases
from migratory_operator.names import Object, ResourceOwner
from migratory_operator.reports.controller import ReportController
from migratory_operator.reports.fetch import ReportUnavailable, fetch
from migratory_operator.reports.run import SLOT_ANNOTATION, ReportRun
from migratory_operator.reports.schedule import newest_slot
from migratory_operator.settings import OperatorSettings
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import SETTINGS, cluster, report

AT = "namespaces/market"
QUOTES, WEEKLY = f"{AT}/migratoryclusters/quotes", f"{AT}/slareports/weekly"
RUN = "sla-0123456789abcdef0123456789abcdef"
JOB, RESULT = f"{AT}/jobs/{RUN}", f"{AT}/configmaps/{RUN}"
SPEC: Object = {"sla": {"prometheus": {"url": "http://p"}}}
ACCOUNT: Object = {
    "run": RUN,
    "verdict": "missed",
    "window": {"start": "2026-01-02T02:33:05Z", "end": "2026-01-02T03:03:05Z"},
    "coverage": {"share": "99.5", "scrapes": 12, "longestGap": "15s"},
    "delivery": {},
    "objectives": [{"name": "fast", "type": "latency", "target": "99.9", "verdict": "missed", "burn": []}],
    "latency": [],
    "gaps": [],
    "notes": [],
    "files": ["report.json.gz"],
}


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with FakeKube() as fake:
        fake.put(QUOTES, cluster(SPEC))
        scheduled = {
            "annotations": {SLOT_ANNOTATION: "2026-01-02T03:03:05Z"},
            "ownerReferences": [ResourceOwner.of(cluster()).reference],
        }
        fake.put(WEEKLY, report(metadata=scheduled))
        yield fake


def controller_of(
    api: KubernetesApi, metrics: OperatorMetrics | None = None, settings: OperatorSettings = SETTINGS
) -> ReportController:
    """Return a controller whose operator holds each Lease that it wants."""
    metrics = metrics or OperatorMetrics()
    return ReportController(api, settings, metrics, Leases(api, "system/migratory/one", metrics))


@pytest.fixture
async def reports(kube: FakeKube) -> AsyncIterator[ReportController]:
    api = KubernetesApi((), kube.config)
    controller = controller_of(api)
    yield controller
    await controller.close()
    await api.close()


def run_objects(kube: FakeKube) -> list[str]:
    return sorted(path.removeprefix(f"{AT}/") for path in kube.objects if RUN in path)


def events(kube: FakeKube) -> list[str]:
    return [entry["reason"] for path, entry in kube.objects.items() if "/events/" in path]


def write_result(kube: FakeKube) -> None:
    """Write a report's result into its ConfigMap, as the Spark driver does."""
    data = base64.b64encode(gzip.compress(b'{"whole": 1}')).decode()
    part = {"data": {"account.json": json.dumps(ACCOUNT)}, "binaryData": {"report.json.gz": data}}
    kube.put(RESULT, {**kube.objects[RESULT], **part})


async def test_a_report_gets_one_job_from_any_operator(kube: FakeKube, reports: ReportController) -> None:
    assert await reports.reconcile("market", "weekly") > 0
    assert f"jobs/{RUN}" in run_objects(kube)
    status = kube.objects[WEEKLY]["status"]
    assert status["phase"] == "Submitting"
    posts = [path for method, path in kube.requests if method == "POST"]
    before = kube.objects[JOB]
    assert await controller_of(reports._api).reconcile("market", "weekly") > 0
    assert [path for method, path in kube.requests if method == "POST"] == posts
    assert kube.objects[JOB] is before
    assert kube.objects[WEEKLY]["status"]["startTime"] == status["startTime"]


async def test_a_job_of_another_operator_is_adopted(kube: FakeKube, reports: ReportController) -> None:
    kube.refuse[f"POST {AT}/jobs"] = 409
    assert await reports.reconcile("market", "weekly") > 0
    assert kube.objects[WEEKLY]["status"]["phase"] == "Submitting"


async def test_the_start_time_is_written_before_objects_are_created(kube: FakeKube, reports: ReportController) -> None:
    kube.refuse[f"PATCH {AT}/serviceaccounts"] = 500
    with pytest.raises(ApiError):
        await reports.reconcile("market", "weekly")
    assert "startTime" in kube.objects[WEEKLY]["status"]
    assert run_objects(kube) == []


async def test_a_result_reaches_the_status_the_cluster_and_fetch(kube: FakeKube, reports: ReportController) -> None:
    api = reports._api
    await reports.reconcile("market", "weekly")
    assert await fetch(api, "market", "weekly") is None
    write_result(kube)
    await reports.reconcile("market", "weekly")
    status = kube.objects[WEEKLY]["status"]
    assert (status["phase"], status["verdict"]) == ("Succeeded", "missed")
    cluster_status = kube.objects[QUOTES]["status"]
    assert [(entry["type"], entry["status"]) for entry in cluster_status["conditions"]] == [("SLAMet", "False")]
    assert cluster_status["lastReport"]["name"] == "weekly"
    assert sorted(events(kube)) == ["ObjectivesMissed", "SLAMissed"]
    assert JOB in kube.objects  # until the status is written
    assert await reports.reconcile("market", "weekly") > 0
    assert JOB not in kube.objects
    assert await reports.reconcile("market", "weekly") == 0
    assert sorted(events(kube)) == ["ObjectivesMissed", "SLAMissed"]
    fetched = await fetch(api, "market", "weekly")
    assert fetched is not None
    assert (fetched.verdict, fetched.files) == ("missed", {"report.json": b'{"whole": 1}'})
    del kube.objects[RESULT]
    with pytest.raises(ReportUnavailable, match="does not exist"):
        await fetch(api, "market", "weekly")
    with pytest.raises(ReportUnavailable, match="SLAReport nobody does not exist"):
        await fetch(api, "market", "nobody")


async def test_an_error_with_one_cluster_blocks_no_other(
    kube: FakeKube, reports: ReportController, caplog: pytest.LogCaptureFixture
) -> None:
    every = {"sla": {**SPEC["sla"], "schedule": "* * * * *"}}
    other = cluster(every, "rates", namespace="elsewhere")
    kube.put("namespaces/elsewhere/migratoryclusters/rates", other)
    kube.refuse[f"GET {AT}/migratoryclusters"] = 403
    kube.reason = "no"
    beats: list[int] = []
    await reports.resync([kube.objects[QUOTES], other], [], lambda: beats.append(len(kube.requests)))
    assert len(set(beats)) == 2, "a beat before each cluster"
    assert "lastSlot" in kube.objects["namespaces/elsewhere/migratoryclusters/rates"]["status"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    kube.refuse = {f"PATCH {AT}": 403}
    kube.reason = "unable to create new content in namespace market because it is being terminated"
    caplog.clear()
    assert await reports.reconcile("market", "weekly") == 0
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_a_due_slot_gets_a_report_and_is_recorded(kube: FakeKube, reports: ReportController) -> None:
    del kube.objects[WEEKLY]
    every = {"sla": {**SPEC["sla"], "schedule": "* * * * *"}}
    kube.put(QUOTES, cluster(every))
    await reports.resync([kube.objects[QUOTES]], [])
    first = kube.objects[QUOTES]["status"]["lastSlot"]
    assert [path for path in kube.objects if "/slareports/quotes-" in path] == []
    ago = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    kube.put(QUOTES, {**cluster(every), "status": {"lastSlot": ago}})
    await reports.resync([kube.objects[QUOTES]], [])
    slot = newest_slot("* * * * *", "UTC", datetime.now(UTC))
    assert slot is not None
    (path,) = [path for path in kube.objects if "/slareports/quotes-" in path]
    assert kube.objects[QUOTES]["status"]["lastSlot"] >= first[:16]
    await reports.resync([kube.objects[QUOTES]], [])
    assert [entry for entry in kube.objects if "/slareports/quotes-" in entry] == [path]


async def test_a_cluster_without_reports_loses_its_condition(kube: FakeKube, reports: ReportController) -> None:
    await reports.reconcile("market", "weekly")
    write_result(kube)
    await reports.reconcile("market", "weekly")
    del kube.objects[WEEKLY]
    await reports.resync([kube.objects[QUOTES]], [])
    assert kube.objects[QUOTES]["status"] == {"conditions": []}


async def test_a_cluster_without_reports_loses_its_series(kube: FakeKube) -> None:
    api, metrics = KubernetesApi((), kube.config), OperatorMetrics()
    reports = controller_of(api, metrics)
    metrics.record_status("market", "quotes", {"conditions": []})
    await reports.reconcile("market", "weekly")
    write_result(kube)
    await reports.reconcile("market", "weekly")
    assert b'type="SLAMet"} 0.0' in metrics.exposition()
    del kube.objects[WEEKLY]
    for _ in range(2):
        await reports.resync([kube.objects[QUOTES]], [])
        assert b"SLAMet" not in metrics.exposition()
    metrics.forget("market", "quotes")
    await reports.close()
    await api.close()


async def test_a_removed_schedule_leaves_no_slot_in_the_status(kube: FakeKube, reports: ReportController) -> None:
    kube.put(QUOTES, cluster({"sla": {**SPEC["sla"], "schedule": "* * * * *"}}))
    await reports.reconcile("market", "weekly")
    write_result(kube)
    await reports.reconcile("market", "weekly")
    assert "lastSlot" in kube.objects[QUOTES]["status"]
    kube.put(QUOTES, {**cluster(SPEC), "status": kube.objects[QUOTES]["status"]})
    await reports.resync([kube.objects[QUOTES]], [])
    assert sorted(kube.objects[QUOTES]["status"]) == ["conditions", "lastReport"]


async def test_all_objects_have_names_of_the_run(kube: FakeKube, reports: ReportController) -> None:
    await reports.reconcile("market", "weekly")
    assert ReportRun(ResourceOwner.of(report())).id == RUN
    assert len(run_objects(kube)) == 11


def test_fetch_without_a_kubeconfig_says_what_to_do(tmp_path: Path) -> None:
    nowhere = {"KUBECONFIG": str(tmp_path / "none")}
    result = CliRunner().invoke(main, ["sla", "fetch", "weekly"], env=nowhere)
    assert result.exit_code == 2
    assert "KUBECONFIG" in result.output


@pytest.mark.parametrize(("labels", "phase"), [({"migratory.dev/allow-reports": "true"}, "Submitting"), ({}, "Failed")])
async def test_only_the_metadata_of_the_secret_is_read(
    labels: Object, phase: str, kube: FakeKube, reports: ReportController
) -> None:
    access = {"url": "https://a.monitoring.svc:9090/prom", "secretName": "scraper"}
    kube.put(WEEKLY, report(prometheus=access))
    secret = {"kind": "Secret", "metadata": {"name": "scraper", "labels": labels}, "data": {"token": "c2VjcmV0"}}
    kube.put(f"{AT}/secrets/scraper", secret)
    await reports.reconcile("market", "weekly")
    assert kube.objects[WEEKLY]["status"]["phase"] == phase
    assert kube.metadata_requests == [f"{AT}/secrets/scraper"]
    assert [path for method, path in kube.requests if "secrets" in path and method == "GET"] == kube.metadata_requests


async def test_a_disabled_operator_asks_for_no_secret(kube: FakeKube, reports: ReportController) -> None:
    kube.put(WEEKLY, report(prometheus={"url": "https://a.monitoring.svc:9090/prom", "secretName": "scraper"}))
    kube.refuse["secrets"] = 403
    off = controller_of(reports._api, settings=replace(SETTINGS, reports_enabled=False))
    await off.reconcile("market", "weekly")
    assert kube.objects[WEEKLY]["status"]["conditions"][0]["reason"] == "ReportsDisabled"


async def test_each_run_has_a_secret_of_its_own_that_no_second_operator_replaces(
    kube: FakeKube, reports: ReportController
) -> None:
    path = f"{AT}/secrets/{RUN}-auth"
    await reports.reconcile("market", "weekly")
    drawn = kube.objects[path]["stringData"]["secret"]
    assert len(drawn) == 64
    other = f"{AT}/slareports/other"
    kube.put(other, report("other", metadata={"uid": "11234567-89ab-cdef-0123-456789abcdef"}))
    await reports.reconcile("market", "other")
    assert kube.objects[path.replace("sla-0", "sla-1")]["stringData"]["secret"] != drawn
    del kube.objects[JOB]
    await reports.reconcile("market", "weekly")
    assert (JOB in kube.objects, kube.objects[path]["stringData"]["secret"]) == (True, drawn)
    others = json.dumps([item for at, item in kube.objects.items() if at != path])
    assert drawn not in others
