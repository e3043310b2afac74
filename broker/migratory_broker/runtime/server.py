"""HTTP: the clients' handshake and the administration's pages. The only file that imports aiohttp's server.

aiohttp parses the request; after a handshake the transport goes to a slotted protocol (`connection.py`) and aiohttp's
request handler is released, which is what keeps a client at 1.5 KiB instead of 14 KiB. A handshake has a limited time
from TCP accept, however slowly its bytes come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from migratory_protocol.origins import OriginPolicy

from migratory_broker.runtime.connection import Connections
from migratory_broker.runtime.strangers import Strangers, host_of
from migratory_broker.runtime.upgrade import Accepted, Refused, check_source, negotiate

MAX_HEADER_LINE = 8190
MAX_HEADERS = 64
MAX_ADMIN = 32
"""Connections to the administration: one more, and one of these goes. Each is for one request, answered at once."""

Page = Callable[[], tuple[int, str, bytes]]
"""Answers a GET: status, content type, body."""


class _HandedOver(web.StreamResponse):
    """What a handler returns once the transport is no longer aiohttp's: writes nothing."""

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None

    @property
    def keep_alive(self) -> bool:
        return False


class _Early:
    """Takes the bytes that arrived behind the request, through the door that aiohttp has for its own WebSocket."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        return None


class _Logger(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's own, but for what is no HTTP: counted, for anybody may send it, and each would write an error with its
    traceback and what was sent, up to 128 KiB of it."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))
        self.malformed = 0

    def exception(self, msg: object, *args: object, exc_info: Any = True, **options: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self.malformed += 1
        else:
            super().exception(msg, *args, exc_info=exc_info, **options)


class _Server(web.Server):
    """Remembers when each connection was accepted, until it was handed over or is gone. `most`: so many at once."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        clock: Callable[[], float],
        most: int | None = None,
    ) -> None:
        self._logger = _Logger()
        super().__init__(
            cast("Any", handler),
            access_log=None,
            logger=self._logger,
            keepalive_timeout=0,
            tcp_keepalive=False,
            lingering_time=0,
            max_line_size=MAX_HEADER_LINE,
            max_field_size=MAX_HEADER_LINE,
            max_headers=MAX_HEADERS,
        )
        self._clock = clock
        self.waiting: dict[RequestHandler, float] = {}
        self._strangers: Strangers[RequestHandler] | None = None if most is None else Strangers(most)
        self.crowded_out = 0

    @property
    def malformed(self) -> int:
        return self._logger.malformed

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        self.waiting[handler] = self._clock()
        super().connection_made(handler, transport)
        gone = None if self._strangers is None else self._strangers.add(handler, host_of(transport))
        if gone is not None:
            self.crowded_out += 1
            self._drop(gone)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self.waiting.pop(handler, None)
        if self._strangers is not None:
            self._strangers.discard(handler)
        super().connection_lost(handler, exc)

    def drop_slow(self, limit: float) -> int:
        """Drop connections whose handshake takes longer than `limit` seconds. Returns how many."""
        border = self._clock() - limit
        slow = []
        for handler, accepted in self.waiting.items():  # in the order of acceptance
            if accepted > border:
                break
            slow.append(handler)
        for handler in slow:
            self._drop(handler)
        return len(slow)

    def _drop(self, handler: RequestHandler) -> None:
        self.waiting.pop(handler, None)
        if handler.transport is not None:
            handler.transport.abort()


class ClientServer:
    """The clients' listener: `/` and `/ws` upgrade to WebSocket; `GET /v1/servers` for who knows one address only."""

    def __init__(
        self,
        connections: Connections,
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
        self._server = _Server(self._handle, clock)
        self.slow_handshakes = 0

    def protocol(self) -> asyncio.BaseProtocol:
        """The protocol for one more connection: what a listener calls."""
        return self._server()

    @property
    def waiting(self) -> int:
        """Connections that are still in their handshake."""
        return len(self._server.waiting)

    @property
    def malformed(self) -> int:
        """Requests that were no HTTP."""
        return self._server.malformed

    def tick(self) -> None:
        self.slow_handshakes += self._server.drop_slow(self._limit)

    async def close(self) -> None:
        await self._server.shutdown(0.5)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path in {"/", "/ws"}:
            answer = negotiate(request.method, request.version, request.headers, self._policy, self._compression)
            if isinstance(answer, Refused):
                return _refusal(answer)
            return self._hand_over(request, answer)
        refused = check_source(request.headers, self._policy)
        if refused is not None:
            return _refusal(refused)
        if path != "/v1/servers":
            return _refusal(Refused(404, "here are /ws (WebSocket) and /v1/servers"))
        if request.method not in {"GET", "HEAD"}:
            return _refusal(Refused(405, "only GET is answered here", {"Allow": "GET, HEAD"}))
        response = _page(self._servers)
        origin = request.headers.get("Origin")
        if origin is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"
        return response

    def _hand_over(self, request: web.BaseRequest, accepted: Accepted) -> web.StreamResponse:
        """Everything in one step of the loop: no byte can come in between."""
        handler = request.protocol
        transport = request.transport
        opened = self._server.waiting.get(handler)
        if transport is None or opened is None:
            return _HandedOver()  # gone, or dropped as too slow
        early = _Early()
        handler.set_parser(cast("Any", early))
        handler.keep_alive(False)
        # To aiohttp the connection is lost: it forgets the handler, and the handler its parser. Each refers to the
        # other: left to the collector they would pile up by thousands in a storm of connections.
        handler.transport = None
        handler.connection_lost(None)
        transport.write(accepted.answer)
        self._connections.adopt(transport, accepted.wire, accepted.deflate, opened, early.data)
        return _HandedOver()


class AdminServer:
    """The administration's listener: pages by path, all of them GET."""

    def __init__(self, pages: Mapping[str, Page], clock: Callable[[], float], request_limit: float = 30.0) -> None:
        self._pages = dict(pages)
        self._limit = request_limit
        self._server = _Server(self._handle, clock, MAX_ADMIN)

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
            return _refusal(Refused(404, f"here are {', '.join(self._pages)}"))
        if request.method not in {"GET", "HEAD"}:
            return _refusal(Refused(405, "only GET is answered here", {"Allow": "GET, HEAD"}))
        return _page(page)


def _page(page: Page) -> web.Response:
    status, content_type, body = page()
    headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
    response = web.Response(status=status, body=body, headers=headers)
    response.force_close()
    return response


def _refusal(refused: Refused) -> web.Response:
    response = web.Response(status=refused.status, text=refused.text + "\n", headers=refused.headers)
    response.force_close()
    return response
