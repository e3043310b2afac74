"""Batching, conflation and compression on real sockets, in both formats: batches lose and reorder
nothing, conflation names what it skips, and a compressed fan-out has the same bytes for all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from migratory_testing.processes import Broker
from migratory_testing.rawclient import BINARY, TEXT, RawClient, frame, payload, position

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

SETTINGS = {
    "delivery": {
        "minCopies": 1,
        "batching": {"maxDelay": 0.3, "maxBytes": 8192},
        "conflation": [{"topics": "ticks/**", "interval": 0.5}],
    },
    "compression": True,
}
WIRES = pytest.mark.parametrize("wire", ["json", "msgpack"])


async def pair(broker: Broker, topic: str, wire: str) -> tuple[RawClient, RawClient]:
    """Connect a subscriber of the topic and a publisher, and return the two as (subscriber, publisher)."""
    reader, writer = await RawClient.join(broker, wire), await RawClient.join(broker, wire)
    await reader.subscribe(topic)
    return reader, writer


@WIRES
async def test_batched_publications_wait_for_the_delay_and_none_is_lost(
    broker: Broker, wire: str, bystander: Any
) -> None:
    reader, writer = await pair(broker, f"quotes/{wire}", wire)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(1, 21):
        writer.send_publish(f"quotes/{wire}", b"%d" % number, number, "p")
    payloads = [payload(await reader.receive("message")) for _ in range(20)]
    assert payloads == [b"%d" % number for number in range(1, 21)]
    assert loop.time() - began >= 0.25  # they waited
    assert bystander is not None


@WIRES
async def test_a_pong_follows_the_batched_publications(broker: Broker, wire: str) -> None:
    reader, writer = await pair(broker, f"behind/{wire}", wire)
    await writer.publish(f"behind/{wire}", b"x", 1, "p")
    reader.send("ping")
    assert [message["op"] for message in [await reader.receive("message", "pong") for _ in range(2)]] == [
        "message",
        "pong",
    ]


@WIRES
async def test_a_close_frame_follows_the_batched_publications(broker: Broker, wire: str) -> None:
    reader, writer = await pair(broker, f"close/{wire}", wire)
    await writer.publish(f"close/{wire}", b"x", 1, "p")
    reader.send("bye")
    assert (await reader.wait_ended()).code == 1000
    assert [payload(message) for message in reader.buffered if message["op"] == "message"] == [b"x"]


@WIRES
async def test_full_batch_is_written_at_once(broker: Broker, wire: str) -> None:
    """All of 25 publications of 4 KB, which fill several batches, arrive in order."""
    reader, writer = await pair(broker, f"large/{wire}", wire)
    for number in range(1, 26):
        writer.send_publish(f"large/{wire}", bytes(4000), number, "p")
    for number in range(1, 26):
        message = await reader.receive("message")
        assert position(message["position"])[1] == number


@WIRES
async def test_conflation_reports_skipped_publications_and_never_skips_qos_1(broker: Broker, wire: str) -> None:
    topic = f"ticks/{wire}/eur"
    reader, writer = await pair(broker, topic, wire)
    quiet = b"".join(_quiet(writer, topic, number) for number in range(1, 51))
    writer.write(quiet)
    await writer.publish(topic, b"acknowledged", 1, "p")
    writer.write(quiet)
    writer.write(_quiet(writer, topic, 999))
    last, covered, received = 0, 0, []
    while last < 102:
        message = await reader.receive("message")
        stands = position(message["position"])[1]
        assert last + 1 == (int(message.get("first") or 0) or stands) <= stands, "a hole that is not told"
        last = stands
        covered += 1
        received.append(payload(message))
    assert b"acknowledged" in received
    assert received[-1] == b"999"  # the last one is not forgotten
    assert covered < 60


async def test_compressed_fan_out_has_the_same_bytes_for_every_subscriber(broker: Broker) -> None:
    readers = [await RawClient.open(broker.address("clients"), deflate=True) for _ in range(3)]
    for reader in readers:
        reader.send("connect", version=1, client="raw")
        assert (await reader.frame()).header[0] == 0xC1, "a welcome is long"
        reader.send("subscribe", request=1, topics=[{"topic": "long"}])
        assert b'"subscribed"' in (await reader.frame()).payload, "a short answer stays as it is"
    writer = await RawClient.join(broker)
    await writer.publish("long", b"again and again " * 100, 1, "p")
    frames = [await reader.frame() for reader in readers]
    assert frames[0].header[0] == 0xC1  # RSV1: compressed
    assert len(frames[0].payload) < 400
    assert frames[1:] == frames[:2]


def _quiet(client: RawClient, topic: str, number: int) -> bytes:
    """Return the frame of a QoS 0 publication in the client's wire format, with the number as payload."""
    data = b"%d" % number
    if client.wire == "json":
        return frame(TEXT, json.dumps({"op": "publish", "topic": topic, "data": data.decode()}).encode())
    return frame(BINARY, msgspec.msgpack.encode([4, topic, data]))
