"""The console of the clients' listener: the page `/console` with its files, and `/console/status`, from which the page
reads what this broker knows (docs/decisions/0012-console.md).

Nothing can be changed here. Publications of the page go through the JavaScript client, as those of any other page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import msgspec
from aiohttp import web

from migratory_broker.runtime.accepting.http import JSON, RefusedRequest, page_response
from migratory_broker.runtime.clients.handshake import Headers, has_token
from migratory_broker.runtime.clients.requests import PREFLIGHT_HEADERS

PAGE = "/console"
"""The path of the page."""

STATUS = "/console/status"
"""The path of what the page shows."""

STATUS_AGE = 1.0
"""Seconds for which an answer of `STATUS` is given again, however many pages ask."""

STATUS_SHARE = 0.02
"""The share of the time of the broker's process that answers of `STATUS` may take. An answer that took long, 30 ms with
2,000 topic groups, is given again for longer than `STATUS_AGE`."""

STATUS_TIMEOUT = 3.0
"""Seconds that an I/O process waits for the status from the broker's process."""

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self' http: https: ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Referrer-Policy": "no-referrer",
}
"""The headers of the files. The browser runs no other scripts than these, makes no markup of text, and shows the page
in no frame. The page connects to all brokers of the cluster, whose addresses change."""

_CORS = {"Access-Control-Allow-Origin": "*"}
"""For the page of another broker. Its Origin was checked before, and no cookie counts."""


def load_files() -> dict[str, tuple[str, bytes]]:
    """Return the content type and the bytes of the console's files, by path: HTML, style sheets and scripts, those of
    the JavaScript client among them. `PAGE` is the path of index.html."""
    found: dict[str, tuple[str, bytes]] = {}
    _collect(files("migratory_broker") / "console", PAGE, found)
    found[PAGE] = found.pop(f"{PAGE}/index.html")
    return found


def _collect(folder: Traversable, path: str, found: dict[str, tuple[str, bytes]]) -> None:
    """Add the files of `folder`, and of the folders in it, to `found`, with paths that begin with `path`. Files of
    other types are left out."""
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{path}/{entry.name}", found)
        elif kind := _TYPES.get(entry.name[entry.name.rfind(".") :]):
            found[f"{path}/{entry.name}"] = (f"{kind}; charset=utf-8", entry.read_bytes())


class Console:
    """The pages of the console.

    :param read: returns the status of the broker, as JSON. Raises TimeoutError if it cannot be had in time.
    :param tokens: the SHA-256 of each token with which the status may be read, in hexadecimal digits; empty: nobody
        may; None: everybody may. The other files show nothing of the cluster and need no token.
    """

    def __init__(self, read: Callable[[], Awaitable[bytes]], tokens: Sequence[str] | None) -> None:
        self._files = load_files()
        self._read = read
        self._tokens = tokens

    @staticmethod
    def has(path: str) -> bool:
        """Return whether the path is `PAGE` or below it, whether or not there is such a file."""
        return path == PAGE or path.startswith(f"{PAGE}/")

    def check(self, path: str, method: str, headers: Headers) -> RefusedRequest | None:
        """Return the refusal of a request for the status that has none of the tokens. Return None for every other
        request, for the question of a browser before it (OPTIONS), and when everybody may read the status."""
        if path != STATUS or self._tokens is None or method == "OPTIONS":
            return None
        if has_token(headers, self._tokens):
            return None
        text = "the console needs a token of spec.security.administration: send Authorization: Bearer TOKEN"
        if not self._tokens:
            text = "the console needs a token, and the cluster has none: add one to spec.security.administration.tokens"
        return RefusedRequest(401, text, {"WWW-Authenticate": "Bearer", **_CORS})

    async def answer(self, path: str, method: str) -> web.Response | RefusedRequest:
        """Return the response to a request that `check` allowed, or its refusal: 405 for another method than GET and
        HEAD, 503 when the status cannot be had in time, 308 for `/console/`, 404 for an unknown path."""
        if method == "OPTIONS" and path == STATUS:
            response = web.Response(status=204, headers=PREFLIGHT_HEADERS)
            response.force_close()
            return response
        if method not in {"GET", "HEAD"}:
            return RefusedRequest(405, "method not allowed; use GET", {"Allow": "GET, HEAD"})
        if path == STATUS:
            try:
                body = await self._read()
            except TimeoutError:
                return RefusedRequest(503, "the broker's process does not answer", _CORS)
            return _response(JSON, body, _CORS)
        if path == f"{PAGE}/":  # relative, as a proxy may serve it below a path
            return RefusedRequest(308, "see ../console", {"Location": "../console"})
        if path not in self._files:
            return RefusedRequest(404, "not found; the console is at /console")
        return _response(*self._files[path], _PAGE_HEADERS)


