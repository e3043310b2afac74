"""Fixture: a fake API server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from migratory_testing.fakekube import FakeKube


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with FakeKube() as fake:
        yield fake
