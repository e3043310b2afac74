"""Reports against a small API server: made, adopted, answered, removed; schedules carried out; what a cluster says."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from migratory_cli.main import main
from migratory_operator.api import Api, ApiError
from migratory_operator.decide import Plan
from migratory_operator.metrics import Metrics
from migratory_operator.names import Object
from migratory_operator.reports.care import Reports
from migratory_operator.reports.fetch import NotThere, fetch
from migratory_operator.reports.run import Run
from migratory_operator.reports.schedule import newest_slot
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
        fake.put(WEEKLY, report())
        yield fake


@pytest.fixture
async def reports(kube: FakeKube) -> AsyncIterator[Reports]:
    api = Api((), kube.config)
    made = Reports(api, SETTINGS, Metrics())
    yield made
    await made.close()
    await api.close()


def made(kube: FakeKube) -> list[str]:
    return sorted(path.removeprefix(f"{AT}/") for path in kube.objects if RUN in path)


def events(kube: FakeKube) -> list[str]:
    return [one["reason"] for path, one in kube.objects.items() if "/events/" in path]


def answered(kube: FakeKube) -> None:
    data = base64.b64encode(gzip.compress(b'{"whole": 1}')).decode()
    part = {"data": {"account.json": json.dumps(ACCOUNT)}, "binaryData": {"report.json.gz": data}}
    kube.put(RESULT, {**kube.objects[RESULT], **part})


async def test_a_report_becomes_a_job_once_whoever_looks(kube: FakeKube, reports: Reports) -> None:
    assert await reports.look("market", "weekly") > 0
    assert f"jobs/{RUN}" in made(kube)
    status = kube.objects[WEEKLY]["status"]
    assert status["phase"] == "Submitting"
    posts = [path for method, path in kube.requests if method == "POST"]
    before = kube.objects[JOB]
    assert await Reports(reports._api, SETTINGS, Metrics()).look("market", "weekly") > 0
    assert [path for method, path in kube.requests if method == "POST"] == posts
    assert kube.objects[JOB] is before
    assert kube.objects[WEEKLY]["status"]["startTime"] == status["startTime"]


async def test_a_job_that_another_operator_has_just_made_is_adopted(kube: FakeKube, reports: Reports) -> None:
    kube.refuse[f"POST {AT}/jobs"] = 409
    assert await reports.look("market", "weekly") > 0
    assert kube.objects[WEEKLY]["status"]["phase"] == "Submitting"


async def test_the_time_is_kept_before_anything_is_made(kube: FakeKube, reports: Reports) -> None:
    kube.refuse[f"PATCH {AT}/serviceaccounts"] = 500
    with pytest.raises(ApiError):
        await reports.look("market", "weekly")
    assert "startTime" in kube.objects[WEEKLY]["status"]
    assert made(kube) == []


async def test_an_answer_becomes_the_status_the_clusters_word_and_what_fetch_gives(
    kube: FakeKube, reports: Reports
) -> None:
    api = reports._api
    await reports.look("market", "weekly")
    assert await fetch(api, "market", "weekly") is None
    answered(kube)
    await reports.look("market", "weekly")
    status = kube.objects[WEEKLY]["status"]
    assert (status["phase"], status["verdict"]) == ("Succeeded", "missed")
    told = kube.objects[QUOTES]["status"]
    assert [(one["type"], one["status"]) for one in told["conditions"]] == [("SLAMet", "False")]
    assert told["lastReport"]["name"] == "weekly"
    assert sorted(events(kube)) == ["ObjectivesMissed", "SLAMissed"]
    assert JOB in kube.objects  # until the status is there
    assert await reports.look("market", "weekly") > 0
    assert JOB not in kube.objects
    assert await reports.look("market", "weekly") == 0
    assert sorted(events(kube)) == ["ObjectivesMissed", "SLAMissed"]
    found = await fetch(api, "market", "weekly")
    assert found is not None
    assert (found.verdict, found.files) == ("missed", {"report.json": b'{"whole": 1}'})
    del kube.objects[RESULT]
    with pytest.raises(NotThere, match="is gone"):
        await fetch(api, "market", "weekly")
    with pytest.raises(NotThere, match="no SLAReport"):
        await fetch(api, "market", "nobody")


async def test_one_clusters_trouble_keeps_no_other_from_its_slot_and_a_namespace_that_ends_is_none(
    kube: FakeKube, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    every = {"sla": {**SPEC["sla"], "schedule": "* * * * *"}}
    other = cluster(every, "rates", namespace="elsewhere")
    kube.put("namespaces/elsewhere/migratoryclusters/rates", other)
    kube.refuse[f"GET {AT}/migratoryclusters"] = 403
    kube.reason = "no"
    beats: list[int] = []
    await reports.tend([kube.objects[QUOTES], other], [], lambda: beats.append(len(kube.requests)))
    assert len(set(beats)) == 2, "the loop is alive before each of them, however long they take"
    assert "lastSlot" in kube.objects["namespaces/elsewhere/migratoryclusters/rates"]["status"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    kube.refuse = {f"PATCH {AT}": 403}
    kube.reason = "unable to create new content in namespace market because it is being terminated"
    caplog.clear()
    assert await reports.look("market", "weekly") == 0
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_a_slot_that_is_due_becomes_a_report_and_is_written_down(kube: FakeKube, reports: Reports) -> None:
    every = {"sla": {**SPEC["sla"], "schedule": "* * * * *"}}
    kube.put(QUOTES, cluster(every))
    await reports.tend([kube.objects[QUOTES]], [])
    first = kube.objects[QUOTES]["status"]["lastSlot"]
    assert [path for path in kube.objects if "/slareports/quotes-" in path] == []
    ago = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    kube.put(QUOTES, {**cluster(every), "status": {"lastSlot": ago}})
    await reports.tend([kube.objects[QUOTES]], [])
    slot = newest_slot("* * * * *", "UTC", datetime.now(UTC))
    assert slot is not None
    (path,) = [path for path in kube.objects if "/slareports/quotes-" in path]
    assert kube.objects[QUOTES]["status"]["lastSlot"] >= first[:16]
    await reports.tend([kube.objects[QUOTES]], [])
    assert [one for one in kube.objects if "/slareports/quotes-" in one] == [path]


async def test_the_conditions_of_a_cluster_without_reports_go(kube: FakeKube, reports: Reports) -> None:
    await reports.look("market", "weekly")
    answered(kube)
    await reports.look("market", "weekly")
    del kube.objects[WEEKLY]
    await reports.tend([kube.objects[QUOTES]], [])
    assert kube.objects[QUOTES]["status"] == {"conditions": []}


async def test_a_cluster_without_reports_has_no_series_that_an_alert_could_go_by(kube: FakeKube) -> None:
    api, metrics = Api((), kube.config), Metrics()
    reports = Reports(api, SETTINGS, metrics)
    metrics.saw("market", "quotes", Plan(status={"conditions": []}))
    await reports.look("market", "weekly")
    answered(kube)
    await reports.look("market", "weekly")
    assert b'type="SLAMet"} 0.0' in metrics.page()
    del kube.objects[WEEKLY]
    for _ in range(2):
        await reports.tend([kube.objects[QUOTES]], [])
        assert b"SLAMet" not in metrics.page()
    metrics.forget("market", "quotes")
    await reports.close()
    await api.close()


async def test_a_schedule_that_is_gone_leaves_no_slot_behind(kube: FakeKube, reports: Reports) -> None:
    kube.put(QUOTES, cluster({"sla": {**SPEC["sla"], "schedule": "* * * * *"}}))
    await reports.look("market", "weekly")
    answered(kube)
    await reports.look("market", "weekly")
    assert "lastSlot" in kube.objects[QUOTES]["status"]
    kube.put(QUOTES, {**cluster(SPEC), "status": kube.objects[QUOTES]["status"]})
    await reports.tend([kube.objects[QUOTES]], [])
    assert sorted(kube.objects[QUOTES]["status"]) == ["conditions", "lastReport"]


async def test_names_of_what_was_found_are_those_of_the_run(kube: FakeKube, reports: Reports) -> None:
    await reports.look("market", "weekly")
    from migratory_operator.names import Owner

    assert Run(Owner.of(report())).id == RUN
    assert len(made(kube)) == 9


def test_fetch_says_what_to_do_where_there_is_no_cluster(tmp_path: Path) -> None:
    nowhere = {"KUBECONFIG": str(tmp_path / "none")}
    result = CliRunner().invoke(main, ["sla", "fetch", "weekly"], env=nowhere)
    assert result.exit_code == 2
    assert "KUBECONFIG" in result.output
