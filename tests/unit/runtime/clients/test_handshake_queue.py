"""Deferred handshakes on sockets: when the HTTP protocol receives bytes, and what happens to bytes that it did not
get."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from migratory_broker.runtime.clients.handshake_queue import MAX_PENDING_BYTES, DeferredHandshake, HandshakeTransport
from migratory_broker.runtime.clients.multicast import address
from migratory_testing.waiting import until

READ = 262_144  # bytes that a loop reads at once


class Http(asyncio.Protocol):
    """An HTTP protocol that records calls."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.told: list[Any] = []
        self.received = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def count_received(self, size: int) -> None:
        self.received += size

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


class Site:
    def __init__(self, peer: socket.socket, own: socket.socket) -> None:
        self.http = Http()
        self.peer = peer
        self.late: list[tuple[Callable[[Any], None], Any]] = []
        self.door = DeferredHandshake(
            lambda: self.http, own, lambda action, argument, _: self.late.append((action, argument))
        )

    def turn(self) -> None:
        late, self.late = self.late, []
        for action, argument in late:
            action(argument)

    async def says(self, data: bytes) -> None:
        """Send the data from the peer, and wait until the handshake has buffered it."""
        self.peer.sendall(data)
        await until(lambda: b"".join(self.door._chunks).endswith(data))


@asynccontextmanager
async def connected() -> AsyncIterator[Site]:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as peer:
        peer.connect(listening.getsockname())
        own = listening.accept()[0]
        own.setblocking(False)
        site = Site(peer, own)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: site.door, own)
        yield site
        site.http.transport.abort()
        await asyncio.sleep(0)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Site], Any]], None]:
    def on_a_loop(test: Callable[[Site], Any]) -> None:
        async def work() -> None:
            async with asyncio.timeout(20), connected() as site:
                await test(site)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(work())

    return on_a_loop


def test_a_handshake_waits_for_its_turn(run: Any) -> None:
    async def test(site: Site) -> None:
        await site.says(b"GET /")
        await site.says(b" HTTP/1.1")
        assert site.http.told == []
        assert len(site.late) == 1
        site.turn()
        assert site.http.told == [b"GET / HTTP/1.1"]
        await site.says(b"more")
        site.turn()
        assert site.http.told[1:] == [b"more"]

    run(test)


def test_reading_pauses_when_a_deferred_handshake_exceeds_its_buffer(run: Any) -> None:
    async def test(site: Site) -> None:
        flood = b"x" * 20_000_000
        sending = asyncio.create_task(asyncio.to_thread(site.peer.sendall, flood))
        await until(lambda: site.door._held)
        assert MAX_PENDING_BYTES < sum(map(len, site.door._chunks)) <= MAX_PENDING_BYTES + READ
        while sum(map(len, site.http.told)) < len(flood):
            await until(lambda: site.late)
            assert sum(map(len, site.door._chunks)) <= MAX_PENDING_BYTES + READ
            site.turn()
        await sending
        assert b"".join(site.http.told) == flood

    run(test)


def test_undelivered_bytes_belong_to_the_next_protocol(run: Any) -> None:
    async def test(site: Site) -> None:
        await site.says(b"GET / HTTP/1.1")
        site.turn()
        await site.says(b"early")
        assert site.http.transport.drain() == b"early"
        site.turn()
        assert site.http.told == [b"GET / HTTP/1.1"]
        assert site.http.transport.drain() == b""

    run(test)


def test_http_receives_nothing_after_the_connection_is_lost(run: Any) -> None:
    async def test(site: Site) -> None:
        await site.says(b"GET / HTTP/1.1")
        site.peer.close()
        await until(lambda: "lost" in site.http.told)
        site.turn()
        assert site.http.told == ["lost"]

    run(test)


def test_http_sees_the_accepted_socket_itself(run: Any) -> None:
    async def test(site: Site) -> None:
        shown = site.http.transport
        assert isinstance(shown, HandshakeTransport)
        assert shown.get_extra_info("socket") is shown.socket
        assert shown.get_extra_info("peername") == site.peer.getsockname() == address(shown.socket)
        assert shown.get_extra_info("sslcontext", "none") == "none"
        assert shown.is_closing() is False
        shown.write(b"answer")
        assert await asyncio.to_thread(site.peer.recv, 100) == b"answer"
        shown.abort()
        await until(lambda: "lost" in site.http.told)
        assert address(shown.socket) is None
        assert shown.get_extra_info("peername", "gone") == "gone"

    run(test)
