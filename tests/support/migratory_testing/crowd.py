"""Thousands of clients in one process: each connects, subscribes to one topic and counts bytes.

They send the raw client's bytes from an asyncio protocol of a few slots. The raw client itself, or a client core, would
take too much memory and CPU for 20,000 connections in a test. The second part reads a broker's resources from the
kernel.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
from typing import cast

import psutil

from migratory_testing.processes import Broker
from migratory_testing.rawclient import PING, PONG, TEXT, frame, request

LIMIT = 120.0
"""Seconds for all clients to connect or to end."""

SPARE = 500
"""Open file descriptors that this process or a broker may need beside those of the connections."""

_PINGED = bytes((0x80 | PING, 0))
_PONG = frame(PONG, b"")
_TCP_REPAIR = 19
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, no time


class CrowdClient(asyncio.Protocol):
    """One client. `joined` is done when its subscription is answered, or fails with ConnectionError if the connection
    ends before. `ended` is done when the connection has ended. `received` counts bytes. It answers the broker's pings
    while `answers` is set."""

    __slots__ = ("_hello", "_seen", "answers", "ended", "joined", "received", "transport")

    transport: asyncio.Transport

    def __init__(self, topic: str) -> None:
        loop = asyncio.get_running_loop()
        self.joined: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.received = 0
        self.answers = True
        self._seen = b""
        self._hello = _hello(topic)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
        self.transport.write(self._hello)
        self._hello = b""

    def data_received(self, data: bytes) -> None:
        """Count the bytes. Before the subscription's answer, look for it; afterwards answer a ping of the broker."""
        self.received += len(data)
        if not self.joined.done():
            self._seen += data
            if b'"subscribed"' in self._seen:
                self._seen = b""
                self.joined.set_result(None)
        elif _PINGED in data and self.answers:
            self.transport.write(_PONG)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.joined.done():
            self.joined.set_exception(ConnectionError(f"ended before it joined: {self._seen[-200:]!r}"))
            self.joined.exception()  # retrieved here, because not every test awaits it
        self.ended.set_result(None)

    def reset(self) -> None:
        """End the connection as the kernel of a killed process does: with RST and without a closing handshake."""
        self._socket().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def vanish(self) -> None:
        """Drop the connection without a packet, as a machine that loses its power does.

        :raises PermissionError: without CAP_NET_ADMIN.
        """
        self._socket().setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
        self.transport.abort()

    def _socket(self) -> socket.socket:
        found: socket.socket = self.transport.get_extra_info("socket")
        return found


def _hello(topic: str) -> bytes:
    """Return the handshake's request, `connect` and `subscribe` as one write: the broker must not lose bytes after the
    request."""
    connect = frame(TEXT, b'{"op":"connect","version":1,"client":"crowd"}')
    subscribe = {"op": "subscribe", "request": 1, "topics": [{"topic": topic}]}
    return request() + connect + frame(TEXT, json.dumps(subscribe).encode())


async def gather(
    broker: Broker, count: int, topics: int = 10, at_once: int = 200, source: str = ""
) -> list[CrowdClient]:
    """Connect and subscribe `count` clients, `at_once` at a time, spread over `topics` topics, and return them.

    `source` is the loopback address to connect from: each has 28,000 ports. If a client fails, abort all connections
    and raise an ExceptionGroup with its ConnectionError; raise TimeoutError after `LIMIT` seconds.
    """
    address = broker.address("clients")
    loop = asyncio.get_running_loop()
    crowd: list[CrowdClient] = []
    turn = asyncio.Semaphore(at_once)

    async def join(number: int) -> None:
        async with turn:
            member = CrowdClient(f"crowd/{number % topics}")
            local = (source, 0) if source else None
            await loop.create_connection(lambda: member, *address, local_addr=local)
            crowd.append(member)
            await member.joined

    try:
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(join(number))
    except BaseException:
        for member in crowd:
            member.transport.abort()
        raise
    return crowd


async def all_ended(crowd: list[CrowdClient]) -> None:
    """Wait until all connections have ended. Raise TimeoutError after `LIMIT` seconds."""
    async with asyncio.timeout(LIMIT):
        for member in crowd:
            await member.ended


def allow_descriptors(wanted: int) -> int:
    """Raise the limit of open descriptors of this process and its later children for `wanted` clients, as far as the
    hard limit allows.

    Return the number of clients that the limit permits, at most `wanted`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    return min(wanted, max(soft, min(needed, hard)) - SPARE)


def descriptors(broker: Broker) -> int:
    """Return the number of open file descriptors of a broker's process."""
    assert broker.process is not None
    return psutil.Process(broker.process.pid).num_fds()


def resident(broker: Broker) -> int:
    """Return the resident memory of a broker's process, in bytes."""
    assert broker.process is not None
    return psutil.Process(broker.process.pid).memory_info().rss


def closed(broker: Broker, reason: str) -> float:
    """Return the number of connections that a broker closed for this reason so far, from its metrics."""
    lines = broker.get("/metrics")[1].splitlines()
    found = [line for line in lines if line.startswith("migratory_closed_total{") and f'reason="{reason}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)
