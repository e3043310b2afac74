"""TLS on accepted connections: real clients, whose records the tests send and read byte by byte. Both loops, because
their transports differ."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from weakref import ref

import pytest
from migratory_broker.core.edge.events import Multicast, Recipients
from migratory_broker.runtime.accepting.listener import TLS_HANDSHAKE_BYTES, TLS_MESSAGE_BYTES, ConnectionStarter
from migratory_broker.runtime.accepting.tls_connection import MAX_ANSWERS, MAX_WAITING_BYTES, PIECE_BYTES, TlsConnection
from migratory_broker.runtime.accepting.tls_queue import TlsHandshakeQueue
from migratory_broker.runtime.clients.multicast import Multicaster
from migratory_broker.runtime.pump import DEFERRED_SECONDS, Pump
from migratory_broker.runtime.tls import names_of
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_testing.loops import on_both_loops
from migratory_testing.waiting import until

SIZES = [1, 100, PIECE_BYTES, PIECE_BYTES + 1, 16_385, 300_000]

LIMIT = 30.0


class _Core:
    """A core that has nothing to do."""

    def step(self, event: Any, now: float, /) -> list[Any]:
        return []


def _fail(error: Exception) -> None:
    raise error


class Protocol(asyncio.Protocol):
    """The protocol of a connection after its handshake, which records what it is told."""

    transport: Any = None
    lost = False

    def __init__(self) -> None:
        self.received = bytearray()
        self.writing: list[str] = []
        self.on_data: Callable[[], None] = lambda: None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.on_data()

    def pause_writing(self) -> None:
        self.writing.append("pause")

    def resume_writing(self) -> None:
        self.writing.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Client:
    """The client's side of a connection: a socket, and OpenSSL with buffers in memory."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="b0", session=session)
        self.loop = asyncio.get_running_loop()

    async def flush(self) -> None:
        await asyncio.wait_for(self.loop.sock_sendall(self.sock, self.outgoing.read()), LIMIT)

    async def advance(self, step: Callable[[], Any]) -> Any:
        """Return the result of the step, which may need to read."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await self.flush()
                data = await asyncio.wait_for(self.loop.sock_recv(self.sock, 65_536), LIMIT)
                self.incoming.write(data) if data else self.incoming.write_eof()

    async def shake_hands(self) -> Client:
        await self.advance(self.tls.do_handshake)
        await self.flush()
        return self

    async def write(self, data: bytes) -> None:
        self.tls.write(data)
        await self.flush()

    async def read(self, count: int) -> bytes:
        """Return the next `count` bytes of data, or fewer if the server ends its data."""
        data = bytearray()
        while len(data) < count:
            chunk = await self.advance(partial(self.tls.read, count - len(data)))
            if not chunk:
                break
            data += chunk
        return bytes(data)

    async def rest(self) -> bytes:
        """Return the bytes that come until the connection ends, as they are on the wire."""
        data = b""
        while piece := await asyncio.wait_for(self.loop.sock_recv(self.sock, 65_536), LIMIT):
            data += piece
        return data


class Site:
    """A server without a listener of the broker: each accepted socket is given to a `TlsConnection`, and
    one step of a handshake is made a turn."""

    def __init__(self, folder: Path, listening: socket.socket) -> None:
        self.listening = listening
        self.folder = folder
        self.authority = DevelopmentAuthority()
        (folder / "ca.crt").write_bytes(self.authority.certificate)
        self.context = self.server_context()
        self.partial = 0
        loop = asyncio.get_running_loop()
        self.queue = TlsHandshakeQueue(lambda action, argument, _: loop.call_soon(action, argument))
        self.opened: list[socket.socket] = []

    def server_context(self, name: str = "b0") -> ssl.SSLContext:
        return self.with_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), name)

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    def with_pair(self, context: ssl.SSLContext, name: str) -> ssl.SSLContext:
        for kind, data in zip(("crt", "key"), self.authority.issue([name]), strict=True):
            (self.folder / f"{name}.{kind}").write_bytes(data)
        context.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        return context

    def accept(self, buffer: int = 0) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a new connection. `buffer` is the size of the kernel's buffers in bytes; 0: the
        default."""
        peer = socket.socket()
        if buffer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        peer.connect(self.listening.getsockname())
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted, _ = self.listening.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffer:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.opened.append(peer)
        return peer, accepted

    def start(self, limit: float = LIMIT, buffer: int = 0) -> tuple[socket.socket, Protocol, asyncio.Task[None]]:
        """Accept a connection, and return the client's end, the protocol of the server's, and the server's
        handshake."""
        peer, accepted = self.accept(buffer)
        protocol = Protocol()
        connection = TlsConnection(lambda: protocol, accepted, self.context, self.queue, on_partial=self.count_partial)
        return peer, protocol, asyncio.ensure_future(connection.start(limit))

    def count_partial(self, _: TlsConnection) -> None:
        self.partial += 1

    async def connect(
        self, context: ssl.SSLContext | None = None, session: Any = None, buffer: int = 0
    ) -> tuple[Client, Protocol]:
        peer, protocol, starting = self.start(buffer=buffer)
        client = await Client(peer, context or self.client_context(), session).shake_hands()
        await starting
        return client, protocol


