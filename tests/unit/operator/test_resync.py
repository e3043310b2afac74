"""The resync loop and the cluster reconciler against a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from migratory_operator import names
from migratory_operator.api import kubernetes as api_module
from migratory_operator.api.cluster_pods import BrokerStatusClient
from migratory_operator.api.kubernetes import KubernetesApi
from migratory_operator.leases import Leases
from migratory_operator.reconcile.cluster import ClusterReconciler
from migratory_operator.reconcile.queue import WorkQueue
from migratory_operator.reports.controller import ReportController
from migratory_operator.resync import ResyncLoop
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_operator.telemetry.server import TelemetryServer
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import SETTINGS, cluster
from migratory_testing.waiting import until

AT = "namespaces/market"
QUOTES = f"{AT}/migratoryclusters/quotes"


@pytest.fixture
async def metrics(kube: FakeKube) -> AsyncIterator[OperatorMetrics]:
    """Run an operator that resyncs every half second, and yield its metrics. Fail if its loop ends before the test
    does."""
    metrics = OperatorMetrics()
    api, brokers = KubernetesApi((), kube.config), BrokerStatusClient()
    reconciler = ClusterReconciler(api, brokers, SETTINGS, metrics)
    leases = Leases(api, "system/migratory/one", metrics)
    queue = WorkQueue(leases.guarded(reconciler.reconcile), metrics)
    reports = ReportController(api, SETTINGS, metrics, leases)
    server = TelemetryServer(0, metrics)
    loop = asyncio.create_task(ResyncLoop(api, queue, reports, leases, server, metrics, 0.5).run())
    yield metrics
    assert not loop.done(), loop
    loop.cancel()
    await asyncio.wait([loop], timeout=5)
    await queue.close()
    await reports.close()
    await brokers.close()
    await api.close()


def owned_paths(kube: FakeKube) -> set[str]:
    return {path for path in kube.objects if path != QUOTES and "/events/" not in path and "/leases/" not in path}


async def test_objects_are_created_once_and_restored_when_deleted(kube: FakeKube, metrics: OperatorMetrics) -> None:
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    created = owned_paths(kube)
    assert {f"{AT}/statefulsets/quotes-broker", f"{AT}/configmaps/quotes-servers"} <= created
    assert kube.objects[QUOTES]["status"]["ready"] == "0/3"
    applied = len(kube.applied)
    reconciles = metrics.registry.get_sample_value("migratory_operator_reconciles_total", {"result": "done"}) or 0

    def count() -> float:
        return metrics.registry.get_sample_value("migratory_operator_reconciles_total", {"result": "done"}) or 0

    await until(lambda: count() > reconciles + 2, "two more reconciliations")
    # The StatefulSets were observed meanwhile, so only the status may have changed.
    assert {item["kind"] for item in kube.applied[applied:]} <= {"MigratoryCluster"}
    del kube.objects[f"{AT}/statefulsets/quotes-broker"]
    await until(lambda: owned_paths(kube) == created, "the StatefulSet to come back")

    def restored() -> list[str]:
        return [entry["message"] for path, entry in kube.objects.items() if "/events/" in path]

    await until(restored, "an Event")
    assert restored() == ["StatefulSet quotes-broker was deleted and is created again"]

    def settled() -> bool:
        return "Creating" not in [condition["reason"] for condition in kube.objects[QUOTES]["status"]["conditions"]]

    await until(settled, "a status in which the StatefulSet exists")
    for path in created:  # all at once
        del kube.objects[path]
    await until(lambda: owned_paths(kube) == created, "every object to come back")
    await until(lambda: len(restored()) == 1 + len(created), "an Event for each")


async def test_a_change_is_applied_and_a_deleted_cluster_loses_its_series(
    kube: FakeKube, metrics: OperatorMetrics
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


async def test_a_service_monitor_is_created_once_the_kind_exists(kube: FakeKube, metrics: OperatorMetrics) -> None:
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


async def test_an_object_of_another_owner_is_not_changed(kube: FakeKube, metrics: OperatorMetrics) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "quotes-servers", "namespace": "market"}}
    kube.put(f"{AT}/configmaps/quotes-servers", {**theirs, "data": {"mine": "yes"}})
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    assert kube.objects[f"{AT}/configmaps/quotes-servers"]["data"] == {"mine": "yes"}
    reasons = {entry["type"]: entry["reason"] for entry in kube.objects[QUOTES]["status"]["conditions"]}
    assert reasons["Degraded"] == "NameTaken"


async def test_one_rejected_object_blocks_no_other_and_is_retried(kube: FakeKube, metrics: OperatorMetrics) -> None:
    kube.refuse[f"PATCH {AT}/networkpolicies/"] = 403
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    assert f"{AT}/statefulsets/quotes-broker" in kube.objects
    assert f"{AT}/networkpolicies/quotes-broker" not in kube.objects
    kube.refuse.clear()
    await until(lambda: f"{AT}/networkpolicies/quotes-broker" in kube.objects, "the network policy")


@pytest.mark.parametrize(("code", "reason"), [(422, "ObjectRefused"), (403, "ObjectRefused"), (500, "NothingKnown")])
async def test_a_permanent_rejection_is_reported_until_it_ends(
    kube: FakeKube, metrics: OperatorMetrics, code: int, reason: str
) -> None:
    kube.refuse[f"PATCH {AT}/statefulsets/quotes-broker"] = code
    kube.reason = "requests: must be less than or equal to memory limit of 128Mi"
    kube.put(QUOTES, cluster())

    def degraded() -> str:
        conditions = kube.objects[QUOTES].get("status", {}).get("conditions", [])
        return next(
            (f"{entry['reason']} {entry['message']}" for entry in conditions if entry["type"] == "Degraded"), ""
        )

    await until(degraded, "a status")
    assert degraded().startswith(reason)
    if reason == "ObjectRefused":
        assert "StatefulSet quotes-broker: requests: must be less than" in degraded()
        events = [item["reason"] for path, item in kube.objects.items() if "/events/" in path]
        assert events.count("ObjectRefused") == 1
    kube.refuse.clear()
    await until(lambda: degraded().startswith("NothingKnown"), "the end of the rejection")


async def test_a_claim_grows_and_a_refusal_is_reported_until_it_ends(kube: FakeKube, metrics: OperatorMetrics) -> None:
    path = f"{AT}/persistentvolumeclaims/data-quotes-zookeeper-0"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-quotes-zookeeper-0",
            "namespace": "market",
            "uid": "one",
            "labels": names.selector("quotes", names.ZOOKEEPER),
        },
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    }
    kube.put(path, claim)
    kube.refuse[f"PATCH {path}"] = 403
    kube.reason = "the storageclass that provisions the pvc must support resize"
    kube.put(QUOTES, cluster({"zookeeper": {"storage": {"size": "2Gi"}}}))

    def degraded() -> str:
        conditions = kube.objects[QUOTES].get("status", {}).get("conditions", [])
        return next((entry["message"] for entry in conditions if entry["type"] == "Degraded"), "")

    await until(lambda: "PersistentVolumeClaim data-quotes-zookeeper-0: the storageclass" in degraded(), "the refusal")
    kube.refuse.clear()
    await until(lambda: kube.objects[path]["spec"]["resources"]["requests"]["storage"] == "2Gi", "a larger claim")
    await until(lambda: "PersistentVolumeClaim" not in degraded(), "the end of the refusal")
    events = [item for at, item in kube.objects.items() if "/events/" in at]
    assert "Restored" not in {item["reason"] for item in events}


async def test_an_edit_while_the_api_server_is_silent_is_applied_later(
    kube: FakeKube, metrics: OperatorMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "TIMEOUT", 0.3)
    kube.put(QUOTES, cluster())
    brokers = f"{AT}/statefulsets/quotes-broker"
    await until(lambda: brokers in kube.objects, "brokers")
    kube.is_answering.clear()

    def failed() -> float:
        return metrics.registry.get_sample_value("migratory_operator_reconciles_total", {"result": "failed"}) or 0

    kube.put(QUOTES, cluster({"brokers": {"replicas": 4}}))
    await until(failed, "a failed reconciliation")
    kube.is_answering.set()
    await until(lambda: kube.objects[brokers]["spec"]["replicas"] == 4, "four brokers")


async def test_a_slow_api_server_with_many_clusters_does_not_fail_health(kube: FakeKube) -> None:
    """While the requests of five clusters take 100 s each, the loop reports a sign of life before each cluster: the
    last one is at most 100 s old at the end."""
    now, metrics = 0.0, OperatorMetrics()

    class Slow(KubernetesApi):
        async def get(self, *_: object) -> None:
            nonlocal now
            now += 100.0

    server = TelemetryServer(0, metrics, lambda: now)
    api = Slow((), kube.config)
    others = KubernetesApi((), kube.config)
    leases = Leases(others, "system/migratory/one", metrics)
    queue = WorkQueue(lambda *_: asyncio.sleep(0, 0.0), metrics)
    reports = ReportController(api, SETTINGS, metrics, leases)
    for number in range(5):
        kube.put(f"{AT}/migratoryclusters/c{number}", cluster(name=f"c{number}"))
    loop = asyncio.create_task(ResyncLoop(api, queue, reports, leases, server, metrics, 60.0).run())
    await until(lambda: now == 500.0, "a request for each cluster")
    assert server.seconds_since_beat <= 100.0
    loop.cancel()
    await asyncio.wait([loop], timeout=5)
    await queue.close()
    await others.close()
    await api.close()


async def test_nothing_is_created_or_warned_of_in_a_terminating_namespace(
    kube: FakeKube, metrics: OperatorMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    kube.refuse[f"PATCH {AT}/serviceaccounts"] = 403
    kube.reason = "unable to create new content in namespace market because it is being terminated"
    kube.put(QUOTES, cluster())
    await until(lambda: kube.objects[QUOTES].get("status"), "a status")
    assert f"{AT}/statefulsets/quotes-broker" not in kube.objects
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
