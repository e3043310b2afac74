"""Requests for the brokers' status pages."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_operator import names
from migratory_operator.api import cluster_pods
from migratory_operator.api.broker_status import BrokerStatusPage, MalformedStatusPage
from migratory_operator.api.cluster_pods import BrokerStatusClient
from migratory_testing.kubernetes import pod

PAGE: dict[str, Any] = {
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
        assert await request == {"quotes-broker-0": BrokerStatusPage.read(json.dumps(PAGE).encode())}


def changed(path: str, value: Any) -> bytes:
    """Return the JSON text of PAGE with another value at this path: `changed("logic.peers", [])`."""
    page = copy.deepcopy(PAGE)
    *parents, last = path.split(".")
    part: Any = page
    for name in parents:
        part = part[name]
    part[last] = value
    return json.dumps(page).encode()


@pytest.mark.parametrize(
    "page",
    [
        b"[",
        b"\xff",
        b"{}",
        b"[1, 2]",
        b"[" * 100_000,
        changed("logic.peers", []),
        changed("logic.peers", {"quotes-broker-1": None}),
        changed("logic.zookeeper", "text"),
        changed("logic.groups", [5]),
        changed("logic.groups", {"group": 1}),
        changed("logic.fenced", "false"),
        changed("edge", [1]),
        changed("edge.clients", 1.5),
        changed("staying", "quotes-broker-0"),
    ],
    ids=lambda page: page[-40:].decode(errors="replace"),
)
async def test_a_malformed_page_is_logged_and_left_out(
    page: bytes, brokers: BrokerStatusClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = TwoPartBroker(page)
    broker.continue_.set()
    async with listening(broker, monkeypatch):
        assert await brokers.pages([POD]) == {}
    assert "quotes-broker-0: /v1/status is malformed" in caplog.text


async def test_a_malformed_page_does_not_hide_those_of_other_brokers(
    brokers: BrokerStatusClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = iter([changed("logic.peers", []), json.dumps(PAGE).encode()])

    class Broker(TwoPartBroker):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            return web.Response(body=next(pages))

    async with listening(Broker(b""), monkeypatch):
        assert len(await brokers.pages([POD, pod("quotes-broker-1", names.BROKER, podIP="127.0.0.1")])) == 1


KEYS = sorted({*PAGE, *PAGE["logic"], *PAGE["logic"]["groups"][0], "clients", "identity", "zookeeper", "staying",
               "election_state"})  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("coordinator"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=20,
)
PATHS = st.sampled_from(
    [*PAGE, "edge.clients", "staying", "logic.zookeeper", *(f"logic.{name}" for name in PAGE["logic"])]
)


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.builds(changed, PATHS, JSON) | st.binary(max_size=50))
def test_any_text_is_a_page_or_a_malformed_page(text: bytes) -> None:
    try:
        page = BrokerStatusPage.read(text)
    except MalformedStatusPage:
        return
    numbers = (page.clients, page.waiting_groups, page.lost_records, page.incarnation, page.copies)
    assert all(type(number) is int and number >= 0 for number in (*numbers, *page.links.values(), *page.lists))
    assert all(type(name) is str for name in (page.identity, *page.links, *page.staying, *page.listed))


def test_an_error_names_the_field_and_the_value() -> None:
    with pytest.raises(MalformedStatusPage, match=r"^logic\.peers: \[5\] is not allowed; allowed: "):
        BrokerStatusPage.read(changed("logic.peers", [5]))
    with pytest.raises(MalformedStatusPage, match=r"^logic\.groups\[0\]\.copies: is required, but missing$"):
        BrokerStatusPage.read(changed("logic.groups", [{"group": 1, "role": "member", "members": []}]))


@pytest.mark.parametrize("token", [b"hidden\nmore", b"hidden\x00", b"hidden\xff"])
async def test_a_token_that_cannot_be_sent_is_named_without_its_text(
    token: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: a token that is not UTF-8 ended the reconciliation."""
    (tmp_path / "token").write_bytes(token)
    client = BrokerStatusClient(str(tmp_path))
    try:
        assert await client.pages([POD]) == {}
    finally:
        await client.close()
    assert f"{tmp_path} cannot be used: token: a token is one line of printable text" in caplog.text
    assert "hidden" not in caplog.text


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
