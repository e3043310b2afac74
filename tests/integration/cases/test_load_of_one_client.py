"""Cases A12 and A13 with real sockets: one client that does not read, and one with very many subscriptions."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from migratory_protocol.limits import SUBSCRIPTIONS, TOPICS
from migratory_testing import rawclient
from migratory_testing.crowd import closed, resident
from migratory_testing.processes import Broker
from migratory_testing.rawclient import RawClient, payload, position
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

QUEUE = 4 * 1024 * 1024
MANY = 50_000
SETTINGS = {
    "topics": {"groups": 8, "cache": {"messagesPerTopic": 100, "minAge": 0.0}},
    "limits": {"queuePerClient": QUEUE, "subscriptionsPerClient": MANY},
}

# ---- A12 -----------------------------------------------------------------------------------------------------

TOPIC = "stalled"
READERS = 10
SIZE = 65_536
RATE = 50
COUNT = 200  # 12.5 MiB: more than the queue and what the kernel holds for the connection


async def delays(broker: Broker, run: str) -> list[float]:
    """Publish to several readers, and check that each gets every publication in order. Return the sorted seconds from a
    publication's due time to its delivery. All runs use one topic, whose cache is full after the first run."""
    readers = [await RawClient.join(broker, "msgpack", name=f"reader-{number}") for number in range(READERS)]
    for reader in readers:
        await reader.subscribe(TOPIC)
    writer = await RawClient.join(broker, "msgpack")
    due: dict[int, float] = {}
    measured: list[float] = []

    async def read(reader: RawClient) -> None:
        for number in range(1, COUNT + 1):
            message = await reader.receive("message")
            assert payload(message)[:8] == number.to_bytes(8, "big")
            measured.append(time.monotonic() - due[number])

    async def write() -> None:
        began = time.monotonic()
        for number in range(1, COUNT + 1):
            due[number] = began + number / RATE
            await asyncio.sleep(due[number] - time.monotonic())
            writer.send_publish(TOPIC, number.to_bytes(8, "big") + bytes(SIZE - 8), number, run)
            await writer.writer.drain()

    async with asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(read(reader))
        tasks.create_task(write())
    for client in (*readers, writer):
        client.writer.transport.abort()
    return sorted(measured)


