"""Regression tests for faults reported of similar systems, as far as an edge is concerned. Each names its report."""

from __future__ import annotations

from typing import Literal

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.logic.events import Attach, Attached, NextPage
from migratory_protocol import frames, limits
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Ack,
    Error,
    Message,
    Nack,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Subscribed,
    TopicReceipt,
    TopicRequest,
)
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, Bench, Reader, publication
from migratory_testing.onelogic import OneLogic

SIZES = {
    125: b"\x82\x7d",
    126: b"\x82\x7e\x00\x7e",
    127: b"\x82\x7e\x00\x7f",
    65535: b"\x82\x7e\xff\xff",
    65536: b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00",
    65537: b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x01",
}


def serve(bench: Bench, logic: OneLogic) -> None:
    """Let the logic answer all requests of the edge, then fan its publications out to the edge."""
    while bench.requests:
        for event in logic.answer(bench.requests.pop(0)):
            bench.step(event)
    for event in logic.flush():
        bench.step(event)


class TestFrameSizes:
    """Messages of every form of a frame's length, also around 64 KiB, are read and delivered, and one byte over the
    limit is refused (case emqx#643: publications vanished and the socket closed)."""

    @pytest.mark.parametrize("size", SIZES)
    def test_publication_of_every_header_form_is_accepted(self, size: int) -> None:
        bench, logic = Bench(), OneLogic()
        reader = bench.client()
        message = Publish("t", b"", 1, "p", 1, 1)
        for length in range(max(0, size - 64), size):
            message.payload = b"\xa5" * length
            if len(reader.codec.encode(message)) == size:
                break
        frame = reader.frame(message)
        assert frame.startswith(bytes((0x82, SIZES[size][1] | 0x80)) + SIZES[size][2:] + MASK)
        reader.send_bytes(frame)
        serve(bench, logic)
        assert len(reader.take(Ack)) == 1
        assert logic.logs["t"].cached[0].payload == message.payload

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("replayed", [True, False])
    def test_delivered_frame_has_the_shortest_header(self, size: int, replayed: bool) -> None:
        bench = Bench(EdgeConfig(first_page=65_536))
        reader = bench.client()
        for length in range(max(0, size - 64), size):
            entry = publication(1, b"\xa5" * length)
            delivered = Message("t", entry.position, entry.payload, None, 1000.0, replayed)
            if len(reader.codec.encode(delivered)) == size:
                break
        if replayed:
            bench.attached(reader.subscribe("t", (1, 0)), Position(1, 1), publications=(entry,))
            frame = reader.writes[-1][len(reader.writes[-1]) - size - len(SIZES[size]) :]
        else:
            reader.subscribe_live("t")
            bench.fanout("t", entry)
            frame = reader.writes[-1]
        assert frame.startswith(SIZES[size])
        assert len(frame) == size + len(SIZES[size])
        assert reader.take(Message) == [delivered]

    @pytest.mark.parametrize("pieces", [1, 3])
    def test_message_is_refused_one_byte_over_the_limit(self, pieces: int) -> None:
        largest = 1_048_576
        bench = Bench(EdgeConfig(max_payload=largest - 65_536))
        for over in (0, 1):
            text = b'{"op":"ping"}'.ljust(largest + over)
            reader = bench.client(wire="json")
            step = -(-len(text) // pieces)
            for start in range(0, len(text), step):
                opcode = frames.CONTINUATION if start else frames.TEXT
                piece = text[start : start + step]
                if reader.close_code is None:
                    reader.send_bytes(frames.encode_frame(opcode, piece, MASK, fin=start + step >= len(text)))
            if over:
                assert (reader.take(Pong), reader.close_code) == ([], CloseCode.TOO_LARGE)
            else:
                assert (reader.take(Pong), reader.close_code) == ([Pong()], None)


class TestTopicText:
    """Topics with text that is not allowed, such as U+0000, are refused (case mosquitto#693: a subscribe was
    acknowledged)."""

    @pytest.mark.parametrize("topic", ["a\x00b", "", "é" * 256 + "x"])
    def test_bad_topic_is_refused_for_subscribe_and_publish(self, topic: str) -> None:
        bench, logic = Bench(EdgeConfig(max_topic=512)), OneLogic()
        reader = bench.client(wire="json")
        reader.send(Subscribe(1, [TopicRequest(topic)]), Publish(topic, b"x", 1, "p", 1, 1), Publish(topic, b"x"))
        serve(bench, logic)
        refused = [m.topics[0] if isinstance(m, Subscribed) else m for m in reader.received]
        assert [(type(m), m.code) for m in refused if isinstance(m, TopicReceipt | Nack | Error)] == [
            (TopicReceipt, "bad_topic"),
            (Nack, "bad_topic"),
            (Error, "bad_topic"),
        ]
        assert logic.logs == {}
        reader.send(Publish("good", b"x", 1, "p", 1, 1))
        serve(bench, logic)
        assert reader.take(Ack) == [Ack("good", "p", 1, Position(1, 1))]

    @pytest.mark.parametrize(
        "text",
        [
            '{"op":"subscribe","request":1,"topics":[{"topic":"\\ud800"}]}',
            '{"op":"publish","topic":"\\ud800","data":"x"}',
        ],
    )
    def test_lone_surrogate_is_an_error_and_the_connection_stays(self, text: str) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.send_text(text)
        (error,) = reader.take(Error)
        assert not error.closes
        assert bench.requests == []
        reader.send(Ping())
        assert reader.take(Pong)

    def test_ill_formed_utf8_in_messagepack_is_an_error(self) -> None:
        bench = Bench()
        reader = bench.client()
        good = reader.codec.encode(Publish("axb", b"x"))
        reader.send_bytes(frames.binary_frame(good.replace(b"\xa3axb", b"\xa3a\xffb"), MASK))
        (error,) = reader.take(Error)
        assert not error.closes
        assert bench.requests == []

    def test_topic_names_are_compared_byte_for_byte(self) -> None:
        bench, logic = Bench(EdgeConfig(max_topic=512)), OneLogic()
        names = ["caf\u00e9", "cafe\u0301", "\ufefft", "t", "é" * 256]
        readers = [bench.client(wire=wire) for wire in ("json", "msgpack") for _ in names]
        for reader, name in zip(readers, names * 2, strict=True):
            reader.send(Subscribe(1, [TopicRequest(name)]))
        serve(bench, logic)
        for name in names:
            readers[0].send(Publish(name, name.encode()))
        serve(bench, logic)
        for reader, name in zip(readers, names * 2, strict=True):
            assert [(m.topic, m.payload) for m in reader.take(Message)] == [(name, name.encode())]


class TestIntegers:
    """Integers at and beyond 64 bits are handled exactly or refused (case msgspec#377: they failed or became
    floats)."""

    def test_payload_keeps_its_digits_in_both_formats(self) -> None:
        bench, logic = Bench(), OneLogic()
        json, msgpack = bench.client(wire="json"), bench.client()
        for reader in (json, msgpack):
            reader.send(Subscribe(1, [TopicRequest("t")]))
        text = '{"v":[9007199254740993,18446744073709551615,18446744073709551616,1e400,-0,1.0]}'
        json.send(Publish("t", text.encode()))
        serve(bench, logic)
        for reader in (json, msgpack):
            assert [m.payload for m in reader.take(Message)] == [text.encode()]

    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_positions_above_2_to_53_are_exact(self, wire: Literal["json", "msgpack"]) -> None:
        bench = Bench()
        reader = bench.client(wire=wire)
        start = 9007199254740990
        reader.subscribe_live("t", Position(9007199254740993, start))
        bench.fanout("t", *(publication(start + n, b"x", 9007199254740993) for n in (1, 2, 3)))
        assert reader.sequences("t") == [start + 1, start + 2, start + 3]
        if wire == "json":
            assert b'"9007199254740993:9007199254740993"' in reader.writes[-1]
        again = bench.client(wire=wire)
        attach = again.subscribe("t", "9007199254740993:9007199254740993")
        assert attach.after == Position(9007199254740993, 9007199254740993)


class TestResumeFromTheFuture:
    """A subscription from a position ahead of the topic gets a receipt, here as the logic answers, and all publications
    after it; a malformed position fails its topic alone (case nats-server#5412: it waited without notice and lost what
    came between)."""

    @pytest.mark.parametrize("after", [(3, 1000), (9, 1)])
    def test_future_position_is_reset_then_live(self, after: tuple[int, int]) -> None:
        bench = Bench()
        reader = bench.client()
        bench.client().subscribe_live("t", Position(3, 940))
        attach = reader.subscribe("t", after)
        assert attach.after == after
        bench.attached(attach, Position(3, 940), receipt="reset")
        bench.fanout("t", publication(941, epoch=3))
        assert reader.take(Subscribed) == [Subscribed(1, [TopicReceipt("t", "reset", Position(3, 940))])]
        bench.fanout("t", publication(942, epoch=3))
        assert reader.sequences("t") == [942]

    def test_fanout_is_not_sent_before_the_receipt(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (3, 942))
        bench.fanout("t", publication(941, epoch=3), publication(942, epoch=3))
        assert reader.received == []
        bench.attached(attach, Position(3, 942))
        bench.fanout("t", publication(943, epoch=3))
        assert [type(m) for m in reader.received] == [Subscribed, Message]
        assert reader.sequences("t") == [943]

    def test_malformed_position_fails_one_topic(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        bad = ["[3,-1]", "[3,1.5]", '[3,"12"]', "[3,18446744073709551616]", "[null,5]", '"3"', "true", '"3:-1"']
        topics = ",".join(f'{{"topic":"t{n}","after":{after}}}' for n, after in enumerate(bad))
        reader.send_text(f'{{"op":"subscribe","request":4,"topics":[{topics},{{"topic":"good","after":"3:7"}}]}}')
        assert [(a.topic, a.after) for a in bench.requests_of(Attach)] == [("good", Position(3, 7))]
        (subscribed,) = reader.take(Subscribed)
        assert [(r.topic, r.receipt, r.code) for r in subscribed.topics] == [
            (f"t{n}", None, "bad_position") for n in range(len(bad))
        ]


class TestDroppedBeforeTheFirstMessage:
    """A client that received nothing before its connection was lost can resume (case socket.io#5538: it could not
    recover what it missed)."""

    @pytest.mark.parametrize("head", [0, 17])
    def test_position_of_the_receipt_resumes(self, head: int) -> None:
        bench, logic = Bench(), OneLogic(epoch=4)
        logic.publish("t", *[b"old"] * head)
        logic.flush()
        reader = bench.client()
        reader.send(Subscribe(1, [TopicRequest("t")]))
        serve(bench, logic)
        (subscribed,) = reader.take(Subscribed)
        position = subscribed.topics[0].position
        assert position == Position(4, head)
        reader.lose_socket()
        logic.publish("t", b"1", b"2", b"3")
        serve(bench, logic)
        again = bench.client()
        again.send(Subscribe(1, [TopicRequest("t", position)]))
        serve(bench, logic)
        assert again.received[0] == Subscribed(1, [TopicReceipt("t", "complete", Position(4, head + 3))])
        assert again.sequences("t") == [head + 1, head + 2, head + 3]


class TestStalledReader:
    """A client that stops reading is closed at its queue's limit (case aiohttp#1367: the server buffered without
    limit)."""

    def test_stalled_reader_is_closed_at_its_limit_and_others_get_all(self) -> None:
        limit = 4 * 1024 * 1024
        bench, logic = Bench(EdgeConfig(queue_per_client=limit)), OneLogic()
        readers = [bench.client(f"reader-{n}") for n in range(20)]
        for reader in readers:
            reader.send(Subscribe(1, [TopicRequest("t")]))
        serve(bench, logic)
        stalled, others = readers[0], readers[1:]
        stalled.pause()
        highest = 0
        for number in range(1, 151):
            logic.publish("t", number.to_bytes(4, "big") * 16384)
            serve(bench, logic)
            highest = max(highest, bench.edge.queue_bytes)
            for reader in others:
                assert reader.sequences("t")[-1:] == [number]  # in the same turn
                reader.writes.clear()
                reader.received[:] = reader.received[-1:]
            logic.evict("t", max(0, number - 100 - logic.logs["t"].base))
        assert limit - 100_000 < highest <= limit
        assert stalled.close_code == CloseCode.SLOW_CONSUMER
        assert bench.edge.closed == {"slow_consumer": 1}
        assert bench.notes[0].fields["client"] == "reader-0"
        again = bench.client()
        again.send(Subscribe(1, [TopicRequest("t", Position(1, 0))]))
        serve(bench, logic)
        (subscribed,) = [m for m in again.received if isinstance(m, Subscribed)]
        assert subscribed.topics[0] == TopicReceipt("t", "truncated", Position(1, 150), 1, 50)
        assert again.sequences("t") == list(range(51, 151))


class TestVeryManySubscriptions:
    """Very many subscriptions of one client are all answered, repeated ones change nothing, and a request over the
    limit subscribes nothing (cases nats-server#3571, mosca#181: they choked a node, and repeating them grew memory)."""

    TOPICS = [f"t/{number:06}" for number in range(50_000)]

    def requests(self, number: int) -> list[Subscribe]:
        """Return subscribe requests for all topics; each names at most as many topics as one message may."""
        parts = [self.TOPICS[start : start + limits.TOPICS] for start in range(0, len(self.TOPICS), limits.TOPICS)]
        return [Subscribe(number, [TopicRequest(topic) for topic in part]) for part in parts]

    @pytest.mark.unmeasured
    def test_repeated_request_delivers_once(self) -> None:
        bench, logic = Bench(EdgeConfig(subscriptions_per_client=50_000)), OneLogic()
        reader = bench.client()
        for number in (1, 2, 3):
            for request in self.requests(number):
                reader.send(request)
                serve(bench, logic)
            answered = [receipt for message in reader.take(Subscribed) for receipt in message.topics]
            assert [receipt.topic for receipt in answered] == self.TOPICS
            assert {(receipt.receipt, receipt.position) for receipt in answered} == {("complete", Position(1, 0))}
            assert (bench.edge.subscriptions, bench.edge.topics) == (50_000, 50_000)
        logic.publish(self.TOPICS[-1], b"x")
        serve(bench, logic)
        assert len(reader.take(Message)) == 1
        reader.lose_socket()
        assert (bench.edge.subscriptions, bench.edge.topics) == (0, 0)

    def test_request_over_the_limit_subscribes_nothing(self) -> None:
        bench = Bench(EdgeConfig(subscriptions_per_client=3000))
        reader = bench.client(wire="json")
        reader.send(self.requests(1)[0])
        (error,) = reader.take(Error)
        assert (error.code, error.request, error.closes) == ("too_many_subscriptions", 1, False)
        assert bench.requests == []
        assert bench.edge.subscriptions == 0


class TestReplayBursts:
    """A replay larger than a client's queue is delivered without closing the client (case home-assistant#89905: a
    client reconnected for ever)."""

    def test_replay_far_above_the_queue_limit_finishes(self) -> None:
        bench, logic = Bench(EdgeConfig(queue_per_client=2000, page=1000)), OneLogic()
        topics = [f"t{n}" for n in range(20)]
        for topic in topics:
            logic.publish(topic, *[bytes(50)] * 100)
        logic.flush()
        reader = bench.client()
        reader.send(Subscribe(1, [TopicRequest(topic, Position(1, 0)) for topic in topics]))
        turns = 0
        while bench.requests:
            request = bench.requests.pop(0)
            if isinstance(request, NextPage):  # the transport is full after every page
                reader.pause()
                turns += 1
            for event in logic.answer(request):
                bench.step(event)
            assert bench.edge.queue_bytes <= 2000
            if isinstance(request, NextPage):
                assert bench.requests == []
                reader.resume()
        assert reader.close_code is None
        assert turns > 50
        for topic in topics:
            assert reader.sequences(topic) == list(range(1, 101))


class TestReplayedOnce:
    """A second reconnect replays nothing again (case socket.io#5419), and a client that missed nothing gets
    `complete` and no message (case socket.io#4888)."""

    def test_resume_from_the_last_replayed_position_replays_nothing(self) -> None:
        bench, logic = Bench(), OneLogic()
        logic.publish("t", b"1", b"2", b"3")
        logic.flush()
        first, second = bench.client(), bench.client()
        first.send(Subscribe(1, [TopicRequest("t", Position(1, 1))]))
        serve(bench, logic)
        last = first.take(Message)[-1]
        first.lose_socket()
        second.send(Subscribe(1, [TopicRequest("t", last.position)]))
        serve(bench, logic)
        assert second.received == [Subscribed(1, [TopicReceipt("t", "complete", Position(1, 3))])]


class TestFragments:
    """Fragmented frames with pings between them, and frames that arrive one byte at a time, are read correctly (case
    aiohttp#13274)."""

    @pytest.mark.parametrize("piecewise", [False, True])
    def test_ping_between_compressed_fragments(self, piecewise: bool) -> None:
        bench = Bench()
        reader = bench.client(wire="json", deflate=True)
        data = bytes.fromhex("418737fa213d9daceb12674873898137fa213d5c808837fa213d1d32ed766050243d")
        for chunk in [data[n : n + 1] for n in range(len(data))] if piecewise else [data]:
            reader.send_bytes(chunk)
        assert reader.controls == [frames.PongReceived(b"k")]
        assert reader.take(Pong) == [Pong()]
        assert b"".join(reader.writes).index(b"\x8a\x01k") < b"".join(reader.writes).rindex(b"pong")

    def test_empty_payload_is_accepted(self) -> None:
        bench = Bench()
        for wire in ("json", "msgpack"):
            reader: Reader = bench.client(wire=wire)
            reader.subscribe_live("t")
            reader.received.clear()
            reader.send(Publish("t", b"", 1, "p", 1, 1))
            assert bench.published()[0].payload == b""
        bench.step(Attached(0, 99, "t", "complete", Position(1, 0)))
        bench.fanout("t", Publication(1, 1, b""))
        assert [m.payload for m in reader.take(Message)] == [b""]
