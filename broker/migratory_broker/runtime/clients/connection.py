"""Client connections after the WebSocket handshake: protocols on their transports that turn bytes into events of the
edge.

There are very many of these: each holds a few references and nothing else (1.5 KiB with its transport).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Literal

from migratory_broker.core.edge.events import Close, Hold, Lost, Opened, Paused, Received, Resumed, Send
from migratory_broker.runtime.accepting.addresses import AddressLease
from migratory_broker.runtime.clients.handshake_queue import HandshakeTransport, PendingConnections
from migratory_broker.runtime.clients.multicast import Multicaster, address
from migratory_broker.runtime.pump import Pump

HIGH_WATER = 65_536
LOW_WATER = 16_384
"""Bytes in a transport's buffer: above `HIGH_WATER` the edge begins to queue, below `LOW_WATER` it writes again. The
limits of a client's queue are kept by the edge."""

MAX_UNREAD_BYTES = 16_777_216
"""Bytes from all clients that the edge has not handled yet, above which each client is read once more at most, until
half of them are handled. Without this limit the loop would read a flood from every socket in each turn, and handle
little of it."""

CLOSE_LIMIT = 5.0
"""Seconds in which the client of a closing connection must read the bytes that are still buffered for it."""


class ClientProtocol(asyncio.Protocol):
    """The asyncio protocol of client connection `number`. `send` writes bytes for multicasts: it is the `send` of
    `socket` if that is given, else the transport's `write`."""

    __slots__ = ("_table", "number", "send", "socket", "transport")

    def __init__(
        self, table: ClientConnections, number: int, transport: asyncio.Transport, socket: socket.socket | None
    ) -> None:
        self._table = table
        self.number = number
        self.transport = transport
        self.socket = socket
        self.send: Callable[[bytes], int | None] = transport.write if socket is None else socket.send

    @property
    def data_received(self) -> Callable[[bytes], None]:
        """Return this object, which handles received bytes when it is called. uvloop stores the value of this attribute
        for each connection, and a bound method would cost 64 bytes."""
        return self

    def __call__(self, data: bytes) -> None:
        table = self._table
        table.receive(Received(self.number, data))
        if table.throttled is not None:
            self.transport.pause_reading()
            table.throttled[self.number] = None

    def pause_writing(self) -> None:
        table = self._table
        table.pending.post(self.number, table.pump.step_edge, Paused(self.number))
        # once the edge has handled that, no multicast includes this connection any more
        table.pending.post(self.number, table.multicaster.forget, self)

    def resume_writing(self) -> None:
        table = self._table
        table.pending.post(self.number, table.recheck, self)
        table.pending.post(self.number, table.pump.step_edge, Resumed(self.number))

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.lost(self.number)


