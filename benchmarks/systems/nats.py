"""NATS: one server with WebSocket for fan-out; three with JetStream, in memory, for acknowledged publishing."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Self

from migratory_local.processes.network import free_ports
from migratory_local.processes.process import Process

from benchmarks import peers
from benchmarks.processes import MeasurementFailed, wait_for_port
from benchmarks.systems.base import System, Workload

SERVER = """\
server_name: node{number}
listen: "127.0.0.1:{port}"
websocket {{ listen: "127.0.0.1:{web}", {tls} }}
max_connections: 200000
ping_interval: "30m"
"""

CLUSTER = """\
jetstream {{ store_dir: "{folder}/store{number}", max_memory_store: 2GB, max_file_store: 1GB }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""

STREAM = {
    "name": "bench",
    "subjects": ["bench.>"],
    "storage": "memory",
    "num_replicas": 3,
    "retention": "limits",
    "discard": "old",
    "max_bytes": 1_500_000_000,
}
ELECTION_TIMEOUT = 60.0
"""Seconds for three servers to elect a leader and create the stream, or for one that was started again to catch up."""


class Nats(System):
    """One NATS server, with TLS if it is asked for."""

    protocol = "nats"

    def __init__(self, *, tls: bool = False) -> None:
        super().__init__("nats")
        self._tls = tls

    async def start(self, work: Workload, core: int | None) -> None:
        port, web = free_ports(2)
        await self._server(0, port, web, core)
        self.addresses = [("127.0.0.1", web)]

    async def _server(self, number: int, port: int, web: int, core: int | None, more: str = "") -> None:
        program = peers.find("nats")
        if program is None:
            raise MeasurementFailed("nats-server is not installed; run `make bench-peers`")
        path = self.folder / f"nats-{number}.conf"
        tls = "no_tls: true"
        if self._tls:
            certificate, key = self.make_certificate()
            tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
        path.write_text(SERVER.format(number=number, port=port, web=web, tls=tls) + more)
        process = self._run([program, "-c", str(path)], core)
        if not more:
            await wait_for_port(process, web)


class JetStream(Nats):
    """Three NATS servers with one stream over all topics. The address of its leader comes first."""

    publish_protocol = "jetstream"

    def __init__(self) -> None:
        super().__init__()
        self.name = "jetstream R3 in memory"

    async def start(self, work: Workload, core: int | None) -> None:
        clients, web, routes = free_ports(3), free_ports(3), free_ports(3)
        self.client_ports = clients
        others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        for number in range(3):
            more = CLUSTER.format(folder=self.folder, number=number, route=routes[number], routes=others)
            await self._server(number, clients[number], web[number], core, more)
        for process, port in zip(self._processes, web, strict=True):
            await wait_for_port(process, port)
        leader = await self._create_stream(clients[0])
        order = sorted(range(3), key=lambda number: number != leader)
        self.addresses = [("127.0.0.1", web[number]) for number in order]

    async def _create_stream(self, port: int) -> int:
        """Create the stream once the servers have elected a leader. Return the leader's number."""
        deadline = time.monotonic() + ELECTION_TIMEOUT
        while True:
            answer = await _request(port, "$JS.API.STREAM.CREATE.bench", STREAM)
            leader = answer.get("cluster", {}).get("leader", "")
            if "error" not in answer and leader:
                return int(leader.removeprefix("node"))
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"JetStream created no stream within {ELECTION_TIMEOUT:.0f} s: {answer}")
            await asyncio.sleep(0.5)

    @property
    def servers(self) -> list[Process]:
        """The servers' processes, by number."""
        return self._processes

    async def settled_leader(self) -> int:
        """Wait until the stream has a leader and all its replicas are up to date. Return the leader's number. Raise
        MeasurementFailed if that is not so after `ELECTION_TIMEOUT`."""
        deadline = time.monotonic() + ELECTION_TIMEOUT
        while True:
            answer = await _request(self.client_ports[0], "$JS.API.STREAM.INFO.bench", {})
            cluster = answer.get("cluster", {})
            replicas = cluster.get("replicas", [])
            if cluster.get("leader") and len(replicas) == 2 and all(each.get("current") for each in replicas):
                return int(cluster["leader"].removeprefix("node"))
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"JetStream did not settle within {ELECTION_TIMEOUT:.0f} s: {answer}")
            await asyncio.sleep(0.5)


class PublishProbe:
    """A publisher over the NATS protocol that publishes on one subject at a steady rate, whatever becomes of the
    publications. `times` has the monotonic time in seconds of each acknowledgement, in order."""

    def __init__(self, port: int, rate: float, payload: int) -> None:
        self.times: list[float] = []
        self._port = port
        self._interval = 1.0 / rate
        self._payload = bytes(payload)
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(b'CONNECT {"verbose":false}\r\nSUB _INBOX.probe 1\r\n')
        self._tasks = [asyncio.create_task(self._publish(self._writer)), asyncio.create_task(self._receive(reader))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    async def acknowledged(self, count: int, limit: float = 30.0) -> None:
        """Wait for `count` more acknowledgements. Raise MeasurementFailed after `limit` seconds, or when the connection
        has ended."""
        wanted, deadline = len(self.times) + count, time.monotonic() + limit
        while len(self.times) < wanted:
            if time.monotonic() > deadline or any(task.done() for task in self._tasks):
                raise MeasurementFailed(f"JetStream acknowledged nothing for {limit:.0f} s, or ended the connection")
            await asyncio.sleep(0.01)

    async def _publish(self, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"PUB bench.probe _INBOX.probe %d\r\n%b\r\n" % (len(self._payload), self._payload))
            await asyncio.sleep(self._interval)

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if line.startswith(b"PING") and self._writer is not None:
                self._writer.write(b"PONG\r\n")
            elif line.startswith(b"MSG _INBOX.probe"):
                body = await reader.readexactly(int(line.split()[-1]) + 2)
                if b'"error"' not in body:
                    self.times.append(time.monotonic())


async def _request(port: int, subject: str, body: object) -> dict[str, Any]:
    """Send one request over the NATS protocol. Return its answer, or {} when none arrives."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return {}
    try:
        data = json.dumps(body).encode()
        writer.write(b'CONNECT {"verbose":false}\r\nSUB _INBOX.setup 1\r\n')
        writer.write(f"PUB {subject} _INBOX.setup {len(data)}\r\n".encode() + data + b"\r\n")
        async with asyncio.timeout(3.0):
            while True:
                line = await reader.readline()
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
                elif line.startswith(b"MSG _INBOX.setup"):
                    reply: dict[str, Any] = json.loads(await reader.readexactly(int(line.split()[-1])))
                    return reply
                elif not line:
                    return {}
    except (OSError, EOFError):
        return {}
    finally:
        writer.close()
