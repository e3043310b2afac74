"""kopf's own runner with the operator's handlers: they wake the queue, and leave nothing behind in the resource."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import kopf
import pytest
from migratory_operator.main import handlers, kopf_settings
from migratory_operator.metrics import Metrics
from migratory_operator.queue import Queue
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import cluster

QUOTES = "namespaces/market/migratoryclusters/quotes"


async def test_a_cluster_that_is_there_and_one_that_changes_are_looked_at_and_not_touched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def look(namespace: str, name: str) -> bool:
        looks.put_nowait((namespace, name))
        return False

    async with FakeKube() as kube:
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(kube.kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(config))
        kube.put(QUOTES, cluster())
        queue, stop = Queue(look, Metrics()), asyncio.Event()
        running = asyncio.create_task(
            kopf.operator(
                registry=handlers(queue), settings=kopf_settings(), standalone=True, clusterwide=True, stop_flag=stop
            )
        )
        try:
            async with asyncio.timeout(30):
                assert await looks.get() == ("market", "quotes")
                await kube.watched()
                kube.put(QUOTES, cluster({"brokers": {"replicas": 5}}))
                assert await looks.get() == ("market", "quotes")
        finally:
            stop.set()
            await asyncio.wait([running], timeout=10)
            await queue.close()
        metadata = kube.objects[QUOTES]["metadata"]
        assert "finalizers" not in metadata
        assert "annotations" not in metadata
        assert [method for method, path in kube.requests if method != "GET"] == []
