"""The administration's HTTP server, and its pages /healthz, /readyz and /v1/status. The page /metrics is in
`metrics.py`.

Nothing can be changed here. The pages that show addresses can be guarded by a token; probes and metrics stay open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
from aiohttp import web
from migratory_protocol.origins import OriginPolicy

from migratory_broker.runtime.accepting.http import (
    JSON,
    HttpServer,
    Page,
    RefusedRequest,
    page_response,
    refusal_response,
)
from migratory_broker.runtime.clients.handshake import check_source, has_token
from migratory_broker.runtime.logs import Log

MAX_ADMIN = 32
"""The largest number of connections to the administration at once. Each is for one request, which is answered at once,
so only idle ones can be so many."""

GUARDED = ("/v1/status", "/v1/servers")
"""The pages that need a token if any is configured: they show addresses of clients and brokers."""


class AdminServer:
    """The HTTP server of the administration's listener. Only GET and HEAD are allowed. At most `MAX_ADMIN` connections
    are held. `refused` is the number of requests so far that were refused for their Host or Origin or for want of a
    token.

    :param pages: the HTTP pages by path; others are answered 404.
    :param request_limit: the seconds that a request may take; `tick` ends those that take longer.
    :param tokens: the SHA-256 of each token, in hexadecimal digits. A request for a page of `GUARDED` must have one of
        these tokens; without any, no page needs a token.
    :param hosts: the values of the header Host that are served, beside IP addresses and localhost; "*" for all.
        Requests of web pages, which have an Origin, are refused whatever their Host.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        clock: Callable[[], float],
        log: Log,
        *,
        request_limit: float = 30.0,
        tokens: Sequence[str] = (),
        hosts: Sequence[str] = ("*",),
    ) -> None:
        self._pages = dict(pages)
        self._clock = clock
        self._limit = request_limit
        self._log = log
        self._tokens = tokens
        self._policy = OriginPolicy((), ("localhost", *hosts), addresses=True)
        self._next_line = 0.0
        self.refused = 0
        self._server = HttpServer(self._handle, clock, MAX_ADMIN)

    def protocol(self) -> asyncio.BaseProtocol:
        """Return the asyncio protocol for a new connection."""
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
        """Abort the connections that are older than `request_limit`, whether or not they have sent a request."""
        self._server.drop_slow(self._limit)

    async def close(self) -> None:
        """Close all connections, after at most half a second for requests under way."""
        await self._server.shutdown(0.5)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request: the page, or a refusal for its source, its token, its path or its
        method."""
        refused = check_source(request.raw_path, request.headers, self._policy) or self._check_token(request)
        if refused is not None:
            self._count_refused(request, refused)
            return refusal_response(refused)
        page = self._pages.get(request.path)
        if page is None:
            return refusal_response(RefusedRequest(404, f"not found; this address serves {', '.join(self._pages)}"))
        if request.method not in {"GET", "HEAD"}:
            return refusal_response(RefusedRequest(405, "method not allowed; use GET", {"Allow": "GET, HEAD"}))
        return page_response(page)

    def _check_token(self, request: web.BaseRequest) -> RefusedRequest | None:
        """Return the refusal of a request for a guarded page that has none of the tokens. Return None if it has one, if
        the page is not guarded, or if no tokens are configured."""
        if not self._tokens or request.path not in GUARDED or has_token(request.headers, self._tokens):
            return None
        text = "this page needs a token of spec.security.administration: send Authorization: Bearer TOKEN"
        return RefusedRequest(401, text, {"WWW-Authenticate": "Bearer"})

    def _count_refused(self, request: web.BaseRequest, refused: RefusedRequest) -> None:
        """Count a request that was refused for its Host or Origin or for want of a token. Log at most one line in ten
        seconds."""
        self.refused += 1
        now = self._clock()
        if now >= self._next_line:
            self._next_line = now + 10.0
            self._log(
                "warning", "administration_refused", remote=request.remote, path=request.path[:100], reason=refused.text
            )


def health_page() -> tuple[int, str, bytes]:
    """Return the page of /healthz: always 200, because the loop runs if this is called. It says nothing about accepting
    clients."""
    return 200, JSON, b'{"status":"alive"}\n'


def readiness_page(reason: Callable[[], str]) -> Page:
    """Return the function that answers /readyz: 200 if `reason()` returns "", else 503 with the reason. `reason`
    returns why clients are not accepted."""

    def page() -> tuple[int, str, bytes]:
        text = reason()
        body = {"ready": not text, "reason": text}
        return 503 if text else 200, JSON, msgspec.json.encode(body) + b"\n"

    return page


def status_page(read: Callable[[], Mapping[str, object]]) -> Page:
    """Return the function that answers /v1/status with the result of `read()`, as indented JSON. Values that JSON lacks
    become their text."""

    def page() -> tuple[int, str, bytes]:
        body = msgspec.json.format(msgspec.json.encode(read(), enc_hook=str), indent=2)
        return 200, JSON, body + b"\n"

    return page
