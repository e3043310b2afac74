"""What stands before an API server may answer in its place: that is a failure like any other, and ends nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from migratory_operator.api import POD, Api, ApiError
from migratory_testing.fakekube import kubeconfig

PAGES = {
    "a page": (200, "<html>sign in</html>", "text/html"),
    "no body": (503, "", "application/json"),
    "another's error": (502, '{"error": "no healthy upstream"}', "application/json"),
    "another's answer": (200, '{"ok": true}', "application/json"),
    "too many requests": (429, "slow down", "text/plain"),
}


@pytest.fixture(params=PAGES.values(), ids=list(PAGES))
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    code, text, content = request.param

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=code, text=text, content_type=content)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made = Api((), kubeconfig(runner.addresses[0][1]))
    yield made
    await made.close()
    await runner.cleanup()


async def test_it_is_an_error_of_the_api_whatever_was_asked(api: Api) -> None:
    with pytest.raises(ApiError):
        await api.list(POD, "market")
    with pytest.raises(ApiError):
        async for _ in api.watch(POD, "market", {}):
            pass
