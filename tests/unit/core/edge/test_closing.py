"""The end of a connection: heartbeat, closing handshake, lost socket. After its end the edge sends nothing on it."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Close, Lost, Paused, Received, Resumed, Send
from migratory_broker.core.edge.http import Formats
from migratory_broker.core.edge.state import ClientConnection, EdgeTopic, State
from migratory_broker.core.logic.events import PublishAnswers, PublishRequest, Tick
from migratory_protocol import frames
from migratory_protocol.messages import (
    Ack,
    Bye,
    Ping,
    Pong,
    Publish,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, Bench, publication


class TestHeartbeat:
    def test_silent_client_is_pinged_once_then_dead(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        reader = bench.client("mute")
        reader.subscribe_live("t")
        bench.wait(9.9)
        assert reader.controls == []
        bench.wait(0.3)
        assert reader.controls == [frames.PingReceived(b"")]
        bench.wait(9.5)
        assert reader.socket == "open"
        bench.wait(0.5)
        assert reader.socket == "aborted"  # within two intervals and two ticks
        assert reader.controls == [frames.PingReceived(b"")]
        assert bench.edge.closed == {"heartbeat": 1}
        assert (bench.edge.clients, bench.edge.subscriptions) == (0, 0)
        (note,) = bench.notes
        assert note.event == "dead_client"
        assert note.fields["client"] == "mute"

    def test_any_byte_resets_the_heartbeat(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        reader = bench.client()
        for _ in range(10):
            bench.wait(9.0)
            reader.send_bytes(frames.pong_frame(b"", MASK))
        assert reader.controls == []
        assert reader.socket == "open"

    def test_pong_resets_the_heartbeat(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        reader = bench.client()
        for pings in range(1, 6):
            bench.wait(10.3)
            assert len(reader.controls) == pings
            reader.send_bytes(frames.pong_frame(b"", MASK))

    def test_short_heartbeat_interval_is_kept_when_others_are_heard(self) -> None:
        """With a heartbeat of 0.1 s, a client that was silent for three intervals is aborted, and one that was heard
        a little later is not, although connections that are heard at nearly the same time share one timestamp."""
        bench = Bench(EdgeConfig(heartbeat=0.1))
        first, second = bench.client(), bench.client()
        begin = bench.now
        for passed, heard in ((0.15, second), (0.24, first), (0.3, None), (0.41, None)):
            bench.now = begin + passed
            if heard is None:
                bench.step(Tick())
            else:
                heard.send_bytes(frames.pong_frame(b"", MASK))
        assert (first.socket, second.socket) == ("open", "aborted")

    def test_draining_transport_resets_the_heartbeat(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        reader, stuck = bench.client(), bench.client()
        stuck.pause()
        for _ in range(4):
            reader.pause()
            bench.wait(9.0)
            reader.resume()
        assert reader.socket == "open"
        assert stuck.socket == "aborted"
        assert bench.edge.status()["paused"] == 0

    def test_stopped_process_does_not_end_its_clients(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        bench.wait(0.2)
        reader = bench.client()
        bench.now += 300.0
        bench.step(Tick())
        assert reader.socket == "open"
        bench.wait(10.3)
        assert reader.controls == [frames.PingReceived(b"")]
        bench.wait(10.1)
        assert reader.socket == "aborted"


class TestClosing:
    def test_close_frame_of_client_is_answered(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t")
        effects = reader.send_bytes(frames.close_frame(1000, "enough", MASK))
        assert [type(effect) for effect in effects if isinstance(effect, Send | Close)] == [Send, Close]
        assert (reader.close_code, reader.socket) == (1000, "closed")
        assert bench.edge.closed == {"client": 1}
        assert bench.edge.topics == 0

    def test_close_frame_without_code_is_answered_without_code(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send_bytes(frames.close_frame(None, "", MASK))
        assert reader.writes[-1] == b"\x88\x00"

    def test_bye_begins_the_closing_handshake(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(Bye(), Ping())
        assert (reader.close_code, reader.socket) == (1000, "open")
        assert reader.take(Pong) == []
        reader.send(Ping())
        reader.send_bytes(frames.ping_frame(b"", MASK))
        reader.send_bytes(frames.close_frame(1000, "", MASK))
        assert reader.socket == "closed"
        assert bench.edge.closed == {"bye": 1}

    def test_messages_behind_bye_in_its_frame_are_ignored(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.send_text('[{"op":"ping"},{"op":"bye"},{"op":"ping"}]')
        assert reader.take(Pong) == [Pong()]
        assert reader.close_code == 1000

    def test_garbage_behind_bye_is_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(Bye())
        reader.send_bytes(b"\xff\xff\xff")
        assert (reader.close_code, bench.edge.closed) == (1000, {"bye": 1})

    def test_unanswered_closing_handshake_is_aborted(self) -> None:
        bench = Bench(EdgeConfig(closing=2.0))
        reader = bench.client()
        reader.send(Bye())
        bench.wait(1.9)
        assert reader.socket == "open"
        bench.wait(0.3)
        assert reader.socket == "aborted"

    def test_lost_socket_ends_the_connection(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t")
        reader.pause()
        bench.fanout("t", publication(1))
        reader.lose_socket()
        assert bench.edge.closed == {"lost": 1}
        status = bench.edge.status()
        assert (status["connections"], status["queue_bytes"], status["paused"], bench.edge.topics) == (0, 0, 0, 0)

    def test_connection_lost_while_closing_counts_once(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(Bye())
        reader.lose_socket()
        assert bench.edge.closed == {"bye": 1}
        bench.wait(40.0)
        assert reader.socket == "open"  # no further effect

    def test_events_for_a_gone_connection_are_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.lose_socket()
        late = PublishAnswers(0, reader.number, [Ack("t", "p", 1, Position(1, 1))])
        for event in (Received(reader.number, b"\x00"), Paused(1), Resumed(1), Lost(1), late):
            assert bench.step(event) == []

    def test_pause_of_a_closing_connection_is_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(Publish("t", b"x", 1, "p", 1, 1), Bye())
        request = bench.request_of(PublishRequest)
        reader.pause()
        reader.resume()
        bench.step(PublishAnswers(0, request.reference, [Ack("t", "p", 1, Position(1, 1))]))
        assert reader.received == []

    def test_repeated_pause_and_resume_are_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.resume()
        reader.pause()
        reader.pause()
        reader.send(Ping())
        assert reader.received == []
        reader.resume()
        assert reader.take(Pong) == [Pong()]


def test_closed_connection_is_not_added_to_an_audience() -> None:
    connection = ClientConnection(1, Formats(1).get("json", False), "127.0.0.1:1", 0.0)
    connection.state = State.CLOSING
    with pytest.raises(AssertionError, match="must not be added to an audience"):
        EdgeTopic("t").add_live(connection)
