"""Requests for the brokers' status pages."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from migratory_local.cluster.certificates import DevelopmentAuthority
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


@pytest.mark.parametrize(
    ("authority", "token", "read"),
    [("right", "right", True), ("", "right", True), ("other", "right", False), ("right", "wrong", False),
     ("right", "", False), ("broken", "right", False)],
)  # fmt: skip
async def test_a_guarded_page_is_read_with_a_token_over_tls(
    authority: str, token: str, read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = DevelopmentAuthority()
    for name, data in zip(("tls.crt", "tls.key"), right.issue(["quotes-broker"]), strict=True):
        (tmp_path / name).write_bytes(data)
    secret = tmp_path / "secret"
    secret.mkdir()
    if authority:
        other = DevelopmentAuthority().certificate
        known = {"right": right.certificate, "other": other, "broken": b"no certificate"}[authority]
        (secret / "ca.crt").write_bytes(known)
    if token:
        (secret / "token").write_text(token + "\n")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(PAGE, status=200 if request.headers.get("Authorization") == "Bearer right" else 401)

    app = web.Application()
    app.add_routes([web.get("/v1/status", answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    monkeypatch.setattr(cluster_pods, "ADMIN_PORT", runner.addresses[0][1])
    probe = {"readinessProbe": {"httpGet": {"path": "/readyz", "scheme": "HTTPS"}}}
    client = BrokerStatusClient(str(secret))
    try:
        pages = await client.pages([{**POD, "spec": {"containers": [{"name": "broker", **probe}]}}])
    finally:
        await client.close()
        await runner.cleanup()
    assert list(pages) == (["quotes-broker-0"] if read else [])
