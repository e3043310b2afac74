"""Cases A1 and A2 on a raw socket: control frames between compressed fragments, and every form of a frame's length
field. Also the limits of messages, payloads and lengths."""

from __future__ import annotations

import json

import msgspec
import pytest
from migratory_testing.processes import Broker
from migratory_testing.rawclient import (
    BINARY,
    CONTINUATION,
    TEXT,
    RawClient,
    frame,
    payload,
    position,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

LARGEST = 1_048_576  # bytes of a whole message: payload and envelope
SETTINGS = {"compression": True, "limits": {"maxPayload": LARGEST - 65_536}}

PONG_FIRST = bytes.fromhex("8a8037fa213d")
WHOLE = bytes.fromhex("c18f37fa213d9daceb1267487317ff366a6a9dff21")  # {"op":"ping"}, compressed, in one frame
BEGIN, PING_K = bytes.fromhex("418737fa213d9daceb12674873"), bytes.fromhex("898137fa213d5c")
END = bytes.fromhex("808837fa213d1d32ed766050243d")
END_WITH_RSV1 = b"\xc0" + END[1:]

HEADERS = {
    125: "827d",
    126: "827e007e",
    127: "827e007f",
    65535: "827effff",
    65536: "827f0000000000010000",
    65537: "827f0000000000010001",
}


# ---- A1 ------------------------------------------------------------------------------------------------------------


async def compressing(broker: Broker) -> RawClient:
    """Open a client that has agreed on compression and sent `connect` in a compressed frame, preceded by a PONG
    frame that answers no ping. Return it after the broker's welcome."""
    client = await RawClient.open(broker.address("clients"), deflate=True)
    client.write(PONG_FIRST)
    # Compressed by hand: a stored block (RFC 1951, 3.2.4), as RFC 7692 allows.
    text = b'{"op":"connect","version":1}'
    stored = b"\x00" + len(text).to_bytes(2, "little") + (0xFFFF - len(text)).to_bytes(2, "little") + text + b"\x00"
    client.write(frame(TEXT, stored, rsv1=True))
    assert (await client.frame()).opcode == TEXT, "the welcome"
    return client


async def answers(client: RawClient) -> list[bytes]:
    """Send a `ping` message and then a WebSocket ping. Return the frames that arrive before the WebSocket pong, each
    as one byte of opcode and its payload."""
    client.write(frame(TEXT, b'{"op":"ping"}') + frame(9, b"end"))
    messages = []
    while (taken := await client.frame()).payload != b"end":
        messages.append(bytes((taken.opcode,)) + taken.payload)
    return messages


@pytest.mark.parametrize("chunk", [0, 1])
async def test_pong_before_compressed_text_is_ignored_and_the_text_answered(
    broker: Broker, bystander: object, chunk: int
) -> None:
    client = await compressing(broker)
    await in_pieces(client, PONG_FIRST + WHOLE, chunk)
    messages = await answers(client)
    assert len(messages) == 2, "the ping of the case and the last one, each answered once"


@pytest.mark.parametrize("chunk", [0, 1])
async def test_ping_between_compressed_fragments_is_answered_first(
    broker: Broker, bystander: object, chunk: int
) -> None:
    client = await compressing(broker)
    await in_pieces(client, BEGIN + PING_K + END, chunk)
    messages = await answers(client)
    assert messages[0] == b"\x0ak", "the pong leaves before any answer to the text"
    assert len(messages) == 3


async def test_a_compressed_continuation_is_a_protocol_error(broker: Broker, bystander: object) -> None:
    client = await compressing(broker)
    client.write(BEGIN + PING_K + END_WITH_RSV1)
    assert (await client.frame()).payload == b"k"
    end = await client.wait_ended()
    assert end.code == 1002
    assert "continuation" in end.reason or "RSV" in end.reason.upper()
    assert client.buffered == [], "no event for the application"


async def in_pieces(client: RawClient, data: bytes, chunk: int) -> None:
    """Write the data in pieces of `chunk` bytes, each a TCP segment (Nagle's algorithm is off in asyncio). A `chunk`
    of 0 writes all at once."""
    for start in range(0, len(data), chunk or len(data)):
        client.write(data[start : start + (chunk or len(data))])
        await client.writer.drain()


# ---- A2 ------------------------------------------------------------------------------------------------------------


def publish_of(size: int, topic: str, number: int) -> tuple[bytes, bytes]:
    """Return the content of a publish message of exactly `size` bytes, and its payload."""
    for length in range(size - 60, size):
        data = (b"%06d" % number * (length // 6 + 1))[:length]
        content = msgspec.msgpack.encode([4, topic, data, 1, "sizes", number, number])
        if len(content) == size:
            return content, data
    raise AssertionError(f"no payload gives a frame of {size} bytes")


async def test_published_frames_of_every_length_form_are_delivered(broker: Broker, bystander: object) -> None:
    reader, writer = await RawClient.join(broker, "msgpack"), await RawClient.join(broker, "msgpack")
    await reader.subscribe("sizes")
    for number, (size, header) in enumerate(HEADERS.items(), 1):
        content, data = publish_of(size, "sizes", number)
        sent = frame(BINARY, content)
        masked = bytes.fromhex(header)
        assert sent.startswith(masked[:1] + bytes((masked[1] | 0x80,)) + masked[2:] + bytes.fromhex("37fa213d"))
        writer.write(sent)
        assert position((await writer.receive("ack"))["position"])[1] == number
        assert payload(await reader.receive("message")) == data


@pytest.mark.parametrize("size", HEADERS)
async def test_delivered_headers_are_minimal(broker: Broker, bystander: object, size: int) -> None:
    topic = f"delivered/{size}"
    reader, writer = await RawClient.join(broker, "msgpack"), await RawClient.join(broker, "msgpack")
    await reader.subscribe(topic)
    # How long the envelope is depends on the epoch and on the payload's own header: the first delivery tells.
    length, number = size, 0
    while True:
        number += 1
        await writer.publish(topic, bytes(length), number)
        delivered = await reader.frame()
        if len(delivered.payload) == size:
            break
        length += size - len(delivered.payload)
        assert number < 4, "the envelope does not settle"
    assert delivered.header.hex() == HEADERS[size]


@pytest.mark.parametrize("pieces", [1, 3])
async def test_largest_message_is_accepted_and_one_byte_more_closes(
    broker: Broker, bystander: object, pieces: int
) -> None:
    """A message of the largest size is acknowledged; a field of a later protocol version, which the broker ignores,
    fills the message up to that size. One byte more closes the connection with 1009, and uses no sequence number."""
    topic = f"largest/{pieces}"
    for over, number in ((0, 1), (1, 2)):
        client = await RawClient.join(broker, "msgpack")
        content = largest(topic, number, LARGEST + over)
        step = -(-len(content) // pieces)
        for start in range(0, len(content), step):
            opcode = CONTINUATION if start else BINARY
            client.write(frame(opcode, content[start : start + step], fin=start + step >= len(content)))
        if not over:
            assert position((await client.receive("ack"))["position"])[1] == 1
            continue
        end = await client.wait_ended()
        assert end.code == 1009
        assert str(LARGEST) in end.reason, "the limit is named"
    client = await RawClient.join(broker)
    receipt = await client.subscribe(topic)
    assert position(receipt["position"])[1] == 1, "no sequence number was used"


def largest(topic: str, number: int, size: int) -> bytes:
    def content(filling: int) -> bytes:
        data = bytes(LARGEST - 65_536)
        return msgspec.msgpack.encode([4, topic, data, 1, "largest", number, number, None, bytes(filling)])

    frame_bytes = content(60_000)
    frame_bytes = content(60_000 + size - len(frame_bytes))
    assert len(frame_bytes) == size
    return frame_bytes


async def test_a_payload_over_its_own_limit_is_refused_and_the_connection_stays(
    broker: Broker, bystander: object
) -> None:
    client = await RawClient.join(broker, "msgpack")
    client.send_publish("too/large", bytes(LARGEST - 65_535), 1)
    nack = await client.receive("nack")
    assert (nack["topic"], nack["id"], nack["code"]) == ("too/large", 1, "too_large")
    assert "983041" in nack["text"]
    assert "983040" in nack["text"]
    assert position(await client.publish("too/large", bytes(LARGEST - 65_536), 1))[1] == 1


async def test_a_frame_with_an_absurd_length_closes_at_its_header(broker: Broker, bystander: object) -> None:
    for length in (LARGEST + 1, 2**40, 2**63 - 1):
        client = await RawClient.join(broker)
        client.write(b"\x81\xff" + length.to_bytes(8, "big") + bytes(4))
        end = await client.wait_ended()
        assert end.code == 1009, length
    assert json.loads(broker.get("/v1/status")[1])["ready"]
