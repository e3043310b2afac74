"""The raw client of the tests: when its opening is cancelled or fails, the connection is closed at once, without a
warning."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from migratory_testing.rawclient import RawClient

ANSWER = (
    b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"  # RFC 6455, 1.3
)
Address = tuple[str, int]


@pytest.fixture
def nobody() -> Iterator[Address]:
    """Yield an address at which a connect neither succeeds nor is refused, because the socket's backlog is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        held = [socket.socket() for _ in range(4)]
        for sock in held:
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(listening.getsockname())
        yield listening.getsockname()
        for sock in held:
            sock.close()


async def join(address: Address) -> RawClient:
    return await RawClient.join(SimpleNamespace(address=lambda listener: address))  # type: ignore[arg-type]


async def gives_up(opening: Awaitable[Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(opening, 0.2)
    gc.collect()  # what is left and unreferenced warns, and a warning is an error


@pytest.mark.parametrize(
    ("way", "answer"),
    [(RawClient.open, b""), (RawClient.open, ANSWER[:20]), (join, ANSWER)],
    ids=["before an answer", "within it", "before it is welcome"],
)
async def test_a_handshake_that_is_given_up_ends_its_connection(
    way: Callable[[Address], Awaitable[RawClient]], answer: bytes
) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with suppress(ConnectionError):
            await reader.read()  # to its end
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await gives_up(way(server.sockets[0].getsockname()))
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_refused_handshake_ends_its_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        with pytest.raises(AssertionError):
            await RawClient.open(server.sockets[0].getsockname())
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_connection_that_does_not_come_about_is_closed(nobody: Address) -> None:
    await gives_up(RawClient.open(nobody))
