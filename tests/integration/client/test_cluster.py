"""The client with real brokers of which one is killed and one drained."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from migratory_client import Client, Message, Position
from migratory_client.core import events as ev
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_resources.validation.loading import load_cluster
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    document = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "test"},
        "spec": {},
    }
    async with LocalCluster(load_cluster(yaml.safe_dump(document)).cluster, tmp_path / "cluster") as running:
        yield running


async def take(stream: AsyncIterator[Message], count: int) -> list[Message]:
    async with asyncio.timeout(20):
        return [await anext(stream) for _ in range(count)]


def payloads(messages: list[Message]) -> list[int]:
    return [int(message.payload) for message in messages]


async def test_client_survives_a_killed_and_a_drained_broker(cluster: LocalCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    statuses: list[object] = []
    receipts: list[ev.Receipt] = []
    async with Client([cluster.broker(names[0]).url], on_status=statuses.append, on_receipt=receipts.append) as reader:
        async with Client([cluster.broker(names[1]).url]) as writer:
            stream = reader.subscribe("quotes/eur")
            empty = reader.subscribe("never/published")
            await until(lambda: len(receipts) == 2, "both receipts")
            assert all(receipt.position is not None and receipt.position.epoch > 0 for receipt in receipts)

            # Published at one broker, read at another: in order, none missing.
            first = [writer.submit("quotes/eur", str(number)) for number in range(50)]
            positions = await asyncio.gather(*first)
            messages = await take(stream, 50)
            assert payloads(messages) == list(range(50))
            assert [message.position for message in messages] == positions

            # The reader's broker is killed in the middle of a stream.
            under_way = [writer.submit("quotes/eur", str(number)) for number in range(50, 75)]
            cluster.kill_broker(names[0], restart=False)
            under_way += [writer.submit("quotes/eur", str(number)) for number in range(75, 100)]
            unread = writer.submit("never/published", "0")
            assert None not in await asyncio.wait_for(asyncio.gather(*under_way, unread), 40)
            assert payloads(await take(stream, 50)) == list(range(50, 100))
            assert payloads(await take(empty, 1)) == [0]  # dropped before its first message
            resumed = [status.seconds for status in statuses if isinstance(status, ev.Ready) and status.seconds]
            assert len(resumed) == 1
            assert resumed[0] < 5
            await cluster.restart_broker(names[0])

            # The reader's present broker is drained: it leaves without a break.
            here = next(status.broker for status in reversed(statuses) if isinstance(status, ev.LinkUp))
            cluster.supervisor.hold(here)
            cluster.broker(here).process.signal(signal.SIGTERM)
            numbers = iter(range(100, 10_000))
            sent = 100

            async def moved() -> bool:
                nonlocal sent
                await asyncio.wait_for(writer.publish("quotes/eur", str(next(numbers))), 20)
                sent += 1
                return any(isinstance(status, ev.LinkDown) and status.replaced for status in statuses)

            await until(moved, "moved by the drain", limit=60)
            assert payloads(await take(stream, sent - 100)) == list(range(100, sent))
        assert {receipt.kind for receipt in receipts} == {"complete"}
        causes = [status.cause for status in statuses if isinstance(status, ev.LinkDown)]
        assert [cause for cause in causes if cause != "moved"] == ["broken", "drained"]

        # A position from the application's own store, in a new client.
        async with Client([cluster.broker(names[0]).url]) as later:
            after = stream.positions["quotes/eur"]
            old = later.subscribe("quotes/eur", after=Position(after.epoch, after.sequence))
            latest = later.subscribe("never/published", snapshot=True)
            assert payloads(await take(latest, 1)) == [0]
            await later.publish("quotes/eur", "-1")
            assert payloads(await take(old, 1)) == [-1]
