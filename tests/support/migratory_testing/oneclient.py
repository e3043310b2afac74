"""Fixtures for tests of the asyncio client: a scripted broker, and a check that no task is left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from migratory_client import Message, Settings

from migratory_testing.fakebroker import FakeBroker

QUICK = Settings(first_retry=0.05, ack_timeout=0.2)


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    yield
    gc.collect()  # what is left and unreferenced warns, and a warning is an error
    left = {task for task in asyncio.all_tasks() if task.get_name().startswith("migratory")}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        yield running


async def take(subscription: AsyncIterator[Message], count: int) -> list[bytes]:
    async with asyncio.timeout(10):
        return [(await anext(subscription)).payload for _ in range(count)]
