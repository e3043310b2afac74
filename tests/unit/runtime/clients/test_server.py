"""The clients' listener with real sockets: handshake, tokens, hand-over to the edge, refusals and limits."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.web_protocol import RequestHandler
from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic.events import Note
from migratory_broker.runtime.accepting.http import HANDLER_BYTES, HEAD_COPIES
from migratory_broker.runtime.accepting.limits import AcceptRate
from migratory_broker.runtime.accepting.listener import Listener, bind, listen
from migratory_broker.runtime.clients import requests
from migratory_broker.runtime.clients import server as server_module
from migratory_broker.runtime.clients.connection import ClientConnections
from migratory_broker.runtime.clients.protocol import ClientProtocol
from migratory_broker.runtime.clients.server import ClientServer, TokenPlaces, servers_page
from migratory_broker.runtime.clients.service import ClientService
from migratory_broker.runtime.clients.unhandled import ClientInput
from migratory_broker.runtime.config import parse
from migratory_broker.runtime.pump import Pump
from migratory_protocol.messages import Server
from migratory_protocol.origins import OriginPolicy
from migratory_testing.waiting import until

TOKENS = {"static": [{"subject": "ann", "sha256": "0" * 64}]}
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
REQUEST = (
    "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
)


class Site:
    """A listener with a stand-in for an edge, which only records events."""

    def __init__(
        self,
        core: Any,
        log: Any,
        *,
        limit: float = 5.0,
        compression: bool = False,
        max_held: int = 2**30,
        policy: OriginPolicy | None = None,
        rate: int = 1000,
        room: Any = lambda: 1000,
        tokens: TokenPlaces | None = None,
        clock: Any = time.monotonic,
        pump_clock: Any = time.monotonic,
        brokers: Any = None,
    ) -> None:
        self.notes: list[Note] = []
        loop = asyncio.get_running_loop()
        self.errors: list[Exception] = []
        self.pump = Pump(core(), loop.call_soon, pump_clock, self.errors.append)
        self.connections = ClientConnections(self.pump, time.monotonic)
        self.pump.set_handlers({edge_events.Send: self.connections.send, edge_events.Close: self.connections.close})
        self.edge = core()
        self.pump.attach(self.edge)
        self.server = ClientServer(
            self.connections,
            policy or OriginPolicy(["*"], ["*"]),
            servers_page(lambda: [Server("ws://a/ws", 50)]),
            clock,
            handshake_limit=limit,
            tokens=tokens,
            brokers=brokers,
            on_note=self.notes.append,
            max_held=max_held,
            compression=compression,
        )
        listening = listen(bind("127.0.0.1", 0, "clients"), "clients")
        self.address = listening.getsockname()
        self.writers: list[asyncio.StreamWriter] = []
        self.listener = Listener(listening, self.server.protocol, log, rate=AcceptRate(rate, time.monotonic), room=room)

    async def request(self, text: str | bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        writer.write(text if isinstance(text, bytes) else text.encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        return reader, writer, head

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.listener.close()
        self.connections.abort_all()
        await self.server.close()


@pytest.fixture
async def sites(core: Any, log: Any) -> AsyncIterator[Any]:
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(core, log, **options))
        return made[-1]

    yield make
    for site in made:
        await site.close()


async def test_a_handshake_is_answered_and_the_connection_belongs_to_the_edge(sites: Any) -> None:
    site = sites()
    before = time.monotonic()
    _, writer, head = await site.request(REQUEST + "Sec-WebSocket-Protocol: other, migratory.v1.msgpack\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head  # RFC 6455, 1.3
    assert b"Sec-WebSocket-Protocol: migratory.v1.msgpack\r\n" in head
    opened = (await until(lambda: site.edge.of(edge_events.Opened)))[0]
    assert (opened.wire, opened.deflate, opened.connection) == ("msgpack", False, 1)
    assert opened.remote == "{}:{}".format(*writer.get_extra_info("sockname"))
    assert before <= opened.opened <= time.monotonic()
    writer.write(b"frame")
    await until(lambda: edge_events.Received(1, b"frame") in site.edge.events)
    writer.close()
    await until(lambda: edge_events.Lost(1) in site.edge.events)
    assert len(site.connections) == 0


async def test_bytes_behind_the_request_are_kept(sites: Any) -> None:
    site = sites()
    tail = bytes(range(256)) * 1000
    _, writer, _ = await site.request(REQUEST.encode() + b"\r\n" + tail)
    writer.write(b"more")
    await until(lambda: sum(len(event.data) for event in site.edge.of(edge_events.Received)) == len(tail) + 4)
    assert b"".join(event.data for event in site.edge.of(edge_events.Received)) == tail + b"more"
    assert type(site.edge.events[0]) is edge_events.Opened
    writer.close()


@pytest.mark.parametrize("end", ["client", "reset", "broker", "abort"])
async def test_an_ended_connection_is_freed_without_the_garbage_collector(sites: Any, end: str) -> None:
    """However it ends, and with input that is not handled yet: brokers rarely collect garbage."""
    site = sites()
    kinds = (ClientProtocol, ClientInput)

    def count() -> int:
        return sum(type(each) in kinds for each in gc.get_objects())

    async def connect_and_end(number: int) -> None:
        _, writer, _ = await site.request(f"{REQUEST}\r\n")
        writer.write(b"frame")
        await until(lambda: edge_events.Received(number, b"frame") in site.edge.events)
        assert count() == before + 1
        site.connections.receive(site.connections._open[number], b"unhandled")
        assert count() == before + 2
        if end == "client":
            writer.close()
        elif end == "reset":
            accepted = writer.get_extra_info("socket")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            site.connections.close(edge_events.Close(number, abort=end == "abort"))
        await until(lambda: edge_events.Lost(number) in site.edge.events)

    gc.collect()
    before = count()
    gc.disable()
    try:
        for number in range(1, 4):
            await connect_and_end(number)
        assert count() == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("places", "header", "query", "token"),
    [
        (None, "Authorization: Bearer secret\r\n", "?access_token=other", None),
        (TokenPlaces(), "Authorization: Bearer secret\r\n", "?access_token=other", "secret"),
        (TokenPlaces(), "authorization: bEARER  secret \r\n", "", "secret"),
        (TokenPlaces(), "", "?access_token=other", None),
        (TokenPlaces(), "Authorization: Basic c2VjcmV0\r\n", "", None),
        (TokenPlaces(), "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n", "", None),
        (TokenPlaces(query=True), "", "?access_token=a%2Eb", "a.b"),
        (TokenPlaces(query=True), "Authorization: Bearer secret\r\n", "?access_token=other", "secret"),
    ],
)
async def test_token_of_a_request_reaches_the_edge(
    sites: Any, places: TokenPlaces | None, header: str, query: str, token: str | None
) -> None:
    site = sites(tokens=places)
    _, writer, _ = await site.request(REQUEST.replace("/ws", f"/ws{query}", 1) + header + "\r\n")
    assert (await until(lambda: site.edge.of(edge_events.Opened)))[0].token == token
    writer.close()


HEADERS = [f"X-{number}: {'x' * 3000}\r\n" for number in range(15)]


@pytest.mark.parametrize(
    ("lines", "size"),
    [(REQUEST + "".join(HEADERS), 100_000), (REQUEST + "".join(HEADERS), 1000), ("GET /" + "y" * 40_000, 100_000)],
    ids=["headers", "headers in parts", "endless line"],
)
async def test_a_head_over_the_limit_is_refused_whatever_its_parts(
    sites: Any, caplog: pytest.LogCaptureFixture, lines: str, size: int
) -> None:
    site = sites()
    reader, writer = await asyncio.open_connection(*site.address)
    site.writers.append(writer)
    data = lines.encode()[:33_000]
    for start in range(0, len(data), size):
        writer.write(data[start : start + size])
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"at most 32768 bytes and 64 headers" in answer
    assert (site.server.malformed, site.server.pending, site.server.held) == (1, 0, 0)
    assert not [record for record in caplog.records if record.name == "aiohttp.server"]


async def test_the_end_of_a_head_may_be_cut_in_two(sites: Any) -> None:
    site = sites()
    reader, writer = await asyncio.open_connection(*site.address)
    site.writers.append(writer)
    for part in (REQUEST + "X: y\r\n\r", "\n"):
        writer.write(part.encode())
        await asyncio.sleep(0.05)
    writer.write(bytes(100_000))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 101 ")


def hold(site: Site, times: int) -> None:
    """Count `times` times 5,000 bytes of a request as received on the newest pending connection, without sending
    them."""
    handler: Any = list(site.server._server.pending)[-1]
    handler.count_received(times * 5000)


async def test_handshakes_that_hold_too_much_together_are_evicted_largest_first(sites: Any) -> None:
    site = sites(max_held=5 * HANDLER_BYTES + 3 * HEAD_COPIES * 10_000)
    connections = []
    for count in (1, 2, 2, 1):
        connections.append(await asyncio.open_connection(*site.address))
        site.writers.append(connections[-1][1])
        await until(lambda: site.server.pending == len(connections))
        hold(site, count)
    assert (site.server.held, site.server.evicted) == (4 * HANDLER_BYTES + 6 * 5000 * HEAD_COPIES, 0)
    hold(site, 1)
    connections.append(await asyncio.open_connection(*site.address))
    site.writers.append(connections[-1][1])
    assert await asyncio.wait_for(connections[1][0].read(), 5) == b""  # the oldest of the largest
    await until(lambda: site.server.pending == 4)
    assert site.server.evicted == 1
    connections[2][1].close()
    await until(lambda: site.server.pending == 3)
    assert site.server.held == 3 * HANDLER_BYTES + 3 * 5000 * HEAD_COPIES


async def test_json_is_the_default_subprotocol(sites: Any) -> None:
    site = sites()
    _, writer, head = await site.request(REQUEST + "\r\n")
    assert b"Sec-WebSocket-Protocol" not in head
    assert (await until(lambda: site.edge.of(edge_events.Opened)))[0].wire == "json"
    writer.close()


@pytest.mark.parametrize(("compression", "agreed"), [(False, False), (True, True)])
async def test_compression_is_agreed_on_only_when_configured(sites: Any, compression: bool, agreed: bool) -> None:
    site = sites(compression=compression)
    _, writer, head = await site.request(REQUEST + "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
    assert (b"Sec-WebSocket-Extensions: permessage-deflate" in head) is agreed
    assert (await until(lambda: site.edge.of(edge_events.Opened)))[0].deflate is agreed
    writer.close()


async def test_aiohttp_holds_no_reference_to_a_handed_over_connection(sites: Any) -> None:
    site = sites()
    writers = [(await site.request(REQUEST + "\r\n"))[1] for _ in range(3)]
    await until(lambda: len(site.connections) == 3)

    def released() -> bool:
        gc.collect()
        return not any(isinstance(item, RequestHandler) for item in gc.get_objects())

    await until(released)
    assert site.server.pending == 0
    for writer in writers:
        writer.close()


def changed(old: str, new: str) -> str:
    assert old in REQUEST
    return REQUEST.replace(old, new) + "\r\n"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (changed("GET", "POST"), 400),
        (changed("HTTP/1.1", "HTTP/1.0"), 400),
        (changed("Upgrade: websocket\r\n", ""), 426),
        (changed("Upgrade: websocket\r\n", "Upgrade: websocket\r\nUpgrade: h2c\r\n"), 426),
        (changed("Connection: keep-alive, Upgrade", "Connection: keep-alive"), 426),
        (changed("Version: 13", "Version: 8"), 426),
        (changed(KEY, "c2hvcnQ="), 400),
        (changed(KEY, "###"), 400),
        (changed(f"Sec-WebSocket-Key: {KEY}\r\n", ""), 400),
        (changed("Host: localhost\r\n", ""), 400),
        (REQUEST + "Content-Length: 3\r\n\r\nabc", 400),
        (REQUEST + "Sec-WebSocket-Protocol: mqtt\r\n\r\n", 400),
        (REQUEST + "Origin: https://a\r\nOrigin: https://b\r\n\r\n", 400),
        (changed("/ws", "/other"), 404),
        (changed("/ws", "http://["), 400),
        (changed("GET", "G" * 9000), 400),
        (REQUEST + "X: " + "y" * 9000 + "\r\n\r\n", 431),
        (REQUEST + "X: " + "y" * 70_000 + "\r\n\r\n", 431),
        (changed("/ws", "/" + "w" * 9000), 431),
        (REQUEST + "".join(f"X{number}: 1\r\n" for number in range(100)) + "\r\n", 431),
        ("POST /v1/servers HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("\x16\x03\x01 not http\r\n\r\n", 400),
    ],
)
async def test_a_wrong_request_gets_an_answer_and_harms_only_its_sender(
    sites: Any, request_text: str, status: int
) -> None:
    site = sites()
    _, healthy, _ = await site.request(REQUEST + "\r\n")
    reader, writer, head = await site.request(request_text)
    assert int(head.split()[1]) == status, head
    await asyncio.wait_for(reader.read(), 5)  # and it ends
    writer.close()
    healthy.write(b"alive")
    await until(lambda: edge_events.Received(1, b"alive") in site.edge.events)
    assert len(site.connections) == 1
    assert not site.errors
    healthy.close()


async def test_origin_and_host_are_checked_on_every_page(sites: Any) -> None:
    site = sites(policy=OriginPolicy(["https://app.example.com"], ["push.example.com"], without_origin=False))
    for path in ("/ws", "/v1/servers", "/other"):
        base = REQUEST.replace("/ws", path).replace("localhost", "push.example.com")
        for text, status in (
            (base + "Origin: https://evil.test\r\n\r\n", b"403"),
            (base + "\r\n", b"403"),
            (base.replace("push.example.com", "evil.test:80") + "Origin: https://app.example.com\r\n\r\n", b"421"),
        ):
            _, writer, head = await site.request(text)
            assert head.split()[1] == status, (path, text)
            assert b"Access-Control" not in head
            writer.close()


@pytest.mark.parametrize(
    ("line", "host", "status"),
    [
        ("GET http://localhost/{path}", "localhost", None),
        ("GET http://evil.example/{path}", "localhost", 400),
        ("GET http://localhost@evil.example/{path}", "localhost", 400),
        ("GET /{path}", "localhost@evil.example", 400),
        ("GET /{path}", "[x.evil.example", 400),
        ("GET /{path}", "localhost, localhost", 400),
        ("GET /{path}", "", 400),
        ("GET /{path}", "localhost\r\nHost: localhost", 400),
        ("CONNECT localhost:80", "localhost:80", 400),
    ],
)
async def test_a_request_names_one_server_in_one_way(sites: Any, line: str, host: str, status: int | None) -> None:
    """Regression: a request for the URL of another server was answered, and so was any text as Host."""
    site = sites(policy=OriginPolicy(["*"], ["*"]))
    for path, good in (("ws", 101), ("v1/servers", 200), ("other", 404)):
        text = changed("GET /ws", line.format(path=path)).replace("Host: localhost", f"Host: {host}")
        _, writer, head = await site.request(text)
        assert int(head.split()[1]) == (status or good)
        writer.close()
    if status is None:
        await until(lambda: site.edge.of(edge_events.Opened))
    assert len(site.edge.of(edge_events.Opened)) == (status is None)


async def test_refused_sources_are_counted_and_logged_at_a_bounded_rate(sites: Any) -> None:
    """Regression: a web page or a Host that was refused left no trace."""
    now = [1.0]
    policy = OriginPolicy(["https://app.example.com"], ["push.example.com"])
    site = sites(policy=policy, clock=lambda: now[0], limit=1000.0)
    served = REQUEST.replace("localhost", "push.example.com")
    for text in (
        served + "Origin: https://evil.test\r\n\r\n",
        REQUEST + "\r\n",
        served + "Origin: https://a\r\nOrigin: https://b\r\n\r\n",
        REQUEST + "\r\n",
        served + "\r\n",
    ):
        _, writer, _ = await site.request(text)
        writer.close()
        now[0] += 4
    assert site.server.refused == {"origin": 1, "host": 2, "malformed": 1}
    first, second = (note.fields for note in site.notes)
    assert {note.event for note in site.notes} == {"request_refused"}
    assert (first["origin"], first["host"], first["others"]) == ("https://evil.test", "push.example.com", 0)
    assert (second["host"], second["others"], second["remote"], second["path"]) == ("localhost", 2, "127.0.0.1", "/ws")
    assert "spec.security.hosts" in second["reason"]


async def test_the_server_list_is_served_over_http(sites: Any) -> None:
    site = sites()
    reader, writer, head = await site.request(
        "GET /v1/servers HTTP/1.1\r\nHost: a\r\nOrigin: https://x.example\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Access-Control-Allow-Origin: https://x.example\r\n" in head
    assert b"Credentials" not in head
    assert json.loads(await reader.read()) == {"servers": [{"url": "ws://a/ws", "weight": 50}]}
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /ws HT", REQUEST.encode()])
async def test_a_slow_handshake_is_dropped_at_its_limit(sites: Any, sent: bytes) -> None:
    site = sites(limit=0.2)
    reader, writer = await asyncio.open_connection(*site.address)
    writer.write(sent)
    await until(lambda: site.server.pending == 1)
    site.server.tick()
    assert site.server.pending == 1, "its time is not over"

    def dropped() -> bool:
        site.server.tick()
        return bool(site.server.slow_handshakes == 1)

    await until(dropped)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    writer.close()


async def test_client_that_does_not_read_is_paused_and_its_close_is_limited(sites: Any) -> None:
    site = sites()
    _, writer, _ = await site.request(REQUEST + "\r\n")
    writer.transport.pause_reading()
    await until(lambda: site.edge.of(edge_events.Opened))
    for _ in range(200):
        site.connections._open[1].send(b"x" * 65536)
    await until(lambda: edge_events.Paused(1) in site.edge.events)
    site.connections.close(edge_events.Close(1))
    site.connections.send(edge_events.Send(1, b"too late"))
    site.connections.tick(time.monotonic() + 1)
    assert len(site.connections) == 1
    site.connections.tick(time.monotonic() + 10)
    await until(lambda: edge_events.Lost(1) in site.edge.events)
    assert site.connections.empty.is_set()
    writer.close()


async def test_a_client_that_reads_again_resumes(sites: Any) -> None:
    site = sites()
    reader, writer, _ = await site.request(REQUEST + "\r\n")
    writer.transport.pause_reading()
    await until(lambda: site.edge.of(edge_events.Opened))
    while edge_events.Paused(1) not in site.edge.events:
        site.connections._open[1].send(b"x" * 65536)
        await asyncio.sleep(0)
    writer.transport.resume_reading()
    reader_task = asyncio.ensure_future(reader.read())
    await until(lambda: edge_events.Resumed(1) in site.edge.events)
    site.connections.close(edge_events.Close(1, abort=True))
    await until(lambda: edge_events.Lost(1) in site.edge.events)
    await asyncio.wait([reader_task])
    reader_task.exception()
    site.connections.close(edge_events.Close(1))  # gone already
    writer.close()


async def test_connections_over_the_rate_wait_in_the_backlog(sites: Any) -> None:
    site = sites(rate=20)
    started = time.monotonic()
    opened = await asyncio.gather(*(site.request(REQUEST + "\r\n") for _ in range(15)))
    # 5 at once, then 20 a second
    assert time.monotonic() - started >= 0.4
    assert all(head.startswith(b"HTTP/1.1 101 ") for _, _, head in opened)
    for _, writer, _ in opened:
        writer.close()


async def test_connections_beyond_the_descriptors_get_503(sites: Any, log: Any) -> None:
    site = sites(room=lambda: 0)
    reader, writer, head = await site.request(b"")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After" in head
    assert await reader.read() == b"no file descriptors left; try later"
    assert site.listener.refused == 1
    assert log.events() == ["accept_failed"]
    writer.close()


async def test_running_out_of_descriptors_neither_spins_nor_ends_the_listener(
    sites: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sites()
    attempts = 0
    really = site.listener._socket

    class Exhausted:
        def accept(self) -> Any:
            nonlocal attempts
            attempts += 1
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return int(really.fileno())

        def close(self) -> None:
            really.close()

    site.listener._socket = Exhausted()
    reader, writer = await asyncio.open_connection(*site.address)
    writer.write(REQUEST.encode() + b"\r\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 0.5)
    assert 1 <= attempts <= 8  # two for each try: with a descriptor of its own, and with the spare one
    assert log.lines[0]["reason"] == "Too many open files"
    site.listener._socket = really
    assert (await asyncio.wait_for(reader.readexactly(12), 5)) == b"HTTP/1.1 101"
    writer.close()


async def test_a_connection_that_was_aborted_in_the_backlog_is_skipped(sites: Any) -> None:
    site = sites()
    gone = socket.create_connection(site.address)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    gone.close()
    _, writer, head = await site.request(REQUEST + "\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    writer.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 9000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
    ids=["no URL", "two hosts", "many headers", "a long header", "no chunk"],
)
async def test_malformed_requests_are_counted_and_not_logged(
    sites: Any, caplog: pytest.LogCaptureFixture, request_: bytes, status: int
) -> None:
    """A malformed request is answered with its HTTP status and counted, and not logged. Regression: each logged an
    error with a traceback, with which any sender could fill the disk."""
    site = sites()
    _, writer, head = await site.request(request_)
    assert head.startswith(b"HTTP/1.0 %d " % status)
    assert site.server.malformed == 1
    writer.close()
    assert not [record for record in caplog.records if record.name == "aiohttp.server"]


SECOND = b"GET /v1/servers HTTP/1.1\r\nHost: localhost\r\n\r\n"
PAGE = SECOND[:-2]


@pytest.mark.parametrize(
    "request_",
    [
        SECOND + SECOND,
        PAGE + b"Connection: keep-alive\r\n\r\n" + SECOND,
        PAGE + b"Content-Length: %d\r\n\r\n" % len(SECOND) + SECOND,
        PAGE + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SECOND) + SECOND,
        PAGE + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        PAGE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        PAGE + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SECOND,
        PAGE + b"Transfer-Encoding: xchunked\r\n\r\n" + SECOND,
        PAGE + b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        PAGE + b"Content-Length: +0\r\n\r\n" + SECOND,
        b"POST" + PAGE[3:] + b"Content-Length: 0\r\n\r\n" + SECOND,
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + SECOND,
    ],
    ids=[
        "pipelined", "keep-alive", "body", "two lengths", "length and chunks", "chunks", "space before a colon",
        "unknown encoding", "bare line feed", "signed length", "POST", "refused upgrade",
    ],
)  # fmt: skip
async def test_a_second_request_of_a_connection_is_never_answered(sites: Any, request_: bytes) -> None:
    """A proxy that divides the bytes into requests otherwise than the broker would give the second answer to
    somebody else."""
    reader, writer = await asyncio.open_connection(*sites().address)
    writer.write(request_)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.count(b"\r\nContent-Type: ") == 1  # a refusal may quote a line of the request
    assert answer.count(b'"servers"') <= 1


async def test_an_exception_in_a_page_is_logged(
    sites: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sites()

    def fail() -> tuple[int, str, bytes]:
        raise LookupError("the page's own fault")

    monkeypatch.setattr(site.server, "_servers", fail)
    _, writer, head = await site.request("GET /v1/servers HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 500 " in head
    writer.close()
    assert "the page's own fault" in caplog.text
    assert site.server.malformed == 0


async def test_a_client_that_goes_away_within_its_request_leaves_nothing(
    sites: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site = sites()
    _, writer = await asyncio.open_connection(*site.address)
    writer.write(b"POST /v1/publish?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
    await until(lambda: site.server.pending == 1, "the request begins")
    writer.close()
    await until(lambda: site.server.pending == 0, "the connection is gone")
    assert site.edge.events == []
    assert caplog.records == []


async def test_a_body_is_asked_for_and_comes_in_parts(sites: Any) -> None:
    site = sites()
    head = b"POST /v1/publish?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    _, writer, answer = await site.request(head)
    assert answer == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(site.connections) == 0
    for part in (b"1", b"2"):
        writer.write(part)
        await writer.drain()
    (opened,) = await until(lambda: site.edge.of(edge_events.Opened))
    assert (opened.http.kind, opened.http.answers) == ("publish", 1)
    (received,) = await until(lambda: site.edge.of(edge_events.Received))
    assert received.data.endswith(b"\x01\x01\xc0")
    writer.write(b"more")
    await until(lambda: edge_events.Lost(1) in site.edge.events)
    assert len(site.edge.of(edge_events.Received)) == 1


async def test_long_bodies_are_translated_one_in_a_turn_of_the_pump(
    sites: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: bodies were decoded outside the pump's turns, those of all clients in one turn of the loop."""
    now = [0.0]
    turns: list[int] = [0]
    translated_in: list[int] = []
    translate = requests.translate

    def long(*arguments: Any) -> Any:
        translated_in.append(turns[0])
        now[0] += 0.08
        return translate(*arguments)

    monkeypatch.setattr(server_module, "translate", long)
    site = sites(pump_clock=lambda: now[0])
    site.pump.at_turn_end(lambda: turns.append(turns.pop() + 1))
    body = json.dumps({"op": "publish", "topic": "a", "data": "x"})
    head = "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for _ in range(12):
        _, writer = await asyncio.open_connection(*site.address)
        site.writers.append(writer)
    await until(lambda: site.server.pending == 12)
    for writer in site.writers:
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await until(lambda: len(site.edge.of(edge_events.Received)) == 12)
    assert len(set(translated_in)) == len(translated_in) == 12


