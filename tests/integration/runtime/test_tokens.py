"""Tokens on a real broker with its clients in I/O processes: keys from a real HTTP server that rotates them, renewal
and revocation. tests/integration/security/test_matrix.py has every identity."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from migratory_client import Client, ConnectError, LinkDown, PublishError, SubscribeError
from migratory_client.notifications import Status
from migratory_testing.processes import Broker, Brokers
from migratory_testing.tokens import key_set, public_jwk, sign
from migratory_testing.waiting import poll, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


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
            "audience": "migratory",
            "leeway": 0.0,
            "revoked": str(revoked),
        },
        "rules": [
            {"claims": {"role": ["trader"]}, "topics": ["quotes/**"], "allow": ["subscribe", "publish", "history"]},
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
        with pytest.raises(PublishError) as refused:
            await client.publish("orders/1", b"1")
        assert refused.value.code == "not_allowed"
        with pytest.raises(SubscribeError, match="may not subscribe"):
            await anext(client.subscribe("orders/1"))
        with pytest.raises(ConnectError, match=r"signature is wrong") as unknown:
            await Client([broker.url], token=token() + "x", open_timeout=5.0).open()
        assert unknown.value.code == "unauthenticated"
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
