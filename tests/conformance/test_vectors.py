"""Test that this implementation agrees with the conformance vectors of the client protocol, `vectors/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from migratory_protocol.codec import JSON, MSGPACK, BadMessage, Codec
from migratory_protocol.frames import (
    BINARY,
    CloseReceived,
    FrameEvent,
    FrameParser,
    MessageReceived,
    PingReceived,
    PongReceived,
    ProtocolError,
    encode_frame,
)
from migratory_protocol.messages import BrokerMessage, ClientMessage, Subscribe
from migratory_protocol.positions import Position, parse_position
from migratory_protocol.topics import BadTopic, check_topic, topic_group

VECTORS = Path(__file__).parent / "vectors"
Case = dict[str, Any]


def cases(name: str) -> list[Any]:
    content = json.loads((VECTORS / name).read_text("ascii"))
    return [pytest.param(case, id=str(case.get("name", ascii(case.get("topic"))))) for case in content["cases"]]


def decode(codec: Codec, data: bytes, side: str) -> list[ClientMessage] | list[BrokerMessage]:
    return codec.decode_client(data) if side == "client" else codec.decode_broker(data)


def wire(case: Case) -> tuple[Codec, bytes]:
    if case["format"] == "json":
        return JSON, case["data"].encode()
    return MSGPACK, bytes.fromhex(case["data"])


@pytest.mark.parametrize("case", cases("messages.json"))
def test_message_is_the_same_in_both_formats(case: Case) -> None:
    text, packed = case["json"].encode(), bytes.fromhex(case["msgpack"])
    (message,) = decode(JSON, text, case["from"])
    assert decode(MSGPACK, packed, case["from"]) == [message]
    assert JSON.encode(message) == text
    assert MSGPACK.encode(message) == packed


@pytest.mark.parametrize("side", ["client", "broker"])
def test_frame_holds_several_messages(side: str) -> None:
    chosen = [case.values[0] for case in cases("messages.json") if case.values[0]["from"] == side]
    messages = [decode(JSON, case["json"].encode(), side)[0] for case in chosen]
    for codec in (JSON, MSGPACK):
        for several in (messages[:1], messages, messages * 10, messages * 150):
            assert decode(codec, codec.join([codec.encode(message) for message in several]), side) == several


@pytest.mark.parametrize("case", cases("accepted.json"))
def test_other_encodings_are_accepted(case: Case) -> None:
    codec, data = wire(case)
    same = next(item.values[0] for item in cases("messages.json") if item.values[0]["name"] == case["same_as"])
    assert decode(codec, data, case["from"]) == decode(JSON, same["json"].encode(), case["from"])


@pytest.mark.parametrize("case", cases("positions.json"))
def test_malformed_position_fails_one_topic(case: Case) -> None:
    frames = [(JSON, case["json"].encode())]
    if case["msgpack"] is not None:
        frames.append((MSGPACK, bytes.fromhex(case["msgpack"])))
    for codec, data in frames:
        (message,) = codec.decode_client(data)
        assert isinstance(message, Subscribe)
        for request, expected in zip(message.topics, case["positions"], strict=True):
            if expected == "none":
                assert request.after is None
            elif expected == "bad":
                with pytest.raises(ValueError, match=r"position|epoch"):
                    parse_position(request.after)
            else:
                assert str(parse_position(request.after)) == expected


@pytest.mark.parametrize("case", cases("refused.json"))
def test_bad_message_is_refused_with_code_and_field(case: Case) -> None:
    codec, data = wire(case)
    with pytest.raises(BadMessage) as caught:
        codec.decode_client(data)
    error = caught.value
    assert (error.code, error.closes) == (case["code"], case["closes"])
    assert (error.request, error.topic) == (case["request"], case["topic"])
    assert case["names"] in error.text
    assert error.frame == (error,)


ALONE = [case for case in cases("refused.json") if not case.values[0]["closes"]]


@pytest.mark.parametrize("case", [case for case in ALONE if "array" not in case.values[0]["name"]])
def test_bad_message_leaves_its_neighbours(case: Case) -> None:
    codec, data = wire(case)
    before, after = JSON.decode_client(b'{"op":"ping"}'), JSON.decode_client(b'{"op":"bye"}')
    with pytest.raises(BadMessage) as caught:
        codec.decode_client(codec.join([codec.encode(before[0]), data, codec.encode(after[0])]))
    assert caught.value.code == case["code"]
    assert caught.value.frame == (*before, caught.value, *after)


@pytest.mark.parametrize("case", cases("topics.json"))
def test_topic_name_and_group(case: Case) -> None:
    topic = case["topic"]
    if not case["ok"]:
        with pytest.raises(BadTopic):
            check_topic(topic)
        return
    assert check_topic(topic) == topic
    assert topic.encode().hex() == case["utf8"]
    assert topic_group(topic, 100) == case["crc32"] % 100 == case["group_of_100"]
    assert topic_group(topic, 7) == case["group_of_7"]


def shown(event: FrameEvent) -> list[object]:
    match event:
        case MessageReceived(data, True):
            return ["text", data.decode()]
        case MessageReceived(data, False):
            return ["binary", data.hex()]
        case PingReceived(data):
            return ["ping", data.decode()]
        case PongReceived(data):
            return ["pong", data.decode()]
    assert isinstance(event, CloseReceived)
    return ["close", event.code, event.reason]


@pytest.mark.parametrize("step", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("case", cases("frames.json"))
def test_frame_parser_events_and_close_code(case: Case, step: int) -> None:
    data = bytes.fromhex(case["data"])
    parser = FrameParser(case["role"], case["limit"], case["deflate"])
    events: list[FrameEvent] = []
    close = None
    for start in range(0, len(data), step or len(data)):
        try:
            events += parser.feed(data[start : start + (step or len(data))])
        except ProtocolError as error:
            events += error.events
            close = int(error.code)
    assert [shown(event) for event in events] == case["events"]
    assert close == case["close"]
    assert parser.is_idle


@pytest.mark.parametrize("case", cases("headers.json"))
def test_frame_header_is_the_shortest(case: Case) -> None:
    payload = bytes(index % 251 for index in range(case["size"]))
    mask = bytes.fromhex("37fa213d")
    from_client, from_server = encode_frame(BINARY, payload, mask), encode_frame(BINARY, payload)
    assert from_client.startswith(bytes.fromhex(case["client"]) + mask)
    assert from_server == bytes.fromhex(case["server"]) + payload
    assert FrameParser("server", 2**20).feed(from_client) == [MessageReceived(payload, False)]
    assert FrameParser("client", 2**20).feed(from_server) == [MessageReceived(payload, False)]


def test_position_as_text() -> None:
    assert str(Position(3, 2**53 + 1)) == "3:9007199254740993"
