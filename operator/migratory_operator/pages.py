"""The operator's own listener: /healthz, /readyz, /metrics. It answers while the API server does not."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from migratory_operator.metrics import Metrics

STUCK = 180.0
"""Seconds without a beat of the main loop after which it counts as dead: far beyond every time limit on its way."""


class Pages:
    def __init__(self, port: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._metrics = metrics
        self._clock = clock
        self._beat = clock()
        self._ready = False
        self._runner: web.AppRunner | None = None

    def beat(self) -> None:
        """The main loop goes round."""
        self._beat = self._clock()

    @property
    def silent(self) -> float:
        """Seconds since the last beat."""
        return self._clock() - self._beat

    def ready(self) -> None:
        """All clusters have been listed once."""
        self._ready = True

    async def start(self) -> None:
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._health), web.get("/readyz", self._readiness), web.get("/metrics", self._page)]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "0.0.0.0", self._port).start()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        if self.silent > STUCK:
            return web.Response(status=503, text=f"no beat for {self.silent:.0f} s\n")
        return web.Response(text="alive\n")

    async def _readiness(self, request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._ready else web.Response(status=503, text="no list yet\n")

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})
