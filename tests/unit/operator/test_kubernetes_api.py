"""Requests to the API server: errors, answers of a proxy in front of it, and expired tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from migratory_operator.api.kubernetes import CLUSTER, POD, ApiError, KubernetesApi
from migratory_testing.fakekube import FakeKube, kubeconfig
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
    client = KubernetesApi((), kubeconfig(runner.addresses[0][1]))
    yield client
    await client.close()
    await runner.cleanup()


async def test_an_answer_of_a_proxy_is_an_api_error(api: KubernetesApi) -> None:
    with pytest.raises(ApiError):
        await api.list(POD, "market")
    with pytest.raises(ApiError):
        async for _ in api.watch(POD, "market", {}):
            pass


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
    away = KubernetesApi((), kubeconfig(1))
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
    api = KubernetesApi((), kubeconfig(kube.port, token))
    try:
        assert await api.get(CLUSTER, "market", "quotes") is not None
        kube.token = "second"
        with pytest.raises(ApiError, match="Unauthorized"):
            await api.get(CLUSTER, "market", "quotes")
        token.write_text("second\n")
        assert await api.get(CLUSTER, "market", "quotes") is not None
    finally:
        await api.close()
