"""Client connections after the WebSocket handshake or the HTTP request: bytes that their protocols (protocol.py)
receive become events of the edge, and the edge's effects become writes."""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections.abc import Callable
from typing import Any, Literal

from migratory_broker.core.edge.events import Close, Hold, HttpRequest, Lost, Opened, Received, Send
from migratory_broker.runtime.accepting.addresses import AddressLease, CountedAddresses, address_key
from migratory_broker.runtime.clients.handshake_queue import HandshakeTransport
from migratory_broker.runtime.clients.multicast import Multicaster, address
from migratory_broker.runtime.clients.pending import PendingConnections
from migratory_broker.runtime.clients.protocol import ClientProtocol, HttpClientProtocol
from migratory_broker.runtime.clients.unhandled import MAX_CLIENT_BYTES, ClientInput, UnhandledInput
from migratory_broker.runtime.pump import Pump

HIGH_WATER = 65_536
LOW_WATER = 16_384
"""Bytes in a transport's buffer: above `HIGH_WATER` the edge begins to queue, below `LOW_WATER` it writes again. The
limits of a client's queue are kept by the edge."""

THROTTLED_BYTES = 4096
"""Bytes of a client that are read while reading is throttled: a client that sends little does not notice."""

CLOSE_LIMIT = 5.0
"""Seconds in which the client of a closing connection must read the bytes that are still buffered for it."""

HTTP_CLOSE_LIMIT = 30.0
"""The same for HTTP, where a poll is closed in the step that writes its response, which may be as long as a page of a
replay."""