@asynccontextmanager
async def sites() -> AsyncIterator[Site]:
    with TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        site = Site(Path(folder), listening)
        yield site
        for peer in site.opened:
            peer.close()


async def arrived(protocol: Protocol, count: int) -> None:
    await until(lambda: len(protocol.received) >= count)


async def lost(protocol: Protocol) -> None:
    await until(lambda: protocol.lost)


async def closed(peer: socket.socket) -> None:
    """Wait until the server has ended the connection, by a reset or not. Drops what it has sent."""

    def ended() -> bool:
        try:
            return not peer.recv(65_536)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    await until(ended)


async def works(client: Client, protocol: Protocol) -> None:
    """Assert that the connection carries data in both directions."""
    before = len(protocol.received)
    await client.write(b"ping")
    await arrived(protocol, before + 4)
    protocol.transport.write(b"pong")
    assert await client.read(4) == b"pong"


# ---- data ------------------------------------------------------------------------------------------------------------


@on_both_loops(sites)
async def test_data_of_any_size_arrives_in_both_directions(site: Site) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = site.client_context()
        context.minimum_version = context.maximum_version = version
        client, protocol = await site.connect(context)
        assert client.tls.version() == protocol.transport.get_extra_info("ssl_object").version()
        for size in SIZES:
            sent = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            protocol.received.clear()
            await client.write(sent)
            await arrived(protocol, size)
            assert bytes(protocol.received) == sent
            assert protocol.transport.write(sent) == size
            assert await client.read(size) == sent
        assert protocol.transport.write(b"") == 0


@on_both_loops(sites)
async def test_write_is_one_record_that_is_on_its_way_at_once(site: Site) -> None:
    client, protocol = await site.connect()
    await works(client, protocol)
    before = client.incoming.pending
    for size in (1, 300, PIECE_BYTES):
        protocol.transport.write(b"x" * size)
        wire = client.sock.recv(65_536)  # no turn of the loop in between
        assert (wire[:3], int.from_bytes(wire[3:5])) == (b"\x17\x03\x03", len(wire) - 5)
        client.incoming.write(wire)
        assert await client.read(size) == b"x" * size
    assert client.incoming.pending == before == 0


@on_both_loops(sites)
async def test_records_that_the_socket_does_not_take_wait_in_order_and_stop_the_writer(site: Site) -> None:
    client, protocol = await site.connect(buffer=4096)
    other, others = await site.connect()
    transport = protocol.transport
    transport.set_write_buffer_limits(65_536, 16_384)
    sent: list[bytes] = []
    while not protocol.writing:
        sent.append(len(sent).to_bytes(4) * 250)
        transport.write(sent[-1])
    assert 65_536 < transport.get_write_buffer_size() < 65_536 + 1000 + 100  # the records, with their heads
    await works(other, others)
    assert await client.read(1000 * len(sent)) == b"".join(sent)
    await until(lambda: not transport.get_write_buffer_size())
    assert protocol.writing == ["pause", "resume"]
    transport.write(b"direct again")
    assert await client.read(12) == b"direct again"


@on_both_loops(sites)
async def test_paused_reading_leaves_data_in_the_kernel(site: Site) -> None:
    client, protocol = await site.connect()
    assert protocol.transport.is_reading()
    protocol.transport.pause_reading()
    assert not protocol.transport.is_reading()
    await client.write(b"later")
    await works(*await site.connect())
    assert not protocol.received
    protocol.transport.resume_reading()
    await until(lambda: protocol.received == b"later")


