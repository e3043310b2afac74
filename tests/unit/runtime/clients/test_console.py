"""The console: its files, who may read its status, and how often the status is made."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from migratory_broker.runtime.accepting.http import HttpServer
from migratory_broker.runtime.accepting.listener import Listener, bind, listen
from migratory_broker.runtime.clients.connection import ClientConnections
from migratory_broker.runtime.clients.console import (
    STATUS_AGE,
    CachedStatus,
    Console,
    RemoteStatus,
    describe,
    load_files,
)
from migratory_broker.runtime.clients.server import ClientServer, servers_page
from migratory_broker.runtime.pump import Pump
from migratory_protocol.messages import Server
from migratory_protocol.origins import OriginPolicy

TOKEN = "a token"
DIGESTS = (sha256(b"other").hexdigest(), sha256(TOKEN.encode()).hexdigest())
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PAGE = "http://127.0.0.1:8800"
"""The origin that is allowed."""


async def read_status() -> bytes:
    return b'{"broker":"a"}'


class Site:
    """A clients' listener with a console. `get` requests a path of it."""

    def __init__(self, core: Any, log: Any, console: Console | None, **options: Any) -> None:
        pump = Pump(core(), asyncio.get_running_loop().call_soon, time.monotonic, lambda error: None)
        self.server = ClientServer(
            ClientConnections(pump, time.monotonic),
            OriginPolicy([PAGE], ["*"]),
            servers_page(lambda: []),
            time.monotonic,
            handshake_limit=5.0,
            max_held=2**30,
            compression=False,
            console=console,
            **options,
        )
        listening = listen(bind("127.0.0.1", 0, "clients"), "clients")
        self._base = "http://{}:{}".format(*listening.getsockname())
        self._listener = Listener(listening, self.server.protocol, log)

    async def get(
        self, path: str, headers: dict[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, Any, bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self._base + path, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status, answer.headers, await answer.read()

    async def close(self) -> None:
        self._listener.close()
        await self.server.close()


@pytest.fixture
async def site(core: Any, log: Any) -> AsyncIterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(tokens: Sequence[str] | None = None, read: Any = read_status, **options: Any) -> Site:
        made.append(Site(core, log, Console(read, tokens), **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


def test_files_are_the_page_its_modules_and_all_that_they_name() -> None:
    files = load_files()
    assert files["/console"][0] == "text/html; charset=utf-8"
    named = re.findall(r'(?:href|src)="(console/[^"]+)"', files["/console"][1].decode())
    assert sorted(named) == ["console/console.css", "console/console.js"]
    assert all(f"/{name}" in files for name in named)
    for path, (kind, content) in files.items():
        assert kind.split(";")[0] in {"text/html", "text/css", "text/javascript"}
        for name in re.findall(r' from "(\./[^"]+|\.\./[^"]+)"', content.decode()):
            parts = Path(path).parent.joinpath(name)
            assert str(Path("/", *_normal(parts))) in files, (path, name)


def _normal(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts[1:]:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return parts


def test_page_has_no_script_or_style_of_its_own_and_nothing_from_elsewhere() -> None:
    page = load_files()["/console"][1].decode()
    assert re.findall(r"<script(?![^>]* src=)[^>]*>|<style| style=| on[a-z]+=", page) == []
    for _, content in load_files().values():
        assert re.findall(rb"(?:src|href|import|from|url\()[ =(]*[\"']?https?://", content) == []
    for path in ("/console/console.js", "/console/cluster.js"):
        assert (
            re.findall(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", load_files()[path][1]) == []
        )


async def test_files_forbid_other_scripts_and_frames(site: Callable[..., Site]) -> None:
    code, headers, body = await site().get("/console")
    assert (code, body) == (200, load_files()["/console"][1])
    policy = dict(part.strip().partition(" ")[::2] for part in str(headers["Content-Security-Policy"]).split(";"))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
    assert (policy["frame-ancestors"], policy["require-trusted-types-for"]) == ("'none'", "'script'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    _, headers, _ = await site().get("/console/status")
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/console/console.js", 200),
        ("HEAD", "/console", 200),
        ("GET", "/console/client/core/session.js", 200),
        ("GET", "/console/status", 200),
        ("GET", "/console/", 308),
        ("GET", "/console/index.html", 404),
        ("GET", "/console/client/index.d.ts", 404),
        ("GET", "/console/%2e%2e/runtime/process.py", 404),
        ("GET", "/consoles", 404),
        ("POST", "/console/status", 405),
        ("DELETE", "/console", 405),
    ],
)
async def test_paths_of_the_console(site: Callable[..., Site], method: str, path: str, code: int) -> None:
    assert (await site().get(path, method=method))[0] == code


async def test_path_with_a_slash_leads_to_the_page_also_below_a_path_of_a_proxy(site: Callable[..., Site]) -> None:
    _, headers, _ = await site().get("/console/")
    assert headers["Location"] == "../console"


async def test_no_console_where_none_is_configured(core: Any, log: Any) -> None:
    without = Site(core, log, None)
    for path in ("/console", "/console/status", "/console/console.js"):
        assert (await without.get(path))[0] == 404
    await without.close()


@pytest.mark.parametrize(
    ("tokens", "headers", "code"),
    [
        (None, {}, 200),
        (None, {"Authorization": "Bearer anything"}, 200),
        (DIGESTS, {}, 401),
        (DIGESTS, {"Authorization": "Bearer "}, 401),
        (DIGESTS, {"Authorization": f"Bearer {TOKEN}x"}, 401),
        (DIGESTS, {"Authorization": f"Basic {TOKEN}"}, 401),
        (DIGESTS, BEARER, 200),
        (DIGESTS, {"Authorization": "Bearer other"}, 200),
        ((), BEARER, 401),
    ],
)
async def test_status_needs_a_token_where_tokens_are_configured(
    site: Callable[..., Site], tokens: Sequence[str] | None, headers: dict[str, str], code: int
) -> None:
    here = site(tokens)
    found, answered, body = await here.get("/console/status", headers)
    assert found == code
    assert body == b'{"broker":"a"}' if code == 200 else b"spec.security.administration" in body
    assert ("WWW-Authenticate" in answered) is (code == 401)
    assert here.server.refused == ({"token": 1} if code == 401 else {})
    assert (await here.get("/console"))[0] == 200, "the page itself says nothing of the cluster"


async def test_page_of_another_broker_may_ask_where_its_origin_is_allowed(site: Callable[..., Site]) -> None:
    here = site(DIGESTS)
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "GET"}
    code, headers, body = await here.get("/console/status", asked, "OPTIONS")
    assert (code, body) == (204, b"")
    assert "Authorization" in str(headers["Access-Control-Allow-Headers"])
    for sent, expected in (({**BEARER, "Origin": PAGE}, 200), ({"Origin": PAGE}, 401)):
        code, headers, _ = await here.get("/console/status", sent)
        assert (code, headers["Access-Control-Allow-Origin"]) == (expected, "*")
    for method in ("GET", "OPTIONS"):
        code, headers, _ = await here.get("/console/status", {**BEARER, "Origin": "http://evil.test"}, method)
        assert code == 403
        assert "Access-Control-Allow-Origin" not in headers


async def test_rebound_name_reads_nothing(site: Callable[..., Site]) -> None:
    """A page whose name was made to point to the broker is of its origin, and sends no Origin."""
    here = site(brokers=lambda: [Server("ws://b.example.com/ws", 1)])
    for path in ("/console", "/console/status"):
        assert (await here.get(path, {"Host": "rebound.example.com"}))[0] == 421
        assert (await here.get(path, {"Host": "b.example.com"}))[0] == 200
        assert (await here.get(path, {"Host": "127.0.0.1:8800"}))[0] == 200


async def test_answer_counts_as_memory_of_its_connection(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def hold(server: HttpServer, handler: Any, size: int) -> None:
        held.append(size)

    async def read() -> bytes:
        return bytes(12_345)

    monkeypatch.setattr(HttpServer, "hold", hold)
    await site(read=read).get("/console/status")
    assert 12_345 in held


async def test_status_that_does_not_come_in_time_is_an_error(site: Callable[..., Site]) -> None:
    async def read() -> bytes:
        raise TimeoutError

    code, headers, _ = await site(read=read).get("/console/status")
    assert (code, headers["Access-Control-Allow-Origin"]) == (503, "*")


# ---- the status --------------------------------------------------------------------------------------------------


def status() -> dict[str, Any]:
    """Return the parts of /v1/status that the console reads, and some that it must not show."""
    group = {
        "group": 0, "coordinator": "a", "epoch": 7, "members": ["a", "b"], "topics": 3, "uncommitted": 1, "waiting": "",
    }  # fmt: skip
    slow = {
        "client": "a secret name", "remote": "10.0.0.1:9", "connection": 4, "queued_bytes": 5,
        "queued_publications": 1, "lag_seconds": 0.5, "subscriptions": 2,
    }  # fmt: skip
    logic = dict.fromkeys(
        ("topics", "cache_bytes", "committed", "replication_lag", "waiting_groups", "history_resets", "incarnation"), 1
    )
    return {
        "broker": "a", "cluster": "c", "staying": ["a", "b"], "servers": [], "uptime_seconds": 1.0, "ready": True,
        "reason": "", "memory_bytes": 9, "zookeeper_connected": True, "zookeeper_denied": "", "pid": 1,
        "peer_links": {"b": {"incarnation": 1, "waiting_bytes": 8}},
        "edge": {"clients": 2, "slow": [slow]},
        "logic": {
            **logic, "fenced": False, "draining": False, "live": ["a"], "groups": [group],
            "zookeeper": {"age": 0.1, "data_losses": 0},
        },
    }  # fmt: skip


def test_status_has_neither_addresses_nor_names_of_clients() -> None:
    shown = describe(status())
    assert shown["groups"] == [["a", 7, 2, 3, 1, ""]]
    assert shown["peers"] == {"b": 8}
    assert (shown["clients"], shown["subscriptions"]) == (2, 0)
    assert "10.0.0.1" not in json.dumps(shown)
    assert "secret" not in json.dumps(shown)


def test_status_before_there_is_an_edge() -> None:
    shown = describe({**status(), "edge": None})
    assert (shown["clients"], shown["slow"]) == (0, [])


async def test_status_is_made_once_a_second_however_many_ask() -> None:
    now, made = 100.0, 0

    def read() -> dict[str, Any]:
        nonlocal made
        made += 1
        return status()

    cached = CachedStatus(read, lambda: now)
    first = await cached.read()
    assert json.loads(first)["broker"] == "a"
    now += STATUS_AGE / 2
    assert cached.get() is first
    assert made == 1
    now += STATUS_AGE / 2
    cached.get()
    assert made == 2


def test_status_that_takes_long_is_made_rarely() -> None:
    now, made = 100.0, 0

    def read() -> dict[str, Any]:
        nonlocal now, made
        made += 1
        now += 0.1
        return status()

    cached = CachedStatus(read, lambda: now)
    for _ in range(900):
        cached.get()
        now += 0.01
    assert made == 2, "0.2 s of 9 s"


async def test_io_process_asks_once_for_all_who_wait() -> None:
    now, asked = 100.0, 0

    def ask() -> None:
        nonlocal asked
        asked += 1

    remote = RemoteStatus(ask, lambda: now)
    waiting = [asyncio.create_task(remote.read()) for _ in range(3)]
    await asyncio.sleep(0)
    remote.receive(b"1")
    assert await asyncio.gather(*waiting) == [b"1"] * 3
    assert await remote.read() == b"1"
    assert asked == 1
    now += STATUS_AGE
    later = asyncio.create_task(remote.read())
    await asyncio.sleep(0)
    remote.receive(b"2")
    assert await later == b"2"
    assert asked == 2


async def test_io_process_does_not_wait_forever_and_takes_a_late_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("migratory_broker.runtime.clients.console.STATUS_TIMEOUT", 0.01)
    asked: list[int] = []
    remote = RemoteStatus(lambda: asked.append(1), lambda: 100.0)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await remote.read()
    assert len(asked) == 1, "one question at a time"
    remote.receive(b"late")
    assert await remote.read() == b"late"
