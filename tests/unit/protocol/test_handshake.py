"""The opening handshake: the client's request, its check of the response, and the server's negotiation."""

from __future__ import annotations

from base64 import b64decode

import pytest
from migratory_protocol import limits
from migratory_protocol.codec import JSON, MSGPACK
from migratory_protocol.handshake import (
    DEFLATE_OFFER,
    HandshakeError,
    HandshakeResponse,
    accept_key,
    build_request,
    is_valid_key,
    negotiate_codec,
    negotiate_deflate,
    parse_response,
)
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

NONCE = b64decode("dGhlIHNhbXBsZSBub25jZQ==")  # RFC 6455, 1.3
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def answer(*headers: str, status: str = "101 Switching Protocols", accept: str = ACCEPT) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        "Upgrade: WebSocket",
        "connection: keep-alive, Upgrade",
        f"Sec-WebSocket-Accept: {accept}",
    ]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1")


def test_accept_key_matches_the_rfc() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == ACCEPT
    assert is_valid_key("dGhlIHNhbXBsZSBub25jZQ==")
    for key in ("", "dGhlIHNhbXBsZSBub25jZQ", "AAAA", "dGhlIHNhbXBsZSBub25j!Q==", "\u00e9"):
        assert not is_valid_key(key)


def test_build_request_writes_all_headers() -> None:
    request = build_request(
        "push.example.com:8080",
        "/ws?x=1",
        NONCE,
        ["migratory.v1.msgpack"],
        deflate=True,
        headers=[("Origin", "https://a.b")],
    )
    assert request == (
        b"GET /ws?x=1 HTTP/1.1\r\nHost: push.example.com:8080\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: migratory.v1.msgpack\r\n"
        b"Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n"
        b"Origin: https://a.b\r\n\r\n"
    )
    assert b"Extensions" not in build_request("h", "/", NONCE)


