"""Case A3 on a real broker: topic names that look alike, names that are not allowed, and names of the greatest length.

The case has a limit of 512 bytes; this product's is 255, so that the longest names are 127 two-byte characters and a
letter.
"""

from __future__ import annotations

from typing import Any

import pytest
from migratory_testing.processes import Broker
from migratory_testing.rawclient import BINARY, TEXT, RawClient, frame, payload, position

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

# as JSON text, and what the error must say of it
BAD = {
    "nul": (r"a\u0000b", "control character"),
    "empty": ("", "255 bytes"),
    "256 bytes": ("é" * 128, "255"),
    "lone surrogate": (r"\ud800", "surrogate"),
}
LONGEST = "é" * 127 + "x"


def publish(topic: str, number: int) -> bytes:
    text = f'{{"op":"publish","topic":"{topic}","data":"x","qos":1,"publisher":"p","id":{number},"mark":{number}}}'
    return frame(TEXT, text.encode())


@pytest.mark.parametrize("name", BAD)
async def test_invalid_topic_is_refused_for_subscribe_and_publish(broker: Broker, bystander: object, name: str) -> None:
    topic, says = BAD[name]
    client = await RawClient.join(broker)
    good = f"good/{name}"
    await client.subscribe(good)
    assert position(await client.publish(good, b"1", 1))[1] == 1

    client.write(publish(topic, 1))
    refused = await client.receive("nack", "error", "ack")
    assert refused["op"] != "ack"
    check(refused, says)

    client.write(frame(TEXT, f'{{"op":"subscribe","request":7,"topics":[{{"topic":"{topic}"}}]}}'.encode()))
    answer = await client.receive("subscribed", "error")
    assert answer["request"] == 7, "the request that is refused is named"
    check(answer["topics"][0] if answer["op"] == "subscribed" else answer, says)
    assert answer["op"] == "error" or answer["topics"][0].get("receipt") is None

    assert position(await client.publish(good, b"2", 2))[1] == 2, "no hole in the sequence"
    assert [payload(await client.receive("message")) for _ in range(2)] == [b"1", b"2"]


def check(refused: dict[str, Any], says: str) -> None:
    assert refused["code"] == "bad_topic"
    assert says in refused["text"], refused
    assert not refused.get("closes", False)


async def test_ill_formed_utf8_in_messagepack_is_refused_with_its_field(broker: Broker, bystander: object) -> None:
    client = await RawClient.join(broker, "msgpack")
    topic = bytes.fromhex("a361ff62")
    for content, field in (
        (b"\x97\x04" + topic + b"\xc4\x01x\x01\xa1p\x01\x01", "publish.topic"),
        (b"\x93\x02\x07\x91\x91" + topic, "subscribe.topics[0].topic"),
    ):
        client.write(frame(BINARY, content))
        error = await client.receive("error", "ack", "nack", "subscribed")
        assert (error["op"], error["code"]) == ("error", "bad_topic")
        assert field in error["text"]
        assert "UTF-8" in error["text"]
    await client.ping()


async def test_longest_topic_name_is_accepted(broker: Broker, bystander: object) -> None:
    client = await RawClient.join(broker)
    assert len(LONGEST.encode()) == 255
    assert (await client.subscribe(LONGEST))["receipt"] == "complete"
    await client.publish(LONGEST, b"x", 1)
    assert (await client.receive("message"))["topic"] == LONGEST


async def test_names_are_compared_byte_for_byte(broker: Broker, bystander: object) -> None:
    """A composed and a decomposed accent make two topics, and a byte order mark is part of the name, in both
    formats: each subscriber receives only the publication to exactly its name."""
    names = ["caf\u00e9", "cafe\u0301", "\ufefft", "t"]
    readers = {(wire, name): await RawClient.join(broker, wire) for wire in ("json", "msgpack") for name in names}
    for (_, name), reader in readers.items():
        assert (await reader.subscribe(name))["topic"] == name
    writer = await RawClient.join(broker)
    for name in names:
        await writer.publish(name, name.encode(), 1)
    for (_, name), reader in readers.items():
        message = await reader.receive("message")
        assert (message["topic"], payload(message)) == (name, name.encode())
        await reader.ping()
        assert reader.buffered == [], "nothing of the look-alike"


def test_metrics_of_hostile_topics_parse(broker: Broker) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name for family in text_string_to_metric_families(broker.get("/metrics")[1])}
    assert "migratory_topics" in families
