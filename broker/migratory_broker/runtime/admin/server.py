"""The administration's HTTP endpoints: /healthz, /readyz, /metrics and /v1/status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from migratory_broker.runtime.accepting.http import (
    JSON,
    HttpServer,
    Page,
    RefusedRequest,
    page_response,
    refusal_response,
)

MAX_ADMIN = 32
"""Connections to the administration: one more, and one of these goes. Each is for one request, answered at once."""


class AdminServer:
    """The administration's listener: pages by path, all of them GET."""

    def __init__(self, pages: Mapping[str, Page], clock: Callable[[], float], request_limit: float = 30.0) -> None:
        self._pages = dict(pages)
        self._limit = request_limit
        self._server = HttpServer(self._handle, clock, MAX_ADMIN)

    def protocol(self) -> asyncio.BaseProtocol:
        return self._server()

    @property
    def crowded_out(self) -> int:
        """Connections that had to go for others."""
        return self._server.crowded_out

    @property
    def malformed(self) -> int:
        """Requests that were no HTTP."""
        return self._server.malformed

    def tick(self) -> None:
        self._server.drop_slow(self._limit)

    async def close(self) -> None:
        await self._server.shutdown(0.5)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        page = self._pages.get(request.path)
        if page is None:
            return refusal_response(RefusedRequest(404, f"here are {', '.join(self._pages)}"))
        if request.method not in {"GET", "HEAD"}:
            return refusal_response(RefusedRequest(405, "only GET is answered here", {"Allow": "GET, HEAD"}))
        return page_response(page)


def health_page() -> tuple[int, str, bytes]:
    """Alive: the loop answers. Says nothing about taking clients."""
    return 200, JSON, b'{"status":"alive"}\n'


def readiness_page(reason: Callable[[], str]) -> Page:
    """Ready: clients are taken. `reason` says why not, "" when they are."""

    def page() -> tuple[int, str, bytes]:
        why = reason()
        body = {"ready": not why, "reason": why}
        return 503 if why else 200, JSON, msgspec.json.encode(body) + b"\n"

    return page


def status_page(read: Callable[[], Mapping[str, object]]) -> Page:
    """Everything that a person who looks into a broker wants to see."""

    def page() -> tuple[int, str, bytes]:
        body = msgspec.json.format(msgspec.json.encode(read(), enc_hook=str), indent=2)
        return 200, JSON, body + b"\n"

    return page