class ClientConnections:
    """All client connections of this process after their handshake, by number. Numbers are never reused. `len()` is the
    number of open ones, and the event `empty` is set while there are none.

    The bytes that clients sent and the edge has not handled take `max_unhandled` bytes of memory at most. `evicted`
    counts the connections that were aborted at this limit. `counted` are the addresses that count for rates, None
    without rates of addresses.
    """

    def __init__(self, pump: Pump, clock: Callable[[], float], max_unhandled: int = 2**62) -> None:
        self.pump = pump
        self._open: dict[int, ClientProtocol] = {}
        self.multicaster = Multicaster(self._open)
        self.pending = PendingConnections(pump)
        self._now = clock
        self._next = 1
        self._closing: list[tuple[float, int]] = []  # a heap of deadlines
        self._http: set[int] = set()
        self._held: set[int] = set()
        self._leases: dict[int, AddressLease] = {}  # of the connections that count for their address
        self.counted: CountedAddresses | None = None  # where there are rates of addresses
        self.unhandled = UnhandledInput(max_unhandled)
        self.evicted = 0
        self._throttled: dict[int, int] | None = None  # bytes read of each client since throttling began; None: off
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
        http: HttpRequest | None = None,
    ) -> None:
        """Create a connection on a transport whose handshake is finished, and report it to the edge with `Opened`. The
        lease of a `HandshakeTransport` is released when the connection ends.

        `wire` and `deflate` are as negotiated. `opened` is the time at which HTTP began: the TCP accept, or the end of
        the TLS handshake. `early` are bytes that came after the HTTP request; the edge receives them as the
        connection's first bytes. `token` is the request's credential, None for none. `http` is a request that asks for
        no WebSocket: then `early` are the frames that it was translated into, and bytes behind the request are dropped.
        """
        # all that keep the number share one object: with `int`, compiled code would make a new one for each
        number: Any = self._next
        self._next += 1
        direct: socket.socket | None = None
        if isinstance(transport, HandshakeTransport):
            direct = transport.socket
            pipelined = transport.drain()
            early += b"" if http is not None else pipelined
            if transport.lease is not None:
                self._leases[number] = transport.lease
            transport = transport.transport
        kind = ClientProtocol if http is None else HttpClientProtocol
        connection = kind(self, number, transport, direct)
        if http is not None:
            self._http.add(number)
        transport.set_protocol(connection)
        transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._open[number] = connection
        self.empty.clear()
        if direct is not None:
            self.multicaster.note(connection)  # the handshake's answer went to its transport
        address = "" if self.counted is None else self.counted.key(self._host(number))
        self.pending.add(Opened(number, wire, self.remote(number), deflate, opened, token, address, http))
        if early:
            self.receive(connection, early)

    def remote(self, number: int) -> str:
        """Return the address of the other end as HOST:PORT, "" when the connection is gone."""
        connection = self._open.get(number)
        if connection is None:
            return ""
        direct = connection.socket
        peer = connection.transport.get_extra_info("peername") if direct is None else address(direct)
        return f"{peer[0]}:{peer[1]}" if peer else ""

    def lost(self, number: int, *, reset: bool = False) -> None:
        """Forget a connection that ended: release its lease, and report `Lost` to the edge after its earlier events.
        After a `reset`, drop the unhandled input of a client whose first bytes were not processed yet: it got no
        answer, and a storm of such connections must not keep others waiting."""
        if reset and self.pending.is_pending(number):
            self.unhandled.drop(number)
        connection = self._open.pop(number, None)
        if connection is not None:
            self.multicaster.forget(connection)
            self._held.discard(number)
            self._http.discard(number)
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

    def receive(self, connection: ClientProtocol, data: bytes) -> None:
        """Queue received bytes for the edge, after the connection's earlier events. Stop reading from a connection that
        has more than `MAX_CLIENT_BYTES` of unhandled input, or sent more than `THROTTLED_BYTES` while throttled. Abort
        the largest connections if all together are over their limit."""
        number = connection.number
        held = self.unhandled.add(number, data)
        self.pending.post(number, self._deliver, held)
        if held.size > MAX_CLIENT_BYTES and not held.paused:
            held.paused = True
            connection.transport.pause_reading()
        if self._throttled is not None:
            read = self._throttled[number] = self._throttled.get(number, 0) + len(data)
            if read > THROTTLED_BYTES:
                connection.transport.pause_reading()
        if self.unhandled.over_limit:
            self._evict_largest()

    def _evict_largest(self) -> None:
        """Drop the unhandled input of the largest clients, and abort their connections."""
        for largest in self.unhandled.drop_largest(lambda number: address_key(self._host(number))):
            self.evicted += 1
            if (ended := self._open.get(largest)) is not None:
                ended.transport.abort()

    def _host(self, number: int) -> str:
        """Return the IP address of the other end, "" when the connection is gone."""
        return self.remote(number).rpartition(":")[0]

    def counted_addresses(self) -> dict[int, str]:
        """Return, by connection number, the key of the address for whose rates each open connection counts. Those that
        do not count are left out."""
        if self.counted is None:
            return {}
        keys = {number: self.counted.key(self._host(number)) for number in self._open}
        return {number: key for number, key in keys.items() if key}

    def _deliver(self, held: ClientInput) -> None:
        """Step the edge with the oldest unhandled read of a client. Resume reading from the client if no read is
        left."""
        data = self.unhandled.take(held)
        if data is None:
            return
        if held.paused and not held.reads:
            held.paused = False
            self._resume_reading(held.number)
        self.pump.step_edge(Received(held.number, data))

    def _resume_reading(self, number: int) -> None:
        """Read from a connection again, unless it is gone or closing, the edge holds it, it sent more than
        `THROTTLED_BYTES` while throttled, or it has too much unhandled input."""
        connection = self._open.get(number)
        if connection is None or number in self._held or connection.transport.is_closing():
            return
        throttled = self._throttled is not None and self._throttled.get(number, 0) > THROTTLED_BYTES
        if not (throttled or self.unhandled.is_paused(number)):
            connection.transport.resume_reading()

    def send(self, effect: Send) -> None:
        """Write bytes to one connection through its transport. Nothing happens if the connection is gone; a closing one
        discards the bytes."""
        connection = self._open.get(effect.connection)
        if connection is not None:
            # if the transport is closing, nothing more goes to this client, and `note` keeps multicasts from it as well
            if not connection.transport.is_closing():
                connection.transport.write(effect.data)
            self.multicaster.note(connection)

    def hold(self, effect: Hold) -> None:
        """Stop or resume reading from a connection. It is resumed only if there is no other reason to pause it."""
        number = effect.connection
        connection = self._open.get(number)
        if connection is None:
            return
        if effect.on:
            self._held.add(number)
            connection.transport.pause_reading()
        else:
            self._held.discard(number)
            self._resume_reading(number)

    def throttle(self, *, on: bool) -> None:
        """Begin or end throttling, because the channel to the broker's process is full or has room again. While it is
        on, `THROTTLED_BYTES` of each client are read, exceeded by one read at most, and further bytes stay in the
        kernel."""
        if on:
            if self._throttled is None:
                self._throttled = {}
            return
        throttled, self._throttled = self._throttled or {}, None
        for number, read in throttled.items():
            if read > THROTTLED_BYTES:
                self._resume_reading(number)

    def close(self, effect: Close) -> None:
        """Close a connection: with `abort` at once, else after its client has read the buffered bytes. `tick` aborts a
        client that takes longer than `CLOSE_LIMIT`, or `HTTP_CLOSE_LIMIT` for HTTP."""
        connection = self._open.get(effect.connection)
        if connection is None:
            return
        if effect.abort:
            connection.transport.abort()
        else:
            connection.transport.close()
            limit = HTTP_CLOSE_LIMIT if effect.connection in self._http else CLOSE_LIMIT
            heapq.heappush(self._closing, (self._now() + limit, effect.connection))

    def tick(self, now: float) -> None:
        """Abort the closed connections whose clients have not read their last bytes within `CLOSE_LIMIT`, or
        `HTTP_CLOSE_LIMIT` for HTTP. Also make the multicaster check which connections are no longer behind."""
        self.multicaster.review()
        while self._closing and self._closing[0][0] <= now:
            _, number = heapq.heappop(self._closing)
            connection = self._open.get(number)
            if connection is not None:
                connection.transport.abort()

    def abort_oldest(self, count: int) -> None:
        """Abort the `count` connections with the lowest numbers. After a descriptor limit was lowered these are the
        right ones: the limit is one of descriptor numbers, and the oldest connections mostly have the lowest."""
        for connection in list(self._open.values())[:count]:
            connection.transport.abort()

    def abort_all(self) -> None:
        for connection in list(self._open.values()):
            connection.transport.abort()