@pytest.mark.parametrize("path", ["", "ws", "/a b", "/\r\nX: y", "/\u00e9"])
def test_build_request_refuses_unsafe_path(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be requested"):
        build_request("h", path, NONCE)


@pytest.mark.parametrize(
    "header", [("X", "a\r\nY: b"), ("X y", "a"), ("", "a"), ("X", ""), ("X", "\u20ac"), ("X", " a")]
)
def test_build_request_refuses_unsafe_header(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent as a header"):
        build_request("h", "/", NONCE, headers=[header])


def test_build_request_requires_nonce_of_16_bytes() -> None:
    with pytest.raises(ValueError, match="15 bytes, expected 16"):
        build_request("h", "/", NONCE[:15])


def test_parse_response_waits_for_all_headers() -> None:
    data = (
        answer("Sec-WebSocket-Protocol: migratory.v1.json", f"Sec-WebSocket-Extensions: {DEFLATE_OFFER}") + b"\x81\x00"
    )
    for size in range(len(data) - 2):
        assert parse_response(data[:size], NONCE, ["migratory.v1.json"], deflate=True) is None
    expected = HandshakeResponse("migratory.v1.json", True, b"\x81\x00")
    assert parse_response(bytearray(data), NONCE, ["migratory.v1.json"], deflate=True) == expected
    assert parse_response(answer(), NONCE) == HandshakeResponse(None, False, b"")


@pytest.mark.parametrize(
    ("data", "text", "status"),
    [
        (answer(status="503 Service Unavailable"), "refused the WebSocket: 503 Service Unavailable", 503),
        (b"HTTP/1.1 404\r\n\r\n", "404", 404),
        (b"HTTP/1.1 403 \x9b2J\r\n\r\n", r"refused the WebSocket: 403 \x9b2J", 403),
        (b"HTTP/1.1 000 x\r\n\r\n", "did not answer with HTTP/1.1", 0),
        (b"HTTP/1.0 101 OK\r\n\r\n", "did not answer with HTTP/1.1", 0),
        (b"SSH-2.0-x\r\n\r\n", "'SSH-2.0-x'", 0),
        (b"\xff" * 100 + b"\r\n\r\n", "did not answer", 0),
        (b"x" * 16384, "more than 16384 bytes", 0),
        (answer(accept="x"), "Sec-WebSocket-Accept", 101),
        (answer().replace(b"WebSocket\r", b"h2c\r"), "Upgrade: websocket", 101),
        (answer().replace(b"alive, Upgrade", b"alive"), "Connection: Upgrade", 101),
        (answer("Sec-WebSocket-Protocol: chat"), "subprotocol 'chat'", 101),
        (answer("no colon"), "malformed header line 'no colon'", 101),
        (answer(" folded: x"), "malformed header line", 101),
        (answer("X: a\nb"), r"malformed header line 'X: a\nb'", 101),
        (answer("X: \x00"), "malformed header line", 101),
        (answer(f"Sec-WebSocket-Accept: {ACCEPT}"), "Sec-WebSocket-Accept", 101),
        (answer("Sec-WebSocket-Extensions: permessage-deflate"), "was not requested", 101),
    ],
)
def test_parse_response_refuses_other_responses(data: bytes, text: str, status: int) -> None:
    with pytest.raises(HandshakeError) as caught:
        parse_response(data, NONCE)
    assert text in caught.value.text
    assert caught.value.text.isascii()
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("extensions", "text"),
    [
        ("x-other", "'x-other', which was not requested"),
        ("permessage-deflate", "does not agree to server_no_context_takeover"),
        ("permessage-deflate; server_no_context_takeover=1", "answers permessage-deflate with"),
        ("permessage-deflate; server_no_context_takeover; x", "'x'"),
        ("permessage-deflate; server_no_context_takeover; client_max_window_bits=9", "'client_max_window_bits'"),
        ("permessage-deflate; server_no_context_takeover; server_max_window_bits", "'server_max_window_bits'"),
        ("permessage-deflate; server_no_context_takeover; server_max_window_bits=16", "'server_max_window_bits'"),
        ("permessage-deflate; server_no_context_takeover, x", "was not requested"),
        ("permessage-deflate; x; x", "was not requested"),
    ],
)
def test_parse_response_refuses_extensions_not_offered(extensions: str, text: str) -> None:
    with pytest.raises(HandshakeError) as caught:
        parse_response(answer(f"Sec-WebSocket-Extensions: {extensions}"), NONCE, deflate=True)
    assert text in caught.value.text


@pytest.mark.parametrize(
    "parameters", ["", "; client_no_context_takeover", "; server_max_window_bits=8", '; server_max_window_bits="15"']
)
def test_parse_response_accepts_the_offered_extension(parameters: str) -> None:
    extensions = f"Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover{parameters}"
    assert parse_response(answer(extensions), NONCE, deflate=True) == HandshakeResponse(None, True, b"")


AGREED = DEFLATE_OFFER


@pytest.mark.parametrize(
    ("offers", "agreed"),
    [
        ("permessage-deflate", AGREED),
        ("permessage-deflate; client_max_window_bits", AGREED),  # what browsers send
        (
            "permessage-deflate; client_max_window_bits=8; client_no_context_takeover; server_no_context_takeover",
            AGREED,
        ),
        ("permessage-deflate; server_max_window_bits=15", AGREED + "; server_max_window_bits=15"),
        ("permessage-deflate; server_max_window_bits=10, permessage-deflate", AGREED),
        ('x-webkit-deflate-frame, permessage-deflate; client_max_window_bits="15"', AGREED),
        ("", None),
        ("x-webkit-deflate-frame", None),
        ("permessage-deflate; server_max_window_bits=10", None),
        ("permessage-deflate; server_max_window_bits", None),
        ("permessage-deflate; client_max_window_bits=16", None),
        ("permessage-deflate; client_max_window_bits=08", None),
        ("permessage-deflate; client_max_window_bits; client_max_window_bits", None),
        ("permessage-deflate; client_no_context_takeover=1", None),
        ("permessage-deflate; unknown", None),
        ("permessage-deflate; =", None),
    ],
)
def test_negotiate_deflate_accepts_first_possible_offer(offers: str, agreed: str | None) -> None:
    assert negotiate_deflate(offers) == agreed


def test_negotiate_codec_accepts_first_known_subprotocol() -> None:
    assert negotiate_codec(None) is JSON
    assert negotiate_codec("migratory.v1.msgpack, migratory.v1.json") is MSGPACK
    assert negotiate_codec("chat,migratory.v1.json") is JSON
    assert negotiate_codec("chat") is None
    assert negotiate_codec("") is None


def test_handshake_with_an_independent_server() -> None:
    server = ServerProtocol(subprotocols=["migratory.v1.msgpack"])  # type: ignore[list-item]
    server.receive_data(build_request("localhost:1", "/ws", NONCE, ["migratory.v1.msgpack"]))
    (request,) = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    (data,) = server.data_to_send()
    assert parse_response(data, NONCE, ["migratory.v1.msgpack"]) == HandshakeResponse(
        "migratory.v1.msgpack", False, b""
    )


def test_handshake_with_an_independent_client() -> None:
    client = ClientProtocol(parse_uri("ws://localhost/"), extensions=[ClientPerMessageDeflateFactory()])
    request = client.connect()
    agreed = negotiate_deflate(request.headers["Sec-WebSocket-Extensions"])
    client.send_request(request)
    client.receive_data(
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        + f"Sec-WebSocket-Accept: {accept_key(request.headers['Sec-WebSocket-Key'])}\r\n".encode()
        + f"Sec-WebSocket-Extensions: {agreed}\r\n\r\n".encode()
    )
    assert client.handshake_exc is None
    assert [type(extension).__name__ for extension in client.extensions] == ["PerMessageDeflate"]


def test_only_the_first_offers_are_read() -> None:
    """The handshake considers only the first `OFFERS` offers in a header, however long the header is. Regression: 64
    KB of commas cost a broker 16 ms."""
    others = ["x"] * (limits.OFFERS - 1)
    assert negotiate_codec(",".join([*others, JSON.subprotocol])) is JSON
    assert negotiate_codec(",".join([*others, "x", JSON.subprotocol])) is None
    assert negotiate_deflate(",".join([*others, "permessage-deflate"])) is not None
    assert negotiate_deflate(",".join([*others, "x", "permessage-deflate"])) is None
    parameters = "".join(f"; x{index}" for index in range(20_000))
    assert negotiate_deflate(f"permessage-deflate{parameters}, permessage-deflate") is not None
