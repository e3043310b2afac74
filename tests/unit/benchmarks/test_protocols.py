"""The client protocols of all servers: the bytes that are sent, the acknowledgements and deliveries that are counted,
and refusals."""

from __future__ import annotations

import json

import pytest
from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK
from migratory_protocol.positions import Position

from benchmarks.protocols import Conversation, RefusedByServer, find_protocol
from benchmarks.protocols.mqtt import packet, packets


def say(conversation: Conversation, *messages: bytes) -> list[bytes]:
    return [answer for message in messages for answer in conversation.received(message)]


def test_unknown_protocol_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no protocol 'amqp'; there are raw, product, mqtt"):
        find_protocol("amqp")


def test_mqtt_subscribes_and_counts_acknowledgements() -> None:
    conversation = find_protocol("mqtt").subscriber("c", "bench/1")
    connect, subscribe = conversation.greeting()
    assert connect == bytes.fromhex("100d00044d51545404020000000163")
    assert subscribe == b"\x82\x0c\x00\x01\x00\x07bench/1\x00"
    say(conversation, b"\x20\x02\x00\x00")
    assert not conversation.ready
    say(conversation, b"\x90\x03\x00\x01\x00")
    assert conversation.ready
    publisher = find_protocol("mqtt").publisher("p")
    say(publisher, b"\x20\x02\x00\x00")
    assert publisher.ready
    assert publisher.publish("t", b"x" * 200) == b"\x32\xcd\x01\x00\x01t\x00\x01" + b"x" * 200
    say(publisher, b"\x40\x02\x00\x01\x40\x02\x00\x02")
    assert publisher.answered == 2
    with pytest.raises(RefusedByServer, match="CONNACK with 5"):
        say(find_protocol("mqtt").publisher("p"), b"\x20\x02\x00\x05")
    with pytest.raises(RefusedByServer, match="SUBACK with 128"):
        say(find_protocol("mqtt").subscriber("c", "t"), b"\x90\x03\x00\x01\x80")


def test_mqtt_packets_of_every_length_are_parsed() -> None:
    bodies = [b"", b"a" * 127, b"b" * 128, b"c" * 16384]
    assert [body for _, body in packets(b"".join(packet(0x30, body) for body in bodies))] == bodies


def test_nats_answers_are_counted_across_frames() -> None:
    stream = b"+OK\r\n" * 3
    for cut in range(len(stream)):
        publisher = find_protocol("nats").publisher("p")
        say(publisher, b'INFO {"server_id":"x"}\r\n', b"+OK\r\nPONG\r\n")
        assert publisher.ready
        assert publisher.answered == 0  # the greeting's own +OK is no acknowledgement
        say(publisher, stream[:cut], stream[cut:])
        assert publisher.answered == 3
    assert publisher.publish("bench/1", b"hi") == b"PUB bench.1 2\r\nhi\r\n"
    assert say(publisher, b"PING\r\n") == [b"PONG\r\n"]
    with pytest.raises(RefusedByServer, match="Authorization"):
        say(publisher, b"-ERR 'Authorization Violation'\r\n")


def test_jetstream_counts_stored_publications_and_refuses_errors() -> None:
    publisher = find_protocol("jetstream").publisher("p")
    assert b"SUB _INBOX.p 1\r\n" in publisher.greeting()[0]
    say(publisher, b"PONG\r\n")
    assert publisher.publish("bench/1", b"hi") == b"PUB bench.1 _INBOX.p 2\r\nhi\r\n"
    say(publisher, b'MSG _INBOX.p 1 27\r\n{"stream":"bench", "seq":1}\r\nMSG _INB', b'OX.p 1 27\r\n{"seq":2}\r\n')
    assert publisher.answered == 2
    with pytest.raises(RefusedByServer, match="no space"):
        say(publisher, b'MSG _INBOX.p 1 60\r\n{"error":{"code":500,"description":"no space"}}\r\n')


