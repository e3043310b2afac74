"""kopf with the operator's handlers: they wake the work queues and add nothing to the resource."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import kopf
import pytest
from migratory_operator.main import handlers, kopf_settings
from migratory_operator.names import PAUSED
from migratory_operator.reconcile.queue import WorkQueue
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import cluster, report

QUOTES = "namespaces/market/migratoryclusters/quotes"
OTHER = "namespaces/market/migratoryclusters/other"
WEEKLY = "namespaces/market/slareports/weekly"


async def test_new_and_changed_resources_wake_the_queues_and_are_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clusters: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    reports: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def recording_queue(calls: asyncio.Queue[tuple[str, str]]) -> WorkQueue:
        async def reconcile(namespace: str, name: str) -> float:
            calls.put_nowait((namespace, name))
            return 0.0

        return WorkQueue(reconcile, OperatorMetrics())

    async with FakeKube() as kube:
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(kube.kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(config))
        kube.put(QUOTES, cluster())
        kube.put(WEEKLY, report())
        queues, stop = (recording_queue(clusters), recording_queue(reports)), asyncio.Event()
        running = asyncio.create_task(
            kopf.operator(
                registry=handlers(*queues), settings=kopf_settings(), standalone=True, clusterwide=True, stop_flag=stop
            )
        )
        try:
            async with asyncio.timeout(30):
                assert await clusters.get() == ("market", "quotes")
                assert await reports.get() == ("market", "weekly")
                await kube.wait_for_watches("migratoryclusters", "slareports")
                for clients in range(3):
                    kube.put(QUOTES, {**cluster(), "status": {"brokers": [{"name": "a", "clients": clients}]}})
                kube.put(WEEKLY, report(status={"phase": "Running"}))
                kube.put(OTHER, cluster(name="other"))
                assert await clusters.get() == ("market", "other"), "a changed status alone wakes no queue"
                kube.put(QUOTES, cluster({"brokers": {"replicas": 5}}, generation=2))
                assert await clusters.get() == ("market", "quotes")
                kube.put(WEEKLY, report(window="2m", metadata={"generation": 2}))
                assert await reports.get() == ("market", "weekly")
                kube.put(OTHER, cluster(name="other", annotations={PAUSED: "true"}))
                assert await clusters.get() == ("market", "other")
        finally:
            stop.set()
            await asyncio.wait([running], timeout=10)
            for queue in queues:
                await queue.close()
        assert clusters.empty()
        assert reports.empty()
        for path in (QUOTES, WEEKLY):
            metadata = kube.objects[path]["metadata"]
            assert "finalizers" not in metadata
            assert "annotations" not in metadata
        assert [method for method, path in kube.requests if method != "GET"] == []
