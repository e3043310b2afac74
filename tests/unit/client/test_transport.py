"""How a connection that could not be made is told."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from migratory_client.transport import why_not_connected

KEY: Any = SimpleNamespace(host="h", port=1, ssl=True, is_ssl=True)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError(111, "Connect call failed ('127.0.0.1', 1)")), "connection refused"),
        (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "Name or service not known")), "name or service not known"),
        (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (ValueError(), "ValueError"),
    ],
)
def test_failures_are_told_in_the_systems_few_words(error: Exception, text: str) -> None:
    assert why_not_connected(error) == text


def test_a_refused_certificate_is_not_taken_for_a_refused_permission() -> None:
    inner = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")
    for error in (
        inner,
        aiohttp.ClientConnectorCertificateError(KEY, inner),
        aiohttp.ClientConnectorSSLError(KEY, inner),
    ):
        text = why_not_connected(error)
        assert "certificate verify failed" in text
        assert "not permitted" not in text