def test_centrifugo_subscribes_publishes_and_answers_pings() -> None:
    conversation = find_protocol("centrifuge").subscriber("c", "bench/1")
    lines = [json.loads(line) for line in conversation.greeting()[0].splitlines()]
    assert lines[1] == {"id": 2, "subscribe": {"channel": "bench-1"}}
    say(conversation, b'{"id":1,"connect":{"client":"x"}}')
    assert not conversation.ready
    assert say(conversation, b'{"id":2,"subscribe":{}}\n{}') == [b"{}"]
    assert conversation.ready
    publisher = find_protocol("centrifuge").publisher("p")
    say(publisher, b'{"id":1,"connect":{}}')
    sent = json.loads(publisher.publish("bench/1", b"~Mg:~"))
    assert sent["publish"] == {"channel": "bench-1", "data": "~Mg:~"}
    say(publisher, b'{"id":3,"publish":{}}\n{"id":4,"publish":{}}')
    assert publisher.answered == 2
    with pytest.raises(RefusedByServer, match="permission denied"):
        say(publisher, b'{"id":5,"error":{"code":103,"message":"permission denied"}}')


def receipt(kind: str | None) -> bytes:
    return MSGPACK.encode(wire.Subscribed(1, [wire.TopicReceipt("t", kind, Position(3, 9))]))  # type: ignore[arg-type]


def test_product_resumes_and_refuses_an_incomplete_receipt() -> None:
    conversation = find_protocol("product").subscriber("c", "t")
    say(conversation, receipt("complete"))
    assert (conversation.ready, conversation.position) == (True, Position(3, 9))
    resumed = find_protocol("product").subscriber("c", "t", Position(3, 4))
    subscribe = MSGPACK.decode_client(resumed.greeting()[1])[0]
    assert isinstance(subscribe, wire.Subscribe)
    assert tuple(subscribe.topics[0].after) == (3, 4)  # type: ignore[arg-type]
    with pytest.raises(RefusedByServer, match="truncated"):
        say(resumed, receipt("truncated"))
    with pytest.raises(RefusedByServer, match="too_many"):
        say(conversation, MSGPACK.encode(wire.Error("too_many", "no")))


def test_product_publishes_with_rising_ids_and_the_mark() -> None:
    publisher = find_protocol("product").publisher("p")
    first, second = (MSGPACK.decode_client(publisher.publish("t", b"x"))[0] for _ in range(2))
    say(publisher, MSGPACK.encode(wire.Ack("t", "p", 1, Position(1, 1))))
    third = MSGPACK.decode_client(publisher.publish("t", b"x"))[0]
    assert [(publication.id, publication.mark) for publication in (first, second, third)] == [(1, 1), (2, 1), (3, 2)]  # type: ignore[union-attr]
    assert publisher.answered == 1
    with pytest.raises(RefusedByServer, match="gap"):
        say(publisher, MSGPACK.encode(wire.Nack("t", "p", 2, "gap")))
    positions = find_protocol("product").positions(MSGPACK.encode(wire.Message("t", Position(1, 5), b"x")))
    assert list(positions) == [(b"x", Position(1, 5))]


def test_publications_are_joined_in_every_protocol() -> None:
    mqtt = find_protocol("mqtt").publisher("p")
    assert len(list(packets(mqtt.join([mqtt.publish("t", b"a"), mqtt.publish("t", b"b")])))) == 2
    nats = find_protocol("nats").publisher("p")
    assert nats.join([nats.publish("t", b"a"), nats.publish("t", b"b")]) == b"PUB t 1\r\na\r\nPUB t 1\r\nb\r\n"
    centrifuge = find_protocol("centrifuge").publisher("p")
    both = centrifuge.join([centrifuge.publish("t", b"a"), centrifuge.publish("t", b"b")])
    assert [json.loads(line)["id"] for line in both.splitlines()] == [3, 4]
    product = find_protocol("product").publisher("p")
    decoded = MSGPACK.decode_client(product.join([product.publish("t", b"a"), product.publish("t", b"b")]))
    assert [(publication.id, publication.payload) for publication in decoded] == [(1, b"a"), (2, b"b")]  # type: ignore[union-attr]