@on_both_loops(sites)
async def test_multicast_reaches_clients_with_and_without_tls_in_order(site: Site) -> None:
    """A client whose socket is full does not delay the others, and gets every byte."""
    loop = asyncio.get_running_loop()
    clients, protocols = zip(*[await site.connect() for _ in range(10)], strict=True)
    slow, behind = await site.connect(buffer=4096)
    peer, accepted = site.accept()
    plain = Protocol()
    await loop.connect_accepted_socket(lambda: plain, accepted)
    table: dict[int, Any] = {}
    for number, protocol in enumerate([*protocols, behind, plain]):
        direct = accepted if protocol is plain else None
        protocol.socket, protocol.send = direct, direct.send if direct else protocol.transport.write
        table[number] = protocol
    multicaster, everyone = Multicaster(table), Recipients(tuple(table))
    sent = [bytes([number]) * 1000 for number in range(200)]
    received = [asyncio.ensure_future(client.read(200_000)) for client in clients]
    for frame in sent:
        multicaster.multicast(Multicast(frame, everyone))
    assert behind.transport.get_write_buffer_size()
    assert await asyncio.gather(*received) == [b"".join(sent)] * 10
    assert await slow.read(200_000) == b"".join(sent)
    data = b""
    while len(data) < 200_000:
        data += await asyncio.wait_for(loop.sock_recv(peer, 65_536), LIMIT)
    assert data == b"".join(sent)
    protocols[0].transport.close()
    protocols[1].transport.abort()
    multicaster.multicast(Multicast(b"news", everyone))
    assert await clients[2].read(4) == b"news"
    assert await clients[0].read(4) == b""
    plain.transport.abort()


# ---- the handshake ---------------------------------------------------------------------------------------------------


@on_both_loops(sites)
async def test_handshake_of_single_bytes_with_data_behind_it(site: Site) -> None:
    peer, protocol, starting = site.start()
    client = Client(peer, site.client_context())
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.do_handshake()
    for byte in client.outgoing.read():
        peer.send(bytes([byte]))
        await asyncio.sleep(0)
    await client.advance(client.tls.do_handshake)
    client.tls.write(b"early")  # in one piece with the end of the handshake
    await client.flush()
    await starting
    await until(lambda: protocol.received == b"early")
    assert site.partial == 1
    await works(client, protocol)


@on_both_loops(sites)
async def test_whole_hello_is_not_counted_as_a_part(site: Site) -> None:
    await works(*await site.connect())
    assert site.partial == 0


@on_both_loops(sites)
async def test_handshake_that_takes_too_long_ends(site: Site) -> None:
    for sent in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"):
        peer, protocol, starting = site.start(limit=0.5)
        peer.send(sent)
        with pytest.raises(OSError, match=re.escape("the TLS handshake took more than 0.5 s")):
            await starting
        client = Client(peer, site.client_context())
        assert await client.rest() == b""
        assert protocol.transport is None
    assert site.partial == 2


@on_both_loops(sites)
async def test_what_is_no_handshake_gets_an_alert_and_ends(site: Site) -> None:
    other, others = await site.connect()
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x04\x0b\x00\x00\x00", bytes(5000), b"\xff" * 100_000):
        peer, protocol, starting = site.start()
        await asyncio.get_running_loop().sock_sendall(peer, sent)
        with pytest.raises(ssl.SSLError):
            await starting
        assert protocol.transport is None
        await closed(peer)
    peer, _, starting = site.start()
    peer.send(b"\x16\x03\x01\x00\x04\x0b\x00\x00\x00")
    with pytest.raises(ssl.SSLError):
        await starting
    alert = await Client(peer, site.client_context()).rest()
    assert (alert[0], alert[5]) == (21, 2)  # a fatal one
    await works(other, others)


@on_both_loops(sites)
async def test_client_that_goes_away_in_its_handshake(site: Site) -> None:
    peer, protocol, starting = site.start()
    peer.send(b"\x16\x03")
    peer.close()
    with pytest.raises(ConnectionResetError, match="ended during the TLS handshake"):
        await starting
    assert protocol.transport is None


@on_both_loops(sites)
async def test_connection_that_ends_unused_is_no_failed_handshake(site: Site) -> None:
    """A broker that probes the port of a peer is not logged and counted as somebody with the wrong certificate."""
    failures: list[str] = []
    starter = ConnectionStarter(
        Protocol, tls=lambda: site.context, on_tls_failure=lambda host, error: failures.append(str(error))
    )
    for data in (b"", b"\x16\x03"):
        peer = socket.create_connection(site.listening.getsockname())
        accepted, _ = site.listening.accept()
        accepted.setblocking(False)
        starter(accepted)
        peer.sendall(data)
        peer.close()
        await until(lambda: len(starter) == 0)
    assert len(failures) == 1


