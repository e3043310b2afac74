"""A real broker with TLS, and many clients that begin their TLS handshake at the same time."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import yaml
from migratory_client import Client, LinkDown
from migratory_client.notifications import Status
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_resources.validation.loading import load_cluster
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

CONNECTS = 150


class _Hello(asyncio.Protocol):
    """A connection whose whole hello is sent when `go` is called; `answered` has the broker's answer to a request."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)
        self.host = host
        self.done = False
        self.answer = b""
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def go(self) -> None:
        try:
            if not self.done:
                self.tls.do_handshake()
                self.done = True
                self.tls.write(f"GET /v1/servers HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
            while chunk := self.tls.read(65_536):
                self.answer += chunk
        except ssl.SSLWantReadError:
            pass
        self.transport.write(self.outgoing.read())
        if b"\r\n\r\n" in self.answer and not self.answered.done():
            self.answered.set_result(self.answer)

    def data_received(self, data: bytes) -> None:
        self.incoming.write(data)
        self.go()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionResetError("ended without an answer"))


@pytest.mark.parametrize("io_processes", [0, 2], ids=["one process", "I/O processes"])
async def test_many_tls_connects_at_once_succeed_and_a_connected_client_goes_on(
    tmp_path: Path, io_processes: int
) -> None:
    document = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "test"},
        "spec": {
            "brokers": {"replicas": 1, "ioProcesses": io_processes},
            "zookeeper": {"replicas": 1},
            "delivery": {"minCopies": 1},
            "limits": {"handshake": "60s"},
        },
    }
    resource = load_cluster(yaml.safe_dump(document)).cluster
    async with LocalCluster(resource, tmp_path / "cluster", dev_tls=True) as cluster:
        context = ssl.create_default_context(cafile=str(cluster.authority))
        url = cluster.brokers[0].url
        host, _, port = url.removeprefix("wss://").removesuffix("/ws").partition(":")
        links: list[Status] = []
        async with Client([url], ssl_context=context, on_status=links.append) as client:
            stream = client.subscribe("t", snapshot=True)
            await client.publish("t", "first")
            assert (await anext(stream)).payload == b"first"
            loop = asyncio.get_running_loop()
            hellos = []
            for _ in range(CONNECTS):
                _, hello = await loop.create_connection(lambda: _Hello(context, host), host, int(port))
                hellos.append(hello)
            for hello in hellos:
                hello.go()
            answers = asyncio.gather(*(hello.answered for hello in hellos))
            sent = 0
            while not answers.done() or sent < 20:
                await client.publish("t", str(sent))
                assert (await anext(stream)).payload == str(sent).encode()
                sent += 1
            assert all(answer.startswith(b"HTTP/1.1 200") for answer in await answers)
            for hello in hellos:
                hello.transport.close()
            assert not [status for status in links if isinstance(status, LinkDown)]

            async def none_waits() -> bool:
                _, page = await cluster.brokers[0].get_admin(cluster.http, "/metrics") or (0, "")
                lines = [line for line in page.splitlines() if line.startswith("migratory_tls_handshakes_waiting{")]
                return [float(line.rpartition(" ")[2]) for line in lines] == [0.0]

            await until(none_waits, "no TLS handshake waits, by the metrics")
