"""Handshakes that wait for their turn: what a socket says before it is a client's.

Thousands of requests may come in one turn of the loop, when a broker has died. The loop would answer all of them before
it looks at anything else, and what is published now would wait for that. So a request is taken from its socket, which
costs little, and stands in the line of what may come late (`pump.py`) until HTTP is told of it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from migratory_broker.core.edge.events import Lost, Opened, Received
from migratory_broker.runtime.clients.multicast import address
from migratory_broker.runtime.pump import Pump

Late = Callable[[Callable[[Any], None], Any], None]

MAX_PENDING_BYTES = 65_536
"""Bytes that a socket may say before its turn, a read more or less; the rest stays in the kernel."""


class DeferredHandshake(asyncio.Protocol):
    """Before the protocol that `factory` makes for HTTP, which sees a `Shown` for its transport. `late` runs a call in
    its turn."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], socket: socket.socket, late: Late) -> None:
        self._factory = factory
        self._socket = socket
        self._late = late
        self._http: Any = None
        self._transport: Any = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._held = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._http = self._factory()
        self._http.connection_made(HandshakeTransport(transport, self._socket, self.rest))

    def data_received(self, data: bytes) -> None:
        if not self._chunks:
            self._late(self._tell, None)
        self._chunks.append(data)
        self._size += len(data)
        if self._size > MAX_PENDING_BYTES and not self._held:
            self._held = True
            self._transport.pause_reading()

    def _tell(self, nothing: None) -> None:
        data = self.rest()
        if data and self._http is not None:
            self._http.data_received(data)

    def rest(self) -> bytes:
        """What HTTP has not been told yet: of who has a new protocol by now, that is the new one's."""
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
        http, self._http = self._http, None
        http.connection_lost(exc)


class HandshakeTransport:
    """A transport as HTTP sees it, which shows its accepted socket itself. uvloop makes an object of its own for who
    asks for the socket, or for the address at its other end, and keeps it: 72 bytes for each client."""

    __slots__ = ("rest", "socket", "transport")

    def __init__(self, transport: asyncio.Transport, socket: socket.socket, rest: Callable[[], bytes]) -> None:
        self.transport = transport
        self.socket = socket
        self.rest = rest

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self.socket
        if name == "peername":
            return address(self.socket) or default
        return self.transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


Action = Callable[[Any], None]


class PendingConnections:
    """Everything about a connection goes through here, in its order: into the one line or into the other."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._waiting: dict[int, int] = {}  # of each newcomer: how much of it stands in the line

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opened: Opened) -> None:
        self._waiting[opened.connection] = 0
        self.post(opened.connection, self._pump.step_edge, opened)

    def post(self, number: int, action: Action, argument: Any) -> None:
        """Run `action(argument)`, which is about that connection."""
        waiting = self._waiting.get(number)
        if waiting is None:
            self._pump.call(action, argument)
        else:
            self._waiting[number] = waiting + 1
            self._pump.call_late(self._work, (number, action, argument))

    def _work(self, entry: tuple[int, Action, Any]) -> None:
        number, action, argument = entry
        action(argument)
        waiting = self._waiting[number] = self._waiting[number] - 1
        if not waiting and isinstance(argument, Received | Lost):
            del self._waiting[number]
            if not self._waiting:
                self._waiting = {}  # a dict keeps the room of the most that it ever held
