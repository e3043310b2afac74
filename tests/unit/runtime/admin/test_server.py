"""The administration's pages with real sockets: health, readiness, status, and room for a probe."""

from __future__ import annotations

import asyncio
import json
import time
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
from migratory_broker.runtime.accepting.listener import Listener, bind, listen
from migratory_broker.runtime.admin.server import MAX_ADMIN, AdminServer, health_page, readiness_page, status_page
from migratory_broker.runtime.process import names_of_host
from migratory_testing.waiting import until
from yarl import URL


async def test_the_administration_serves_its_pages(log: Any) -> None:
    reason = "learning"
    pages = {
        "/healthz": health_page,
        "/readyz": readiness_page(lambda: reason),
        "/v1/status": status_page(lambda: {"a": {1, 2}}),
    }
    server = AdminServer(pages, time.monotonic, log)
    listening = listen(bind("127.0.0.1", 0, "administration"), "administration")
    listener = Listener(listening, server.protocol, log)

    async def get(path: str, method: str = "GET") -> tuple[int, str]:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    assert (await get("/healthz"))[0] == 200
    status, body = await get("/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reason": "learning"})
    reason = ""
    assert await get("/readyz") == (200, '{"ready":true,"reason":""}\n')
    assert (await get("/v1/status"))[1] == '{\n  "a": [\n    1,\n    2\n  ]\n}\n'
    status, body = await get("/nothing")
    assert status == 404
    assert "/readyz" in body
    assert (await get("/healthz", "DELETE"))[0] == 405
    server.tick()
    listener.close()
    await server.close()


TOKEN = "a token"


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/v1/status", {}, 401),
        ("/v1/status", {"Authorization": "Bearer "}, 401),
        ("/v1/status", {"Authorization": f"Bearer {TOKEN}x"}, 401),
        ("/v1/status", {"Authorization": f"Basic {TOKEN}"}, 401),
        ("/v1/status?access_token=a%20token", {}, 401),
        ("/v1/%73tatus", {}, 401),
        ("/v1/status", {"Authorization": f"Bearer {TOKEN}"}, 200),
        ("/v1/status", {"Authorization": "Bearer another"}, 200),
        ("/healthz", {}, 200),
        ("/healthz", {"Host": "10.0.0.1:8082"}, 200),
        ("/healthz", {"Host": "localhost:1"}, 200),
        ("/healthz", {"Host": "rebound.example.com"}, 421),
        ("/healthz", {"Origin": "http://localhost:1"}, 403),
    ],
)
async def test_guarded_pages_need_a_token_and_web_pages_get_none(
    log: Any, path: str, headers: dict[str, str], expected: int
) -> None:
    pages = {"/healthz": health_page, "/v1/status": status_page(dict)}
    digests = [sha256(token.encode()).hexdigest() for token in (TOKEN, "another")]
    server = AdminServer(pages, time.monotonic, log, tokens=digests, hosts=("localhost",))
    listening = listen(bind("127.0.0.1", 0, "administration"), "administration")
    listener = Listener(listening, server.protocol, log)
    host, port = listening.getsockname()
    async with aiohttp.ClientSession() as session:
        url = URL(f"http://{host}:{port}{path}", encoded=True)
        async with session.get(url, headers=headers) as answer:
            assert answer.status == expected
            assert ("WWW-Authenticate" in answer.headers) is (expected == 401)
    assert server.refused == (expected != 200)
    assert log.events() == (["administration_refused"] if expected != 200 else [])
    listener.close()
    await server.close()


@pytest.mark.parametrize(
    ("target", "host", "expected"),
    [
        ("/healthz", "LOCALHOST.:1", 200),
        ("/healthz", "[::1]:1", 200),
        ("http://localhost/healthz", "localhost", 200),
        ("http://rebound.example.com/healthz", "localhost", 400),
        ("/healthz", "rebound.example.com@localhost", 400),
        ("/healthz", "[localhost]", 400),
        ("/healthz", "::1", 400),
        ("/healthz", "localhost:65536", 400),
        ("/healthz", "localhost\r\nHost: localhost", 400),
        ("/healthz", "localhost.rebound.example.com", 421),
        ("/healthz", "127.0.0.1.rebound.example.com", 421),
    ],
)
async def test_the_administration_reads_a_host_in_one_way(log: Any, target: str, host: str, expected: int) -> None:
    server = AdminServer({"/healthz": health_page}, time.monotonic, log, hosts=("localhost",))
    listening = listen(bind("127.0.0.1", 0, "administration"), "administration")
    listener = Listener(listening, server.protocol, log)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert int(answer.split()[1]) == expected
    listener.close()
    await server.close()


async def test_the_administration_answers_when_idle_connections_hold_its_limit(log: Any, idle: Any) -> None:
    """When idle connections use up the administration's limit, a probe is answered and the oldest idle connection is
    closed; otherwise the broker would count as dead."""
    server = AdminServer({"/healthz": health_page}, time.monotonic, log)
    listening = listen(bind("127.0.0.1", 0, "administration"), "administration")
    listener = Listener(listening, server.protocol, log)
    readers = await idle(listening.getsockname(), MAX_ADMIN)
    await until(lambda: len(server._server.pending) == MAX_ADMIN)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 ")
    writer.close()
    assert await asyncio.wait_for(readers[0].read(), 5) == b""
    await until(lambda: len(server._server.pending) == MAX_ADMIN - 1)
    assert server.evicted == 1
    assert len(server._server.connections) == MAX_ADMIN - 1
    listener.close()
    await server.close()


@pytest.mark.parametrize(
    ("address", "names"),
    [("b-0.b.market.svc:1", ["b-0", "b-0.b", "b-0.b.market", "b-0.b.market.svc"]), ("10.0.0.1:1", []), ("[::1]:1", [])],
)  # fmt: skip
def test_a_broker_is_asked_by_the_names_of_its_host(address: str, names: list[str]) -> None:
    assert names_of_host(address) == names
