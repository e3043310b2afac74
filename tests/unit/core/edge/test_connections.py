"""The life of a connection: handshake limit, version, admission, heartbeat, both halves of the closing handshake."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.authorizer import Grant, Refusal
from migratory_broker.core.edge.connections import nowhere
from migratory_broker.core.edge.events import Close, Lost, Paused, Received, Resumed, Send
from migratory_broker.core.logic.events import Admission, DrainClients, PublishAnswer, PublishRequest, ServerList, Tick
from migratory_protocol import frames
from migratory_protocol.closecodes import CloseCode
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
    Subscribed,
    TopicRequest,
    Welcome,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, Bench, publication

HERE = (Server("ws://a/ws", 100), Server("ws://b/ws", 50))


def test_welcome_says_what_is_in_force() -> None:
    bench = Bench(EdgeConfig(cluster="quotes", broker="quotes-broker-1", incarnation=7, heartbeat=4.0, max_payload=99))
    bench.step(ServerList(HERE))
    for wire in ("json", "msgpack"):
        reader = bench.open(wire)  # type: ignore[arg-type]
        reader.say(Connect(client="me"))
        assert reader.received == [
            Welcome(1, "quotes", "quotes-broker-1", 7, list(HERE), 4.0, Limits(99, 255, 1000, 1_048_576))
        ]
    assert bench.edge.clients == 2
    assert bench.edge.status()["connections"] == 2


def test_server_list_goes_to_open_connections_and_into_later_welcomes() -> None:
    bench = Bench()
    old, opening = bench.client(), bench.open()
    bench.step(ServerList(HERE))
    assert old.received == [Servers(list(HERE))]
    opening.say(Connect())
    (welcome,) = opening.take(Welcome)
    assert welcome.servers == list(HERE)


def test_frames_may_be_cut_anywhere() -> None:
    bench = Bench()
    reader = bench.open()
    data = reader.frame(Connect(client="me")) + reader.frame(Ping())
    for byte in data:
        reader.raw(bytes((byte,)))
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
def test_what_one_client_leaves_half_done_or_ended_reaches_no_other(left_behind: bytes) -> None:
    # connections between two frames share a parser
    bench = Bench()
    first, second = bench.client(), bench.client()
    first.raw(left_behind)
    second.say(Ping())
    later = bench.client()
    later.say(Ping())
    assert [len(reader.take(Pong)) for reader in (second, later)] == [1, 1]


def test_replies_of_one_turn_leave_in_one_write() -> None:
    bench = Bench()
    reader = bench.client()
    effects = reader.say(Ping(), Ping(), Ping())
    assert [type(effect) for effect in effects] == [Send]
    assert reader.take(Pong) == [Pong()] * 3


def test_a_websocket_ping_is_answered_in_its_place() -> None:
    bench = Bench()
    reader = bench.client()
    reader.raw(frames.ping_frame(b"k", MASK) + reader.frame(Ping()))
    assert reader.controls == [frames.PongReceived(b"k")]
    assert reader.writes[-1].startswith(b"\x8a\x01k")


class TestHandshake:
    def test_the_limit_counts_from_the_accept(self) -> None:
        bench = Bench(EdgeConfig(handshake=10.0))
        slow = bench.open(opened=bench.now - 6.0)
        quick = bench.open(opened=bench.now - 6.0)
        quick.say(Connect())
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

    def test_pings_do_not_prolong_it(self) -> None:
        bench = Bench(EdgeConfig(handshake=1.0))
        reader = bench.open()
        for _ in range(4):
            bench.wait(0.3)
            if reader.close_code is None:
                reader.raw(frames.ping_frame(b"", MASK))
        assert reader.close_code == CloseCode.TRY_ANOTHER

    @pytest.mark.parametrize("message", [Ping(), Bye(), Subscribe(1, [TopicRequest("t")]), Publish("t", b"x")])
    def test_connect_comes_first(self, message: Ping | Bye | Subscribe | Publish) -> None:
        bench = Bench()
        reader = bench.open()
        reader.say(message, Connect())
        (error,) = reader.take(Error)
        assert (error.code, error.closes) == ("not_connected", True)
        assert reader.close_code == CloseCode.BAD_MESSAGE
        assert bench.requests == []
        assert bench.edge.clients == 0

    def test_another_version_is_refused_and_named(self) -> None:
        bench = Bench()
        reader = bench.open()
        reader.say(Connect(version=2))
        (error,) = reader.take(Error)
        assert error.code == "unsupported_version"
        assert "version 2" in error.text
        assert reader.close_code == CloseCode.BAD_MESSAGE

    def test_a_giant_name_is_refused(self) -> None:
        bench = Bench(EdgeConfig(max_name=4))
        bench.client("abcd")
        reader = bench.open()
        reader.say(Connect(client="é" * 3))
        assert reader.take(Error)[0].closes
        assert reader.close_code == CloseCode.BAD_MESSAGE

    def test_garbage_instead_of_connect_closes(self) -> None:
        bench = Bench()
        reader = bench.open("json")
        reader.text('{"op": "conect"}')
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
        ],
    )
    def test_new_ones_are_refused(self, admission: Admission, code: CloseCode) -> None:
        bench = Bench(open=False)
        bench.step(admission)
        reader = bench.open()
        assert reader.close_code == code
        assert bench.edge.closed == {"refused": 1}
        assert [(o.metric, o.label) for o in bench.observed] == [("migratory_closed_total", "refused")]

    def test_a_broker_begins_closed(self) -> None:
        bench = Bench(open=False)
        assert bench.open().close_code == CloseCode.TRY_ANOTHER
        assert bench.edge.status()["admission"] == "learning"

    def test_those_on_their_way_meet_it_too(self) -> None:
        bench = Bench()
        reader = bench.open()
        bench.step(Admission(False, "learning"))
        assert reader.close_code is None
        reader.say(Connect())
        assert reader.close_code == CloseCode.TRY_ANOTHER
        assert bench.edge.clients == 0

    def test_learning_keeps_the_connected(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.step(Admission(False, "learning"))
        reader.say(Ping())
        assert reader.take(Pong)

    @pytest.mark.parametrize(("reason", "code"), [("fenced", CloseCode.FENCED), ("stopping", CloseCode.RESTARTING)])
    def test_fenced_and_stopping_end_the_connected(self, reason: str, code: CloseCode) -> None:
        bench = Bench()
        one, other, opening = bench.client(), bench.client(), bench.open()
        one.live("t")
        bench.step(Admission(False, reason))  # type: ignore[arg-type]
        assert {reader.close_code for reader in (one, other, opening)} == {code}
        assert bench.edge.closed == {reason: 3}
        assert bench.notes[0].fields == {"reason": reason, "clients": 3}
        bench.step(Admission(False, reason))  # type: ignore[arg-type]
        assert len(bench.notes) == 1
        assert (bench.edge.clients, bench.edge.subscriptions, bench.edge.topics) == (0, 0, 0)

    def test_one_more_than_the_limit_goes_elsewhere(self) -> None:
        bench = Bench(EdgeConfig(max_clients=2))
        first, second, third = bench.client(), bench.client(), bench.open()
        assert (first.close_code, second.close_code, third.close_code) == (None, None, CloseCode.TRY_ANOTHER)


class TestDrain:
    def test_told_then_closed(self) -> None:
        bench = Bench()
        staying, leaving = bench.client(), bench.client()
        bench.step(DrainClients(5.0, HERE))
        assert staying.take(Drain) == [Drain(5.0, list(HERE))]
        assert bench.open().close_code == CloseCode.TRY_ANOTHER
        leaving.say(Bye())
        bench.wait(4.9)
        assert staying.close_code is None
        bench.wait(0.2)
        assert staying.close_code == CloseCode.DRAINING
        assert bench.edge.closed == {"refused": 1, "bye": 1, "draining": 1}
        assert bench.edge.status()["draining"] is True


class TestHeartbeat:
    def test_a_silent_client_is_pinged_once_then_dead(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        reader = bench.client("mute")
        reader.live("t")
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

    def test_any_byte_is_a_sign_of_life(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        reader = bench.client()
        for _ in range(10):
            bench.wait(9.0)
            reader.raw(frames.pong_frame(b"", MASK))
        assert reader.controls == []
        assert reader.socket == "open"

    def test_a_pong_answers_the_ping(self) -> None:
        bench = Bench(EdgeConfig(heartbeat=10.0))
        reader = bench.client()
        for pings in range(1, 6):
            bench.wait(10.3)
            assert len(reader.controls) == pings
            reader.raw(frames.pong_frame(b"", MASK))

    def test_a_full_transport_that_empties_is_a_sign_of_life(self) -> None:
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

    def test_clients_do_not_pay_for_a_process_that_stood_still(self) -> None:
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
    def test_the_client_closes(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.live("t")
        effects = reader.raw(frames.close_frame(1000, "enough", MASK))
        assert [type(effect) for effect in effects if isinstance(effect, Send | Close)] == [Send, Close]
        assert (reader.close_code, reader.socket) == (1000, "closed")
        assert bench.edge.closed == {"client": 1}
        assert bench.edge.topics == 0

    def test_a_close_frame_without_a_code_is_answered_alike(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.raw(frames.close_frame(None, "", MASK))
        assert reader.writes[-1] == b"\x88\x00"

    def test_bye_begins_the_closing_handshake(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.say(Bye(), Ping())
        assert (reader.close_code, reader.socket) == (1000, "open")
        assert reader.take(Pong) == []
        reader.say(Ping())
        reader.raw(frames.ping_frame(b"", MASK))
        reader.raw(frames.close_frame(1000, "", MASK))
        assert reader.socket == "closed"
        assert bench.edge.closed == {"bye": 1}

    def test_bye_ends_its_own_frame(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.text('[{"op":"ping"},{"op":"bye"},{"op":"ping"}]')
        assert reader.take(Pong) == [Pong()]
        assert reader.close_code == 1000

    def test_garbage_behind_bye_changes_nothing(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.say(Bye())
        reader.raw(b"\xff\xff\xff")
        assert (reader.close_code, bench.edge.closed) == (1000, {"bye": 1})

    def test_a_peer_that_never_answers_is_cut(self) -> None:
        bench = Bench(EdgeConfig(closing=2.0))
        reader = bench.client()
        reader.say(Bye())
        bench.wait(1.9)
        assert reader.socket == "open"
        bench.wait(0.3)
        assert reader.socket == "aborted"

    def test_a_lost_socket_ends_everything(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.live("t")
        reader.pause()
        bench.fan("t", publication(1))
        reader.lose()
        assert bench.edge.closed == {"lost": 1}
        status = bench.edge.status()
        assert (status["connections"], status["queue_bytes"], status["paused"], bench.edge.topics) == (0, 0, 0, 0)

    def test_lost_after_our_close_frame_counts_once(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.say(Bye())
        reader.lose()
        assert bench.edge.closed == {"bye": 1}
        bench.wait(40.0)
        assert reader.socket == "open"  # nothing was said about it again

    def test_events_for_a_connection_that_is_gone_mean_nothing(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.lose()
        late = PublishAnswer(0, reader.number, "t", "p", 1, position=Position(1, 1))
        for event in (Received(reader.number, b"\x00"), Paused(1), Resumed(1), Lost(1), late):
            assert bench.step(event) == []

    def test_flow_of_a_closing_connection_means_nothing(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.say(Publish("t", b"x", 1, "p", 1, 1), Bye())
        request = bench.ask(PublishRequest)
        reader.pause()
        reader.resume()
        bench.step(PublishAnswer(0, request.reference, "t", "p", 1, position=Position(1, 1)))
        assert reader.received == []

    def test_paused_and_resumed_said_twice(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.resume()
        reader.pause()
        reader.pause()
        reader.say(Ping())
        assert reader.received == []
        reader.resume()
        assert reader.take(Pong) == [Pong()]


def test_nothing_can_be_written_to_those_that_left() -> None:
    with pytest.raises(AssertionError):
        nowhere(b"")


class TestBadInput:
    def test_an_unmasked_frame_closes_with_1002_after_what_came_before(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.raw(reader.frame(Ping()) + b"\x82\x00" + reader.frame(Ping()))
        assert reader.take(Pong) == [Pong()]
        assert reader.close_code == CloseCode.PROTOCOL_ERROR
        assert bench.edge.closed == {"protocol": 1}
        reader.raw(reader.frame(Ping()))
        assert reader.received == []

    def test_a_message_over_the_limit_closes_with_1009(self) -> None:
        bench = Bench(EdgeConfig(max_payload=1000, envelope=100))
        fits, over = bench.client(), bench.client()
        rest = 1100 - len(fits.codec.encode(Publish("t" * 40, b"\x00" * 1000)))
        message = Publish("t" * (40 + rest), b"\x00" * 1000)
        assert len(fits.codec.encode(message)) == 1100
        fits.say(message)
        assert fits.close_code is None
        assert len(bench.requests) == 1
        over.raw(frames.encode_frame(frames.BINARY, b"\x00" * 1101, MASK)[:20])
        assert over.close_code == CloseCode.TOO_LARGE
        assert bench.edge.closed == {"too_large": 1}
        assert len(bench.requests) == 1

    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_the_wrong_kind_of_frame_closes_with_1003(self, wire: str) -> None:
        bench = Bench()
        reader = bench.client(wire=wire)  # type: ignore[arg-type]
        opcode = frames.BINARY if wire == "json" else frames.TEXT
        reader.raw(frames.encode_frame(opcode, b'{"op":"ping"}', MASK))
        assert reader.close_code == CloseCode.UNSUPPORTED_DATA
        assert f"migratory.v1.{wire}" in reader.close_reason

    def test_text_that_is_no_utf8_closes_with_1007(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.raw(frames.encode_frame(frames.TEXT, b'{"op":"\xff"}', MASK))
        assert reader.close_code == CloseCode.INVALID_TEXT

    def test_an_unreadable_frame_closes_with_4000(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.text("hello")
        (error,) = reader.take(Error)
        assert error.closes
        assert reader.close_code == CloseCode.BAD_MESSAGE

    def test_a_bad_message_is_refused_alone_and_its_neighbours_are_taken(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.text('[{"op":"ping"},{"op":"fly"},{"op":"subscribe","request":"x","topics":[]},{"op":"ping"}]')
        assert [type(message) for message in reader.received] == [Pong, Error, Error, Pong]
        first, second = reader.take(Error)
        assert "fly" in first.text
        assert "request" in second.text
        assert reader.close_code is None

    def test_a_compressed_message_is_taken_when_that_was_agreed(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json", deflate=True)
        reader.raw(frames.deflated_frame(frames.TEXT, b'{"op":"ping"}', MASK))
        assert reader.take(Pong)
        plain = bench.client(wire="json")
        plain.raw(frames.deflated_frame(frames.TEXT, b'{"op":"ping"}', MASK))
        assert plain.close_code == CloseCode.PROTOCOL_ERROR


class Guard:
    """Tokens are "name" or "name:seconds"; without one, nobody comes in."""

    def connect(self, client: str, token: str | None, remote: str) -> Grant | Refusal:
        if not token:
            return Refusal(f"{client} brought no token")
        name, _, seconds = token.partition(":")
        return Grant(name, float(seconds) if seconds else None)

    def subscribe(self, identity: str, topic: str) -> bool:
        return topic.startswith(identity)

    def publish(self, identity: str, topic: str, publisher: str) -> bool:
        return topic.startswith(identity) and publisher in ("", identity)


class TestIdentity:
    def test_nobody_without_a_token(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.say(Connect(client="eve"))
        (error,) = reader.take(Error)
        assert (error.code, error.text, error.closes) == ("unauthenticated", "eve brought no token", True)
        assert reader.close_code == CloseCode.UNAUTHENTICATED
        assert bench.edge.clients == 0

    def test_subscribe_and_publish_ask(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.say(Connect(token="ann"))
        reader.say(Subscribe(1, [TopicRequest("bob/1")]), Publish("bob/1", b""), Publish("ann/1", b"", 1, "bob", 1, 1))
        assert bench.requests == []
        assert reader.take(Subscribed)[0].topics[0].code == "not_allowed"
        reader.say(Subscribe(1, [TopicRequest("ann/1")]), Publish("ann/1", b"", 1, "ann", 1, 1))
        assert len(bench.requests) == 2

    def test_nothing_is_delivered_after_the_token_expired(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.say(Connect(token="ann:30"))
        reader.live("ann/1")
        for _ in range(6):
            bench.wait(5.0)
            reader.raw(frames.pong_frame(b"", MASK))
        bench.wait(0.2)
        assert reader.close_code == CloseCode.TOKEN_EXPIRED
        assert bench.edge.closed == {"token_expired": 1}
        assert bench.fan("ann/1", publication(1)) == []

    def test_connect_again_brings_a_fresh_token(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.say(Connect(token="ann:30"))
        bench.wait(12.0)
        reader.say(Connect(token="ann:60"))
        assert len(reader.take(Welcome)) == 2
        assert bench.edge.clients == 1
        for _ in range(5):
            bench.wait(10.0)
            reader.raw(frames.pong_frame(b"", MASK))
        assert reader.close_code is None
        reader.say(Connect())
        assert reader.close_code == CloseCode.UNAUTHENTICATED
        assert bench.edge.clients == 0
