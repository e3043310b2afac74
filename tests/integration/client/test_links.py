"""Connections of the asyncio client over real sockets: absent, silent, draining and faulty brokers; tokens."""

from __future__ import annotations

import asyncio
import random
import socket
import time

import pytest
import uvloop
from migratory_client import (
    Client,
    Closed,
    ConnectError,
    Position,
    Settings,
)
from migratory_client.core import events as ev
from migratory_protocol import messages as wire
from migratory_testing.fakebroker import QUICK, FakeBroker, Memory, take
from migratory_testing.waiting import until


async def test_connect_error_names_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        client = Client([f"ws://127.0.0.1:{taken.getsockname()[1]}/ws"], open_timeout=0.3)
        with pytest.raises(ConnectError, match=r"no broker within 0\.3 s: ws://127"):
            await client.open()
        with pytest.raises(Closed):
            client.submit("t", b"")


async def test_open_can_be_cancelled() -> None:
    async with FakeBroker() as broker:
        broker.mute = True
        client = Client([broker.url], open_timeout=None)
        opening = asyncio.create_task(client.open())
        await until(lambda: broker.live, "dialled")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: not broker.live, "hung up")


async def test_silent_network_is_detected_within_two_heartbeats() -> None:
    """Pitfall 11: a client whose broker keeps the connection open and sends nothing gives the link up within two
    heartbeats, connects to the other broker, and closes the dead link."""
    memory = Memory()
    async with FakeBroker(memory, heartbeat=0.3) as first, FakeBroker(memory, name="fake-1", heartbeat=0.3) as second:
        statuses: list[tuple[float, object]] = []

        def note(status: object) -> None:
            statuses.append((time.monotonic(), status))

        async with Client([first.url, second.url], settings=QUICK, on_status=note):
            here, there = (first, second) if first.live else (second, first)
            here.mute = True
            muted = time.monotonic()
            await until(lambda: there.live, "moved")
            (down,) = [moment for moment, status in statuses if isinstance(status, ev.LinkDown)]
            assert down - muted <= 0.6 + 0.2
            await until(lambda: not here.live, "the dead link is closed")


def test_dead_link_is_ended_on_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_silent_network_is_detected_within_two_heartbeats())


async def test_drain_moves_the_client_without_a_break() -> None:
    memory = Memory()
    async with (
        FakeBroker(memory) as first,
        FakeBroker(memory, name="fake-1") as second,
        Client([first.url, second.url], settings=QUICK) as client,
    ):
        stream = client.subscribe("t")
        await until(lambda: [c for b in (first, second) for c in b.live if c.topics], "subscribed")
        here, there = (first, second) if first.live else (second, first)
        here.publish("t", b"1")
        here.live[0].send(wire.Drain(0.2, [wire.Server(there.url)]))
        await until(lambda: there.live and there.live[0].topics, "arrived")
        there.publish("t", b"2")
        assert await take(stream, 2) == [b"1", b"2"]
        await until(lambda: not here.live, "left")
        assert here.connections[0].received[-1] == wire.Bye()
        assert here.connections[0].connection.close_code == 1000
        assert client.reconnects == 1


async def test_tokens_are_fetched_for_every_connect(broker: FakeBroker) -> None:
    tokens = iter(["old", "new"])

    async def fetch() -> str:
        return next(tokens)

    async with Client([broker.url], token=fetch, settings=QUICK) as client:
        await broker.live[0].close(4002, "token expired")
        await until(lambda: len(broker.live) == 1 and client.connected, "connected again")
        greetings = [connection.of(wire.Connect)[0] for connection in broker.connections]
        assert [greeting.token for greeting in greetings] == ["old", "new"]


async def test_failed_and_refused_tokens_are_reported() -> None:
    async with FakeBroker() as broker:
        broker.refuses_token = lambda token: token != "right"

        def fail() -> str:
            raise OSError("the token service is away")

        with pytest.raises(ConnectError, match="the token service is away"):
            await Client([broker.url], token=fail, open_timeout=0.3).open()
        with pytest.raises(ConnectError, match="4001"):
            await Client([broker.url], token="wrong", open_timeout=0.3).open()
        async with Client([broker.url], token="right"):
            pass


async def test_close_during_a_token_request_leaves_no_task() -> None:
    async with FakeBroker() as broker:

        async def never() -> str:
            await asyncio.Event().wait()
            return ""

        with pytest.raises(ConnectError):
            await Client([broker.url], token=never, open_timeout=0.2).open()


async def test_server_with_another_subprotocol_is_rejected() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="503"):
            await Client([f"ws://127.0.0.1:{port}/ws"], open_timeout=0.3).open()


@pytest.mark.parametrize("frame", ["text", b"\xc1"])
async def test_broker_that_sends_invalid_messages_is_left(broker: FakeBroker, frame: str | bytes) -> None:
    problems: list[ev.LinkDown] = []

    def note(status: object) -> None:
        if isinstance(status, ev.LinkDown):
            problems.append(status)

    async with Client([broker.url], settings=QUICK, on_status=note) as client:
        await broker.live[0].connection.send(frame)
        await until(lambda: len(broker.connections) == 2 and client.connected, "connected again")
        assert "the broker sent" in problems[0].reason


async def test_exhausted_list_is_retried_until_a_server_starts() -> None:
    """A client whose list has 50 servers that refuse connections and one that accepts them connects to that one,
    also after it was away for three rounds through the list (nats.rb#87)."""
    broker = FakeBroker()
    await broker.start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = [f"ws://127.0.0.1:{taken.getsockname()[1]}/{number}" for number in range(50)]
        servers = [*dead, f" {broker.url}/ ", broker.url, "ws://:0"]
        random.Random(7).shuffle(servers)
        problems: list[object] = []
        settings = Settings(first_retry=0.01, backoff_cap=0.5)
        async with Client(servers, settings=settings, on_status=problems.append) as client:
            assert client.connected
            bad = [item for item in problems if isinstance(item, ev.Problem) and item.code == "bad_server"]
            assert len(bad) == 1
            stream = client.subscribe("t")
            await until(lambda: broker.live[0].topics, "subscribed")
            await client.publish("t", b"1")
            assert await take(stream, 1) == [b"1"]
            await broker.stop()
            await until(lambda: client._core.servers.rounds >= 3, "three rounds", limit=20)
            broker.memory.append("t", b"2")
            await broker.start()
            assert await take(stream, 1) == [b"2"]
    await broker.stop()


async def test_closed_client_can_be_opened_again(broker: FakeBroker) -> None:
    client = Client([broker.url])
    for number in range(3):
        async with client:
            await client.open()
            assert await client.publish("t", b"") == Position(1, number + 1)
    ids = [item.id for connection in broker.connections for item in connection.of(wire.Publish)]
    assert ids == [1, 2, 3]
