"""All brokers are killed at once, and with them the histories: clients get `reset`, and publishing works again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from migratory_client import Client, PublishTimeout, Receipt
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


async def test_clients_get_reset_and_publishing_works_again_within_30_seconds(start_cluster: Any) -> None:
    async with start_cluster() as cluster:
        receipts: list[Receipt] = []
        async with (
            Client(cluster.urls) as publisher,
            Client(cluster.urls, on_receipt=receipts.append) as subscriber,
        ):
            stream = subscriber.subscribe("scores/1", on_gap=receipts.append)
            await until(lambda: receipts, "subscribed")
            for number in range(5):
                await publisher.publish("scores/1", f"before {number}")
            for number in range(5):
                assert (await asyncio.wait_for(anext(stream), 5)).payload == f"before {number}".encode()

            for name in cluster.resource.broker_names:
                cluster.kill_broker(name)
            killed = time.monotonic()
            position = None
            while position is None:
                try:
                    position = await asyncio.wait_for(publisher.publish("scores/1", "after"), 30)
                except (PublishTimeout, TimeoutError):
                    assert time.monotonic() - killed < 30
            assert time.monotonic() - killed < 30

            # A reset names no missing publications.
            async def got_reset() -> bool:
                return "reset" in [receipt.kind for receipt in receipts if receipt.topic == "scores/1"]

            await until(got_reset, "the subscriber gets `reset`", 30)
            await publisher.publish("scores/1", "after the reset")
            while (message := await asyncio.wait_for(anext(stream), 10)).payload != b"after the reset":
                assert message.payload == b"after"
            assert message.position.epoch >= position.epoch
