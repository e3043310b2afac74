"""The texts that describe failed connections."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from migratory_client.transport import describe_connect_error

KEY: Any = SimpleNamespace(host="h", port=1, ssl=True, is_ssl=True)
ASKED: Any = SimpleNamespace(real_url="ws://h/ws")


def handshake(status: int) -> aiohttp.WSServerHandshakeError:
    return aiohttp.WSServerHandshakeError(ASKED, (), message="Invalid challenge response", status=status)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError(111, "Connect call failed ('127.0.0.1', 1)")), "connection refused"),
        (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "Name or service not known")), "name or service not known"),
        (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (ValueError(), "ValueError"),
        (handshake(404), "HTTP 404: no clients are served there (a broker's administration port, or a path other than "
         "/ws?)"),
        (handshake(503), "HTTP 503 (service unavailable) in place of a WebSocket"),
        (handshake(599), "HTTP 599 (unknown) in place of a WebSocket"),
        (handshake(101), "101, message='Invalid challenge response', url='ws://h/ws'"),
    ],
)  # fmt: skip
def test_connection_failure_is_described_in_the_systems_words(error: Exception, text: str) -> None:
    assert describe_connect_error(error) == text


def test_certificate_error_is_not_described_by_its_number() -> None:
    inner = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")
    for error in (
        inner,
        aiohttp.ClientConnectorCertificateError(KEY, inner),
        aiohttp.ClientConnectorSSLError(KEY, inner),
    ):
        text = describe_connect_error(error)
        assert "certificate verify failed" in text
        assert "not permitted" not in text