def _response(content_type: str, body: bytes, headers: Mapping[str, str]) -> web.Response:
    """Return a response with this content and these headers. The browser may not guess another content type."""
    response = page_response(lambda: (200, content_type, body))
    response.headers.update({"X-Content-Type-Options": "nosniff", **headers})
    return response


class CachedStatus:
    """The status of the broker in its own process. It is made again when it is older than `STATUS_AGE` and so rarely
    that making it takes at most `STATUS_SHARE` of the time.

    :param read: returns the content of /v1/status.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._next = float("-inf")  # when it may be made again
        self._status = b""

    def get(self) -> bytes:
        """Return what the console shows of the broker, as JSON, made now or up to the allowed age before."""
        now = self._clock()
        if now >= self._next:
            self._status = msgspec.json.encode(describe(self._read()))
            self._next = now + max(STATUS_AGE, (self._clock() - now) / STATUS_SHARE)
        return self._status

    async def read(self) -> bytes:
        """Return the result of `get`. This is a coroutine function because `Console` awaits the status."""
        return self.get()


class RemoteStatus:
    """The status of the broker in an I/O process, which asks the broker's process for it when the last answer is older
    than `STATUS_AGE`.

    :param ask: asks the broker's process, which answers by `receive`.
    """

    def __init__(self, ask: Callable[[], None], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._received_at = float("-inf")
        self._status = b""
        self._answer: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """Return what the console shows of the broker, as JSON. Ask the broker's process if the last answer is too old;
        several readers wait for one answer. Raises TimeoutError after `STATUS_TIMEOUT`."""
        if self._clock() - self._received_at >= STATUS_AGE:
            if self._answer is None:
                self._answer = asyncio.get_running_loop().create_future()
                self._ask()
            async with asyncio.timeout(STATUS_TIMEOUT):
                await asyncio.shield(self._answer)
        return self._status

    def receive(self, status: bytes) -> None:
        """Store the answer of the broker's process, and end the waits of `read`."""
        self._status, self._received_at = status, self._clock()
        if self._answer is not None:
            self._answer.set_result(None)
            self._answer = None


_EDGE = (
    "clients", "subscriptions", "published", "delivered", "sent_bytes", "queue_bytes", "paused",
)  # fmt: skip
_SLOW = ("connection", "queued_bytes", "queued_publications", "lag_seconds", "subscriptions")
_LOGIC = (
    "incarnation", "fenced", "draining", "topics", "cache_bytes", "committed", "replication_lag", "waiting_groups",
    "history_resets", "live",
)  # fmt: skip


def describe(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the console shows of the content of /v1/status. It has no addresses of clients and no names that
    clients chose. Each entry of `groups`, in the order of their numbers, is a list: coordinator, epoch, number of
    members, topics, uncommitted publications, and why its takeover waits."""
    edge, logic = status["edge"] or {}, status["logic"]
    return {
        "broker": status["broker"],
        "cluster": status["cluster"],
        "brokers": status["staying"],
        "servers": status["servers"],
        "uptime_seconds": status["uptime_seconds"],
        "ready": status["ready"],
        "reason": status["reason"],
        "memory_bytes": status["memory_bytes"],
        "zookeeper": {
            "connected": status["zookeeper_connected"],
            "denied": status["zookeeper_denied"],
            "age_seconds": logic["zookeeper"]["age"],
            "data_losses": logic["zookeeper"]["data_losses"],
        },
        **{name: edge.get(name, 0) for name in _EDGE},
        "slow": [{name: client[name] for name in _SLOW} for client in edge.get("slow", ())],
        **{name: logic[name] for name in _LOGIC},
        "peers": {name: link["waiting_bytes"] for name, link in status["peer_links"].items()},
        "groups": [
            [
                group["coordinator"], group["epoch"], len(group["members"]), group["topics"], group["uncommitted"],
                group["waiting"],
            ]
            for group in logic["groups"]
        ],
    }  # fmt: skip
