"""Malformed input to a real broker, of every kind and at every layer: the answer names the fault, and only its
sender is harmed. Each test has a bystander (conftest.py), a client on the same broker whose next publication must
arrive at once."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from typing import Any

import msgspec
import pytest
from migratory_testing.processes import Broker
from migratory_testing.rawclient import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    ConnectionEnded,
    RawClient,
    answer,
    frame,
    position,
    request,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

SETTINGS = {"compression": True, "limits": {"maxPayload": 65_536, "subscriptionsPerClient": 10, "handshake": 1.0}}
LARGEST = 65_536 * 2  # bytes of a whole message

# ---- one message is refused, the connection stays ------------------------------------------------------------------

REFUSED = {
    '{"op":"shout"}': ("unknown_op", 'unknown operation "shout"', "expected one of connect, subscribe"),
    '{"op":"welcome"}': ("unknown_op", '"welcome"', "expected one of connect"),
    '{"op":3}': ("unknown_op", "3", "expected one of connect"),
    '{"topic":"t"}': ("bad_message", 'missing field "op"', "the operation"),
    "7": ("bad_message", "expected an object", 'the field "op"'),
    '"subscribe"': ("bad_message", "expected an object", 'the field "op"'),
    "[[]]": ("bad_message", "array", "object"),
    "[]": ("bad_message", "empty array", "one message"),
    '{"op":"publish","topic":3,"data":"x"}': ("bad_message", "publish.topic: ", "`str`, got `int`"),
    '{"op":"publish","data":"x"}': ("bad_message", "publish: ", "missing required field `topic`"),
    '{"op":"publish","topic":"t"}': ("bad_message", "publish.data: ", "data64"),
    '{"op":"publish","topic":"t","data":"x","data64":"eA=="}': ("bad_message", "publish.data", "both"),
    '{"op":"publish","topic":"t","data64":"*"}': ("bad_message", "publish.data64: ", "base64"),
    '{"op":"publish","topic":"t","data":"x","qos":2}': ("bad_message", "publish.qos: ", "<= 1"),
    '{"op":"publish","topic":"t","data":"x","qos":"1"}': ("bad_message", "publish.qos: ", "`int`, got `str`"),
    '{"op":"publish","topic":"t","data":"x","qos":1,"id":1,"mark":1}': ("bad_message", "publish.publisher: ", "QoS 1"),
    '{"op":"publish","topic":"t","data":"x","qos":1,"publisher":"p"}': ("bad_message", "publish.id: ", "from 1"),
    '{"op":"publish","topic":"t","data":"x","qos":1,"publisher":"p","id":1,"mark":2}': (
        "bad_message", "publish.mark: ", "1 to 1",
    ),
    '{"op":"publish","topic":"t","data":"x","sent":-1}': ("bad_message", "publish.sent: ", ">= 0"),
    '{"op":"subscribe","topics":[]}': ("bad_message", "subscribe: ", "missing required field `request`"),
    '{"op":"subscribe","request":0,"topics":[]}': ("bad_message", "subscribe.request: ", ">= 1"),
    '{"op":"subscribe","request":1.5,"topics":[]}': ("bad_message", "subscribe.request: ", "`int`"),
    '{"op":"subscribe","request":1,"topics":"t"}': ("bad_message", "subscribe.topics: ", "`array`, got `str`"),
    '{"op":"subscribe","request":1,"topics":["t"]}': ("bad_message", "subscribe.topics[0]: ", "`object`, got `str`"),
    '{"op":"subscribe","request":1,"topics":[{"topic":"t"},{"topic":"u","snapshot":"yes"}]}': (
        "bad_message", "subscribe.topics[1].snapshot: ", "`bool`, got `str`",
    ),
    '{"op":"unsubscribe","request":1,"topics":[null]}': ("bad_message", "unsubscribe.topics[0]: ", "`str`, got `null`"),
    json.dumps({"op": "subscribe", "request": 1, "topics": [{"topic": f"{n}"} for n in range(11)]}): (
        "too_many_subscriptions", "0 subscriptions and 11 more", "subscriptions is 10 per client",
    ),
    json.dumps({"op": "publish", "topic": "t", "data": "x" * 65_537}): ("too_large", "65537", "65536"),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
async def test_bad_json_message_is_answered_with_its_field_and_the_connection_stays(
    broker: Broker, bystander: object, text: str
) -> None:
    code, fault, allowed = REFUSED[text]
    client = await RawClient.join(broker)
    client.write(frame(TEXT, text.encode()))
    error = await client.receive("error", "ack", "nack", "subscribed", "unsubscribed")
    names_a_message = '"publisher"' in text and '"id"' in text
    assert (error["op"], error["code"]) == ("nack" if names_a_message else "error", code), error
    assert fault in error["text"]
    assert allowed in error["text"]
    assert not error.get("closes", False)
    await client.ping()


PACKED: dict[str, tuple[Any, tuple[str, str, str]]] = {
    "unknown": ([99], ("unknown_op", "99", "expected one of")),
    "no operation": (["t"], ("unknown_op", "t", "expected one of")),
    "map": ({"op": 5}, ("bad_message", "expected an array", "the number of an operation")),
    "topic": ([4, 3, b"x"], ("bad_message", "publish.topic: ", "`str`, got `int`")),
    "payload as text": ([4, "t", 7], ("bad_message", "publish.payload: ", "`bytes`, got `int`")),
    "too short": ([4, "t"], ("bad_message", "publish.payload: ", "missing")),
    "request": ([2, 2**53, []], ("bad_message", "subscribe.request: ", "9007199254740991")),
    "topics": ([2, 1, [["t"], "u"]], ("bad_message", "subscribe.topics[1]: ", "`array`, got `str`")),
}


@pytest.mark.parametrize("name", PACKED)
async def test_bad_messagepack_message_is_answered_with_its_field_and_the_connection_stays(
    broker: Broker, bystander: object, name: str
) -> None:
    content, (code, fault, allowed) = PACKED[name]
    client = await RawClient.join(broker, "msgpack")
    client.write(frame(BINARY, msgspec.msgpack.encode(content)))
    error = await client.receive("error", "ack", "nack", "subscribed")
    assert (error["op"], error["code"]) == ("error", code), error
    assert fault in error["text"]
    assert allowed in error["text"]
    await client.ping()


async def test_a_bad_message_among_good_ones_is_refused_alone(broker: Broker, bystander: object) -> None:
    client = await RawClient.join(broker)
    client.write(frame(TEXT, b'[{"op":"ping"},{"op":"shout"},{"op":"subscribe","request":5,"topics":[{"topic":"t"}]}]'))
    await client.receive("pong")
    assert (await client.receive("error"))["code"] == "unknown_op"
    assert (await client.receive("subscribed"))["request"] == 5


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_message_id_reused_for_another_payload_is_refused(broker: Broker, bystander: object, wire: Any) -> None:
    topic = f"reused/{wire}"
    reader, writer = await RawClient.join(broker, wire), await RawClient.join(broker, wire)
    await reader.subscribe(topic)
    first = await writer.publish(topic, b"1.0812", 1)
    writer.send_publish(topic, b"1.0999", 1)
    nack = await writer.receive("nack", "ack")
    assert (nack["op"], nack["code"], nack["id"]) == ("nack", "id_reused", 1)
    says = "message id 1 of this publisher was used for another payload at {}:{}"
    assert says.format(*position(first)) in nack["text"]
    assert await writer.publish(topic, b"1.0812", 1) == first, "the same payload is the same publication"
    assert position(await writer.publish(topic, b"1.0999", 2)) == (position(first)[0], 2)
    assert [position((await reader.receive("message"))["position"])[1] for _ in range(2)] == [1, 2]
    await reader.ping()
    assert reader.buffered == []


# ---- the connection ends -------------------------------------------------------------------------------------------

PING_TEXT = b'{"op":"ping"}'

CLOSES = {
    "not masked": (frame(TEXT, PING_TEXT, masked=False), 1002, "mask"),
    "RSV2": (b"\xa1" + frame(TEXT, PING_TEXT)[1:], 1002, "RSV"),
    "compressed without agreement": (frame(TEXT, PING_TEXT, rsv1=True), 1002, "RSV1"),
    "reserved opcode": (frame(3, b""), 1002, "opcode 3"),
    "reserved control opcode": (frame(11, b""), 1002, "opcode 11"),
    "fragmented ping": (frame(PING, b"x", fin=False), 1002, "fragment"),
    "long ping": (frame(PING, bytes(126)), 1002, "125"),
    "continuation of nothing": (frame(CONTINUATION, b"x"), 1002, "continuation"),
    "text within a message": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002, "fragment"),
    "length not in its shortest form": (b"\x81\xfe\x00\x05" + bytes(9), 1002, "shortest"),
    "length above 2^63": (b"\x81\xff" + b"\xff" * 8 + bytes(4), 1002, "length"),
    "close of one byte": (frame(CLOSE, b"\x03"), 1002, "close"),
    "close with a code that may not be sent": (frame(CLOSE, (1005).to_bytes(2, "big")), 1002, "may not be sent"),
    "close with a reason that is no text": (frame(CLOSE, b"\x03\xe8\xff"), 1007, "UTF-8"),
    "text that is not UTF-8": (frame(TEXT, b'{"op":"p\xffng"}'), 1007, "UTF-8"),
    "binary in a JSON connection": (frame(BINARY, b"\x91\x05"), 1003, "migratory.v1.json requires text frames"),
    "too large": (frame(TEXT, b" " * (LARGEST + 1)), 1009, str(LARGEST)),
    "too large in fragments": (
        frame(TEXT, b" " * LARGEST, fin=False) + frame(CONTINUATION, b"  "), 1009, str(LARGEST),
    ),
    "no JSON": (frame(TEXT, b'{"op":'), 4000, "JSON"),
    "empty": (frame(TEXT, b""), 4000, "JSON"),
    "two values": (frame(TEXT, PING_TEXT * 2), 4000, "JSON"),
    "nested": (frame(TEXT, b"[" * 60_000), 4000, "nested"),
    "17 bad messages": (frame(TEXT, json.dumps([{"op": "shout"}] * 17).encode()), 4000, "16"),
    "4,097 messages": (frame(TEXT, b"[" + b",".join([PING_TEXT] * 4097) + b"]"), 4000, "4096"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSES)
async def test_a_bad_frame_closes_with_its_code_and_reason(broker: Broker, bystander: object, name: str) -> None:
    data, code, says = CLOSES[name]
    client = await RawClient.join(broker)
    client.write(data)
    end = await client.wait_ended(limit=8)
    errors = [error["text"] for error in client.buffered if error["op"] == "error"]
    assert end.code == code, end
    assert says.lower() in " ".join([end.reason, *errors]).lower().replace(",", ""), (end, errors)
    assert all(message["op"] in ("error", "pong") for message in client.buffered)


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"\xff\xff\xff", 1007, "inflate"),
        (zlib.compress(bytes(10_000_000), wbits=-15), 1009, str(LARGEST)),
        (zlib.compress(b"x" * (LARGEST + 1), wbits=-15), 1009, str(LARGEST)),
    ],
    ids=["garbage", "bomb", "one byte over"],
)
async def test_invalid_or_oversized_compressed_data_closes_the_connection(
    broker: Broker, bystander: object, content: bytes, code: int, says: str
) -> None:
    client = await RawClient.open(broker.address("clients"), deflate=True)
    client.write(frame(TEXT, content, rsv1=True))
    end = await client.wait_ended()
    assert end.code == code
    assert says in end.reason


@pytest.mark.parametrize("name", ["reserved opcode", "no JSON"])
async def test_a_connection_ends_even_if_the_client_does_not_close(
    broker: Broker, bystander: object, name: str
) -> None:
    """The broker sends a close frame, and the client neither answers it nor closes its side: the broker ends the
    connection within 5 s."""
    client = await RawClient.join(broker)
    client.write(CLOSES[name][0])
    while (await client.frame()).opcode != CLOSE:
        continue
    with pytest.raises(ConnectionEnded) as ended:
        await client.frame(limit=5)
    assert ended.value.code == 1006


@pytest.mark.parametrize(
    ("text", "error", "close"),
    [
        (PING_TEXT, "not_connected", 4000),
        (b'{"op":"subscribe","request":1,"topics":[]}', "not_connected", 4000),
        (b'{"op":"shout"}', "unknown_op", 4000),
        (b'{"op":"connect","version":2}', "unsupported_version", 4000),
        (b'{"op":"connect","version":"1"}', "bad_message", 4000),
        (b'{"op":"connect","client":"' + b"c" * 256 + b'"}', "bad_message", 4000),
    ],
)
async def test_a_wrong_first_message_ends_the_connection(
    broker: Broker, bystander: object, text: bytes, error: str, close: int
) -> None:
    client = await RawClient.open(broker.address("clients"))
    client.write(frame(TEXT, text))
    end = await client.wait_ended()
    (error_message,) = client.buffered
    assert (error_message["op"], error_message["code"], error_message["closes"], end.code) == (
        "error",
        error,
        True,
        close,
    )
    assert end.reason in error_message["text"] or error_message["text"] in end.reason


async def test_an_idle_connection_ends_at_the_handshake_limit(broker: Broker, bystander: object) -> None:
    client = await RawClient.open(broker.address("clients"))
    end = await client.wait_ended(limit=5)
    assert (end.code, end.reason) == (1013, "no `connect` within 1 s")


# ---- no WebSocket at all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (request(path="/socket"), 404, b"/ws"),
        (request(wire="v2"), 400, b"migratory.v1.json"),
        (request().replace(b"Version: 13", b"Version: 8"), 426, b"13"),
        (request().replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"c2hvcnQ="), 400, b"16 bytes"),
        (request().replace(b"Upgrade: websocket\r\n", b""), 426, b"WebSocket"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, b""),
    ],
    ids=["path", "subprotocol", "version", "key", "no upgrade", "TLS"],
)
async def test_wrong_handshake_gets_an_http_error_with_the_reason(
    broker: Broker, bystander: object, data: bytes, status: int, says: bytes
) -> None:
    code, _, body = await answer(broker.address("clients"), data)
    assert code == status
    assert says in body


@pytest.mark.parametrize("listener", ["clients", "peers", "admin"])
async def test_random_bytes_on_any_listener_disturb_no_other_client(
    broker: Broker, bystander: object, listener: str
) -> None:
    for noise in (os.urandom(4096), bytes(4096), b"\xff" * 4096, b"GET / HTTP/1.1\r\n" * 100):
        client = await RawClient.join(broker)
        # dropped, or answered by something that is no HTTP
        with contextlib.suppress(OSError, EOFError, ValueError, IndexError):
            await answer(broker.address(listener), noise + b"\r\n\r\n")
        await client.ping()
    assert broker.ready()
