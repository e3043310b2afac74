"""Three real brokers with TLS at every port, tokens and rules: connections without a handshake and clients without TLS
are refused. Certificates, their authority, the keys of tokens and the revocations are replaced under load: no client is
lost and nothing is lost, and a broker that is killed meanwhile returns."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from migratory_broker.runtime.peers.links import MAX_TLS_HANDSHAKES
from migratory_client import Client, ConnectError, LinkDown, Subscription
from migratory_client.notifications import Status
from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_resources.validation.loading import load_cluster
from migratory_testing.tokens import digest, key_set, public_jwk, sign
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


@pytest.fixture(params=[0, 2], ids=["one process", "I/O processes"])
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    document = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "test"},
        "spec": {
            "brokers": {"ioProcesses": request.param},
            "topics": {"groups": 8},
            "security": {
                "tokens": {
                    "keys": [{"algorithms": ["ES256"], "file": str(tmp_path / "keys.json")}],
                    "revokedFile": str(tmp_path / "revoked.json"),
                },
                "rules": [{"topics": ["*"], "allow": ["subscribe", "publish", "history"]}],
                "administration": {"tokens": [digest("of somebody else")]},
            },
        },
    }
    replace(tmp_path / "keys.json", key_set(public_jwk("ES256", "a")))
    replace(tmp_path / "revoked.json", b"{}")
    resource = load_cluster(yaml.safe_dump(document)).cluster
    async with LocalCluster(resource, tmp_path / "cluster", dev_tls=True) as running:
        yield running


def replace(path: Path, data: bytes) -> None:
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").rename(path)


def token(key: str, subject: str = "ann", seconds: float = 8.0) -> str:
    """Return a token that its client renews after three quarters of its time."""
    now = time.time()
    return sign({"sub": subject, "iat": now, "exp": now + seconds}, "ES256", key)


class Loaded:
    """A client that publishes on a topic and reads it. `key` signs its next token, `made` are the keys of its
    tokens so far."""

    def __init__(self, url: str, topic: str, context: ssl.SSLContext) -> None:
        self.key = "a"
        self.links: list[Status] = []
        self.made: list[str] = []
        self.client = Client([url], token=self._renew, ssl_context=context, on_status=self.links.append)
        self._topic = topic
        self._sent = 0
        self._stream: Subscription | None = None

    def _renew(self) -> str:
        self.made.append(self.key)
        return token(self.key)

    async def publish(self) -> None:
        self._stream = self.client.subscribe(self._topic)
        while True:
            await self.client.publish(self._topic, str(self._sent))
            self._sent += 1
            await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Check that everything has arrived once and in its order, on one connection."""
        assert self._stream is not None
        async with asyncio.timeout(20):
            for number in range(self._sent):
                assert (await anext(self._stream)).payload == str(number).encode()
        assert self._sent > 100
        assert not [status for status in self.links if isinstance(status, LinkDown)]


def trusting(cluster: LocalCluster) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cluster.authority))


async def metric(cluster: LocalCluster, name: str) -> dict[str, float]:
    """Return the values of a metric by the value of its last label, summed over the brokers."""
    values: dict[str, float] = {}
    for broker in cluster.brokers:
        answer = await broker.get_admin(cluster.http, "/metrics")
        assert answer is not None
        for line in answer[1].splitlines():
            if line.startswith(name + "{"):
                label = line.rpartition('="')[2].partition('"')[0]
                values[label] = values.get(label, 0.0) + float(line.rpartition(" ")[2])
    return values


