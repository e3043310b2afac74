"""The operator's loop against a small API server: what it makes, mends and bears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from migratory_operator import api as api_module
from migratory_operator.api import CLUSTER, Api, ApiError
from migratory_operator.brokers import Brokers
from migratory_operator.care import Care
from migratory_operator.metrics import Metrics
from migratory_operator.pages import Pages
from migratory_operator.queue import Queue
from migratory_operator.reconcile import Reconciler
from migratory_operator.reports.care import Reports
from migratory_testing.fakekube import FakeKube, kubeconfig
from migratory_testing.kubernetes import SETTINGS, cluster
from migratory_testing.waiting import until

AT = "namespaces/market"
QUOTES = f"{AT}/migratoryclusters/quotes"


@pytest.fixture
async def metrics(kube: FakeKube) -> AsyncIterator[Metrics]:
    """Of an operator that runs, looking every half a second."""
    metrics = Metrics()
    api, brokers = Api((), kube.config), Brokers()
    reconciler = Reconciler(api, brokers, SETTINGS, metrics)
    queue = Queue(reconciler.cluster, metrics)
    reports = Reports(api, SETTINGS, metrics)
    care = asyncio.create_task(Care(api, queue, reports, Pages(0, metrics), metrics, 0.5).run())
    yield metrics
    assert not care.done(), care
    care.cancel()
    await asyncio.wait([care], timeout=5)
    await queue.close()
    await reports.close()
    await brokers.close()
    await api.close()


def ready_objects(kube: FakeKube) -> set[str]:
    return {path for path in kube.objects if path != QUOTES and "/events/" not in path}


async def test_everything_is_made_deleted_things_return_and_nothing_is_applied_twice(
    kube: FakeKube, metrics: Metrics
) -> None:
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    made = ready_objects(kube)
    assert {f"{AT}/statefulsets/quotes-broker", f"{AT}/configmaps/quotes-servers"} <= made
    assert kube.objects[QUOTES]["status"]["ready"] == "0/3"
    applied = len(kube.applied)
    looks = metrics.registry.get_sample_value("migratory_operator_reconciles_total", {"result": "done"}) or 0

    def looked() -> float:
        return metrics.registry.get_sample_value("migratory_operator_reconciles_total", {"result": "done"}) or 0

    await until(lambda: looked() > looks + 2, "two more looks")
    # the statefulsets were seen meanwhile, so the status may have changed, and nothing else
    assert {thing["kind"] for thing in kube.applied[applied:]} <= {"MigratoryCluster"}
    del kube.objects[f"{AT}/statefulsets/quotes-broker"]
    await until(lambda: ready_objects(kube) == made, "the StatefulSet to come back")
    await until(lambda: any("/events/" in path for path in kube.objects), "an Event")
    assert [one["reason"] for path, one in kube.objects.items() if "/events/" in path] == ["Restored"]


async def test_a_change_reaches_the_objects_and_a_deleted_cluster_is_forgotten(
    kube: FakeKube, metrics: Metrics
) -> None:
    kube.put(QUOTES, cluster())
    brokers = f"{AT}/statefulsets/quotes-broker"
    await until(lambda: brokers in kube.objects, "brokers")
    kube.put(QUOTES, {**cluster({"brokers": {"replicas": 5}}), "status": kube.objects[QUOTES].get("status", {})})
    await until(lambda: kube.objects[brokers]["spec"]["replicas"] == 5, "five brokers")
    labels = {"namespace": "market", "cluster": "quotes", "type": "Ready"}
    await until(lambda: metrics.registry.get_sample_value("migratory_operator_condition", labels) == 0, "a series")
    del kube.objects[QUOTES]
    await until(lambda: metrics.registry.get_sample_value("migratory_operator_condition", labels) is None, "no series")


async def test_a_monitor_is_made_as_soon_as_kubernetes_knows_the_kind(kube: FakeKube, metrics: Metrics) -> None:
    monitor = f"{AT}/servicemonitors/quotes-broker"
    kube.refuse["servicemonitors"] = 404
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    assert f"{AT}/statefulsets/quotes-broker" in kube.objects
    assert monitor not in kube.objects
    failed = {"result": "failed"}
    assert not metrics.registry.get_sample_value("migratory_operator_reconciles_total", failed)
    kube.refuse.clear()
    await until(lambda: monitor in kube.objects, "a monitor")
    assert kube.objects[monitor]["spec"]["endpoints"] == [{"port": "admin"}]
    del kube.objects[monitor]
    await until(lambda: monitor in kube.objects, "the monitor to come back")


async def test_something_of_somebody_else_is_left_alone(kube: FakeKube, metrics: Metrics) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "quotes-servers", "namespace": "market"}}
    kube.put(f"{AT}/configmaps/quotes-servers", {**theirs, "data": {"mine": "yes"}})
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    assert kube.objects[f"{AT}/configmaps/quotes-servers"]["data"] == {"mine": "yes"}
    reasons = {one["type"]: one["reason"] for one in kube.objects[QUOTES]["status"]["conditions"]}
    assert reasons["Degraded"] == "NameTaken"


async def test_one_refusal_holds_nothing_else_up_and_is_tried_again(kube: FakeKube, metrics: Metrics) -> None:
    kube.refuse[f"PATCH {AT}/networkpolicies/"] = 403
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    assert f"{AT}/statefulsets/quotes-broker" in kube.objects
    assert f"{AT}/networkpolicies/quotes-broker" not in kube.objects
    kube.refuse.clear()
    await until(lambda: f"{AT}/networkpolicies/quotes-broker" in kube.objects, "the network policy")


@pytest.mark.parametrize(("code", "reason"), [(422, "ObjectRefused"), (403, "ObjectRefused"), (500, "NothingKnown")])
async def test_what_the_api_server_will_not_take_is_told_and_forgotten_when_it_does(
    kube: FakeKube, metrics: Metrics, code: int, reason: str
) -> None:
    kube.refuse[f"PATCH {AT}/statefulsets/quotes-broker"] = code
    kube.reason = "requests: must be less than or equal to memory limit of 128Mi"
    kube.put(QUOTES, cluster())

    def degraded() -> str:
        conditions = kube.objects[QUOTES].get("status", {}).get("conditions", [])
        return next((f"{one['reason']} {one['message']}" for one in conditions if one["type"] == "Degraded"), "")

    await until(degraded, "a status")
    assert degraded().startswith(reason)
    if reason == "ObjectRefused":
        assert "StatefulSet quotes-broker: requests: must be less than" in degraded()
        events = [thing["reason"] for path, thing in kube.objects.items() if "/events/" in path]
        assert events.count("ObjectRefused") == 1
    kube.refuse.clear()
    await until(lambda: degraded().startswith("NothingKnown"), "nothing is refused any more")


async def test_an_api_server_that_is_silent_is_borne_and_an_edit_meanwhile_is_carried_out(
    kube: FakeKube, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "TIMEOUT", 0.3)
    kube.put(QUOTES, cluster())
    brokers = f"{AT}/statefulsets/quotes-broker"
    await until(lambda: brokers in kube.objects, "brokers")
    kube.talks.clear()

    def failed() -> float:
        return metrics.registry.get_sample_value("migratory_operator_reconciles_total", {"result": "failed"}) or 0

    kube.put(QUOTES, cluster({"brokers": {"replicas": 4}}))
    await until(failed, "a failed look")
    kube.talks.set()
    await until(lambda: kube.objects[brokers]["spec"]["replicas"] == 4, "four brokers")


async def test_many_clusters_and_a_slow_api_server_are_no_dead_loop(kube: FakeKube) -> None:
    """Each request may take its time; together they may take longer than a loop that counts as alive."""
    now, metrics = 0.0, Metrics()

    class Slow(Api):
        async def get(self, *_: object) -> None:
            nonlocal now
            now += 100.0

    pages = Pages(0, metrics, lambda: now)
    api = Slow((), kube.config)
    queue, reports = Queue(lambda *_: asyncio.sleep(0, 0.0), metrics), Reports(api, SETTINGS, metrics)
    for number in range(5):
        kube.put(f"{AT}/migratoryclusters/c{number}", cluster(name=f"c{number}"))
    care = asyncio.create_task(Care(api, queue, reports, pages, metrics, 60.0).run())
    await until(lambda: now == 500.0, "all clusters were looked at")
    assert pages.silent <= 100.0
    care.cancel()
    await asyncio.wait([care], timeout=5)
    await queue.close()
    await api.close()


async def test_requests_say_what_was_wrong(kube: FakeKube) -> None:
    api = Api((), kube.config)
    try:
        assert await api.get(CLUSTER, "market", "nobody") is None
        kube.refuse["migratoryclusters"] = 403
        with pytest.raises(ApiError, match="is refused") as refused:
            await api.get(CLUSTER, "market", "nobody")
        assert refused.value.code == 403
    finally:
        await api.close()
    away = Api((), kubeconfig(1))
    try:
        with pytest.raises(ApiError, match="no answer") as unanswered:
            await away.list(CLUSTER, "market")
        assert unanswered.value.code == 0
    finally:
        await away.close()


async def test_a_token_that_has_expired_is_read_anew(kube: FakeKube, tmp_path: Path) -> None:
    kube.put(QUOTES, cluster())
    token = tmp_path / "token"
    token.write_text("first\n")
    kube.token = "first"
    api = Api((), kubeconfig(kube.port, token))
    try:
        assert await api.get(CLUSTER, "market", "quotes") is not None
        kube.token = "second"
        with pytest.raises(ApiError, match="Unauthorized"):
            await api.get(CLUSTER, "market", "quotes")
        token.write_text("second\n")
        assert await api.get(CLUSTER, "market", "quotes") is not None
    finally:
        await api.close()


async def test_in_a_namespace_on_its_way_out_nothing_is_made_and_nothing_is_warned_of(
    kube: FakeKube, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    kube.refuse[f"PATCH {AT}/serviceaccounts"] = 403
    kube.reason = "unable to create new content in namespace market because it is being terminated"
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    assert f"{AT}/statefulsets/quotes-broker" not in kube.objects
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
