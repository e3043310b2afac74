"""The delay proxy delivers all data late and in order, and forwards the end of a connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from migratory_chaos.processes.delay_proxy import MAX_BUFFERED, DelayProxy

HOST = "127.0.0.1"
LIMIT = 20.0


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def echoing(delay: float, jitter: float) -> AsyncIterator[DelayProxy]:
    server = await asyncio.start_server(echo, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with DelayProxy(HOST, (HOST, port), delay, jitter, random.Random(1)) as proxy:
            yield proxy


async def test_proxy_delays_data_and_keeps_its_order() -> None:
    async with asyncio.timeout(LIMIT), echoing(0.05, 0.05) as proxy:
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        loop = asyncio.get_running_loop()
        began = loop.time()
        sent = b"".join(number.to_bytes(4) for number in range(5000))
        for start in range(0, len(sent), 1000):
            writer.write(sent[start : start + 1000])
            await writer.drain()
        assert await reader.readexactly(len(sent)) == sent
        assert loop.time() - began >= 0.1  # there and back
        assert proxy.passed.connections == 1
        assert proxy.passed.bytes == 2 * len(sent)
        assert proxy.passed.shortest_delay >= 0.05
        writer.close()


async def test_proxy_forwards_more_than_it_buffers() -> None:
    async with asyncio.timeout(LIMIT), echoing(0.01, 0.0) as proxy:
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        sent = random.Random(2).randbytes(3 * MAX_BUFFERED)
        received = asyncio.create_task(reader.readexactly(len(sent)))
        writer.write(sent)
        assert await received == sent
        writer.close()


async def test_proxy_forwards_the_end_of_a_connection_and_a_refusal() -> None:
    async with asyncio.timeout(LIMIT), echoing(0.01, 0.0) as proxy:
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    async with asyncio.timeout(LIMIT):
        async with DelayProxy(HOST, (HOST, 1), 0.01, 0.0, random.Random(3)) as proxy:
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            with suppress(ConnectionResetError):  # the other form of an end
                assert await reader.read() == b""
            writer.close()


async def test_proxy_ends_its_connections() -> None:
    async with asyncio.timeout(LIMIT):
        async with echoing(0.01, 0.0) as proxy:
            reader, writer = await asyncio.open_connection(HOST, proxy.port)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
