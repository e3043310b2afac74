"""Cases A5 and A6 on a real broker: numbers that not every language can represent, and positions that cannot be resumed
from.

Payloads are bytes here, so the broker does not interpret numbers in them. Positions are text in JSON.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from migratory_testing.processes import Broker
from migratory_testing.rawclient import TEXT, RawClient, frame, payload, position

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

SETTINGS = {"topics": {"groups": 8, "cache": {"messagesPerTopic": 100, "minAge": 0.0}}}
RESUME_WAIT = 2.0
NUMBERS = '{"v":[9007199254740993,18446744073709551615,18446744073709551616,1e400,-0,1.0]}'


async def test_numbers_in_a_payload_keep_every_digit(broker: Broker, bystander: object) -> None:
    readers = [await RawClient.join(broker, wire) for wire in ("json", "msgpack")]
    for reader in readers:
        await reader.subscribe("numbers")
    writer = await RawClient.join(broker)
    text = json.dumps(NUMBERS)
    publish = f'{{"op":"publish","topic":"numbers","data":{text},"qos":1,"publisher":"n","id":1,"mark":1}}'
    writer.write(frame(TEXT, publish.encode()))
    await writer.receive("ack")
    for reader in readers:
        assert payload(await reader.receive("message")) == NUMBERS.encode()


@pytest.mark.parametrize("number", ["9007199254740992", "18446744073709551616", "1e400", "-1", "1.5", '"1"', "true"])
async def test_numbers_that_are_no_valid_integer_are_refused(broker: Broker, bystander: object, number: str) -> None:
    client = await RawClient.join(broker)
    publish = f'{{"op":"publish","topic":"t","data":"x","qos":1,"publisher":"n","id":{number},"mark":1}}'
    client.write(frame(TEXT, publish.encode()))
    error = await client.receive("error", "ack", "nack")
    assert (error["op"], error["code"]) == ("error", "bad_message")
    assert error["text"].startswith("publish.id: ")
    await client.ping()


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_positions_above_2_to_the_53_are_read_exactly(broker: Broker, bystander: object, wire: Any) -> None:
    """A requested position with a number above 2^53 is read to the last digit and answered with `reset` at sequence
    number 0, because its history is unknown."""
    client = await RawClient.join(broker, wire)
    for sequence in (9007199254740992, 9007199254740993):
        after: object = f"9007199254740993:{sequence}" if wire == "json" else [9007199254740993, sequence]
        receipt = await client.subscribe(f"far/{sequence}", after)
        assert (receipt["receipt"], position(receipt["position"])[1]) == ("reset", 0)


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_position_ahead_of_the_broker_is_reset_after_the_wait(
    broker: Broker, bystander: object, wire: Any
) -> None:
    """A subscription from a position ahead of a known history is answered with `reset` after 2 s; one from a
    position of an unknown history, at once. Both then receive the next publication."""
    topic = f"future/{wire}"
    writer = await RawClient.join(broker)
    for number in range(1, 41):
        head = position(await writer.publish(topic, b"%d" % number, number))
    epoch, last = head
    assert last == 40
    for ahead, at_least, at_most in (((epoch, 1000), RESUME_WAIT * 0.9, RESUME_WAIT + 2), ((epoch + 9, 1), 0, 1.5)):
        client = await RawClient.join(broker, wire)
        began = time.monotonic()
        receipt = await client.subscribe(topic, "{}:{}".format(*ahead) if wire == "json" else list(ahead))
        assert at_least <= time.monotonic() - began <= at_most
        assert (receipt["receipt"], position(receipt["position"])) == ("reset", head)
        number += 1
        await writer.publish(topic, b"%d" % number, number)
        message = await client.receive("message")
        last += 1
        assert (position(message["position"]), payload(message)) == ((epoch, last), b"%d" % number)
        head = (epoch, last)


async def test_position_reached_within_the_wait_resumes_without_reset(broker: Broker, bystander: object) -> None:
    writer, client = await RawClient.join(broker), await RawClient.join(broker)
    epoch, _ = position(await writer.publish("soon", b"1", 1))
    client.send("subscribe", request=1, topics=[{"topic": "soon", "after": f"{epoch}:2"}])
    await client.ping()
    assert client.buffered == []
    for number in (2, 3):
        await writer.publish("soon", b"%d" % number, number)
    receipt = (await client.receive("subscribed"))["topics"][0]
    assert receipt["receipt"] == "complete"
    assert payload(await client.receive("message")) == b"3"


async def test_malformed_positions_harm_their_topic_only(broker: Broker, bystander: object) -> None:
    client = await RawClient.join(broker)
    bad = ["[3,-1]", "[3,1.5]", '[3,"12"]', "[3,18446744073709551616]", "[null,5]", '"3"', "true", '"3:-1"', '"3:1.5"',
           '"3:18446744073709551616"', '":5"', '"3:1e3"', '"\u0663:1"', "{}", "17"]  # fmt: skip
    topics = ",".join(f'{{"topic":"bad/{number}","after":{after}}}' for number, after in enumerate(bad))
    client.write(frame(TEXT, f'{{"op":"subscribe","request":4,"topics":[{topics},{{"topic":"fine"}}]}}'.encode()))
    receipts: dict[str, Any] = {}
    while len(receipts) < len(bad) + 1:
        answer = await client.receive("subscribed", "error")
        assert (answer["op"], answer["request"]) == ("subscribed", 4)
        receipts |= {receipt["topic"]: receipt for receipt in answer["topics"]}
    assert receipts.pop("fine")["receipt"] == "complete"
    for topic, receipt in receipts.items():
        assert (receipt.get("receipt"), receipt["code"]) == (None, "bad_position"), topic
        assert "epoch:sequence" in receipt["text"] or "whole numbers from 0" in receipt["text"], "what is allowed"
    await client.publish("fine", b"x", 1)
    assert payload(await client.receive("message")) == b"x"


async def test_a_resume_behind_the_cache_reports_the_missing_range(broker: Broker, bystander: object) -> None:
    writer, client = await RawClient.join(broker), await RawClient.join(broker)
    for number in range(1, 151):
        epoch, _ = position(await writer.publish("short", b"%d" % number, number))
    receipt = await client.subscribe("short", f"{epoch}:1")
    assert (receipt["receipt"], receipt["first"], receipt["last"]) == ("truncated", "2", "50")
    positions = [position((await client.receive("message"))["position"]) for _ in range(100)]
    assert positions == [(epoch, number) for number in range(51, 151)]
