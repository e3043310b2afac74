"""What brokers say of themselves, as their administration port gives it to the operator."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from migratory_operator import brokers as brokers_module
from migratory_operator import names
from migratory_operator.brokers import Brokers
from migratory_operator.observe import BrokerPage
from migratory_testing.kubernetes import pod

PAGE = {
    "ready": True,
    "zookeeper_connected": True,
    "edge": {"clients": 4},
    "logic": {
        "groups": [
            {"group": number, "role": "coordinator", "members": ["quotes-broker-0"], "copies": 1}
            for number in range(100)
        ],
        "waiting_groups": 0,
        "incarnation": 5,
        "member": True,
        "fenced": False,
        "draining": False,
        "peers": {},
    },
}
POD = pod("quotes-broker-0", names.BROKER, podIP="127.0.0.1")


class Broker:
    """Answers in two parts, the second one when `rest` is set."""

    def __init__(self, page: bytes) -> None:
        self._page = page
        self.begun, self.rest = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(self._page))})
        await response.prepare(request)
        half = len(self._page) // 2
        await response.write(self._page[:half])
        self.begun.set()
        await self.rest.wait()
        await response.write(self._page[half:])
        return response


@asynccontextmanager
async def listening(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get("/v1/status", broker.answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(brokers_module, "ADMIN_PORT", runner.addresses[0][1])
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    await made.close()


async def test_a_page_that_comes_in_parts_is_read_to_its_end(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(json.dumps(PAGE).encode())
    async with listening(broker, monkeypatch):
        asked = asyncio.create_task(brokers.pages([POD]))
        await broker.begun.wait()
        await asyncio.wait([asked], timeout=0.2)
        assert not asked.done(), "half of a page is none"
        broker.rest.set()
        assert await asked == {"quotes-broker-0": BrokerPage.read(PAGE)}


@pytest.mark.parametrize("page", [b"[", b"{}", b"[1, 2]"], ids=["no-json", "no-page", "a-list"])
async def test_what_is_no_page_is_told_and_counts_as_no_answer(
    page: bytes, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(page)
    broker.rest.set()
    async with listening(broker, monkeypatch):
        assert await brokers.pages([POD]) == {}
    assert "quotes-broker-0: /v1/status is not as expected" in caplog.text


async def test_a_page_without_end_is_given_up(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(brokers_module, "_LARGEST_PAGE", 1000)
    broker = Broker(b" " * 4000)
    async with listening(broker, monkeypatch):
        assert await brokers.pages([POD]) == {}
    assert "it has more than 1000 bytes" in caplog.text


async def test_a_broker_that_is_not_there_or_has_no_address_does_not_answer(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(b"")
    async with listening(broker, monkeypatch):
        pass
    with caplog.at_level(logging.WARNING):
        assert await brokers.pages([POD, pod("quotes-broker-1", names.BROKER, podIP="")]) == {}
    assert not caplog.records
