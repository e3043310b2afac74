"""Fakes of I/O processes, for tests of their broker: each process is replaced with the other end of its channel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from typing import Any

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge
from migratory_broker.core.logic.events import (
    Fanout,
    Observe,
    ServerList,
)
from migratory_broker.runtime.accepting.listener import bind, listen
from migratory_broker.runtime.config import parse
from migratory_broker.runtime.io_processes.channel import Channel, receive_sockets
from migratory_broker.runtime.io_processes.messages import EdgeReport, IoHello, SocketCounts, ToIo, decoder, encode
from migratory_broker.runtime.io_processes.pool import IoProcessPool
from migratory_broker.runtime.pump import Pump
from migratory_protocol.peer import Publication

from migratory_testing.waiting import until

STATUS = Edge(EdgeConfig(), 0).status()
SERVER = {
    "handshakes_waiting": 0, "handshake_bytes_waiting": 0, "tls_handshakes_waiting": 0, "handshakes_too_slow": 0,
    "handshakes_evicted": 0, "requests_malformed": 0, "input_evicted": 0,
    "requests_refused_origin": 0, "requests_refused_host": 0, "requests_refused_malformed": 0,
}  # fmt: skip


class Io:
    """A fake I/O process: the other end of a broker's channel, with the interface of `subprocess.Popen`. `got` has the
    broker's messages, `sockets` the accepted connections that it gave, and `signals` those that it sent. While
    `reading` is false, what arrives is not acknowledged."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self.sock, self.way = (socket.socket(fileno=os.dup(end)) for end in ends)
        self.pid = 4_000_000 + ends[0]
        self.got: list[Any] = []
        self.signals: list[int] = []
        self.code: int | None = None
        self.given = 0
        self.sockets: list[socket.socket] = []
        self.keys: list[str] = []
        self.reading = True
        self.connected = False
        self.channel = Channel(decoder(ToIo), self._take, lambda: None)

    def _take(self, messages: list[Any], size: int) -> None:
        self.got += messages
        if self.reading:
            self.channel.acknowledge(size)

    async def connect(self) -> None:
        self.connected = True
        self.sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=self.sock)

    def say(self, *messages: Any) -> None:
        """Send these messages to the broker."""
        for message in messages:
            self.channel.put(encode(message))
        self.channel.flush()

    def take_sockets(self) -> int:
        """Receive the connections that the broker has given, and report the new counts to it. Return how many came."""
        given = receive_sockets(self.way, 64)
        self.given += len(given)
        self.sockets += [accepted for accepted, _ in given if accepted is not None]
        self.keys += [key for _, key in given]
        self.say(SocketCounts(self.given, len(self.sockets), len(self.sockets)))
        return len(given)

    def report(self, batches: int, connections: int = 0, **status: Any) -> EdgeReport:
        """Return a report of the I/O process's edge to the broker: the number of batches that it has handled, its
        connections, and `status` in place of fields of an empty edge's status."""
        held = SocketCounts(self.given, connections, connections)
        return EdgeReport(
            batches, 1000, held, {**STATUS, "connections": connections, "clients": connections, **status}, SERVER
        )

    def of(self, *kinds: type) -> list[Any]:
        return [message for message in self.got if isinstance(message, kinds)]

    # ---- the interface of `subprocess.Popen`

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.die(-9)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def die(self, code: int) -> None:
        """End the process with this exit code: close its channel and sockets."""
        self.code = code
        self.channel.close()
        self.way.close()
        if not self.connected:
            self.sock.close()

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int | None:
        if self.code is None:
            self.die(0)
        return self.code


class Site:
    """A broker's pump and its pool of fake I/O processes (`clients`). `started` has the processes in the order of their
    start. Time stands still except in `later`."""

    def __init__(self, logic: Any, log: Any, processes: int, settings: dict[str, Any] | None = None) -> None:
        self.now = 100.0
        self.errors: list[Exception] = []
        self.observed: list[Observe] = []
        self.started: list[Io] = []
        self.logic = logic
        self.log = log
        config = {"cluster": "c", "brokers": ["b"], "zookeeper": {"servers": "z:1"}, "delivery": {"minCopies": 1},
                  "ioProcesses": processes, **(settings or {})}  # fmt: skip
        loop = asyncio.get_running_loop()
        self.pump = Pump(logic, loop.call_soon, lambda: self.now, self.errors.append)
        self.pump.set_handlers({})
        self.clients = IoProcessPool(
            parse(json.dumps(config).encode()), "b", self.pump, lambda: self.now, log, "info", 4.0,
            self.observed.append, self._start, console_status=lambda: b"shown",
        )  # fmt: skip

    def _start(self, ends: tuple[int, int]) -> Any:
        self.started.append(Io(ends))
        return self.started[-1]

    @property
    def deaths(self) -> int:
        return sum(one.metric == "migratory_io_process_deaths_total" for one in self.observed)

    def open(self) -> tuple[str, int]:
        """Listen on a free port, let the pool start its processes and accept clients, and return host and port."""
        listening = listen(bind("127.0.0.1", 0, "clients"), "clients")
        self.clients.open(3, listening)
        host, port = listening.getsockname()[:2]
        return host, port

    async def up(self, io: Io) -> Io:
        """Connect a fake I/O process to the broker, and wait until the broker treats it as started. Return the
        process."""
        await io.connect()
        io.say(IoHello(1000))
        await until(lambda: io.of(ServerList))
        return io

    def effect(self, *effects: Any) -> None:
        for effect in effects:
            self.pump.to_edge(effect)

    def later(self, seconds: float) -> None:
        """Advance the clock by `seconds` in steps of 0.1 s with a tick of the pool at each. Longer steps would count as
        a standstill of the broker."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.1)
            self.clients.tick(self.now)


def fanout(topic: str, number: int = 1, size: int = 1) -> Fanout:
    return Fanout(topic, (Publication(1, number, b"x" * size),))
