"""kopf's own runner with the operator's handlers: they wake the queue, and leave nothing behind in the resource."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import kopf
import pytest
from migratory_operator.main import handlers, kopf_settings
from migratory_operator.metrics import Metrics
from migratory_operator.names import PAUSED
from migratory_operator.queue import Queue
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import cluster, report

QUOTES = "namespaces/market/migratoryclusters/quotes"
OTHER = "namespaces/market/migratoryclusters/other"
WEEKLY = "namespaces/market/slareports/weekly"


async def test_what_is_there_and_what_changes_is_looked_at_and_not_touched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clusters: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    reports: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def looking(at: asyncio.Queue[tuple[str, str]]) -> Queue:
        async def look(namespace: str, name: str) -> float:
            at.put_nowait((namespace, name))
            return 0.0

        return Queue(look, Metrics())

    async with FakeKube() as kube:
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(kube.kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(config))
        kube.put(QUOTES, cluster())
        kube.put(WEEKLY, report())
        queues, stop = (looking(clusters), looking(reports)), asyncio.Event()
        running = asyncio.create_task(
            kopf.operator(
                registry=handlers(*queues), settings=kopf_settings(), standalone=True, clusterwide=True, stop_flag=stop
            )
        )
        try:
            async with asyncio.timeout(30):
                assert await clusters.get() == ("market", "quotes")
                assert await reports.get() == ("market", "weekly")
                await kube.watched("migratoryclusters", "slareports")
                for clients in range(3):
                    kube.put(QUOTES, {**cluster(), "status": {"brokers": [{"name": "a", "clients": clients}]}})
                kube.put(WEEKLY, report(status={"phase": "Running"}))
                kube.put(OTHER, cluster(name="other"))
                assert await clusters.get() == ("market", "other"), "a status alone is nothing to look at"
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
