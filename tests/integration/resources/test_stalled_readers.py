"""Clients that do not read: the broker limits the queues of each and of all together, and other readers miss
nothing."""

from __future__ import annotations

import pytest
from migratory_testing.crowd import all_ended, closed, descriptors, gather, resident
from migratory_testing.processes import Broker
from migratory_testing.rawclient import RawClient, payload
from migratory_testing.waiting import poll_apart

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MIB = 2**20
QUEUE, TOTAL, CACHE = 256 * 1024, 16 * MIB, 16 * MIB
SETTINGS = {
    "topics": {"groups": 4, "cache": {"messagesPerTopic": 50, "minAge": 0.0, "maxBytes": CACHE}},
    "limits": {"queuePerClient": QUEUE, "queueTotal": TOTAL, "heartbeat": 60.0},
}
STALLED = 300  # of 256 KiB each: 75 MiB, if there were no limit for all
SIZE = 32_768


async def test_stalled_readers_are_bounded_and_closed_and_a_healthy_one_misses_nothing(
    broker: Broker, bystander: object
) -> None:
    memory, used, ended = resident(broker), descriptors(broker), closed(broker, "slow_consumer")
    crowd = await gather(broker, STALLED, topics=1)
    for member in crowd:
        member.transport.pause_reading()
    reader = await RawClient.join(broker, "msgpack", name="healthy")
    writer = await RawClient.join(broker, "msgpack", name="writer")
    await reader.subscribe("crowd/0")

    highest = 0
    number = 0
    while closed(broker, "slow_consumer") < ended + STALLED:
        number += 1
        assert number * SIZE < 64 * MIB, "what the kernel holds for each of them should be full by now"
        await writer.publish("crowd/0", number.to_bytes(8, "big") + bytes(SIZE - 8), number, "stalled")
        message = await reader.receive("message")
        assert payload(message)[:8] == number.to_bytes(8, "big")
        highest = max(highest, resident(broker))
    assert highest - memory < TOTAL + CACHE + 24 * MIB
    lines = [line for line in broker.lines() if line["event"] == "slow_consumer"]
    assert {line["client"] for line in lines} == {"crowd"}
    assert all(line["queued_bytes"] <= QUEUE for line in lines)

    for member in crowd:
        member.transport.resume_reading()
    await all_ended(crowd)
    reader.writer.transport.abort()
    writer.writer.transport.abort()
    await poll_apart(lambda: descriptors(broker) <= used, "descriptors are given back")
