"""Tokens and rules on a real broker, with its clients in its own process and in I/O processes: keys from a real HTTP
server that rotates them, renewal, expiry and revocation. tests/unit/core/edge/test_identity.py has every case."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from migratory_client import Client, ConnectError, LinkDown, PublishError, Receipt, SubscribeError
from migratory_client.notifications import Status
from migratory_testing.processes import Broker, Brokers
from migratory_testing.tokens import digest, key_set, public_jwk, sign
from migratory_testing.waiting import poll, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
STATIC = "a static token of the reader"


class KeyServer(ThreadingHTTPServer):
    """A server of a JWK set, in a thread of its own."""

    daemon_threads = True
    body = b""
    requests = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, KeyServer)
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def keys() -> Iterator[KeyServer]:
    with KeyServer(("127.0.0.1", 0), Handler) as server:
        server.body = key_set(public_jwk("ES256", "a"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def broker(zookeepers: Any, keys: KeyServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Run one broker with tokens and rules. The fixture's parameter is the number of its I/O processes."""
    revoked = tmp_path / "revoked.json"
    revoked.write_text("{}")
    security = {
        "tokens": {
            "keys": [{"algorithms": ["ES256"], "url": f"http://127.0.0.1:{keys.server_port}/keys"}],
            "static": [{"subject": "reader", "sha256": digest(STATIC)}],
            "audience": "migratory",
            "leeway": 0.0,
            "revoked": str(revoked),
        },
        "rules": [
            {"claims": {"role": ["trader"]}, "topics": ["quotes/**"], "allow": ["subscribe", "publish", "history"]},
            {"subjects": ["reader"], "topics": ["quotes/*"], "allow": ["subscribe"]},
        ],
    }
    settings: dict[str, Any] = {"delivery": {"minCopies": 1}, "security": security, "ioProcesses": request.param}
    cluster = f"tokens{abs(hash(request.node.nodeid))}"
    with Brokers(tmp_path / "brokers", zookeepers.servers, size=1, cluster=cluster, **settings) as brokers:
        brokers.start_all()
        poll(lambda: keys.requests, "the keys are fetched")
        yield brokers["b0"]


def token(name: str = "a", seconds: float = 300.0, **claims: Any) -> str:
    claims = {"sub": "ann", "role": "trader", "aud": "migratory", "exp": time.time() + seconds, **claims}
    return sign(claims, "ES256", name)


async def refusal(broker: Broker, credential: str | None) -> str:
    with pytest.raises(ConnectError) as caught:
        await Client([broker.url], token=credential, open_timeout=5.0).open()
    return f"{caught.value.code}: {caught.value}"


@pytest.mark.parametrize("broker", [0, 2], indirect=True)
async def test_identities_and_rights(broker: Broker) -> None:
    right = token()
    receipts: list[Receipt] = []
    reader = Client([broker.url], token=STATIC, on_receipt=receipts.append)
    async with Client([broker.url], token=right) as writer, reader:
        stream = reader.subscribe("quotes/eur")
        await until(lambda: receipts, "subscribed")
        first = await writer.publish("quotes/eur", b"1")
        assert (await anext(stream)).payload == b"1"
        with pytest.raises(PublishError) as refused:
            await reader.publish("quotes/eur", b"2")
        assert refused.value.code == "not_allowed"
        with pytest.raises(SubscribeError, match="may not subscribe"):
            await anext(reader.subscribe("orders/1"))
        replay = writer.subscribe("quotes/eur", after=f"{first.epoch}:0" if first else None)
        assert (await anext(replay)).payload == b"1"
    assert (await refusal(broker, None)).startswith("unauthenticated: ")
    assert "signature is wrong" in await refusal(broker, token("a") + "x")
    assert "audience (aud)" in await refusal(broker, token(aud="elsewhere"))
    expired = token(seconds=-1.0)
    async with aiohttp.ClientSession() as session:
        for header, answer in ((right, "welcome"), (expired, "token_expired")):
            headers = {"Authorization": f"Bearer {header}"}
            async with session.ws_connect(broker.url, headers=headers, protocols=["migratory.v1.json"]) as socket:
                await socket.send_str('{"op":"connect"}')
                received = json.loads(await socket.receive_str(timeout=10))
                assert received.get("code", received["op"]) == answer
        in_query = f"{broker.url}?access_token={right}"
        async with session.ws_connect(in_query, protocols=["migratory.v1.json"]) as socket:
            await socket.send_str('{"op":"connect"}')
            assert json.loads(await socket.receive_str(timeout=10))["code"] == "unauthenticated"
    written = broker.log.read_text() + json.dumps(broker.status()) + broker.get("/metrics")[1]
    assert "client_not_authenticated" in written
    assert [secret for secret in (right, expired, STATIC, digest(STATIC)) if secret in written] == []
    await until(lambda: broker.metric("migratory_not_allowed_total") == 2, "counted")


@pytest.mark.parametrize("broker", [2], indirect=True)
async def test_renewal_rotation_and_revocation(broker: Broker, keys: KeyServer, tmp_path: Path) -> None:
    made: list[str] = []
    key = "a"

    def renew() -> str:
        made.append(token(key, 4.0, jti=str(len(made)), iat=time.time()))
        return made[-1]

    down: list[Status] = []
    async with Client([broker.url], token=renew, on_status=down.append) as client:
        stream = client.subscribe("quotes/eur")
        key_fetches = keys.requests
        keys.body = key_set(public_jwk("ES256", "b"))
        await until(lambda: len(made) >= 3, "the token was renewed twice")
        await client.publish("quotes/eur", b"1")
        assert (await anext(stream)).payload == b"1"
        assert [status for status in down if isinstance(status, LinkDown)] == [], "on the same connection"
        key = "b"  # the broker knows it after one more fetch, up to 10 s after the first
        async with Client([broker.url], token=lambda: token("b"), open_timeout=30.0) as other:
            assert other.connected
        assert keys.requests == key_fetches + 1
        await until(lambda: client.connected, "the client has a token of the new key")
        await client.publish("quotes/eur", b"2")
        jtis = [str(number) for number in range(1000)]
        new = tmp_path / "new.json"
        new.write_text(json.dumps({"tokens": jtis}))
        new.rename(tmp_path / "revoked.json")
        assert (await anext(stream)).payload == b"2"
        with pytest.raises(SubscribeError, match="revoked"):
            await asyncio.wait_for(anext(stream), 15)


@pytest.mark.parametrize("broker", [0], indirect=True)
async def test_nothing_is_delivered_after_expiry(broker: Broker) -> None:
    expires_at = time.time() + 3.0
    async with aiohttp.ClientSession() as session, Client([broker.url], token=token()) as writer:  # noqa: SIM117
        async with session.ws_connect(broker.url, protocols=["migratory.v1.json"]) as socket:
            await socket.send_json({"op": "connect", "token": token(exp=expires_at)})
            await socket.send_json({"op": "subscribe", "request": 1, "topics": [{"topic": "quotes/eur"}]})
            operations: dict[str, float] = {}

            async def read() -> None:
                async for message in socket:
                    operations[json.loads(message.data)["op"]] = time.time()

            reading = asyncio.create_task(read())
            while not reading.done():
                await writer.publish("quotes/eur", b"x")
                await asyncio.sleep(0.02)
            assert socket.close_code == 4002
            assert expires_at - 1.0 < operations["token_expiring"] < expires_at - 0.3
            assert operations["message"] < expires_at + 0.5  # the timer's grain, and a busy machine
