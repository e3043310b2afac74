"""Requests for the brokers' status pages."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from migratory_operator import names
from migratory_operator.api import cluster_pods
from migratory_operator.api.broker_status import BrokerStatusPage
from migratory_operator.api.cluster_pods import BrokerStatusClient
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


class TwoPartBroker:
    """A fake broker that sends the second half of its status page only when `continue_` is set."""

    def __init__(self, page: bytes) -> None:
        self._page = page
        self.half_sent, self.continue_ = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(self._page))})
        await response.prepare(request)
        half = len(self._page) // 2
        await response.write(self._page[:half])
        self.half_sent.set()
        await self.continue_.wait()
        await response.write(self._page[half:])
        return response


@asynccontextmanager
async def listening(broker: TwoPartBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get("/v1/status", broker.answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(cluster_pods, "ADMIN_PORT", runner.addresses[0][1])
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
async def brokers() -> AsyncIterator[BrokerStatusClient]:
    client = BrokerStatusClient()
    yield client
    await client.close()


async def test_a_page_in_parts_is_read_to_its_end(brokers: BrokerStatusClient, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = TwoPartBroker(json.dumps(PAGE).encode())
    async with listening(broker, monkeypatch):
        request = asyncio.create_task(brokers.pages([POD]))
        await broker.half_sent.wait()
        await asyncio.wait([request], timeout=0.2)
        assert not request.done(), "half of a page is not a page"
        broker.continue_.set()
        assert await request == {"quotes-broker-0": BrokerStatusPage.read(PAGE)}


@pytest.mark.parametrize("page", [b"[", b"{}", b"[1, 2]"], ids=["no-json", "no-page", "a-list"])
async def test_a_malformed_page_is_logged_and_left_out(
    page: bytes, brokers: BrokerStatusClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = TwoPartBroker(page)
    broker.continue_.set()
    async with listening(broker, monkeypatch):
        assert await brokers.pages([POD]) == {}
    assert "quotes-broker-0: /v1/status is malformed" in caplog.text


async def test_a_page_that_is_too_long_is_left_out(
    brokers: BrokerStatusClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster_pods, "_MAX_PAGE_BYTES", 1000)
    broker = TwoPartBroker(b" " * 4000)
    async with listening(broker, monkeypatch):
        assert await brokers.pages([POD]) == {}
    assert "more than 1000 bytes" in caplog.text


async def test_an_unreachable_broker_or_one_without_address_is_left_out(
    brokers: BrokerStatusClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = TwoPartBroker(b"")
    async with listening(broker, monkeypatch):
        pass
    with caplog.at_level(logging.WARNING):
        assert await brokers.pages([POD, pod("quotes-broker-1", names.BROKER, podIP="")]) == {}
    assert not caplog.records
