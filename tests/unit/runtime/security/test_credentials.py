"""Keys and revocations of the runtime: changed files and URLs are read again, the last good content stays, and a URL is
fetched at a bounded rate. Also errors at the start and in the configuration."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from migratory_broker.core.edge.events import Credentials
from migratory_broker.runtime.errors import ConfigError
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.security.config import KeysSection, SecuritySection, TokensSection, security_config
from migratory_broker.runtime.security.credentials import CHECK_INTERVAL, MIN_FETCH_INTERVAL, CredentialStore
from migratory_testing.tokens import SECRET, key_set, public_jwk
from migratory_testing.waiting import until


class Store:
    """A credential store under the test's clock, with the credentials that it published and the lines that it
    logged."""

    def __init__(self, section: TokensSection) -> None:
        self.now = 100.0
        self.published: list[Credentials] = []
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.store = CredentialStore(section, lambda: self.now, self._log, self.published.append)  # type: ignore[arg-type]

    def _log(self, level: str, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    def tick(self, seconds: float = CHECK_INTERVAL) -> None:
        self.now += seconds
        self.store.tick(self.now)


def replace(path: Path, content: bytes) -> None:
    """Replace a file as a whole, as Kubernetes does."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


# ---- files -----------------------------------------------------------------------------------------------------


def test_changed_files_are_read_again_and_bad_ones_do_not_count(tmp_path: Path) -> None:
    keys, revoked = tmp_path / "keys", tmp_path / "revoked.json"
    keys.write_bytes(SECRET.encode())
    revoked.write_bytes(b'{"tokens": ["1"]}')
    section = TokensSection(keys=(KeysSection(algorithms=("HS256",), file=str(keys)),), revoked=str(revoked))
    store = Store(section)
    store.store.load()
    assert store.published == [Credentials((SECRET.encode(),), b'{"tokens": ["1"]}')]
    store.tick()
    assert len(store.published) == 1
    replace(revoked, b'{"tokens": ["1", "2"]}')
    store.tick(CHECK_INTERVAL / 2)
    assert len(store.published) == 1
    store.tick()
    assert store.published[-1] == Credentials((SECRET.encode(),), b'{"tokens": ["1", "2"]}')
    for bad in (b"short", b"x" * 2_000_000):
        replace(keys, bad)
        store.tick()
    replace(revoked, b'{"tokens": [')
    store.tick()
    keys.unlink()
    store.tick()
    assert len(store.published) == 2
    assert store.store.failing == {str(keys), str(revoked)}
    replace(keys, b"y" * 40)
    replace(revoked, b"")
    store.tick()
    assert store.published[-1] == Credentials((b"y" * 40,), b"")
    assert store.store.failing == set()
    events = [event for event, _ in store.lines]
    assert events.count("credentials_rejected") == 2, "once for each, while it lasts"
    assert SECRET not in repr(store.lines)


