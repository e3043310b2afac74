"""HTTP/1.1 for the clients' handshakes and the administration, with aiohttp as the parser."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from migratory_broker.runtime.accepting.limits import UnidentifiedConnections, host_of

JSON = "application/json; charset=utf-8"
MAX_HEADER_LINE = 8190
MAX_HEADERS = 64

Page = Callable[[], tuple[int, str, bytes]]
"""Answers a GET: status, content type, body."""


class HttpLogger(logging.LoggerAdapter[logging.Logger]):
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


class HttpServer(web.Server):
    """Remembers when each connection was accepted, until it was handed over or is gone. `most`: so many at once."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        clock: Callable[[], float],
        most: int | None = None,
    ) -> None:
        self._logger = HttpLogger()
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
        self._strangers: UnidentifiedConnections[RequestHandler] | None = (
            None if most is None else UnidentifiedConnections(most)
        )
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


def page_response(page: Page) -> web.Response:
    status, content_type, body = page()
    headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
    response = web.Response(status=status, body=body, headers=headers)
    response.force_close()
    return response


def refusal_response(refused: RefusedRequest) -> web.Response:
    response = web.Response(status=refused.status, text=refused.text + "\n", headers=refused.headers)
    response.force_close()
    return response


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    status: int
    text: str
    headers: dict[str, str] = field(default_factory=dict)
