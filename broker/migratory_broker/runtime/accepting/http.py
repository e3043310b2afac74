"""HTTP/1.1 for the clients' handshakes and the administration pages, with aiohttp as the parser.

Every request has a limited time, from the TCP accept or with TLS from the end of the TLS handshake, however slowly its
bytes arrive. Its head is limited in bytes and in number of headers, and all pending connections of a server together
are limited in memory. Every connection serves one request. Only aiohttp's public names are used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from migratory_broker.runtime.accepting.limits import UnidentifiedConnections, host_of

JSON = "application/json; charset=utf-8"
MAX_HEADER_LINE = 8190
"""Bytes of the longest request line or header. aiohttp's default."""
MAX_HEADERS = 64
"""The largest number of headers of a request: browsers send some 15."""
MAX_HEAD = 32_768
"""Bytes of a request line and all headers: four of the longest, as nginx allows. Only the limits above would let an
unfinished request take a megabyte."""

HANDLER_BYTES = 16_384
"""Bytes of memory of a connection that has sent no request yet: the transport, aiohttp's handler and parser."""
HEAD_COPIES = 4
"""Copies of a request's head that are in memory while it is read: as it came, in parts and joined, and each header as
bytes and as text."""

HEAD_LIMITS = (
    f"the request's head is too large: at most {MAX_HEAD} bytes and {MAX_HEADERS} headers are allowed, each of at most "
    f"{MAX_HEADER_LINE} bytes, as the request line\n"
)
_HEAD_TOO_LARGE = (
    "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
    f"Content-Length: {len(HEAD_LIMITS)}\r\nConnection: close\r\n\r\n{HEAD_LIMITS}"
).encode()

_END = b"\r\n\r\n"

Page = Callable[[], tuple[int, str, bytes]]
"""A function that answers a GET request: it returns status, content type and body."""


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """An HTTP answer that refuses a request: status, reason in plain text, and headers beside those that every answer
    has."""

    status: int
    text: str
    headers: dict[str, str] = field(default_factory=dict)


class HttpLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of aiohttp's server. It counts malformed requests in `malformed` instead of logging them: any sender
    could fill the log with them, each with a traceback and up to 128 KiB of the request. Other exceptions are
    logged."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))
        self.malformed = 0

    def exception(self, msg: object, *args: object, exc_info: Any = True, **options: Any) -> None:
        """Count the exception if aiohttp raised it for a malformed request; log every other one."""
        if isinstance(exc_info, HttpProcessingError):
            self.malformed += 1
        else:
            super().exception(msg, *args, exc_info=exc_info, **options)


