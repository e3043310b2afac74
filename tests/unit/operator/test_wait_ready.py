"""The command that waits for a cluster after an installation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from migratory_operator import wait_ready as module
from migratory_operator.api.kubernetes import KubernetesApi
from migratory_operator.names import Object
from migratory_operator.wait_ready import wait_ready
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import cluster

QUOTES = "namespaces/market/migratoryclusters/quotes"


@pytest.fixture
async def api(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesApi]:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    api = KubernetesApi(("market",), kube.config)
    yield api
    await api.close()


def with_status(status: str, reason: str, generation: int = 1) -> Object:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": "said"}
    return {**cluster(), "status": {"observedGeneration": generation, "conditions": [condition]}}


async def test_it_ends_when_the_cluster_is_ready_for_its_present_spec(kube: FakeKube, api: KubernetesApi) -> None:
    waiting = asyncio.create_task(wait_ready(api, "market", "quotes", 60))
    for present in (None, cluster(), with_status("True", "AllReady", 0), with_status("False", "BrokersNotReady")):
        if present is not None:
            kube.put(QUOTES, present)
        asked = len(kube.requests)
        while len(kube.requests) < asked + 3:  # noqa: ASYNC110 - requests are made by another task
            await asyncio.sleep(0.01)
        assert not waiting.done(), present
    kube.put(QUOTES, with_status("True", "EnoughReady"))
    assert await waiting == ""


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (None, "MigratoryCluster quotes does not exist in namespace market"),
        (cluster(), "no operator has read the spec of MigratoryCluster quotes yet; does one serve market?"),
        (with_status("False", "NoQuorum"), "MigratoryCluster quotes is not ready:\nReady=False NoQuorum: said"),
    ],
)
async def test_at_its_limit_it_says_why(
    kube: FakeKube, api: KubernetesApi, present: Object | None, expected: str
) -> None:
    if present is not None:
        kube.put(QUOTES, present)
    assert await wait_ready(api, "market", "quotes", 0.1) == expected


async def test_an_invalid_spec_ends_it_at_once(kube: FakeKube, api: KubernetesApi) -> None:
    kube.put(QUOTES, with_status("False", "InvalidSpec"))
    async with asyncio.timeout(30):
        assert "Ready=False InvalidSpec: said" in await wait_ready(api, "market", "quotes", 3600)


async def test_a_failed_request_is_repeated(kube: FakeKube, api: KubernetesApi) -> None:
    kube.refuse["migratoryclusters"] = 500
    waiting = asyncio.create_task(wait_ready(api, "market", "quotes", 60))
    while not kube.requests:  # noqa: ASYNC110 - requests are made by another task
        await asyncio.sleep(0.01)
    kube.refuse.clear()
    kube.put(QUOTES, with_status("True", "AllReady"))
    assert await waiting == ""
