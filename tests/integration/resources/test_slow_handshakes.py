"""Connections that never finish their handshake: the broker ends each at the time limit, and others connect
meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from migratory_testing.crowd import all_ended, descriptors, gather
from migratory_testing.processes import Broker
from migratory_testing.rawclient import TEXT, frame, request
from migratory_testing.waiting import poll_apart

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

HANDSHAKE = 4.0
SETTINGS = {"topics": {"groups": 4}, "limits": {"handshake": HANDSHAKE}}
EACH = 150
PAUSE = 0.2


class Slow(asyncio.Protocol):
    """A connection that sends `first` at once and then the bytes of `second`, one every `PAUSE` seconds."""

    def __init__(self, first: bytes, second: bytes) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._first, self._rest = first, second
        self._dripping: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._first)
        self._dripping = asyncio.create_task(self._drip(transport))

    async def _drip(self, transport: asyncio.Transport) -> None:
        for byte in self._rest:
            await asyncio.sleep(PAUSE)
            transport.write(bytes((byte,)))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._dripping is not None:
            self._dripping.cancel()
        self.ended.set_result(None)


CONNECT = frame(TEXT, b'{"op":"connect","version":1,"client":"slow"}')
KINDS: list[tuple[bytes, bytes]] = [
    (b"", b""),
    (b"", request()),
    (request()[:-2], b""),
    (request()[:-2], b"X: y\r\n" * 100),
    (request(), b""),
    (request(), CONNECT),
]


async def test_slow_handshakes_end_at_their_limit_and_block_no_other_client(broker: Broker, bystander: object) -> None:
    address = broker.address("clients")
    used = descriptors(broker)
    loop = asyncio.get_running_loop()
    slow: list[Slow] = []
    for first, second in KINDS * EACH:
        made = Slow(first, second)
        await loop.create_connection(lambda made=made: made, *address)  # type: ignore[misc]
        slow.append(made)
    crowd = await gather(broker, 200)
    async with asyncio.timeout(60):
        for connection in slow:
            await connection.ended
    assert not any(member.ended.done() for member in crowd)
    for member in crowd:
        member.reset()
    await all_ended(crowd)
    await poll_apart(lambda: descriptors(broker) <= used, "descriptors are given back")
    assert broker.status()["handshakes_waiting"] == 0
    # Those that got as far as WebSocket are told by the edge; the others never were clients.
    assert broker.status()["handshakes_too_slow"] >= 4 * EACH
