"""Requests to the API server: errors, answers of a proxy in front of it, and expired tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from migratory_operator.api.kubernetes import (
    CLUSTER,
    POD,
    WATCHED_KINDS,
    ApiError,
    KubernetesApi,
    NoKubernetes,
    ResourceKind,
    load_configuration,
)
from migratory_testing.fakekube import FakeKube, configuration, kubeconfig
from migratory_testing.kubernetes import cluster

ANSWERS = {
    "an html page": (200, "<html>sign in</html>", "text/html"),
    "an empty body": (503, "", "application/json"),
    "a proxy's error": (502, '{"error": "no healthy upstream"}', "application/json"),
    "a proxy's answer": (200, '{"ok": true}', "application/json"),
    "too many requests": (429, "slow down", "text/plain"),
}


@pytest.fixture(params=ANSWERS.values(), ids=list(ANSWERS))
async def api(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesApi]:
    code, text, content = request.param

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=code, text=text, content_type=content)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = KubernetesApi((), configuration(runner.addresses[0][1]))
    yield client
    await client.close()
    await runner.cleanup()


async def test_an_answer_of_a_proxy_is_an_api_error(api: KubernetesApi) -> None:
    with pytest.raises(ApiError) as listed:
        await api.list(POD, "market")
    with pytest.raises(ApiError) as got:
        await api.get(POD, "market", "a")
    with pytest.raises(ApiError) as watched:
        async for _ in api.watch(POD, "market", {}):
            pass
    for raised in (listed, got, watched):
        assert "fake" not in str(raised.value), "the token is in the message"


async def test_an_error_has_its_code_and_message(kube: FakeKube) -> None:
    api = KubernetesApi((), kube.config)
    try:
        assert await api.get(CLUSTER, "market", "nobody") is None
        kube.refuse["migratoryclusters"] = 403
        with pytest.raises(ApiError, match="is refused") as refused:
            await api.get(CLUSTER, "market", "nobody")
        assert refused.value.code == 403
    finally:
        await api.close()
    away = KubernetesApi((), configuration(1))
    try:
        with pytest.raises(ApiError, match="no answer") as unanswered:
            await away.list(CLUSTER, "market")
        assert unanswered.value.code == 0
    finally:
        await away.close()


async def test_an_expired_token_is_read_again(kube: FakeKube, tmp_path: Path) -> None:
    kube.put("namespaces/market/migratoryclusters/quotes", cluster())
    token = tmp_path / "token"
    token.write_text("first\n")
    kube.token = "first"
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(kubeconfig(kube.port, {"tokenFile": str(token)})))
    api = KubernetesApi((), await load_configuration(str(config)))
    try:
        assert await api.get(CLUSTER, "market", "quotes") is not None
        kube.token = "second"
        with pytest.raises(ApiError, match="Unauthorized"):
            await api.get(CLUSTER, "market", "quotes")
        token.write_text("second\n")
        assert await api.get(CLUSTER, "market", "quotes") is not None
    finally:
        await api.close()


async def test_watches_of_many_namespaces_leave_connections_for_requests(kube: FakeKube) -> None:
    namespaces = tuple(f"market-{number}" for number in range(30))
    kube.put("namespaces/market/migratoryclusters/quotes", cluster())
    api = KubernetesApi(namespaces, kube.config)

    async def watch(kind: ResourceKind, namespace: str) -> None:
        async for _ in api.watch(kind, namespace, {}):
            pass

    try:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            watches = [group.create_task(watch(kind, each)) for each in namespaces for kind in WATCHED_KINDS]
            await kube.wait_for_watches(*(kind.plural for kind in WATCHED_KINDS), count=len(watches))
            assert await api.get(CLUSTER, "market", "quotes") is not None
            for each in watches:
                each.cancel()
    finally:
        await api.close()


async def test_an_error_in_a_watch_has_its_code_and_message(kube: FakeKube) -> None:
    api = KubernetesApi((), kube.config)

    async def watch() -> None:
        async for _ in api.watch(POD, "market", {}):
            pass

    try:
        watching = asyncio.create_task(watch())
        await kube.wait_for_watches("pods")
        kube.end_watches({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
        with pytest.raises(ApiError, match="too old resource version") as expired:
            await watching
        assert expired.value.code == 410
    finally:
        await api.close()


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "does not exist"), ("{}", "current-context"), ("[", "expected the node content")]
)
async def test_an_unusable_kubeconfig_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, reason: str
) -> None:
    config = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(config))
    if content is not None:
        config.write_text(content)
    with pytest.raises(NoKubernetes, match=f"(?s){reason}.*set KUBECONFIG"):
        await load_configuration()


async def test_a_long_list_comes_in_parts(kube: FakeKube) -> None:
    for number in range(1001):
        kube.put(f"namespaces/market/pods/{number}", {"metadata": {"name": str(number)}})
    api = KubernetesApi((), kube.config)
    try:
        found = await api.list(POD, "market")
    finally:
        await api.close()
    assert [item["metadata"]["name"] for item in found] == [str(number) for number in range(1001)]
    assert {(item["apiVersion"], item["kind"]) for item in found} == {("v1", "Pod")}
    assert len(kube.requests) == 3