class ClientConnections:
    """All client connections of this process after their handshake, by number. Numbers are never reused."""

    def __init__(self, pump: Pump, clock: Callable[[], float]) -> None:
        self.pump = pump
        self._open: dict[int, ClientProtocol] = {}
        self.multicaster = Multicaster(self._open)
        self.pending = PendingConnections(pump)
        self._now = clock
        self._next = 1
        self._closing: deque[tuple[float, int]] = deque()
        self._held: set[int] = set()
        self._leases: dict[int, AddressLease] = {}  # of the connections that count for their address
        self._unread = 0  # bytes
        self._throttle_reasons: set[str] = set()  # why clients are not read freely; empty: they are
        self.throttled: dict[int, None] | None = None  # read once since throttling began; None: it is off
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._open)

    def adopt(
        self,
        transport: asyncio.Transport | HandshakeTransport,
        wire: Literal["json", "msgpack"],
        deflate: bool,
        opened: float,
        early: bytes,
        token: str | None = None,
    ) -> None:
        """Create a connection on a transport whose handshake is finished, and report it to the edge.

        `opened` is the time of the TCP accept. `early` are bytes that came after the HTTP request; the edge receives
        them as the connection's first bytes. `token` is the request's credential.
        """
        number = self._next
        self._next += 1
        direct: socket.socket | None = None
        if isinstance(transport, HandshakeTransport):
            direct = transport.socket
            early += transport.drain()
            if transport.lease is not None:
                self._leases[number] = transport.lease
            transport = transport.transport
        connection = ClientProtocol(self, number, transport, direct)
        transport.set_protocol(connection)
        transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._open[number] = connection
        self.empty.clear()
        if direct is not None:
            self.multicaster.note(connection)  # the handshake's answer went to its transport
        self.pending.add(Opened(number, wire, self.remote(number), deflate, opened, token))
        if early:
            connection.data_received(early)

    def remote(self, number: int) -> str:
        """Return the address of the other end as HOST:PORT, "" when the connection is gone."""
        connection = self._open.get(number)
        if connection is None:
            return ""
        direct = connection.socket
        peer = connection.transport.get_extra_info("peername") if direct is None else address(direct)
        return f"{peer[0]}:{peer[1]}" if peer else ""

    def lost(self, number: int) -> None:
        connection = self._open.pop(number, None)
        if connection is not None:
            self.multicaster.forget(connection)
            self._held.discard(number)
            if self._leases and (lease := self._leases.pop(number, None)) is not None:
                lease.release()
            self.pending.post(number, self.pump.step_edge, Lost(number))
            if not self._open:
                self.empty.set()

    def recheck(self, connection: ClientProtocol) -> None:
        """Make the multicaster check whether an open connection still has unsent bytes, before the edge adds it to
        audiences again. A closed connection is ignored."""
        if connection.number in self._open:
            self.multicaster.note(connection)

    def receive(self, event: Received) -> None:
        """Pass bytes to the edge after the connection's earlier events. Throttle reading from all clients while more
        than `MAX_UNREAD_BYTES` wait for the edge."""
        self._unread += len(event.data)
        self.pending.post(event.connection, self._deliver, event)
        if self._unread > MAX_UNREAD_BYTES:
            self.throttle("flood", True)

    def _deliver(self, event: Received) -> None:
        self._unread -= len(event.data)
        if "flood" in self._throttle_reasons and self._unread <= MAX_UNREAD_BYTES // 2:
            self.throttle("flood", False)
        self.pump.step_edge(event)

    def send(self, effect: Send) -> None:
        connection = self._open.get(effect.connection)
        if connection is not None:
            # if the transport is closing, nothing more goes to this client, and `note` keeps multicasts from it as well
            if not connection.transport.is_closing():
                connection.transport.write(effect.data)
            self.multicaster.note(connection)

    def hold(self, effect: Hold) -> None:
        number = effect.connection
        connection = self._open.get(number)
        if connection is None:
            return
        if effect.on:
            self._held.add(number)
            connection.transport.pause_reading()
        else:
            self._held.discard(number)
            if self.throttled is None or number not in self.throttled:
                connection.transport.resume_reading()

    def throttle(self, reason: str, on: bool) -> None:
        """Add (`on`) or remove a reason to throttle reading. While there is any, each client is read at most once more,
        and what it sends then stays in the kernel: a buffer of this broker is full."""
        if on:
            self._throttle_reasons.add(reason)
            if self.throttled is None:
                self.throttled = {}
            return
        self._throttle_reasons.discard(reason)
        if self._throttle_reasons:
            return
        throttled, self.throttled = self.throttled or {}, None
        for number in throttled:
            connection = self._open.get(number)
            if connection is None or number in self._held or connection.transport.is_closing():
                continue
            connection.transport.resume_reading()

    def close(self, effect: Close) -> None:
        connection = self._open.get(effect.connection)
        if connection is None:
            return
        if effect.abort:
            connection.transport.abort()
        else:
            connection.transport.close()
            self._closing.append((self._now(), effect.connection))

    def tick(self, now: float) -> None:
        """Abort the connections that were closed `CLOSE_LIMIT` seconds ago and have not read their last bytes. Also
        make the multicaster check which connections have no unsent bytes any more."""
        self.multicaster.review()
        while self._closing and self._closing[0][0] + CLOSE_LIMIT <= now:
            _, number = self._closing.popleft()
            connection = self._open.get(number)
            if connection is not None:
                connection.transport.abort()

    def abort_oldest(self, count: int) -> None:
        """Abort the `count` connections with the lowest numbers. After a descriptor limit was lowered these are the
        right ones: the limit is one of descriptor numbers, and the oldest connections have the lowest."""
        for connection in list(self._open.values())[:count]:
            connection.transport.abort()

    def abort_all(self) -> None:
        for connection in list(self._open.values()):
            connection.transport.abort()
