"""The clients' HTTP server: WebSocket upgrades on `/` and `/ws`, the requests of HTTP clients, `GET /v1/servers`, and
the console.

After an upgrade, or once the request of an HTTP client is read, the transport goes to a slotted protocol
(connection.py) and aiohttp's request handler is released, which keeps a client at 1.5 KiB instead of 14 KiB.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from aiohttp import ClientPayloadError, web
from migratory_protocol.messages import Server
from migratory_protocol.origins import OriginPolicy

from migratory_broker.core.edge.events import HttpRequest
from migratory_broker.core.logic.events import Note
from migratory_broker.runtime.accepting.http import (
    JSON,
    HttpServer,
    Page,
    RefusedRequest,
    page_response,
    refusal_response,
)
from migratory_broker.runtime.clients.connection import ClientConnections
from migratory_broker.runtime.clients.console import Console
from migratory_broker.runtime.clients.handshake import Wire, bearer_token, check_rebound, check_source, negotiate
from migratory_broker.runtime.clients.requests import (
    PATHS,
    PREFLIGHT_HEADERS,
    TranslatedRequest,
    body_size,
    translate,
)

REFUSAL_REASONS = {403: "origin", 421: "host", 400: "malformed", 401: "token"}
"""The reasons for which a request is refused for its source, by status: its Origin, its Host, one of them that is
missing, repeated or malformed, or the console's token."""

NOT_FOUND = "not found; use /ws (WebSocket), /v1/stream, /v1/poll, /v1/publish or /v1/servers"

LOG_INTERVAL = 10.0
"""Seconds between two log lines about refused requests."""


class HandedOverResponse(web.StreamResponse):
    """The response that a handler returns to aiohttp when there is nothing to answer: after its transport was handed
    over, or when the client is gone. It writes nothing, because aiohttp does not own the transport any more."""

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None

    @property
    def keep_alive(self) -> bool:
        return False