@on_both_loops(sites)
async def test_cancelled_handshake_ends_the_connection(site: Site) -> None:
    peer, _, starting = site.start()
    await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await Client(peer, site.client_context()).rest() == b""


@on_both_loops(sites)
async def test_clients_with_parts_of_messages_are_limited_apart(site: Site) -> None:
    """OpenSSL takes 128 KiB for a message of which 4 bytes came."""
    failures: list[str] = []
    start = ConnectionStarter(
        Protocol,
        tls=lambda: site.context,
        max_partial=3,
        on_tls_failure=lambda host, error: failures.append(str(error)),
    )
    peers = []
    for _ in range(5):
        peer, accepted = site.accept()
        start(accepted)
        peer.send(b"\x16\x03\x01\x00\x04\x01\x01\xff\x00")
        peers.append(peer)
    for peer in peers[:2]:
        await closed(peer)
    await until(lambda: len(failures) == 2)
    assert set(failures) == {"more than 3 TLS handshakes with a part of a message at once"}
    assert start.handshakes == 3
    assert start.handshake_bytes == 3 * (TLS_HANDSHAKE_BYTES + TLS_MESSAGE_BYTES)
    peer, accepted = site.accept()
    start(accepted)  # a whole hello takes no place of a part
    client = await Client(peer, site.client_context()).shake_hands()
    assert start.evicted == 2
    client.sock.close()
    for peer in peers:
        peer.close()
    await until(lambda: not len(start))
    assert start.handshake_bytes == 0


@on_both_loops(sites)
async def test_many_hellos_of_one_turn_do_not_delay_a_connected_client(site: Site) -> None:
    """200 hellos are there at once: each turn continues as many as its share of time allows, three by this clock. What
    a connected client sends is received before. Regression: one turn continued all of them."""
    connected, its = await site.connect()
    times = itertools.count()
    pump = Pump(_Core(), asyncio.get_running_loop().call_soon, lambda: next(times) * DEFERRED_SECONDS / 2.5, _fail)
    start = ConnectionStarter(Protocol, tls=lambda: site.context, tls_timeout=600.0, defer=pump.defer)
    clients = []
    for _ in range(200):
        peer, accepted = site.accept()
        start(accepted)
        clients.append(Client(peer, site.client_context()))
    await until(lambda: start.handshakes == 200)
    await asyncio.sleep(0.05)  # all are read from now on
    waiting: list[int] = []
    pump.at_turn_end(lambda: waiting.append(start.waiting_handshakes))
    connected.tls.write(b"ping")
    for client in clients:
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.sock.send(client.outgoing.read())
    connected.sock.send(connected.outgoing.read())
    its.on_data = lambda: waiting.append(-1)
    await until(lambda: -1 in waiting)
    before = waiting[: waiting.index(-1)]
    assert len(before) <= 2, "turns of handshakes before the data"
    await asyncio.gather(*(client.shake_hands() for client in clients))
    await until(lambda: not len(start))
    turns = [count for count in waiting if count >= 0]
    assert max(turns) > 100
    assert max(before - after for before, after in itertools.pairwise(turns)) == 3
    assert (start.handshakes, start.waiting_handshakes, start.handshake_bytes, start.evicted) == (0, 0, 0, 0)