class _RequestHandler(RequestHandler):
    """aiohttp's request handler with a limit of the whole head of a request, `MAX_HEAD` bytes, which aiohttp does not
    have. It answers a head over this limit, a line that is too long and too many headers with status 431; aiohttp's own
    is 400."""

    def __init__(self, server: HttpServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._head = 0  # bytes so far
        self._last = b""  # the last of them, as the end may be cut in two

    def count_received(self, size: int) -> None:
        """Count received bytes of the request for the server's limit of memory, `HEAD_COPIES` times. They need not be
        parsed yet. At the limit, the server evicts connections, perhaps this one."""
        self._server.hold(self, size * HEAD_COPIES)

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to aiohttp. Once the head of the request has more than `MAX_HEAD` bytes, count the
        request as malformed, answer it with status 431, and close the connection."""
        if self._head <= MAX_HEAD and not self._last.endswith(_END):
            seen = self._last + data
            end = seen.find(_END)
            self._head += len(data) if end < 0 else end
            self._last = seen[-3:] if end < 0 else _END
        if self._head <= MAX_HEAD:
            super().data_received(data)
        elif self.transport is not None and not self.transport.is_closing():
            self.logger.exception("", exc_info=LineTooLong("head", str(MAX_HEAD)))
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to a request that failed: status 431 with the limits for a line that is too long or for too
        many headers, else aiohttp's own answer."""
        # aiohttp has no exception of its own for too many headers
        if isinstance(exc, LineTooLong) or str(message).startswith("Too many headers"):
            status = 431
            message = HEAD_LIMITS
        return super().handle_error(request, status, exc, message)


class HttpServer(web.Server):
    """An aiohttp server for one request per connection. It limits the memory of pending connections, optionally their
    number, and their time, which takes effect only through calls of `drop_slow`. A connection is *pending* until it is
    closed or its transport is handed over. `held` is the bytes of memory of all pending connections. `evicted` is the
    number of connections so far that were aborted at the limit of memory or of number; those that were too slow are not
    among them.

    :param handler: answers a request.
    :param clock: returns the time in seconds, monotonic.
    :param limit: connections at once; above it, the oldest one of the host with the most is evicted. None: no limit.
    :param max_held: bytes of memory of all pending connections; above it, the largest of the host that holds most are
        evicted.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        clock: Callable[[], float],
        limit: int | None = None,
        max_held: int = 2**62,
    ) -> None:
        self._logger = HttpLogger()
        super().__init__(cast("Any", handler))
        self._clock = clock
        self.pending: dict[RequestHandler, float] = {}  # when HTTP began on each connection
        self._unidentified: UnidentifiedConnections[RequestHandler] | None = (
            None if limit is None else UnidentifiedConnections(limit)
        )
        self._max_held = max_held
        self._held: dict[RequestHandler, int] = {}  # the bytes of memory of each pending connection
        self.held = 0
        self.evicted = 0

    def __call__(self) -> _RequestHandler:
        """Return the asyncio protocol for a new connection."""
        return _RequestHandler(
            self,
            loop=asyncio.get_running_loop(),
            access_log=cast("Any", None),
            logger=cast("Any", self._logger),
            keepalive_timeout=0,
            tcp_keepalive=False,
            lingering_time=0,
            max_line_size=MAX_HEADER_LINE,
            max_field_size=MAX_HEADER_LINE,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
        )

    @property
    def malformed(self) -> int:
        """The number of requests so far that were not valid HTTP."""
        return self._logger.malformed

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Make a new connection pending. Evict one if there are more than `limit`."""
        self.pending[handler] = self._clock()
        self.hold(handler, HANDLER_BYTES)
        super().connection_made(handler, transport)
        evicted = None if self._unidentified is None else self._unidentified.add(handler, host_of(transport))
        if evicted is not None:
            self.evicted += 1
            self._abort(evicted)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection that ended or was handed over."""
        self._forget(handler)
        if self._unidentified is not None:
            self._unidentified.discard(handler)
        super().connection_lost(handler, exc)

    def hold(self, handler: RequestHandler, size: int) -> None:
        """Count `size` more bytes of memory of a pending connection. If all together hold more than `max_held` then,
        evict connections, perhaps this one. Nothing happens for a connection that is not pending."""
        if handler not in self.pending:
            return
        self._held[handler] = self._held.get(handler, 0) + size
        self.held += size
        if self.held > self._max_held:
            self._evict_largest()

    def _evict_largest(self) -> None:
        """Evict pending connections until an eighth of `max_held` is free, so that the search is not repeated for each
        one: first those of the host that holds most, of one host the largest first, and of equally large ones the
        oldest first."""
        hosts = {handler: host_of(handler.transport) for handler in self.pending}
        totals: Counter[str] = Counter()
        for handler, host in hosts.items():
            totals[host] += self._held[handler]
        for handler in sorted(hosts, key=lambda handler: (totals[hosts[handler]], self._held[handler]), reverse=True):
            if self.held <= self._max_held - self._max_held // 8:
                break
            self.evicted += 1
            self._abort(handler)

    def drop_slow(self, limit: float) -> int:
        """Abort the pending connections on which HTTP began `limit` seconds ago or earlier. Return how many there
        were."""
        deadline = self._clock() - limit
        slow = []
        for handler, accepted in self.pending.items():  # in the order of these times
            if accepted > deadline:
                break
            slow.append(handler)
        for handler in slow:
            self._abort(handler)
        return len(slow)

    def _forget(self, handler: RequestHandler) -> None:
        if self.pending.pop(handler, None) is not None:
            self.held -= self._held.pop(handler)

    def _abort(self, handler: RequestHandler) -> None:
        """Stop counting a connection as pending, and abort it."""
        self._forget(handler)
        if handler.transport is not None:
            handler.transport.abort()


def page_response(page: Page) -> web.Response:
    """Call `page`, and return the response with its result, which the client must not cache. The connection is closed
    after the response."""
    status, content_type, body = page()
    headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
    response = web.Response(status=status, body=body, headers=headers)
    response.force_close()
    return response


def refusal_response(refused: RefusedRequest) -> web.Response:
    """Return the response that refuses a request, in plain text. The connection is closed after the response."""
    response = web.Response(status=refused.status, text=refused.text + "\n", headers=refused.headers)
    response.force_close()
    return response
