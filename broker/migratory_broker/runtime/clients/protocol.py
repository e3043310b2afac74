"""The asyncio protocol of a client connection, apart from `connection.py`, which is compiled: a compiled class cannot
derive from one of asyncio.

There are very many of these: each holds a few references and nothing else (1.5 KiB with its transport).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from migratory_broker.core.edge.events import Paused, Resumed
from migratory_broker.runtime.clients.multicast import Multicaster
from migratory_broker.runtime.clients.pending import PendingConnections
from migratory_broker.runtime.pump import Pump


class ConnectionTable(Protocol):
    """The interface of the table of connections, to which their protocols pass events."""

    pump: Pump
    multicaster: Multicaster
    pending: PendingConnections

    def receive(self, connection: ClientProtocol, data: bytes) -> None: ...

    def recheck(self, connection: ClientProtocol) -> None: ...

    def lost(self, number: int, *, reset: bool) -> None: ...


class ClientProtocol(asyncio.Protocol):
    """The asyncio protocol of client connection `number`. It passes events to the connections in `table`. `send` writes
    bytes for multicasts: it is the `send` of `socket` if that is given, else the transport's `write`."""

    __slots__ = ("_table", "number", "send", "socket", "transport")

    def __init__(
        self, table: ConnectionTable, number: int, transport: asyncio.Transport, socket: socket.socket | None
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
        """Pass received bytes on to the edge, after the connection's earlier events."""
        self._table.receive(self, data)

    def pause_writing(self) -> None:
        """Report to the edge that the transport is full. Afterwards the multicaster need not know whether the
        connection is behind."""
        table = self._table
        table.pending.post(self.number, table.pump.step_edge, Paused(self.number))
        # once the edge has handled that, no multicast includes this connection any more
        table.pending.post(self.number, table.multicaster.forget, self)

    def resume_writing(self) -> None:
        """Report to the edge that the transport has room again, after the multicaster has checked whether it holds
        unsent bytes."""
        table = self._table
        table.pending.post(self.number, table.recheck, self)
        table.pending.post(self.number, table.pump.step_edge, Resumed(self.number))

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.lost(self.number, reset=exc is not None)


class HttpClientProtocol(ClientProtocol):
    """The protocol of a connection that serves one HTTP request. Bytes behind the request abort the connection: no
    client that was told `Connection: close` sends any, and they must not be taken for frames."""

    __slots__ = ()

    def __call__(self, data: bytes) -> None:
        self.transport.abort()