@on_both_loops(sites)
async def test_handshakes_are_counted_exactly_however_they_end(site: Site) -> None:
    """Random sequences of handshakes that begin, send a part of a message or a whole hello, and end in every way."""
    random = Random(16)
    failures: list[str] = []
    protocols: list[Protocol] = []

    def protocol() -> Protocol:
        protocols.append(Protocol())
        return protocols[-1]

    start = ConnectionStarter(
        protocol,
        tls=lambda: site.context,
        tls_timeout=600.0,
        on_tls_failure=lambda host, error: failures.append(str(error)),
    )
    under_way: list[tuple[Client, str]] = []
    expected_failures = finished = 0

    async def counted() -> None:
        parts = sum(stage == "part" for _, stage in under_way)
        wanted = len(under_way) * TLS_HANDSHAKE_BYTES + parts * TLS_MESSAGE_BYTES
        await until(lambda: start.handshake_bytes == wanted and not start.waiting_handshakes)
        await until(lambda: len(start) == len(under_way))  # a task ends a turn after what it counts
        assert start.handshakes == len(under_way)
        assert (len(failures), len(protocols)) == (expected_failures, finished)

    for _ in range(60):
        if len(under_way) < 8 and random.random() < 0.6:
            peer, accepted = site.accept()
            start(accepted)
            client, stage = Client(peer, site.client_context()), random.choice(["silent", "part", "hello"])
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            if stage == "part":
                peer.send(client.outgoing.read(9))  # the head of a record, and of the hello in it
            elif stage == "hello":
                await client.flush()
            under_way.append((client, stage))
        elif under_way:
            client, stage = under_way.pop(random.randrange(len(under_way)))
            end = random.choice(["finish", "garbage", "reset", "close"])
            if end == "finish":
                await client.flush()  # the rest of the hello
                await client.shake_hands()
                finished += 1
            else:
                expected_failures += stage != "silent" or end == "garbage"
                if end == "garbage":
                    client.sock.send(b"\xff" * 20_000)
                if end == "reset":
                    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                if end != "garbage":
                    client.sock.close()
        await counted()
    assert finished > 3
    assert expected_failures > 5
    for client, stage in under_way:
        expected_failures += stage != "silent"
        client.sock.close()
    under_way.clear()
    await counted()
    assert start.evicted == 0


@on_both_loops(sites)
async def test_handshakes_that_reach_their_time_limit_are_not_counted_any_more(site: Site) -> None:
    """Also those that wait for their turn then."""
    deferred: list[Callable[[], None]] = []
    failures: list[str] = []
    start = ConnectionStarter(
        Protocol,
        tls=lambda: site.context,
        tls_timeout=2.0,
        defer=lambda action, argument, _: deferred.append(partial(action, argument)),
        on_tls_failure=lambda host, error: failures.append(str(error)),
    )
    for sent in (b"", b"\x16", b"\x16\x03\x01\x00\x04\x01\x01\xff\x00", b"\x16" * 100_000):
        peer, accepted = site.accept()
        start(accepted)
        peer.send(sent)
    await until(lambda: start.waiting_handshakes == 3)
    assert start.handshake_bytes > 4 * TLS_HANDSHAKE_BYTES + 10
    await until(lambda: not len(start))
    assert failures == ["the TLS handshake took more than 2 s"] * 4
    assert (start.handshakes, start.waiting_handshakes, start.handshake_bytes) == (0, 0, 0)
    assert len(deferred) == 1
    deferred.pop()()
    assert not deferred


@on_both_loops(sites)
async def test_waiting_handshake_reads_little_and_takes_it_all_at_its_turn(site: Site) -> None:
    """A client sends its hello and 1 MB more before the handshake has its turn: most of it stays in the kernel. What a
    client said before it went away is known."""
    deferred: list[Callable[[], None]] = []
    site.queue = TlsHandshakeQueue(lambda action, argument, _: deferred.append(partial(action, argument)))
    peer, _, starting = site.start()
    assert peer.send(b"\xff" * 1_000_000) > MAX_WAITING_BYTES
    await until(lambda: site.queue.held > MAX_WAITING_BYTES)
    held = site.queue.held
    await asyncio.sleep(0.05)
    assert site.queue.held == held < 300_000
    assert len(deferred) == 1
    deferred.pop()()
    with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
        await starting
    assert site.queue.held == 0
    peer, _, starting = site.start()
    peer.send(b"\xff" * 5)
    peer.close()
    await until(lambda: len(site.queue) == 1)
    await asyncio.sleep(0.05)  # the end is read, too
    deferred.pop()()
    with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
        await starting


@on_both_loops(sites)
async def test_handshake_that_had_a_turn_ends_before_new_ones(site: Site) -> None:
    deferred: list[Callable[[], None]] = []
    site.queue = TlsHandshakeQueue(lambda action, argument, _: deferred.append(partial(action, argument)))
    clients, endings = [], []
    for _ in range(3):
        peer, _, starting = site.start()
        clients.append(Client(peer, site.client_context()))
        endings.append(starting)
        with pytest.raises(ssl.SSLWantReadError):
            clients[-1].tls.do_handshake()
        await clients[-1].flush()
        await until(lambda: len(site.queue) == len(clients))
    deferred.pop()()
    await clients[0].shake_hands()
    await until(lambda: len(site.queue) == 3)
    deferred.pop()()
    await endings[0]
    assert len(site.queue) == 2
    for ending in endings[1:]:
        ending.cancel()
    await asyncio.gather(*endings, return_exceptions=True)
    assert len(site.queue) == 0


