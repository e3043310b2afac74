"""The life of a connection: welcome and server lists, handshake limit, version, admission, drain, and frames cut
anywhere. test_closing.py tests its end."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Send
from migratory_broker.core.logic.events import Admission, DrainClients, ServerList
from migratory_protocol import frames
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Bye,
    Connect,
    Drain,
    Error,
    Limits,
    Ping,
    Pong,
    Publish,
    Server,
    Servers,
    Subscribe,
    TopicRequest,
    Welcome,
)
from migratory_testing.edges import MASK, Bench

HERE = (Server("ws://a/ws", 100), Server("ws://b/ws", 50))


def test_welcome_has_the_limits_in_force() -> None:
    bench = Bench(
        EdgeConfig(
            cluster="quotes",
            broker="quotes-broker-1",
            incarnation=7,
            heartbeat=4.0,
            duplicate_window=90.0,
            max_payload=99,
        )
    )
    bench.step(ServerList(HERE))
    for wire in ("json", "msgpack"):
        reader = bench.open(wire)
        reader.send(Connect(client="me"))
        assert reader.received == [
            Welcome(1, "quotes", "quotes-broker-1", 7, list(HERE), 4.0, Limits(99, 255, 1000, 1_048_576), 90.0)
        ]
    assert bench.edge.clients == 2
    assert bench.edge.status()["connections"] == 2


def test_server_list_is_sent_to_open_connections_and_in_later_welcomes() -> None:
    bench = Bench()
    old, opening = bench.client(), bench.open()
    bench.step(ServerList(HERE))
    assert old.received == [Servers(list(HERE))]
    opening.send(Connect())
    (welcome,) = opening.take(Welcome)
    assert welcome.servers == list(HERE)


def test_frames_cut_anywhere_are_read() -> None:
    bench = Bench()
    reader = bench.open()
    data = reader.frame(Connect(client="me")) + reader.frame(Ping())
    for byte in data:
        reader.send_bytes(bytes((byte,)))
    assert [type(message) for message in reader.received] == [Welcome, Pong]
    assert len(reader.writes) == 2


@pytest.mark.parametrize(
    "left_behind",
    [
        frames.close_frame(1000, "bye", MASK),
        b"\xff\x80",  # reserved bits: the connection ends
        frames.ping_frame(b"abc", MASK)[:5],
        frames.encode_frame(frames.BINARY, b"abc", MASK, fin=False),
    ],
    ids=["closed", "broken", "half a frame", "half a message"],
)
def test_incomplete_frame_of_one_client_does_not_affect_another(left_behind: bytes) -> None:
    # connections between two frames share a parser
    bench = Bench()
    first, second = bench.client(), bench.client()
    first.send_bytes(left_behind)
    second.send(Ping())
    later = bench.client()
    later.send(Ping())
    assert [len(reader.take(Pong)) for reader in (second, later)] == [1, 1]


def test_replies_of_one_turn_are_one_write() -> None:
    bench = Bench()
    reader = bench.client()
    effects = reader.send(Ping(), Ping(), Ping())
    assert [type(effect) for effect in effects] == [Send]
    assert reader.take(Pong) == [Pong()] * 3


def test_websocket_ping_is_answered_in_order() -> None:
    bench = Bench()
    reader = bench.client()
    reader.send_bytes(frames.ping_frame(b"k", MASK) + reader.frame(Ping()))
    assert reader.controls == [frames.PongReceived(b"k")]
    assert reader.writes[-1].startswith(b"\x8a\x01k")


class TestHandshake:
    def test_handshake_limit_counts_from_accept(self) -> None:
        bench = Bench(EdgeConfig(handshake=10.0))
        slow = bench.open(opened=bench.now - 6.0)
        quick = bench.open(opened=bench.now - 6.0)
        quick.send(Connect())
        bench.wait(3.9)
        assert slow.close_code is None
        bench.wait(0.3)
        assert slow.close_code == CloseCode.TRY_ANOTHER
        assert "within 10 s" in slow.close_reason
        assert quick.close_code is None
        assert bench.edge.closed == {"handshake": 1}
        bench.wait(2.2)
        assert slow.socket == "aborted"
        assert bench.edge.status()["connections"] == 1

    def test_handshake_limit_is_not_prolonged_by_pings(self) -> None:
        bench = Bench(EdgeConfig(handshake=1.0))
        reader = bench.open()
        for _ in range(4):
            bench.wait(0.3)
            if reader.close_code is None:
                reader.send_bytes(frames.ping_frame(b"", MASK))
        assert reader.close_code == CloseCode.TRY_ANOTHER

    @pytest.mark.parametrize("message", [Ping(), Bye(), Subscribe(1, [TopicRequest("t")]), Publish("t", b"x")])
    def test_other_message_before_connect_is_refused(self, message: Ping | Bye | Subscribe | Publish) -> None:
        bench = Bench()
        reader = bench.open()
        reader.send(message, Connect())
        (error,) = reader.take(Error)
        assert (error.code, error.closes) == ("not_connected", True)
        assert reader.close_code == CloseCode.BAD_MESSAGE
        assert bench.requests == []
        assert bench.edge.clients == 0

    def test_unsupported_version_is_refused_and_named(self) -> None:
        bench = Bench()
        reader = bench.open()
        reader.send(Connect(version=2))
        (error,) = reader.take(Error)
        assert error.code == "unsupported_version"
        assert "version 2" in error.text
        assert reader.close_code == CloseCode.BAD_MESSAGE

    def test_long_client_name_is_refused(self) -> None:
        bench = Bench(EdgeConfig(max_name=4))
        bench.client("abcd")
        reader = bench.open()
        reader.send(Connect(client="é" * 3))
        assert reader.take(Error)[0].closes
        assert reader.close_code == CloseCode.BAD_MESSAGE

    def test_bad_message_before_connect_closes(self) -> None:
        bench = Bench()
        reader = bench.open("json")
        reader.send_text('{"op": "conect"}')
        (error,) = reader.take(Error)
        assert error.code == "unknown_op"
        assert reader.close_code == CloseCode.BAD_MESSAGE


class TestAdmission:
    @pytest.mark.parametrize(
        ("admission", "code"),
        [
            (Admission(False, "learning"), CloseCode.TRY_ANOTHER),
            (Admission(False, "draining"), CloseCode.TRY_ANOTHER),
            (Admission(False), CloseCode.TRY_ANOTHER),
            (Admission(False, "fenced"), CloseCode.FENCED),
            (Admission(False, "stopping"), CloseCode.RESTARTING),
            (Admission(False, "drained"), CloseCode.DRAINING),
        ],
    )
    def test_new_client_is_refused_when_closed(self, admission: Admission, code: CloseCode) -> None:
        bench = Bench(open=False)
        bench.step(admission)
        reader = bench.open()
        assert reader.close_code == code
        assert bench.edge.closed == {"refused": 1}
        assert [(o.metric, o.label) for o in bench.observed] == [("migratory_closed_total", "refused")]

    def test_edge_begins_closed(self) -> None:
        bench = Bench(open=False)
        assert bench.open().close_code == CloseCode.TRY_ANOTHER
        assert bench.edge.status()["admission"] == "learning"

    def test_opening_connection_is_refused_when_closed(self) -> None:
        bench = Bench()
        reader = bench.open()
        bench.step(Admission(False, "learning"))
        assert reader.close_code is None
        reader.send(Connect())
        assert reader.close_code == CloseCode.TRY_ANOTHER
        assert bench.edge.clients == 0

    def test_connected_client_stays_while_learning(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.step(Admission(False, "learning"))
        reader.send(Ping())
        assert reader.take(Pong)

    @pytest.mark.parametrize(("reason", "code"), [("fenced", CloseCode.FENCED), ("stopping", CloseCode.RESTARTING)])
    def test_connected_clients_are_closed_when_fenced_or_stopping(self, reason: str, code: CloseCode) -> None:
        bench = Bench()
        first, second, opening = bench.client(), bench.client(), bench.open()
        first.subscribe_live("t")
        bench.step(Admission(False, reason))  # type: ignore[arg-type]
        assert {reader.close_code for reader in (first, second, opening)} == {code}
        assert bench.edge.closed == {reason: 3}
        assert bench.notes[0].fields == {"reason": reason, "clients": 3}
        bench.step(Admission(False, reason))  # type: ignore[arg-type]
        assert len(bench.notes) == 1
        assert (bench.edge.clients, bench.edge.subscriptions, bench.edge.topics) == (0, 0, 0)

    def test_client_over_the_limit_is_refused(self) -> None:
        bench = Bench(EdgeConfig(max_clients=2))
        first, second, third = bench.client(), bench.client(), bench.open()
        assert (first.close_code, second.close_code, third.close_code) == (None, None, CloseCode.TRY_ANOTHER)


class TestDrain:
    def test_drain_notifies_clients_then_closes_them(self) -> None:
        bench = Bench()
        staying, leaving = bench.client(), bench.client()
        bench.step(DrainClients(5.0, HERE))
        assert staying.take(Drain) == [Drain(5.0, list(HERE))]
        assert bench.open().close_code == CloseCode.TRY_ANOTHER
        leaving.send(Bye())
        bench.wait(4.9)
        assert staying.close_code is None
        bench.wait(0.2)
        assert staying.close_code == CloseCode.DRAINING
        assert bench.edge.closed == {"refused": 1, "bye": 1, "draining": 1}
        assert bench.edge.status()["draining"] is True

    @pytest.mark.parametrize("announced", [True, False])
    def test_drain_ends_early_when_the_broker_is_drained(self, announced: bool) -> None:
        bench = Bench()
        staying, opening = bench.client(), bench.open()
        if announced:
            bench.step(DrainClients(5.0, HERE))
        bench.step(Admission(False, "drained"))
        assert {staying.close_code, opening.close_code} == {CloseCode.DRAINING}
        bench.wait(5.1)
        assert bench.edge.closed == {"draining": 2}
        assert [note.fields for note in bench.notes if note.event == "clients_closed"] == [
            {"reason": "draining", "clients": 2}
        ]
