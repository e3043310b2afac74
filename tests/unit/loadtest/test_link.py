"""How a connection of a simulated client that could not be made is told."""

from __future__ import annotations

import pytest
from migratory_loadtest.link import LinkProtocol
from migratory_protocol.codec import MSGPACK
from migratory_protocol.messages import BrokerMessage


class Transport:
    closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Owner:
    def __init__(self) -> None:
        self.down: list[tuple[int, str]] = []

    def link_up(self, number: int) -> None:
        raise AssertionError("nothing was agreed to")

    def link_received(self, number: int, messages: list[BrokerMessage], size: int) -> None:
        raise AssertionError("nothing came")

    def link_down(self, number: int, code: int, reason: str) -> None:
        self.down.append((code, reason))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found", "HTTP 404: no clients are served there (a broker's administration port, or a path "
         "other than /ws?)"),
        (b"HTTP/1.1 503 Service Unavailable", "HTTP 503 (service unavailable) in place of a WebSocket"),
        (b"HTTP/1.1 101 Switching Protocols", "the response has no `Upgrade: websocket`"),
        (b"220 mail ESMTP", "the server did not answer with HTTP/1.1 but with '220 mail ESMTP'"),
    ],
)  # fmt: skip
def test_what_is_no_websocket_is_named(answer: bytes, reason: str) -> None:
    owner, transport = Owner(), Transport()
    link = LinkProtocol(owner, 1, MSGPACK, "h:1", "/ws")
    link.connection_made(transport)  # type: ignore[arg-type]
    link.data_received(answer + b"\r\n\r\n")
    link.connection_lost(None)
    assert owner.down == [(1006, reason)]
    assert transport.closed