@on_both_loops(sites)
async def test_client_proves_its_name(site: Site) -> None:
    site.context.verify_mode = ssl.CERT_REQUIRED
    site.context.load_verify_locations(site.folder / "ca.crt")
    context = site.with_pair(site.client_context(), "alice")
    _, protocol = await site.connect(context)
    assert names_of(protocol.transport.get_extra_info("peercert")) == ["alice"]
    peer, _, starting = site.start()
    stranger = await Client(peer, site.client_context()).shake_hands()  # with TLS 1.3 the refusal comes behind it
    with pytest.raises(ssl.SSLError):
        await starting
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        await stranger.read(1)


@on_both_loops(sites)
async def test_ticket_shortens_the_next_handshake_until_the_context_changes(site: Site) -> None:
    context = site.client_context()
    client, protocol = await site.connect(context)
    await works(client, protocol)  # the tickets come with the first data
    session = client.tls.session
    again, its = await site.connect(context, session)
    assert again.tls.session_reused
    await works(again, its)
    site.context = site.server_context()  # as after a change of the files
    fresh, own = await site.connect(context, again.tls.session)
    assert not fresh.tls.session_reused
    for pair in ((client, protocol), (again, its), (fresh, own)):
        await works(*pair)


# ---- the end ---------------------------------------------------------------------------------------------------------


@on_both_loops(sites)
async def test_client_that_ends_its_data_is_answered_and_closed(site: Site) -> None:
    client, protocol = await site.connect()
    client.tls.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    await client.flush()  # the data and the end in one piece
    await client.advance(client.tls.unwrap)  # the server's end
    await lost(protocol)
    assert protocol.received == b"last words"
    assert await client.rest() == b""


@on_both_loops(sites)
async def test_close_comes_behind_all_data(site: Site) -> None:
    client, protocol = await site.connect(buffer=4096)
    transport = protocol.transport
    transport.write(b"x" * 300_000)
    assert transport.get_write_buffer_size()
    transport.close()
    assert transport.is_closing()
    assert transport.write(b"discarded") == 9
    transport.close()
    assert len(await client.read(400_000)) == 300_000  # and then the end of the data, not of the connection alone
    await lost(protocol)


@on_both_loops(sites)
async def test_client_whose_connection_ends_without_a_word(site: Site) -> None:
    client, protocol = await site.connect()
    await client.write(b"half")
    client.sock.shutdown(socket.SHUT_WR)
    await lost(protocol)
    assert protocol.received == b"half"


@on_both_loops(sites)
async def test_reset_connection_ends_whether_records_wait_or_not(site: Site) -> None:
    for full in (False, True):
        client, protocol = await site.connect(buffer=4096)
        transport = protocol.transport
        while full and not transport.get_write_buffer_size():
            transport.write(b"x" * 1000)
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.sock.close()
        for _ in range(20):
            assert transport.write(b"x") == 1
            await asyncio.sleep(0)
        await lost(protocol)
        assert transport.is_closing()


