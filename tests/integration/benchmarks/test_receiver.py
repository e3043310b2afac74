"""Test that the benchmarks' receiver works as the client of a server that pings and closes at chosen moments."""

from __future__ import annotations

import asyncio
import re

import pytest
from migratory_protocol.frames import FrameParser, MessageReceived, PongReceived, close_frame, ping_frame, text_frame
from migratory_protocol.handshake import accept_key

from benchmarks import ipc
from benchmarks.payload import build
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import Receivers

pytestmark = pytest.mark.real
LIMIT = 30.0


class Server:
    """A WebSocket server for one client with Centrifugo's protocol, which records what the client sends."""

    def __init__(self) -> None:
        self.subscribed: asyncio.Queue[object] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        self.refuses = 0  # connections that it closes at once

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        if self.refuses:
            self.refuses -= 1
            writer.close()
            return
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = re.search(r"^Sec-WebSocket-Key: (\S+)\r$", head, re.MULTILINE | re.IGNORECASE)
        assert key is not None, head
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept_key(key[1]).encode() + b"\r\n\r\n"
        )
        parser = FrameParser("server", 2**20)
        while data := await reader.read(65536):
            for event in parser.feed(data):
                if isinstance(event, MessageReceived):
                    writer.write(text_frame(b'{"id":2,"subscribe":{}}'))
                else:
                    self.subscribed.put_nowait(event)
        writer.close()
        self.ended.put_nowait(None)

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)


async def hear_on(receivers: Receivers) -> None:
    while True:
        await receivers.report()


@pytest.mark.timeout(LIMIT + 30)
async def test_receiver_answers_pings_and_reports_a_close() -> None:
    server = Server()
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    receivers = Receivers(ipc.ReceiverSetup(protocol="centrifuge", addresses=[address], connections=1, topics=1), None)
    try:
        async with asyncio.timeout(LIMIT):
            await receivers.start()
            publications = [text_frame(build(140, 1, number)) for number in (1, 2)]
            server.say(publications[0] + ping_frame(b"there?") + publications[1])
            assert await server.subscribed.get() == PongReceived(b"there?")
            assert (await receivers.wait_for(2)).deliveries == 2
            server.say(publications[0][:50])  # the middle of a frame, then the rest and a ping
            server.say(publications[0][50:] + ping_frame())
            assert await server.subscribed.get() == PongReceived(b"")
            server.say(close_frame(3504, "slow"))
            assert server.writer is not None
            server.writer.close()
            with pytest.raises(
                MeasurementFailed, match=r"connection 0 \(centrifuge\) was closed .*: code 3504, 'slow'"
            ):
                await hear_on(receivers)
    finally:
        await receivers.stop()
        listening.close()


@pytest.mark.timeout(LIMIT + 30)
async def test_receiver_reports_failed_attempts() -> None:
    server = Server()
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    setup = ipc.ReceiverSetup(protocol="centrifuge", addresses=[address], connections=1, topics=1, reconnects=True)
    receivers = Receivers(setup, None)
    try:
        async with asyncio.timeout(LIMIT):
            await receivers.start()
            await receivers.close()
            server.refuses = 2
            back = await receivers.open()
            assert (back.refused, back.connected) == (2, 1)
    finally:
        await receivers.stop()
        for _ in range(2):
            await server.ended.get()
        listening.close()