async def test_strangers_get_nowhere_and_everything_is_replaced_under_load(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    assert cluster.authority is not None
    folder = cluster.authority.parent
    names = [broker.name for broker in cluster.brokers]
    urls = [broker.url for broker in cluster.brokers]
    assert all(url.startswith("wss://") for url in urls)

    # A program of another user, which cannot read the password and the key that were made for ZooKeeper.
    for secret in (cluster.zookeeper_password, folder / "zookeeper.pem", folder / f"{names[0]}.key"):
        assert secret.stat().st_mode & 0o777 == 0o600
    stranger = KazooClient(cluster.ensemble.servers, timeout=2.0)
    with pytest.raises(KazooTimeoutError):
        await asyncio.to_thread(stranger.start, 2.0)
    # Even with a certificate it needs the password.
    pair = {"certfile": str(folder / f"{names[0]}.crt"), "keyfile": str(folder / f"{names[0]}.key")}
    stranger = KazooClient(cluster.ensemble.servers, use_ssl=True, ca=str(cluster.authority), **pair)
    await asyncio.to_thread(stranger.start)
    for attempt in (stranger.get, stranger.get_children, stranger.delete):
        with pytest.raises(NoAuthError):
            await asyncio.to_thread(attempt, "/migratory/test/groups/0")
    await asyncio.to_thread(stranger.stop)
    stranger.close()

    # Connections that begin no handshake: at the limit the oldest are closed, before their time is over.
    peers = cluster.brokers[1].host, cluster.brokers[1].ports.peers
    silent = [await asyncio.open_connection(*peers) for _ in range(MAX_TLS_HANDSHAKES + 5)]
    assert await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in silent[:5])), 2) == [b""] * 5
    for _, writer in silent:
        writer.close()

    # A client without TLS, and one that does not trust the authority.
    plain = urls[0].replace("wss://", "ws://")
    for url, context in ((plain, None), (urls[0], ssl.create_default_context())):
        with pytest.raises(ConnectError):
            await Client([url], ssl_context=context, open_timeout=2.0).open()

    # A new pair of every broker, of another authority, while clients publish and read.
    context = trusting(cluster)
    loads = [Loaded(url, f"t{number}", context) for number, url in enumerate(urls[:2])]
    async with loads[0].client, loads[1].client:
        publishing = [asyncio.create_task(load.publish()) for load in loads]
        # A key is added, used, and the one before it removed; somebody is revoked.
        replace(tmp_path / "keys.json", key_set(public_jwk("ES256", "a"), public_jwk("ES256", "b")))
        await until(lambda: logged(cluster, "keys.json", 1), "all brokers know the new key")
        loads[0].key = loads[1].key = "b"
        replace(tmp_path / "revoked.json", json.dumps({"subjects": {"bob": time.time() + 60}}).encode())
        before = await metric(cluster, "migratory_certificate_expiry_timestamp_seconds")
        after = DevelopmentAuthority()
        both = cluster.authority.read_bytes() + after.certificate
        write_certificates(folder, after, names, "127.0.0.1", ["127.0.0.1"])
        cluster.authority.write_bytes(both)
        os.utime(cluster.authority)
        context.load_verify_locations(cluster.authority)
        await until(lambda: logged(cluster, '"certificate_loaded"', 3), "all brokers use the new certificates")
        assert await metric(cluster, "migratory_certificate_expiry_timestamp_seconds") != before

        # A pair that does not match is rejected, and the one before it serves on.
        _, wrong = after.issue([names[0]])
        rejections = sum((await metric(cluster, "migratory_certificates_rejected_total")).values())
        right = (folder / f"{names[0]}.key").read_bytes()
        (folder / f"{names[0]}.key").write_bytes(wrong)
        await until(lambda: rejected(cluster, rejections + 3), "the broker rejects the pair")
        async with Client(urls[:1], token=token("b"), ssl_context=trusting(cluster)) as newcomer:
            await newcomer.publish("other", "newcomer")
        (folder / f"{names[0]}.key").write_bytes(right)

        # A restarted broker proves its name with the new pair, to brokers that have it as well.
        cluster.kill_broker(names[2])
        await until(lambda: restarted(cluster, names[2]), "the killed broker is a member again", limit=60)

        await until(lambda: all("b" in load.made for load in loads), "all clients have tokens of the new key")
        replace(tmp_path / "keys.json", key_set(public_jwk("ES256", "b")))
        await until(lambda: logged(cluster, "keys.json", 2), "all brokers have forgotten the first key")
        for denied in (token("a"), token("b", "bob")):
            with pytest.raises(ConnectError) as caught:
                await Client(urls[:1], token=denied, ssl_context=trusting(cluster), open_timeout=5.0).open()
            assert caught.value.code == "unauthenticated"
        for task in publishing:
            task.cancel()
        for load in loads:
            await load.check()


async def logged(cluster: LocalCluster, words: str, count: int) -> bool:
    """Return whether these words are in every broker's log at least `count` times."""
    logs = [(cluster.workdir / "logs" / f"{broker.name}.log").read_text() for broker in cluster.brokers]
    return all(text.count(words) >= count for text in logs)


async def rejected(cluster: LocalCluster, count: float) -> bool:
    return sum((await metric(cluster, "migratory_certificates_rejected_total")).values()) >= count


async def restarted(cluster: LocalCluster, name: str) -> bool:
    broker = cluster.broker(name)
    return not (cluster.workdir / "logs" / f"{name}.log").read_text().count('"started"') < 2 and await broker.is_ready(
        cluster.http
    )