@on_both_loops(sites)
async def test_broken_record_ends_its_sender_alone(site: Site) -> None:
    other, others = await site.connect()
    for broken in (b"\x17\x03\x03\x00\x20" + bytes(32), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x03\xff\xff"):
        client, protocol = await site.connect()
        client.tls.write(b"good")
        client.outgoing.write(broken)
        await client.flush()
        await lost(protocol)
        assert protocol.received == b"good"
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await client.read(1)
        assert protocol.transport.write(b"x") == 1
        await works(other, others)


@on_both_loops(sites)
async def test_protocol_may_end_the_connection_while_it_is_told_of_data(site: Site) -> None:
    for end in ("close", "abort"):
        client, protocol = await site.connect()
        protocol.on_data = getattr(protocol.transport, end)
        client.tls.write(b"bye")
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        await client.flush()
        await lost(protocol)


@on_both_loops(sites)
async def test_ended_connection_is_freed_without_the_collector(site: Site) -> None:
    gc.collect()
    gc.disable()
    try:
        client, protocol = await site.connect()
        await works(client, protocol)
        kept = ref(protocol), ref(protocol.transport.get_extra_info("ssl_object"))
        client.sock.close()
        await lost(protocol)
        del protocol.transport, protocol
        await until(lambda: all(each() is None for each in kept))
    finally:
        gc.enable()


@on_both_loops(sites)
async def test_transport_answers_what_asyncio_asks(site: Site) -> None:
    client, protocol = await site.connect()
    transport = protocol.transport
    assert isinstance(transport, TlsConnection)
    assert transport.get_extra_info("peername") == client.sock.getsockname()
    assert transport.get_extra_info("sslcontext") is site.context
    assert transport.get_extra_info("socket").getpeername() == client.sock.getsockname()
    assert transport.get_extra_info("peercert") is None
    assert transport.get_extra_info("unknown", 7) == 7
    assert not transport.can_write_eof()
    after = Protocol()
    transport.set_protocol(after)
    assert transport.get_protocol() is after
    after.transport = transport
    await works(client, after)
    assert not protocol.received


# ---- OpenSSL beyond what Python offers a client ----------------------------------------------------------------------


def loaded_library(name: str) -> ctypes.CDLL:
    """Return the library of this name that Python's `ssl` uses."""
    return ctypes.CDLL(next(word for word in Path("/proc/self/maps").read_text().split() if f"/{name}" in word))


class Native:
    """A client by libssl itself, which can change keys and renegotiate. Certificates are not checked."""

    def __init__(self, version: int) -> None:
        lib, crypto = loaded_library("libssl"), loaded_library("libcrypto")
        for library, names in (
            (lib, "TLS_client_method SSL_CTX_new SSL_new"),
            (crypto, "BIO_s_mem BIO_new"),
        ):
            for name in names.split():
                getattr(library, name).restype = ctypes.c_void_p
        self.lib, self.crypto = lib, crypto
        context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_client_method())))
        self.ssl = ctypes.c_void_p(lib.SSL_new(context))
        lib.SSL_CTX_free(context)
        lib.SSL_ctrl(self.ssl, 123, ctypes.c_long(version), None)  # SSL_CTRL_SET_MIN_PROTO_VERSION
        lib.SSL_ctrl(self.ssl, 124, ctypes.c_long(version), None)
        method = ctypes.c_void_p(crypto.BIO_s_mem())
        self.incoming, self.outgoing = (ctypes.c_void_p(crypto.BIO_new(method)) for _ in range(2))
        lib.SSL_set_bio(self.ssl, self.incoming, self.outgoing)
        lib.SSL_set_connect_state(self.ssl)

    def taken(self) -> bytes:
        """Return what it has to send."""
        buffer = ctypes.create_string_buffer(65_536)
        data = b""
        while (count := self.crypto.BIO_read(self.outgoing, buffer, len(buffer))) > 0:
            data += buffer.raw[:count]
        return data

    def give(self, data: bytes) -> None:
        self.crypto.BIO_write(self.incoming, data, len(data))

    def write(self, data: bytes) -> bytes:
        assert self.lib.SSL_write(self.ssl, data, len(data)) == len(data)
        return self.taken()

    def read(self) -> bytes:
        """Return the data of one record, empty when none is whole."""
        buffer = ctypes.create_string_buffer(65_536)
        count = self.lib.SSL_read(self.ssl, buffer, len(buffer))
        return buffer.raw[: max(0, count)]

    def change_keys(self, *, both: bool) -> bytes:
        """Return the records that change its keys, and with `both` demand that the server changes its own."""
        assert self.lib.SSL_key_update(self.ssl, int(both)) == 1
        assert self.lib.SSL_do_handshake(self.ssl) == 1
        return self.taken()

    def close(self) -> None:
        self.lib.SSL_free(self.ssl)


async def connect_native(site: Site, version: int, buffer: int = 0) -> tuple[Native, socket.socket, Protocol]:
    peer, protocol, starting = site.start(buffer=buffer)
    native, loop = Native(version), asyncio.get_running_loop()
    while native.lib.SSL_do_handshake(native.ssl) != 1:
        await loop.sock_sendall(peer, native.taken())
        native.give(await asyncio.wait_for(loop.sock_recv(peer, 65_536), LIMIT))
    await loop.sock_sendall(peer, native.taken())
    await starting
    return native, peer, protocol


TLS_1_2, TLS_1_3 = 0x0303, 0x0304


