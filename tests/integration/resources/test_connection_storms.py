"""Connect storms: the broker accepts connections at its rate limit, the others wait in the kernel, and connected
clients are served."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from migratory_testing.crowd import all_ended, allow_descriptors, descriptors, gather
from migratory_testing.processes import Broker
from migratory_testing.waiting import poll_apart

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

RATE = 400
COUNT = 2000
ROUNDS = 3
SETTINGS = {"topics": {"groups": 4}, "limits": {"connectsPerSecond": RATE, "handshake": 60.0, "heartbeat": 60.0}}


async def test_a_storm_is_accepted_at_the_rate_without_losses(broker: Broker, bystander: Any) -> None:
    assert allow_descriptors(COUNT) == COUNT
    used = descriptors(broker)
    for number in range(ROUNDS):
        began = time.monotonic()
        coming = asyncio.create_task(gather(broker, COUNT, at_once=COUNT, source=f"127.0.2.{number + 1}"))
        served = 0
        while not coming.done():
            await bystander.unharmed(limit=30.0)
            served += 1
            await asyncio.wait([coming], timeout=0.2)
        crowd = await coming
        # A quarter of a second's worth may come ahead of the rate.
        assert time.monotonic() - began >= (COUNT - RATE / 4) / RATE - 0.1
        assert served > 2
        assert broker.metric("migratory_clients") >= COUNT
        for member in crowd:
            member.reset()
        await all_ended(crowd)
        await poll_apart(lambda: descriptors(broker) <= used, "descriptors are given back")
