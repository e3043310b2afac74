"""One client's connection after the handshake: a slotted protocol on the transport that turns it into edge events.

There are very many of these: each holds a few references and nothing else (1.5 KiB with its transport).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Literal

from migratory_broker.core.edge.events import Close, Hold, Lost, Opened, Paused, Received, Resumed, Send
from migratory_broker.runtime.clients.handshake_queue import HandshakeTransport, PendingConnections
from migratory_broker.runtime.clients.multicast import Multicaster, address
from migratory_broker.runtime.pump import Pump

HIGH_WATER = 65_536
LOW_WATER = 16_384
"""Bytes that the transport itself holds before the edge queues; the edge's queue is where limits are kept."""

UNREAD = 16_777_216
"""Bytes that all clients have sent and the edge has not taken yet, above which nobody is read more than once until half
of it is worked off. What it takes it counts itself; before, the loop would read a flood from every socket in each turn,
of which it works off a few."""

CLOSE_LIMIT = 5.0
"""Seconds that a closing connection has to take what is still pending."""


class ClientConnection(asyncio.Protocol):
    """The socket of connection `number`: what it reports becomes events for the edge. `socket` is None where multicasts
    must go through the transport; `send` is the method that they call."""

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
        """Itself: uvloop keeps what it is given here for each connection, and a bound method has 64 bytes."""
        return self

    def __call__(self, data: bytes) -> None:
        table = self._table
        table.read(Received(self.number, data))
        if table.choked is not None:
            self.transport.pause_reading()
            table.choked[self.number] = None

    def pause_writing(self) -> None:
        table = self._table
        table.newcomers.post(self.number, table.pump.step_edge, Paused(self.number))
        # once the edge has taken that, no fan-out comes for this one any more
        table.newcomers.post(self.number, table.multicaster.forget, self)

    def resume_writing(self) -> None:
        table = self._table
        table.newcomers.post(self.number, table.look_again, self)
        table.newcomers.post(self.number, table.pump.step_edge, Resumed(self.number))

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.lost(self.number)


class ClientConnections:
    """All clients' connections of this process, by number. Numbers are never used twice."""

    def __init__(self, pump: Pump, clock: Callable[[], float]) -> None:
        self.pump = pump
        self._open: dict[int, ClientConnection] = {}
        self.multicaster = Multicaster(self._open)
        self.newcomers = PendingConnections(pump)
        self._now = clock
        self._next = 1
        self._closing: deque[tuple[float, int]] = deque()
        self._held: set[int] = set()
        self._unread = 0  # bytes
        self._chokes: set[str] = set()  # why nobody is read more than once
        self.choked: dict[int, None] | None = None  # there while there is a reason: these have been
        self.none_left = asyncio.Event()
        self.none_left.set()

    def __len__(self) -> int:
        return len(self._open)

    def adopt(
        self,
        transport: asyncio.Transport | HandshakeTransport,
        wire: Literal["json", "msgpack"],
        deflate: bool,
        opened: float,
        early: bytes,
    ) -> None:
        """Take a transport over from the handshake; `early` are the bytes that came behind the request."""
        number = self._next
        self._next += 1
        own: socket.socket | None = None
        if isinstance(transport, HandshakeTransport):
            own = transport.socket
            early += transport.rest()
            transport = transport.transport
        connection = ClientConnection(self, number, transport, own)
        transport.set_protocol(connection)
        transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._open[number] = connection
        self.none_left.clear()
        if own is not None:
            self.multicaster.note(connection)  # the handshake's answer went to its transport
        self.newcomers.add(Opened(number, wire, self.remote(number), deflate, opened))
        if early:
            connection.data_received(early)

    def remote(self, number: int) -> str:
        """The address at the other end, as HOST:PORT; "" when it is gone."""
        connection = self._open.get(number)
        if connection is None:
            return ""
        own = connection.socket
        found = connection.transport.get_extra_info("peername") if own is None else address(own)
        return f"{found[0]}:{found[1]}" if found else ""

    def lost(self, number: int) -> None:
        connection = self._open.pop(number, None)
        if connection is not None:
            self.multicaster.forget(connection)
            self._held.discard(number)
            self.newcomers.post(number, self.pump.step_edge, Lost(number))
            if not self._open:
                self.none_left.set()

    def look_again(self, connection: ClientConnection) -> None:
        """Fan-outs come for it again, if it is still there."""
        if connection.number in self._open:
            self.multicaster.note(connection)

    def read(self, event: Received) -> None:
        """For the edge, in its place among the events."""
        self._unread += len(event.data)
        self.newcomers.post(event.connection, self._give, event)
        if self._unread > UNREAD:
            self.choke("flood", True)

    def _give(self, event: Received) -> None:
        self._unread -= len(event.data)
        if "flood" in self._chokes and self._unread <= UNREAD // 2:
            self.choke("flood", False)
        self.pump.step_edge(event)

    def send(self, effect: Send) -> None:
        connection = self._open.get(effect.connection)
        if connection is not None:
            # the transport may be closing: then nothing more goes to this client, of fan-outs either
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
            if self.choked is None or number not in self.choked:
                connection.transport.resume_reading()

    def choke(self, why: str, on: bool) -> None:
        """`on`: of what clients say nothing more fits in somewhere, for that reason. Who sends something is read once,
        and then left alone."""
        if on:
            self._chokes.add(why)
            if self.choked is None:
                self.choked = {}
            return
        self._chokes.discard(why)
        if self._chokes:
            return
        choked, self.choked = self.choked or {}, None
        for number in choked:
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
        """Drop connections that do not take what is pending: a client that stands still must not hold them."""
        self.multicaster.review()
        while self._closing and self._closing[0][0] + CLOSE_LIMIT <= now:
            _, number = self._closing.popleft()
            connection = self._open.get(number)
            if connection is not None:
                connection.transport.abort()

    def abort_all(self) -> None:
        for connection in list(self._open.values()):
            connection.transport.abort()
