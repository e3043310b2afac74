"""The clients' HTTP endpoints: WebSocket upgrades on `/` and `/ws`, and `GET /v1/servers`.

After an upgrade the transport goes to a slotted protocol (connection.py) and aiohttp's request handler is released,
which keeps a client at 1.5 KiB instead of 14 KiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from aiohttp import web
from migratory_protocol.messages import Server
from migratory_protocol.origins import OriginPolicy

from migratory_broker.runtime.accepting.http import (
    JSON,
    HttpServer,
    Page,
    RefusedRequest,
    page_response,
    refusal_response,
)
from migratory_broker.runtime.clients.connection import ClientConnections
from migratory_broker.runtime.clients.handshake import AcceptedUpgrade, check_source, negotiate


class HandedOverResponse(web.StreamResponse):
    """The response of a handler whose transport aiohttp does not own any more: it writes nothing."""

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None

    @property
    def keep_alive(self) -> bool:
        return False


class EarlyBytes:
    """A parser for `RequestHandler.set_parser` that keeps the bytes behind the request, as aiohttp's own WebSocket uses
    it."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        return None


class ClientServer:
    """The HTTP server of the clients' listener."""

    def __init__(
        self,
        connections: ClientConnections,
        policy: OriginPolicy,
        servers: Page,
        clock: Callable[[], float],
        *,
        handshake_limit: float,
        compression: bool,
    ) -> None:
        self._connections = connections
        self._policy = policy
        self._servers = servers
        self._limit = handshake_limit
        self._compression = compression
        self._server = HttpServer(self._handle, clock)
        self.slow_handshakes = 0

    def protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol for one more connection."""
        return self._server()

    @property
    def pending(self) -> int:
        """Connections that are still in their handshake."""
        return len(self._server.pending)

    @property
    def malformed(self) -> int:
        """Requests that were not HTTP."""
        return self._server.malformed

    def tick(self) -> None:
        self.slow_handshakes += self._server.drop_slow(self._limit)

    async def close(self) -> None:
        await self._server.shutdown(0.5)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path in {"/", "/ws"}:
            answer = negotiate(request.method, request.version, request.headers, self._policy, self._compression)
            if isinstance(answer, RefusedRequest):
                return refusal_response(answer)
            return self._hand_over(request, answer)
        refused = check_source(request.headers, self._policy)
        if refused is not None:
            return refusal_response(refused)
        if path != "/v1/servers":
            return refusal_response(RefusedRequest(404, "not found; use /ws (WebSocket) or /v1/servers"))
        if request.method not in {"GET", "HEAD"}:
            return refusal_response(RefusedRequest(405, "method not allowed; use GET", {"Allow": "GET, HEAD"}))
        response = page_response(self._servers)
        origin = request.headers.get("Origin")
        if origin is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"
        return response

    def _hand_over(self, request: web.BaseRequest, accepted: AcceptedUpgrade) -> web.StreamResponse:
        """Move the transport to the client connections. All in one step of the loop: no byte can arrive in between."""
        handler = request.protocol
        transport = request.transport
        opened = self._server.pending.get(handler)
        if transport is None or opened is None:
            return HandedOverResponse()  # closed, or aborted as too slow
        early = EarlyBytes()
        handler.set_parser(cast("Any", early))
        handler.keep_alive(False)
        # For aiohttp the connection is lost: it drops the handler, and the handler its parser. The two refer to each
        # other, so that otherwise a storm of connects would leave thousands of them to the garbage collector.
        handler.transport = None
        handler.connection_lost(None)
        transport.write(accepted.answer)
        self._connections.adopt(transport, accepted.wire, accepted.deflate, opened, early.data)
        return HandedOverResponse()


def servers_page(read: Callable[[], Sequence[Server]]) -> Page:
    """Return the page of /v1/servers: the brokers' URLs and weights."""

    def page() -> tuple[int, str, bytes]:
        entries = [{"url": server.url, "weight": server.weight} for server in read()]
        return 200, JSON, msgspec.json.encode({"servers": entries}) + b"\n"

    return page