@on_both_loops(sites)
async def test_keys_change_in_both_directions_amid_data(site: Site) -> None:
    native, peer, protocol = await connect_native(site, TLS_1_3)
    loop, received = asyncio.get_running_loop(), b""
    for number in range(20):
        wire = native.write(b"a") + native.change_keys(both=number % 2 == 0) + native.write(b"b")
        await loop.sock_sendall(peer, wire)
        await arrived(protocol, 2 * number + 2)
        protocol.transport.write(b"answer")
        while len(received) < 6 * (number + 1):
            native.give(await asyncio.wait_for(loop.sock_recv(peer, 65_536), LIMIT))
            while data := native.read():
                received += data
    assert received == b"answer" * 20
    assert protocol.received == b"ab" * 20
    native.close()


@on_both_loops(sites)
async def test_client_that_demands_keys_and_does_not_read_ends(site: Site) -> None:
    """The answers wait in no limit of the edge. A client that reads may demand as many as it likes."""
    native, peer, protocol = await connect_native(site, TLS_1_3, buffer=4096)
    other, others = await site.connect()
    transport, loop = protocol.transport, asyncio.get_running_loop()
    while not transport.get_write_buffer_size():
        transport.write(b"x" * 1000)
    waiting = transport.get_write_buffer_size()
    for _ in range(2000):
        if transport.is_closing():
            break
        assert transport.get_write_buffer_size() <= waiting + MAX_ANSWERS
        await loop.sock_sendall(peer, native.change_keys(both=True))
        await asyncio.sleep(0)
    await lost(protocol)
    await works(other, others)
    native.close()


@on_both_loops(sites)
async def test_renegotiation_is_refused(site: Site) -> None:
    native, peer, protocol = await connect_native(site, TLS_1_2)
    loop = asyncio.get_running_loop()
    assert native.lib.SSL_renegotiate(native.ssl) == 1
    native.lib.SSL_do_handshake(native.ssl)
    hello = native.taken()
    assert hello[0] == 22
    await loop.sock_sendall(peer, hello)
    alert = await asyncio.wait_for(loop.sock_recv(peer, 65_536), LIMIT)
    assert alert[0] == 21
    native.close()
    peer.close()
    await lost(protocol)


# ---- memory ----------------------------------------------------------------------------------------------------------


class Allocated(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]


def allocated() -> int:
    """Return the bytes that this process has allocated and not freed."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Allocated
    gc.collect()
    counts = library.mallinfo2()
    return int(counts.field7 + counts.field4)  # of arenas and of mappings


@on_both_loops(sites)
async def test_large_messages_leave_small_buffers(site: Site) -> None:
    pairs = [await site.connect() for _ in range(20)]
    for client, protocol in pairs:
        await works(client, protocol)
    await asyncio.sleep(0)
    before = allocated()
    for client, protocol in pairs:
        large = b"x" * 1_000_000
        reading = asyncio.ensure_future(client.read(len(large)))
        protocol.transport.write(large)
        await reading
        # what the server reads in one piece
        for _ in range(16):
            client.tls.write(b"y" * 60_000)
            await client.flush()
        await arrived(protocol, 960_004)
        protocol.received = bytearray()
        client.incoming, client.outgoing, client.tls = None, None, None  # type: ignore[assignment]
    del large, reading
    # the clients' own buffers are freed, so less is allocated than before but for what the server keeps
    assert allocated() - before < len(pairs) * 2 * PIECE_BYTES * 4 // 3


@on_both_loops(sites)
async def test_memory_of_a_handshake_is_what_is_counted(site: Site) -> None:
    peer, accepted = site.accept()
    accepted.close()
    hello = Client(peer, site.client_context())
    with pytest.raises(ssl.SSLWantReadError):
        hello.tls.do_handshake()
    whole = hello.outgoing.read()
    part = b"\x16\x03\x01\x40\x00\x01" + (131_000).to_bytes(3) + bytes(16_380)
    for sent, most in ((whole, TLS_HANDSHAKE_BYTES), (part, TLS_HANDSHAKE_BYTES + TLS_MESSAGE_BYTES)):
        started = []
        for measured in (False, True):  # the first round fills free lists
            before = allocated()
            for _ in range(20):
                peer, _, starting = site.start()
                peer.send(sent)
                started.append((peer, starting))
            for _ in range(20):
                await asyncio.sleep(0.002)
            if measured:
                assert most // 2 < (allocated() - before) / 20 < most
        for _, starting in started:
            starting.cancel()
        await asyncio.gather(*(starting for _, starting in started), return_exceptions=True)
        for peer, _ in started:
            peer.close()
