"""The administration's HTTP server, and its pages /healthz, /readyz and /v1/status. The page /metrics is in
`metrics.py`."""

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
"""The largest number of connections to the administration at once. Each is for one request and answered at once, so
further ones are idle."""


class AdminServer:
    """The HTTP server of the administration's listener. `pages` are the HTTP pages by path; others are answered 404.
    Only GET and HEAD are allowed. A request may take `request_limit` seconds."""

    def __init__(self, pages: Mapping[str, Page], clock: Callable[[], float], request_limit: float = 30.0) -> None:
        self._pages = dict(pages)
        self._limit = request_limit
        self._server = HttpServer(self._handle, clock, MAX_ADMIN)

    def protocol(self) -> asyncio.BaseProtocol:
        return self._server()

    @property
    def evicted(self) -> int:
        """The number of connections so far that were evicted at the limit of connections."""
        return self._server.evicted

    @property
    def malformed(self) -> int:
        """The number of requests so far that were not valid HTTP."""
        return self._server.malformed

    def tick(self) -> None:
        self._server.drop_slow(self._limit)

    async def close(self) -> None:
        await self._server.shutdown(0.5)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        page = self._pages.get(request.path)
        if page is None:
            return refusal_response(RefusedRequest(404, f"not found; this address serves {', '.join(self._pages)}"))
        if request.method not in {"GET", "HEAD"}:
            return refusal_response(RefusedRequest(405, "method not allowed; use GET", {"Allow": "GET, HEAD"}))
        return page_response(page)


def health_page() -> tuple[int, str, bytes]:
    """Return the page of /healthz: always 200, because the loop runs. It says nothing about accepting clients."""
    return 200, JSON, b'{"status":"alive"}\n'


def readiness_page(reason: Callable[[], str]) -> Page:
    """Return the page of /readyz: 200 or 503. `reason` returns why clients are not accepted, "" when they are."""

    def page() -> tuple[int, str, bytes]:
        text = reason()
        body = {"ready": not text, "reason": text}
        return 503 if text else 200, JSON, msgspec.json.encode(body) + b"\n"

    return page


def status_page(read: Callable[[], Mapping[str, object]]) -> Page:
    """Return the page of /v1/status: what `read` returns, as indented JSON. Values that JSON lacks become their
    text."""

    def page() -> tuple[int, str, bytes]:
        body = msgspec.json.format(msgspec.json.encode(read(), enc_hook=str), indent=2)
        return 200, JSON, body + b"\n"

    return page