class EarlyBytes:
    """A parser for aiohttp's `RequestHandler.set_parser` that collects the bytes after the request in `data`, in place
    of aiohttp's own WebSocket parser."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Add bytes to `data`. The result tells aiohttp that the parser wants more."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """The places of a request from which a token is read: its `Authorization` header, and with `query` and without
    such a token the parameter `access_token` of its URL."""

    query: bool = False

    def read(self, request: web.BaseRequest) -> str | None:
        """Return the token of a request, None when there is none. It is not verified."""
        token = bearer_token(request.headers)
        return request.query.get("access_token") if token is None and self.query else token


class ClientServer:
    """The HTTP server of the clients' listener. `servers` is the page of /v1/servers. A handshake may take
    `handshake_limit` seconds; `slow_handshakes` is the number of connections so far that `tick` aborted at this limit.
    `refused` is the number of requests so far that were refused for their source, by the reasons of
    `REFUSAL_REASONS`."""

    def __init__(
        self,
        connections: ClientConnections,
        policy: OriginPolicy,
        servers: Page,
        clock: Callable[[], float],
        *,
        handshake_limit: float,
        max_held: int,
        compression: bool,
        max_body: int = 1_048_576,
        heartbeat: float = 15.0,
        tokens: TokenPlaces | None = None,
        brokers: Callable[[], Sequence[Server]] | None = None,
        on_note: Callable[[Note], object] = lambda note: None,
        console: Console | None = None,
    ) -> None:
        """Create the server.

        `policy` has the allowed origins and hosts. `max_held` is the bytes of memory that all handshakes may take,
        `compression` whether permessage-deflate may be negotiated, `max_body` the bytes of the largest body of a
        request. A client of HTTP that acknowledges nothing for two `heartbeat` intervals, in seconds, loses its
        connection. `tokens` are the places of a request from which a token is read; None: it reads none. `brokers`
        returns those whose names a GET of an HTTP client or of the console, with neither Origin nor token, may have as
        Host, besides addresses and local names (`check_rebound`); None: any Host that `policy` allows. `on_note` writes
        a log line. `console` has the pages of the console; None: there are none.
        """

        self._connections = connections
        self._policy = policy
        self._unnamed = secrets.token_hex(16)  # the publisher of those that give no name, of this process
        self._servers = servers
        self._limit = handshake_limit
        self._compression = compression
        self._max_body = max_body
        self._unacknowledged_limit = round(2000 * heartbeat)  # milliseconds
        self._tokens = tokens
        self._brokers = brokers
        self._console = console
        self._server = HttpServer(self._handle, clock, max_held=max_held)
        self.slow_handshakes = 0
        self._clock = clock
        self._on_note = on_note
        self._next_line = 0.0
        self._not_logged = 0
        self.refused: Counter[str] = Counter()  # requests so far, by the reasons of `REFUSAL_REASONS`

    def protocol(self) -> asyncio.BaseProtocol:
        """Return the asyncio protocol for a new connection."""
        return self._server()

    @property
    def pending(self) -> int:
        """The number of connections whose handshake or HTTP request is under way. TLS handshakes are not among them."""
        return len(self._server.pending)

    @property
    def held(self) -> int:
        """The number of bytes of memory of the connections whose handshake or HTTP request is under way."""
        return self._server.held

    @property
    def evicted(self) -> int:
        """The number of connections so far that were evicted because all handshakes together held more than
        `max_held`."""
        return self._server.evicted

    @property
    def malformed(self) -> int:
        """The number of requests so far that were not valid HTTP."""
        return self._server.malformed

    def tick(self) -> None:
        """Abort the handshakes and requests that take longer than `handshake_limit`, and count them."""
        self.slow_handshakes += self._server.drop_slow(self._limit)

    async def close(self) -> None:
        """Close all connections that were not handed over, after at most half a second for requests under way."""
        await self._server.shutdown(0.5)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request, or hand its transport over to the client connections: after an upgrade, and
        once the request of an HTTP client is read."""
        path = request.path
        refused = check_source(request.raw_path, request.headers, self._policy)
        console = self._console if self._console is not None and self._console.has(path) else None
        shows = path in PATHS or console is not None
        if refused is None and self._brokers is not None and shows and self._may_be_rebound(request):
            refused = check_rebound(request.headers, self._brokers())
        if refused is None and console is not None:
            refused = console.check(path, request.method, request.headers)
        if refused is not None:
            self._count_refused(request, refused)
            return refusal_response(refused)
        if path in {"/", "/ws"}:
            answer = negotiate(request.method, request.version, request.headers, self._compression)
            if isinstance(answer, RefusedRequest):
                return refusal_response(answer)
            return self._hand_over(request, answer.wire, answer.deflate, answer.answer)
        if request.method == "OPTIONS" and (path in PATHS or path == "/v1/servers"):
            return _empty_response(PREFLIGHT_HEADERS)
        if path in PATHS:
            return await self._serve(request, PATHS[path])
        if console is not None:
            return await self._show(request, console)
        if path != "/v1/servers":
            return refusal_response(RefusedRequest(404, NOT_FOUND))
        if request.method not in {"GET", "HEAD"}:
            return refusal_response(RefusedRequest(405, "method not allowed; use GET", {"Allow": "GET, HEAD"}))
        response = page_response(self._servers)
        origin = request.headers.get("Origin")
        if origin is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"
        return response

    def _may_be_rebound(self, request: web.BaseRequest) -> bool:
        """Return whether a page whose name was made to point to the broker may have sent the request: a GET with
        neither an Origin nor a token. The page has no valid token, and the edge refuses an invalid one."""
        has_token = self._tokens is not None and self._tokens.read(request)
        return request.method == "GET" and "Origin" not in request.headers and not has_token

    async def _show(self, request: web.BaseRequest, console: Console) -> web.StreamResponse:
        """Return the console's response to an allowed request, or its refusal. The body of a response that is no
        refusal counts as memory of the connection until the connection ends."""
        response = await console.answer(request.path, request.method)
        if isinstance(response, RefusedRequest):
            return refusal_response(response)
        self._server.hold(request.protocol, int(response.content_length or 0))
        return response

    async def _serve(self, request: web.BaseRequest, kind: str) -> web.StreamResponse:
        """Read the body of an HTTP client's request, and hand the request over to the client connections. Return its
        refusal if it is not accepted. The time until then counts as that of a handshake."""
        size = body_size(request.method, kind, request.headers, self._max_body)
        if isinstance(size, RefusedRequest):
            return refusal_response(size)
        if size and "Expect" in request.headers and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            body = await request.content.read() if size else b""
        except (ConnectionError, ClientPayloadError):
            return HandedOverResponse()  # the client went away
        translated: asyncio.Future[TranslatedRequest | RefusedRequest | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._connections.pump.defer(self._translate, (translated, kind, request, body))
        answer = await translated
        if answer is None:
            return HandedOverResponse()  # the client went away
        if isinstance(answer, RefusedRequest):
            return refusal_response(answer)
        transport = request.transport
        if transport is not None and not transport.is_closing():
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._unacknowledged_limit
            )
        return self._hand_over(request, "msgpack", False, answer.frames, answer.http)

    def _translate(
        self,
        entry: tuple[asyncio.Future[TranslatedRequest | RefusedRequest | None], str, web.BaseRequest, bytes],
    ) -> None:
        """Set the result of the future in `entry` to the translated request or its refusal, or to None if the client is
        gone. This is an action of the pump, so that its time counts for the turn: a body of a megabyte takes up to 80
        ms."""
        future, kind, request, body = entry
        if future.done():
            return  # the server is shut down
        transport = request.transport
        if transport is None or transport.is_closing():
            future.set_result(None)
            return
        raw_query = request.rel_url.raw_query_string
        try:
            future.set_result(translate(kind, request.method, raw_query, request.headers, body, self._unnamed))
        except Exception as error:  # noqa: BLE001
            # it fails the request, which aiohttp answers with 500, and not the pump
            future.set_exception(error)

    def _count_refused(self, request: web.BaseRequest, refused: RefusedRequest) -> None:
        """Count a request that was refused for its source. Log at most one line in `LOG_INTERVAL` seconds, with the
        number of refused requests since the line before (`others`)."""
        self.refused[REFUSAL_REASONS[refused.status]] += 1
        now = self._clock()
        if now < self._next_line:
            self._not_logged += 1
            return
        fields: dict[str, object] = {
            "remote": request.remote, "path": request.path[:100], "reason": refused.text,
            "origin": request.headers.get("Origin", "")[:200], "host": request.headers.get("Host", "")[:200],
            "others": self._not_logged,
        }  # fmt: skip
        self._next_line, self._not_logged = now + LOG_INTERVAL, 0
        self._on_note(Note("warning", "request_refused", fields))

    def _hand_over(
        self, request: web.BaseRequest, wire: Wire, deflate: bool, data: bytes, http: HttpRequest | None = None
    ) -> web.StreamResponse:
        """Move the request's transport from aiohttp to the client connections, in one step of the loop, so that no byte
        can arrive in between. Do nothing if the connection is closed or was aborted. `data` is the answer to an
        upgrade, which is written before; of an `http` request it is the frames for the edge. Return a response that
        writes nothing."""
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
        if http is None:
            transport.write(data)
        token = self._tokens.read(request) if self._tokens is not None else None
        self._connections.adopt(transport, wire, deflate, opened, early.data if http is None else data, token, http)
        return HandedOverResponse()


def _empty_response(headers: dict[str, str]) -> web.StreamResponse:
    """Return a response with status 204 and these headers. The connection is closed after it."""
    response = web.Response(status=204, headers=headers)
    response.force_close()
    return response


def servers_page(read: Callable[[], Sequence[Server]]) -> Page:
    """Return the function that answers /v1/servers: the URLs and weights of the brokers that `read` returns then, as
    JSON."""

    def page() -> tuple[int, str, bytes]:
        entries = [{"url": server.url, "weight": server.weight} for server in read()]
        return 200, JSON, msgspec.json.encode({"servers": entries}) + b"\n"

    return page