@pytest.mark.interpreted
async def test_a_client_that_is_gone_before_its_translation_leaves_nothing(
    sites: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sites()
    waiting: list[Any] = []
    monkeypatch.setattr(site.pump, "defer", lambda action, argument: waiting.append((action, argument)))
    _, writer = await asyncio.open_connection(*site.address)
    writer.write(b"POST /v1/publish?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
    await until(lambda: waiting, "the body was read")
    writer.close()
    await until(lambda: site.server.pending == 0, "the connection is gone")
    monkeypatch.setattr(server_module, "translate", None)  # not called
    for action, argument in waiting:
        action(argument)
    await asyncio.sleep(0)
    assert (site.edge.events, site.errors) == ([], [])


async def test_a_translation_that_fails_ends_its_request_only(
    sites: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> Any:
        raise LookupError("the translation's own fault")

    monkeypatch.setattr(server_module, "translate", fail)
    site = sites()
    _, _, head = await site.request("GET /v1/stream?topic=t HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 500 " in head
    assert "the translation's own fault" in caplog.text
    assert (site.errors, site.pump.stopped) == ([], False)


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("127.0.0.1:8800", True),
        ("[::1]:8800", True),
        ("localhost:8800", True),
        ("brokers", True),
        ("quotes-clients.default.svc:8800", True),
        ("Quotes-0.quotes.default.svc.cluster.local.", True),
        ("push.example.com:443", True),
        ("PUSH.example.com.", True),
        ("evil.example", False),
        ("push.example.com.evil.example:8800", False),
        ("127.0.0.1.evil.example", False),
    ],
)
async def test_a_page_that_was_rebound_to_the_broker_reads_nothing(sites: Any, host: str, is_served: bool) -> None:
    """Regression: where every Host is served, an EventSource, which sends no Origin to its own, could read all topics.
    A request that is served is refused for want of a topic."""
    site = sites(brokers=lambda: [Server("wss://push.example.com/ws", 1)])
    for path in ("stream", "poll"):
        reader, _, head = await site.request(f"GET /v1/{path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
        assert int(head.split()[1]) == (400 if is_served else 421)
        assert (b"add it to spec.security.hosts" in await reader.read()) is not is_served
    assert site.server.refused == ({} if is_served else {"host": 2})


async def test_a_request_with_a_token_is_no_rebound_page_s(sites: Any) -> None:
    """Where tokens are accepted and not needed, only what has one may have any Host."""
    site = sites(brokers=list, tokens=TokenPlaces(query=True))
    for path, header, status in (
        ("/v1/stream?access_token=x", "", b"400"),  # for want of a topic
        ("/v1/stream", "Authorization: Bearer x\r\n", b"400"),
        ("/v1/stream?access_token=", "", b"421"),
        ("/v1/stream", "Authorization: Basic x\r\n", b"421"),
        ("/v1/stream", "", b"421"),
    ):
        _, _, head = await site.request(f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n{header}\r\n")
        assert head.split()[1] == status


@pytest.mark.parametrize(
    ("security", "status"),
    [
        (None, b"421"),
        ({"rules": []}, b"421"),
        ({"tokens": TOKENS}, b"400"),
        ({"tokens": TOKENS, "anonymous": True}, b"421"),
        ({"tokens": TOKENS, "anonymous": True, "hosts": ["evil.example"]}, b"400"),
    ],
)
async def test_hosts_are_checked_where_clients_need_no_token(
    core: Any, security: dict[str, Any] | None, status: bytes
) -> None:
    """Regression: with tokens and `anonymous` a page that was rebound to the broker could read what is public."""
    security = dict(security or {})
    origins = {"hosts": security.pop("hosts", ["*"])}
    config = {
        "cluster": "c", "brokers": ["a"], "zookeeper": {"servers": "127.0.0.1:1"}, "delivery": {"minCopies": 1},
        "origins": origins, **({"security": security} if security else {}),
    }  # fmt: skip
    loop = asyncio.get_running_loop()
    failures: list[Exception] = []
    pump = Pump(core(), loop.call_soon, loop.time, failures.append)
    service = ClientService(parse(json.dumps(config).encode()), "a", pump, loop.time)
    listener = await loop.create_server(service.server.protocol, "127.0.0.1")
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    writer.write(b"GET /v1/stream HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.split()[1] == status
    writer.close()
    listener.close()
    await service.server.close()
    assert failures == []


async def test_other_requests_to_any_host_are_served(sites: Any) -> None:
    checked, unchecked = sites(brokers=list), sites()
    for site, request_ in (
        (checked, "GET /v1/stream HTTP/1.1\r\nOrigin: https://evil.example\r\n"),  # the policy allows it
        (checked, "POST /v1/publish HTTP/1.1\r\nContent-Length: 0\r\n"),  # a page cannot send it without Origin
        (unchecked, "GET /v1/stream HTTP/1.1\r\n"),
    ):
        _, _, head = await site.request(f"{request_}Host: evil.example\r\n\r\n")
        assert head.split()[1] == b"400"
