"""The link of a simulated client to a broker: errors of the handshake, received data, and batching of messages."""

from __future__ import annotations

import asyncio

import pytest
from migratory_loadtest.link import LinkProtocol
from migratory_protocol.codec import MSGPACK
from migratory_protocol.frames import (
    BINARY,
    CloseReceived,
    FrameEvent,
    FrameParser,
    MessageReceived,
    PongReceived,
    encode_frame,
    ping_frame,
)
from migratory_protocol.handshake import accept_key
from migratory_protocol.messages import BrokerMessage, Bye, Ping, Pong, Publish


class Transport:
    closed = False

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Owner:
    def __init__(self) -> None:
        self.down: list[tuple[int, str]] = []

    def link_up(self, number: int) -> None:
        raise AssertionError("the handshake failed")

    def link_received(self, number: int, messages: list[BrokerMessage], size: int) -> None:
        raise AssertionError("no message was sent")

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
def test_answer_that_is_not_a_websocket_is_reported(answer: bytes, reason: str) -> None:
    owner, transport = Owner(), Transport()
    link = LinkProtocol(owner, 1, MSGPACK, "h:1", "/ws")
    link.connection_made(transport)  # type: ignore[arg-type]
    link.data_received(answer + b"\r\n\r\n")
    link.connection_lost(None)
    assert owner.down == [(1006, reason)]
    assert transport.closed


class Receiver(Owner):
    def __init__(self) -> None:
        super().__init__()
        self.received: list[tuple[list[BrokerMessage], int]] = []

    def link_up(self, number: int) -> None:
        pass

    def link_received(self, number: int, messages: list[BrokerMessage], size: int) -> None:
        self.received.append((messages, size))


@pytest.mark.parametrize("content", [b"", b"12"])
def test_ping_alone_shows_that_the_broker_is_alive_and_its_bytes_are_metered(content: bytes) -> None:
    owner, transport = Receiver(), Transport()
    link = LinkProtocol(owner, 1, MSGPACK, "h:1", "/ws")
    link.connection_made(transport)  # type: ignore[arg-type]
    lines = transport.written.pop().decode().split("\r\n")
    (key,) = [line.partition(": ")[2] for line in lines if line.startswith("Sec-WebSocket-Key")]
    answer = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(key)}\r\nSec-WebSocket-Protocol: {MSGPACK.subprotocol}\r\n\r\n"
    )
    link.data_received(answer.encode())
    ping = ping_frame(content)
    link.data_received(ping)
    assert owner.received == [([], len(ping))]
    (pong,) = _events(transport.written.pop())
    assert pong == PongReceived(content)
    both = ping + encode_frame(BINARY, MSGPACK.encode(Pong()))
    link.data_received(both)
    assert owner.received[1:] == [([Pong()], len(both))]


def _connected() -> tuple[LinkProtocol, Transport]:
    link, transport = LinkProtocol(Owner(), 1, MSGPACK, "h:1", "/ws"), Transport()
    link.connection_made(transport)  # type: ignore[arg-type]
    transport.written.clear()  # the handshake
    return link, transport


def _events(data: bytes) -> list[FrameEvent]:
    return FrameParser("server", 1_000_000).feed(data)


async def test_messages_of_one_turn_are_one_frame() -> None:
    link, transport = _connected()
    sent = [Publish("t", b"x", 1, "p", number, 1) for number in range(1, 6)]
    link.send([*sent[:2]])
    for message in sent[2:]:
        link.send([message])
    assert transport.written == []
    await asyncio.sleep(0)
    (written,) = transport.written
    (event,) = _events(written)
    assert isinstance(event, MessageReceived)
    assert MSGPACK.decode_client(event.data) == sent
    link.send([Ping()])
    await asyncio.sleep(0)
    assert len(transport.written) == 2


async def test_messages_are_sent_before_the_close_frame() -> None:
    link, transport = _connected()
    link.send([Bye()])
    link.disconnect(abort=False)
    await asyncio.sleep(0)
    message, close = _events(b"".join(transport.written))
    assert isinstance(message, MessageReceived)
    assert isinstance(close, CloseReceived)
    assert MSGPACK.decode_client(message.data) == [Bye()]


async def test_nothing_is_written_after_abort() -> None:
    link, transport = _connected()
    link.send([Ping()])
    link.disconnect(abort=True)
    await asyncio.sleep(0)
    assert transport.written == []
