"""The operator's HTTP server: /healthz, /readyz, /metrics. The server answers even while the API server does not."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from migratory_operator.telemetry.metrics import OperatorMetrics

STUCK_SECONDS = 180.0
"""Seconds without a beat of the resync loop after which /healthz fails: far above all time limits of one round."""


class TelemetryServer:
    """An HTTP server for the kubelet's probes and for Prometheus. /healthz fails when the resync loop makes no progress
    for STUCK_SECONDS; /readyz fails until all clusters have been listed once.

    :param clock: returns seconds that never go back.
    """

    def __init__(self, port: int, metrics: OperatorMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._metrics = metrics
        self._clock = clock
        self._last_beat = clock()
        self._is_ready = False
        self._runner: web.AppRunner | None = None

    def beat(self) -> None:
        """Record that the resync loop makes progress now, so that /healthz succeeds for another STUCK_SECONDS."""
        self._last_beat = self._clock()

    @property
    def seconds_since_beat(self) -> float:
        """Seconds since the resync loop last made progress."""
        return self._clock() - self._last_beat

    def set_ready(self) -> None:
        """Let /readyz succeed from now on. The resync loop calls this when it has listed all clusters."""
        self._is_ready = True

    async def start(self) -> None:
        """Start to listen on all IPv4 interfaces, on the port given to the constructor. Raise OSError if the port is
        taken."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._serve_health),
                web.get("/readyz", self._serve_readiness),
                web.get("/metrics", self._serve_metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "0.0.0.0", self._port).start()

    async def close(self) -> None:
        """Stop listening. Do nothing if the server was not started."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_health(self, request: web.Request) -> web.Response:
        if self.seconds_since_beat > STUCK_SECONDS:
            text = f"the resync loop has made no progress for {self.seconds_since_beat:.0f} s\n"
            return web.Response(status=503, text=text)
        return web.Response(text="alive\n")

    async def _serve_readiness(self, request: web.Request) -> web.Response:
        if not self._is_ready:
            return web.Response(status=503, text="the clusters have not been listed yet\n")
        return web.Response(text="ready\n")

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
