"""Fixtures: a scripted broker, and a check that no task is left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from migratory_testing.fakebroker import FakeBroker


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