def test_file_that_fails_and_returns_unchanged_is_not_failing_any_more(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_bytes(SECRET.encode())
    store = Store(TokensSection(keys=(KeysSection(algorithms=("HS256",), file=str(keys)),)))
    store.store.load()
    replace(keys, b"")
    store.tick()
    assert store.store.failing
    replace(keys, SECRET.encode())
    store.tick()
    assert not store.store.failing
    assert len(store.published) == 1


def test_file_that_cannot_be_read_is_read_again_though_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a file that becomes readable for the broker after it was replaced, or while descriptors run out."""
    keys, revoked = tmp_path / "keys", tmp_path / "revoked.json"
    keys.write_bytes(SECRET.encode())
    revoked.write_bytes(b"")
    section = TokensSection(keys=(KeysSection(algorithms=("HS256",), file=str(keys)),), revoked=str(revoked))
    store = Store(section)
    store.store.load()
    replace(keys, b"y" * 40)
    replace(revoked, b'{"tokens": ["1"]}')

    def unreadable(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", unreadable)
        store.tick()
        store.tick()
    assert store.store.failing == {str(keys), str(revoked)}
    assert [event for event, _ in store.lines] == ["credentials_rejected"] * 2
    store.tick()
    assert store.published[-1] == Credentials((b"y" * 40,), b'{"tokens": ["1"]}')
    assert store.store.failing == set()


@pytest.mark.parametrize("content", [None, b"short"])
def test_broker_does_not_start_without_usable_files(tmp_path: Path, content: bytes | None) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    store = Store(TokensSection(keys=(KeysSection(algorithms=("HS256",), file=str(keys)),)))
    with pytest.raises(ConfigError, match=r"security.tokens: .*keys: (No such file|a secret of 5 bytes)"):
        store.store.load()


# ---- URLs ------------------------------------------------------------------------------------------------------


class KeyServer:
    """A server of a JWK set. `status` and `body` are its answer, `requests` counts them."""

    def __init__(self) -> None:
        self.requests = 0
        self.status = 200
        self.body = key_set(public_jwk("ES256", "a"))
        self.url = ""

    async def answer(self, _: web.BaseRequest) -> web.Response:
        self.requests += 1
        return web.Response(status=self.status, body=self.body, headers={"Location": self.url})


@pytest.fixture
async def server() -> AsyncIterator[KeyServer]:
    made = KeyServer()
    runner = web.ServerRunner(web.Server(made.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
    yield made
    await runner.cleanup()


async def test_keys_rotate_and_failures_keep_the_last_good_ones(server: KeyServer) -> None:
    section = TokensSection(keys=(KeysSection(algorithms=("ES256",), url=server.url),), refresh=60.0)
    store = Store(section)
    store.store.load()
    assert store.published == [Credentials((b"",))]

    async def fetched(count: int) -> Credentials:
        await until(lambda: len(store.published) == count)
        return store.published[-1]

    store.tick()
    first = await fetched(2)
    assert first == Credentials((server.body,), fetched=True)
    store.tick(59.0)
    assert server.requests == 1
    for number, (status, body) in enumerate(
        [(500, server.body), (302, server.body), (200, b"{"), (200, b"x" * 1_100_000), (200, key_set())]
    ):
        server.status, server.body = status, body
        store.tick(61.0)
        assert await fetched(3 + number) == Credentials(first.documents, fetched=False)
    assert store.store.failing == {server.url}
    server.status, server.body = 200, key_set(public_jwk("ES256", "b"))
    store.tick(61.0)
    assert await fetched(8) == Credentials((server.body,), fetched=True)
    assert store.store.failing == set()
    assert [event for event, _ in store.lines] == ["credentials_changed", "credentials_rejected", "credentials_changed"]
    await store.store.close()


async def test_unknown_keys_cause_one_fetch_at_a_time_at_a_bounded_rate(server: KeyServer) -> None:
    section = TokensSection(keys=(KeysSection(algorithms=("ES256",), url=server.url),), refresh=3600.0)
    store = Store(section)
    store.store.load()
    store.tick()
    for _ in range(100):
        store.store.request()
        store.tick(0.0)
    await until(lambda: len(store.published) == 2)
    for _ in range(100):
        store.store.request()
        store.tick(MIN_FETCH_INTERVAL / 200)
    assert server.requests == 1
    store.tick(MIN_FETCH_INTERVAL)
    await until(lambda: len(store.published) == 3)
    store.tick(MIN_FETCH_INTERVAL)
    await asyncio.sleep(0)
    assert server.requests == 2
    await store.store.close()


async def test_close_ends_a_fetch() -> None:
    store = Store(TokensSection(keys=(KeysSection(algorithms=("ES256",), url="http://127.0.0.1:1/"),)))
    store.store.load()
    store.tick()
    await store.store.close()
    await store.store.close()
    store.tick(3600.0)
    await until(lambda: store.store.failing == {"http://127.0.0.1:1/"})
    assert store.published[-1] == Credentials((b"",), fetched=False)
    await store.store.close()


# ---- configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"tokens": {"keys": [{"algorithms": ["HS256"]}]}}, "keys[0]: allowed is either file or url"),
        ({"tokens": {"keys": [{"algorithms": ["HS256"], "file": "a", "url": "https://b"}]}}, "either file or url"),
        ({"tokens": {"keys": [{"algorithms": ["none"], "file": "a"}]}}, "'none'; allowed are HS256, "),
        ({"tokens": {"keys": [{"algorithms": ["HS256"], "url": "https://b"}]}}, "a secret is not published"),
        ({"tokens": {"keys": [{"algorithms": ["HS256", "RS256"], "file": "a"}]}}, "use a source of keys for each"),
        ({"rules": [{"topics": ["a*"], "allow": ["publish"]}]}, "rules[0]: topic pattern 'a*'; allowed: "),
        (
            {"rules": [{"topics": ["a"], "allow": ["publish"], "anonymous": True, "subjects": ["b"]}]},
            "rules[0]: a rule with anonymous",
        ),
    ],
)
def test_wrong_sections(section: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        security_config(msgspec.json.decode(json.dumps(section), type=SecuritySection))
    assert text in str(caught.value)


def test_store_logs_through_the_brokers_log() -> None:
    log = Log(level="error", common={})
    CredentialStore(TokensSection(), lambda: 0.0, log, lambda _: None).load()
    log.close()
