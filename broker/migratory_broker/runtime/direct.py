"""A fan-out's way past the transports: `send` straight on the clients' sockets. A delivery is one system call and
waiting for memory: what is touched for each of thousands of clients is in no cache, and a transport's `write` touches
much more of it than a socket's `send` (docs/performance.md).

The transports keep everything else: reading, buffering, closing, TLS. What makes it safe:
- Order. A connection whose transport holds bytes is *behind*: until they are gone, everything goes to the transport.
  `note` is called after each `write` to a transport; what the kernel does not take of a `send` is left to it as well.
- The end. One whose transport is closing gets nothing more, or what was left out would be a hole before what comes. Its
  socket may take bytes for long: a client that ended its own half may go on reading what its transport holds.
- The right socket. uvloop detaches the socket object in the moment in which it gives the descriptor back, asyncio
  closes it: a `send` then fails, and never reaches the next connection that gets the same number.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

from migratory_broker.core.edge.events import Multicast, Sink
from migratory_broker.runtime.pump import is_closed, multicast

FEW = 32
"""So many are looked at before each fan-out: mostly they were answered in this turn or the one before, and a transport
writes only at the end of a turn. More, which read slowly, are looked at once a tick."""


class Owner(Protocol):
    """A connection, as its socket knows it."""

    transport: asyncio.Transport


class ClientSocket(socket.socket):
    """An accepted socket that knows its connection, once there is one."""

    __slots__ = ("owner",)

    owner: Owner | None


def wrap(accepted: socket.socket) -> ClientSocket:
    """For the listener, before the socket gets its transport; not for TLS."""
    own = ClientSocket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
    own.setblocking(False)
    own.owner = None
    return own


def address(socket: socket.socket) -> Any:
    """Of its other end, as Python gives it; None when it is gone."""
    try:
        return socket.getpeername()
    except OSError:
        return None


class Direct:
    """All sockets of this process's clients that may be written to directly."""

    def __init__(self) -> None:
        self._behind: dict[Owner, None] = {}

    def adopt(self, own: ClientSocket, owner: Owner) -> None:
        """The socket is `owner`'s now, to whose transport bytes went already."""
        own.owner = owner
        self.note(owner)

    def note(self, owner: Owner) -> None:
        """Bytes went to the transport, or would have gone if it were not closing: is it behind?"""
        if owner.transport.get_write_buffer_size() or owner.transport.is_closing():
            self._behind[owner] = None
        else:
            self._behind.pop(owner, None)

    def forget(self, owner: Owner) -> None:
        """It is out of every audience, or gone."""
        self._behind.pop(owner, None)

    def look(self) -> None:
        """Who has caught up? While anybody is behind, each fan-out looks at each of its sockets."""
        for owner in list(self._behind):
            if not (owner.transport.get_write_buffer_size() or owner.transport.is_closing()):
                del self._behind[owner]

    def multicast(self, effect: Multicast) -> None:
        """Write the same bytes to every sink: what a fan-out costs is this loop."""
        if 0 < len(self._behind) <= FEW:
            self.look()
        data = effect.data
        size = len(data)
        if self._behind:
            self._careful(data, effect)
            return
        sinks = iter(effect.sinks)
        while True:
            sink: Sink | None = None
            sent: object = size
            try:
                for sink in sinks:
                    if (sent := sink(data)) != size:
                        break
                else:
                    return
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = -1
            except RuntimeError:
                if not is_closed(sink):
                    raise
                sent = None  # a transport that was closed in this turn; its `Lost` is on the way
            assert sink is not None
            self._rest(sink, data, sent)

    def _careful(self, data: bytes, effect: Multicast) -> None:
        """Somebody is behind: look at each."""
        for sink in effect.sinks:
            own = getattr(sink, "__self__", None)
            owner = own.owner if isinstance(own, ClientSocket) else None
            if owner is None or owner not in self._behind:
                self._one(sink, data)
            elif not owner.transport.is_closing():
                owner.transport.write(data)
                self.note(owner)

    def _one(self, sink: Sink, data: bytes) -> None:
        own = getattr(sink, "__self__", None)
        if not isinstance(own, ClientSocket):
            multicast(Multicast(data, (sink,)))
            return
        try:
            sent: object = sink(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = -1
        if sent != len(data):
            self._rest(sink, data, sent)

    def _rest(self, sink: Sink, data: bytes, sent: object) -> None:
        """`sent` is how much of `data` the kernel took; -1: the connection is broken; None: a transport took it."""
        own = getattr(sink, "__self__", None)
        if not isinstance(own, ClientSocket) or not isinstance(sent, int):
            return
        owner = own.owner
        if owner is None:
            return  # it is gone
        if sent < 0:
            owner.transport.abort()
        elif not owner.transport.is_closing():
            owner.transport.write(data[sent:])
        self.note(owner)
