"""Attacks: what an attacker sends, the CPU that its control burns, and the figures of an attack."""

from __future__ import annotations

import socket
import time
from threading import Thread
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK, BadMessage
from migratory_protocol.frames import (
    DeflatedReceived,
    FrameParser,
    MessageReceived,
    PingReceived,
    ProtocolError,
    inflate_message,
)  # fmt: skip

from benchmarks import attacker, ipc
from benchmarks.benchmark import TINY
from benchmarks.measurements import attack

LIMIT = 2**21  # bytes of a message


@pytest.fixture
def server() -> Any:
    """A server that reads what attackers send, and closes a connection after 10,000 bytes."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    seen = SimpleNamespace(address=listening.getsockname(), sources=[], data=bytearray(), closed=0)

    def serve() -> None:
        connections: list[socket.socket] = []
        listening.settimeout(0.002)
        while listening.fileno() >= 0:
            try:
                connection, source = listening.accept()
                connection.setblocking(False)
                connections.append(connection)
                seen.sources.append(source[0])
            except TimeoutError:
                pass
            except OSError:
                break
            for connection in list(connections):
                try:
                    data = connection.recv(20_000)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                seen.data += data
                if not data or len(data) > 10_000:
                    seen.closed += bool(data)
                    connection.close()
                    connections.remove(connection)
        for connection in connections:
            connection.close()

    thread = Thread(target=serve)
    thread.start()
    yield seen
    listening.close()
    thread.join()


@pytest.mark.parametrize("kind", get_args(ipc.AttackKind))
def test_attack_has_its_connections_and_messages(kind: ipc.AttackKind, server: Any) -> None:
    setup = attack.attacker_setup(TINY, kind, server.address)
    report = attacker.Attacker(setup).attack(0.6)
    assert set(server.sources) == {attack.SOURCE}
    assert 0.5 * report.opened <= len(server.sources) <= report.opened
    assert server.data.startswith(b"\x16\x03" if "TLS" in kind else b"GET /ws HTTP/1.1\r\n")
    assert (report.sent > 0) == (kind not in ("connects", "hostile frames"))
    assert report.user + report.system > 0
    if kind == "hostile frames":
        assert report.closed > 0  # and their places are taken again
    if kind == "connects":
        assert report.opened > setup.connections


def test_burning_takes_the_cpu_time_that_it_is_given() -> None:
    begin = time.monotonic()
    report = attacker.burn(ipc.Burn(cpu=0.03, seconds=1.0))  # little, because the machine may be busy
    assert 0.015 <= report.user <= 0.1
    assert time.monotonic() - begin >= 1.0


def decoded(frame: bytes) -> list[Any]:
    (event,) = FrameParser("server", LIMIT).feed(frame)
    assert isinstance(event, MessageReceived)
    return list(MSGPACK.decode_client(event.data))


def test_floods_are_valid_messages() -> None:
    first, second = (decoded(attacker._publish_flood(3, count)) for count in (3, 23))
    assert [message.id for message in first] == [1] * 50
    assert [message.id for message in second] == [2] * 50
    assert len({message.topic for message in first}) == 50
    subscribe, unsubscribe = decoded(attacker._subscribe_flood(3, 0))
    assert isinstance(subscribe, wire.Subscribe)
    assert [request.topic for request in subscribe.topics] == unsubscribe.topics


def test_hostile_frames_are_refused_or_many() -> None:
    harmless = []
    for number, frame in enumerate(attacker.hostile_frames()):
        parser = FrameParser("server", LIMIT, deflate=True, inflate=False)
        try:
            events = parser.feed(frame)
            for event in events:
                message = inflate_message(event, LIMIT) if isinstance(event, DeflatedReceived) else event
                if isinstance(message, MessageReceived):
                    MSGPACK.decode_client(message.data)
        except (ProtocolError, BadMessage):
            continue
        pings = sum(isinstance(event, PingReceived) for event in events)
        if pings < 1000 and parser.buffered_bytes < 10_000 and len(frame) < 10_000:
            harmless.append(number)
    assert harmless == []


def attack_round(p99: float, **counts: Any) -> attack.AttackRound:
    result: Any = SimpleNamespace(median_ms=1.0, p99_ms=p99, user=0.5, system=0.5)
    return attack.AttackRound(result=result, attacker=ipc.AttackReport(user=0.25), disconnected=0, **counts)


PAGE = """\
migratory_client_bytes{kind="queues"} %d
migratory_client_bytes_limit{kind="queues"} 1000
migratory_loop_longest_stall_seconds 0.5
"""


def test_figures_of_an_attack() -> None:
    peaks = attack.MemoryPeaks()
    peaks.add(100 * 2**20, 0, PAGE % 900)
    peaks.add(90 * 2**20, 0, PAGE % 100)
    lost = attack_round(30.0)
    lost.disconnected = 2
    rounds, control = [attack_round(10.0), lost, attack_round(20.0)], [attack_round(10.0)] * 3
    figures = attack.attack_summary(rounds, control, peaks, cache=40 * 2**20, clients=0)
    assert figures["p99_ratio"].values == [1.0, 3.0, 2.0]
    assert (figures["disconnected"], figures["control_disconnected"]) == (2, 0)
    assert (figures["memory_mib"], figures["memory_cap_mib"]) == (100.0, 100)
    assert figures["memory_ratio"] == pytest.approx(1.0, abs=0.01)
    assert figures["client_bytes"] == {"queues": {"used": 900.0, "limit": 1000.0}}
    whole = attack.summary({"connects": figures}, incomplete=False)
    assert (whole["worst_p99_ratio"], whole["others_disconnected"]) == (2.0, 2)
    assert attack.summary({"connects": figures}, incomplete=True)["worst_p99_ratio"] is None
