"""The handshake queue: what new connections send until they are handed over is deferred, so that publications do not
wait for a storm of connects; pending.py defers their first messages after that.

When a broker dies, thousands of clients reconnect in one turn of the loop. Each costs a handshake, `connect` and
`subscribe`, and in the clients' queue every publication would wait for all of them. So the bytes of new connections are
read at once, which is cheap, and processed in the deferred queue of the pump (`Pump.defer`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from migratory_broker.runtime.accepting.addresses import AddressLease
from migratory_broker.runtime.accepting.tls_queue import Defer
from migratory_broker.runtime.clients.multicast import address

HANDLER_SECONDS = 0.0001
"""Seconds of CPU of aiohttp's handler, which answers a request in a task of its own once it is parsed, as measured
(docs/reference/performance.md). A turn that does not count them handles five times as many handshakes as it should."""

MAX_PENDING_BYTES = 65_536
"""Bytes of a request that are buffered before it is processed, exceeded by one read at most; the rest stays in the
kernel."""


class DeferredHandshake(asyncio.Protocol):
    """The protocol of an accepted socket until its upgrade or the end of its HTTP request. It buffers received bytes,
    and passes them later, in the deferred queue, to the HTTP protocol of `factory()`. HTTP sees a `HandshakeTransport`.
    The bytes count for HTTP's limit of memory as they come, and the lease is released if the connection ends before
    another protocol has taken it over. `socket` is the accepted one, None with TLS."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        socket: socket.socket | None,
        defer: Defer,
        lease: AddressLease | None = None,
    ) -> None:
        self._factory = factory
        self._socket = socket
        self._lease = lease
        self._defer = defer
        self._http: Any = None
        self._transport: Any = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._held = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._http = self._factory()
        self._http.connection_made(HandshakeTransport(transport, self._socket, self.drain, self._lease))

    def data_received(self, data: bytes) -> None:
        """Buffer received bytes, and defer their delivery to HTTP. Stop reading above `MAX_PENDING_BYTES`."""
        if not self._chunks:
            self._defer(self._deliver, None, HANDLER_SECONDS)
        self._chunks.append(data)
        self._size += len(data)
        self._http.count_received(len(data))
        if self._size > MAX_PENDING_BYTES and not self._held:
            self._held = True
            self._transport.pause_reading()

    def _deliver(self, _: None) -> None:
        """Pass the buffered bytes to HTTP, unless the connection is gone."""
        data = self.drain()
        if data and self._http is not None:
            self._http.data_received(data)

    def drain(self) -> bytes:
        """Remove and return the buffered bytes that HTTP has not received, and resume reading from the socket. After an
        upgrade they belong to the connection's new protocol."""
        data, self._chunks, self._size = b"".join(self._chunks), [], 0
        if self._held and not self._transport.is_closing():
            self._held = False
            self._transport.resume_reading()
        return data

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection to HTTP, and release the lease."""
        http, self._http = self._http, None
        http.connection_lost(exc)
        if self._lease is not None:
            self._lease.release()


class HandshakeTransport:
    """A connection's transport as the HTTP protocol sees it, together with the accepted socket (None with TLS), its
    lease, and `DeferredHandshake.drain`. The socket is at hand because uvloop allocates 72 bytes for each transport
    that is asked for its socket or the address of its other end."""

    __slots__ = ("drain", "lease", "socket", "transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        socket: socket.socket | None,
        drain: Callable[[], bytes],
        lease: AddressLease | None = None,
    ) -> None:
        self.transport = transport
        self.socket = socket
        self.drain = drain
        self.lease = lease

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection by `name`: the socket and the address of its other end without asking
        the transport, where the socket is known."""
        if self.socket is not None:
            if name == "socket":
                return self.socket
            if name == "peername":
                return address(self.socket) or default
        return self.transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)
