"""The opening handshake at both ends. Byte 0 selects the end and its settings, byte 1 where the input is cut; the
rest is a request or a response.

Oracles at the server: the result is an answer, or a refusal with a valid status and one line of text. A request that is
allowed names one server, for an independent parser of URLs as well. An independent implementation accepts what the
server accepts, and our client agrees with the answer on subprotocol and compression.
At the client: the result is an agreement, a HandshakeError with a text, or "incomplete". Cuts change nothing. The
independent implementation accepts what the client accepts, with the same subprotocol.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest.mock import Mock
from urllib.parse import urlsplit

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from migratory_broker.runtime.accepting.http import RefusedRequest
from migratory_broker.runtime.clients.handshake import AcceptedUpgrade, Headers, check_source, negotiate
from migratory_protocol.codec import CODECS
from migratory_protocol.handshake import (
    HandshakeError,
    HandshakeResponse,
    accept_key,
    build_request,
    is_valid_key,
    negotiate_deflate,
    parse_response,
)
from migratory_protocol.origins import OriginPolicy
from websockets.client import ClientProtocol
from websockets.datastructures import Headers as TheirHeaders
from websockets.exceptions import InvalidHeaderFormat
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.http11 import Request as TheirRequest
from websockets.http11 import Response as TheirResponse
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from migratory_fuzz.labels import seen, seen_error

SHAPE = "lines"
SKIP = 2
MAX_LEN = 1500
TOKENS = (
    b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Version: 13\r\n", b"Sec-WebSocket-Protocol: ",
    b"Sec-WebSocket-Extensions: ", b"permessage-deflate", b"; server_max_window_bits=15",
    b"; client_max_window_bits", b"; server_no_context_takeover",
    b"Origin: https://", b"Host: ", b"Upgrade: websocket\r\n", b"Connection: ", b"keep-alive, Upgrade",
    b"migratory.v1.json", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n",
    b"HTTP/1.1 101 ", b"\r\n\r\n", b"*.example.org", b"xn--",
    b"GET http://push.example.com/ws HTTP/1.1\r\n", b"[::1]:8800", b"@", b"%2e",
)  # fmt: skip

_CLIENT, _COMPRESSION, _ANY, _WITHOUT_ORIGIN = 1, 2, 4, 8
_POLICIES = {
    (every, without): OriginPolicy(
        ["*"] if every else ["https://app.example.com", "https://*.example.org"],
        ["*"] if every else ["push.example.com", "*.example.org"],
        without,
    )
    for every in (True, False)
    for without in (True, False)
}
_LOOP = asyncio.new_event_loop()
NONCE = b"0123456789abcdef"
KEY = b64encode(NONCE).decode()
OFFERED = tuple(codec.subprotocol for codec in CODECS)


def run(data: bytes) -> None:
    flags, place, body = (*data[:2], 0, 0)[0], (*data[1:2], 0)[0], data[2:]
    if flags & _CLIENT:
        _client(body, bool(flags & _COMPRESSION), place)
    else:
        policy = _POLICIES[bool(flags & _ANY), bool(flags & _WITHOUT_ORIGIN)]
        _server(body, policy, bool(flags & _COMPRESSION))


# ---- the server's end --------------------------------------------------------------------------------------------


def _server(data: bytes, policy: OriginPolicy, compression: bool) -> None:
    parser = HttpRequestParser(Mock(), _LOOP, 2**16, max_line_size=8190, max_field_size=8190, max_headers=64)
    try:
        messages, *_ = parser.feed_data(data)
    except HttpProcessingError as error:
        seen(f"http {error.code}")
        return
    for message, _ in messages:
        headers = cast("Headers", message.headers)
        refused = check_source(message.path, headers, policy)
        if refused is None:
            _one_server(message.path, headers)
        answer = refused or negotiate(message.method, message.version, headers, compression)
        if isinstance(answer, RefusedRequest):
            assert answer.status in (400, 403, 421, 426)
            assert re.fullmatch(r"[ -~]+", answer.text)
            seen(f"{answer.status} {answer.text}")
            continue
        _accepted(answer, message.path, [(n.decode("latin-1"), v.decode("latin-1")) for n, v in message.raw_headers])


def _one_server(target: str, headers: Headers) -> None:
    """Check that a request whose source is allowed names one server, without a user, in its URL as well."""
    host = headers.get("Host", "").strip(" \t")
    found = urlsplit(f"http://{host}/ws")
    assert (found.netloc, found.path, found.username) == (host, "/ws", None)
    assert found.hostname
    if not target.startswith(("/", "*")):
        assert urlsplit(target).netloc.lower() == host.lower()
        seen("a whole URL")


def _accepted(answer: AcceptedUpgrade, path: str, headers: list[tuple[str, str]]) -> None:
    request = TheirHeaders(headers)
    key = request["Sec-WebSocket-Key"].strip()
    assert is_valid_key(key)
    _not_refused_there(lambda: ServerProtocol().process_request(TheirRequest(path, request)))
    asked = tuple(name.strip() for value in request.get_all("Sec-WebSocket-Protocol") for name in value.split(","))
    extensions = ",".join(request.get_all("Sec-WebSocket-Extensions"))
    nonce = b64decode(key)
    if b64encode(nonce).decode() != key:  # unused bits are set, which our client never sends
        return
    agreed = parse_response(answer.answer + b"rest", nonce, asked, deflate=True)
    assert agreed is not None
    assert agreed.rest == b"rest"
    assert agreed.deflate == answer.deflate
    assert agreed.deflate <= (negotiate_deflate(extensions) is not None)
    assert agreed.subprotocol == (f"migratory.v1.{answer.wire}" if asked else None)
    assert asked or answer.wire == "json"
    seen(f"accepted {answer.wire} {answer.deflate} {len(asked)} {len(extensions) // 8}")


# ---- the client's end --------------------------------------------------------------------------------------------


def _client(data: bytes, deflate: bool, place: int) -> None:
    whole = _parsed(data, deflate)
    before = data[: place * 3 % (len(data) + 1)]
    early = _parsed(before, deflate)
    if isinstance(early, HandshakeResponse):
        assert isinstance(whole, HandshakeResponse)
        assert early.rest + data[len(before) :] == whole.rest
        assert (early.subprotocol, early.deflate) == (whole.subprotocol, whole.deflate)
    elif early is not None:
        assert early == whole
    if isinstance(whole, HandshakeResponse):
        _agreed(data, whole, deflate)


def _parsed(data: bytes, deflate: bool) -> HandshakeResponse | tuple[str, int] | None:
    try:
        found = parse_response(data, NONCE, OFFERED, deflate=deflate)
    except HandshakeError as error:
        return _check_text(error.text, error.status)
    seen("not whole" if found is None else f"{found.subprotocol} {found.deflate} {bool(found.rest)}")
    return found


def _check_text(text: str, status: int) -> tuple[str, int]:
    assert len(text) > 10
    assert text.isascii()
    assert text.isprintable()
    seen_error(f"{status // 100} {text.partition(':')[0]}")
    return text, status


def _agreed(data: bytes, response: HandshakeResponse, deflate: bool) -> None:
    head = data[: data.index(b"\r\n\r\n")].split(b"\r\n")
    headers = [line.decode("latin-1").partition(":")[::2] for line in head[1:]]
    extension = ClientPerMessageDeflateFactory(server_no_context_takeover=True, client_no_context_takeover=True)
    client = ClientProtocol(
        parse_uri("ws://push.example.com/ws"),
        extensions=[extension] if deflate else None,
        subprotocols=cast("Any", OFFERED),
    )
    client.key = KEY
    answer = TheirResponse(101, "", TheirHeaders([(name, value.strip(" \t")) for name, value in headers]))
    if _not_refused_there(lambda: client.process_response(answer)):
        assert client.subprotocol == response.subprotocol
        assert bool(client.extensions) == response.deflate


def _not_refused_there(process: Callable[[], object]) -> bool:
    """Return whether the independent implementation accepts as well. Return false where it refuses a list for a
    malformed entry, which ours skips; let its other errors through."""
    try:
        process()
    except InvalidHeaderFormat:
        seen("a malformed list")
        return False
    return True


# ---- seeds -------------------------------------------------------------------------------------------------------


def seeds() -> Iterator[bytes]:
    def request(flags: int, headers: list[tuple[str, str]] = (), **more: Any) -> bytes:  # type: ignore[assignment]
        return bytes((flags, 0)) + build_request("push.example.com", "/ws", NONCE, headers=headers, **more)

    origin = [("Origin", "https://app.example.com")]
    yield request(_WITHOUT_ORIGIN)
    yield request(_ANY | _COMPRESSION, subprotocols=OFFERED, deflate=True, headers=[("Origin", "null")])
    yield request(0, origin, subprotocols=("chat", *OFFERED))
    yield request(0, [("Origin", "https://a.b.example.org:8443")], subprotocols=("chat",))
    yield request(
        _COMPRESSION | _WITHOUT_ORIGIN,
        [("Sec-WebSocket-Extensions", 'x, permessage-deflate; server_max_window_bits="15"')],
    )
    yield request(0, [*origin, *origin])
    yield request(_ANY | _WITHOUT_ORIGIN).replace(b"GET /", b"GET http://push.example.com/")
    yield b"\x04\x00POST /ws HTTP/1.1\r\nHost: a\r\nOrigin: b\r\nContent-Length: 3\r\n\r\nabc"
    agree: Callable[[str], bytes] = lambda more: (  # noqa: E731
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(KEY)}\r\n{more}\r\n"
    ).encode()
    yield bytes((_CLIENT, 30)) + agree("")
    yield bytes((_CLIENT, 80)) + agree(f"Sec-WebSocket-Protocol: {OFFERED[0]}\r\n") + b"\x81\x01a"
    for more in ("", "; client_no_context_takeover", "; server_max_window_bits=10"):
        extension = f"Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover{more}\r\n"
        yield bytes((_CLIENT | _COMPRESSION, 255)) + agree(extension)
    yield bytes((_CLIENT, 9)) + b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n\r\n"
    yield bytes((_CLIENT, 9)) + b"SSH-2.0-OpenSSH_9.2\r\n\r\n"