async def test_a_client_that_does_not_read_is_closed_at_its_limit_and_delays_no_other(
    broker: Broker, bystander: object
) -> None:
    await delays(broker, "first")
    alone = await delays(broker, "alone")
    before, ended = resident(broker), closed(broker, "slow_consumer")

    name = "stalled"
    stalled = await RawClient.join(broker, "msgpack", name=name, receive_buffer=4096)
    receipt = await stalled.subscribe(TOPIC)
    stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
    epoch, begin = position(receipt["position"])
    together = await delays(broker, "together")

    assert resident(broker) - before < 2 * QUEUE
    assert closed(broker, "slow_consumer") == ended + 1
    (line,) = [line for line in broker.lines() if line["event"] == "slow_consumer" and line["client"] == name]
    assert line["queued_bytes"] <= QUEUE

    again = await RawClient.join(broker, "msgpack", name=name)
    receipt = await again.subscribe(TOPIC, [epoch, begin + 1])
    assert receipt["receipt"] == "truncated"
    assert (receipt["first"], receipt["last"]) == (begin + 2, begin + COUNT - 100)
    numbers = [position((await again.receive("message"))["position"])[1] for _ in range(100)]
    assert numbers == list(range(begin + COUNT - 99, begin + COUNT + 1))
    again.writer.transport.abort()
    # what a healthy reader notices of a stalled one is measured by hand (docs/contributing/cases.md): here, that it is
    # not held up
    assert together[len(together) * 99 // 100] < alone[len(alone) * 99 // 100] + 1.0


# ---- A13 -----------------------------------------------------------------------------------------------------


PINGING = """
import asyncio, select, sys, time
from migratory_testing.rawclient import RawClient

async def ping(host, port):
    client = await RawClient.open((host, int(port)))
    await client.connect("pinging")
    print("ready", flush=True)
    last = False
    while not last:
        last = bool(select.select([sys.stdin], [], [], 0.1)[0])
        began = time.monotonic()
        await client.ping()
        print(time.monotonic() - began, flush=True)
    client.writer.close()
    await client.writer.wait_closed()

asyncio.run(ping(*sys.argv[1:]))
"""


@asynccontextmanager
async def pinging(broker: Broker) -> AsyncIterator[list[float]]:
    """Ping the broker every 100 ms from a client in another process, so that the work of this process does not count
    as the broker's delay. The yielded list is empty until the context has ended; then it has the seconds until each
    pong."""
    host, port = broker.address("clients")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PINGING, host, str(port), stdin=PIPE, stdout=PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(rawclient.__file__).parents[1])},
    )  # fmt: skip
    seconds: list[float] = []
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield seconds
        async with asyncio.timeout(30):
            printed, _ = await process.communicate(b"")
        seconds += map(float, printed.split())
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def subscribe_many(client: RawClient, topics: list[str], number: int) -> None:
    """Subscribe to all topics, in as few requests as the protocol allows, with `number` as the request number of
    each. Check that each topic is answered once, with a position of sequence number 0."""
    packed = client.wire == "msgpack"
    entries: list[Any] = [[topic] if packed else {"topic": topic} for topic in topics]
    for begin in range(0, len(entries), TOPICS):
        client.send("subscribe", request=number, topics=entries[begin : begin + TOPICS])
    answered: list[str] = []
    while len(answered) < len(topics):
        answer = await client.receive("subscribed", "error")
        assert (answer["op"], answer["request"]) == ("subscribed", number), answer
        for receipt in answer["topics"]:
            assert (receipt["receipt"], position(receipt["position"])[1]) == ("complete", 0)
            answered.append(receipt["topic"])
    assert sorted(answered) == topics


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_fifty_thousand_topics_requested_three_times_are_subscribed_once(
    broker: Broker, bystander: object, wire: str
) -> None:
    topics = [f"{wire[0]}/{number:06}" for number in range(MANY)]
    before = broker.metric("migratory_subscriptions")
    async with pinging(broker) as pongs:
        client = await RawClient.join(broker, wire)
        for number in (1, 2, 3):
            await subscribe_many(client, topics, number)
        assert broker.metric("migratory_subscriptions") == before + MANY
        writer = await RawClient.join(broker)
        await writer.publish(topics[-1], b"x", 1)
        assert (await client.receive("message"))["topic"] == topics[-1]
        await client.ping()
        assert client.buffered == [], "delivered once, not three times"
        client.reset()
        await asyncio.to_thread(
            poll, lambda: broker.metric("migratory_subscriptions") == before, "all subscriptions are gone", 5.0
        )
    assert max(pongs) < 1.0


async def test_the_default_subscription_limit_delays_no_other_client(broker: Broker, bystander: object) -> None:
    before = broker.metric("migratory_subscriptions")
    clients = [await RawClient.join(broker, wire) for wire in ("json", "msgpack") * 5]
    async with pinging(broker) as pongs:
        for number in (1, 2):
            for index, client in enumerate(clients):
                await subscribe_many(client, [f"default/{index}/{topic:03}" for topic in range(SUBSCRIPTIONS)], number)
        assert broker.metric("migratory_subscriptions") == before + len(clients) * SUBSCRIPTIONS
    assert max(pongs) < 1.0


async def test_subscriptions_over_the_limit_are_refused_and_the_connection_stays(
    broker: Broker, bystander: object
) -> None:
    before = broker.metric("migratory_subscriptions")
    client = await RawClient.join(broker, "msgpack")
    await subscribe_many(client, [f"over/{number:06}" for number in range(MANY)], 8)
    for topics, code, text in (
        ([["over/one"]], "too_many_subscriptions", f"the limit of subscriptions is {MANY} per client"),
        ([[f"many/{number}"] for number in range(TOPICS + 1)], "bad_message", f"<= {TOPICS}, got {TOPICS + 1}"),
    ):
        client.send("subscribe", request=9, topics=topics)
        error = await client.receive("error", "subscribed")
        assert (error["op"], error["code"], error["request"]) == ("error", code, 9)
        assert text in error["text"]
    await client.ping()
    assert client.buffered == []
    assert broker.metric("migratory_subscriptions") == before + MANY
    await subscribe_many(client, ["over/000000"], 10)
