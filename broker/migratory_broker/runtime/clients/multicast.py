"""Multicasts, effects of the edge: the same bytes are written to many connections, with `send` straight on the clients'
sockets.

A delivery is one system call and the wait for memory: what is touched for each of thousands of clients is in no cache,
and a transport's `write` touches much more memory than a socket's `send` (docs/reference/performance.md). So the send
methods of an audience are looked up once, and used for as long as the edge gives the same `Recipients`.

The transports do everything else: reading, buffering, closing. With TLS there is no socket to send to, and a transport
whose `write` makes a record and sends it at once (`accepting/tls_connection.py`). A connection is *behind* while its
transport holds unsent bytes or is closing. Three rules make `send` safe:

- Order. Until the transport of a connection that is behind holds no bytes any more, everything goes to the transport.
  `note` is called after each `write` to a transport; bytes that the kernel does not accept from a `send` are also
  written to the transport.
- The end. A connection whose transport is closing gets nothing more: a skipped publication would be a hole before the
  next one. Its socket may accept bytes for long: a client that ended its own half may go on reading what the transport
  holds.
- The right socket. uvloop detaches the socket object in the moment in which it gives the descriptor back, asyncio
  closes it: a `send` then fails, and never reaches the next connection that gets the same descriptor.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from operator import length_hint
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from migratory_broker.core.edge.events import Multicast, Recipients

FEW_BEHIND = 32
"""The largest number of connections behind that are checked before each fan-out: mostly they were answered in this turn
or the one before, and a transport writes only at the end of a turn. If there are more, they are checked once a tick."""

SMALL_AUDIENCE = 8
"""The largest number of recipients whose send methods are looked up for each multicast. Storing them would cost a topic
with one subscriber 300 bytes and save it no time."""

Send = Callable[[bytes], int | None]
"""A socket's `send`, which returns the number of bytes taken, or a transport's `write`, which returns None."""

BROKEN = -1
"""A value in place of the number of bytes sent: the socket is closed or its connection broken."""


class Target(Protocol):
    """The interface of a client connection. `send` is the bound `send` of its socket, or if `socket` is None its
    transport's `write`."""

    transport: asyncio.Transport
    socket: socket.socket | None
    send: Send


def address(socket: socket.socket) -> Any:
    """Return the address of the socket's other end as `getpeername` gives it, None when the connection is gone."""
    try:
        return socket.getpeername()
    except OSError:
        return None


class Multicaster:
    """The writer of multicasts to the connections in `table`, by number. It records which of these connections are
    behind."""

    def __init__(self, table: Mapping[int, Target]) -> None:
        self._table = table
        self._sends: WeakKeyDictionary[Recipients, tuple[Send, ...]] = WeakKeyDictionary()
        self._behind: dict[Target, None] = {}

    def note(self, target: Target) -> None:
        """Record whether the connection is behind: its transport holds unsent bytes or is closing."""
        if target.transport.get_write_buffer_size() or target.transport.is_closing():
            self._behind[target] = None
        else:
            self._behind.pop(target, None)

    def forget(self, target: Target) -> None:
        """Drop the record that a connection is behind: the connection is in no audience any more, or has ended."""
        self._behind.pop(target, None)

    def review(self) -> None:
        """Drop the record of each connection that is no longer behind: while one is recorded, every multicast takes
        the slower way that checks each recipient."""
        for target in list(self._behind):
            if not (target.transport.get_write_buffer_size() or target.transport.is_closing()):
                del self._behind[target]

    def multicast(self, effect: Multicast) -> None:
        """Write the bytes to every recipient that is still connected and not closing, and abort a connection that is
        broken. Bytes that a socket does not take are written to its transport. The cost of a fan-out is this loop."""
        if 0 < len(self._behind) <= FEW_BEHIND:
            self.review()
        data = effect.data
        size = len(data)
        numbers = effect.recipients.connections
        if self._behind:
            self._multicast_checked(data, numbers)
            return
        sends = self._sends_of(effect.recipients)
        pending = iter(sends)
        while True:
            taken: int | None = size
            try:
                for send in pending:
                    if (taken := send(data)) != size:
                        break
                else:
                    return
            except BlockingIOError:
                taken = 0
            except OSError:
                taken = BROKEN
            except RuntimeError:
                if not self._is_closing(numbers[len(sends) - length_hint(pending) - 1]):
                    raise
                taken = None  # a transport that was closed in this turn; its `Lost` is on the way
            target = self._table.get(numbers[len(sends) - length_hint(pending) - 1])
            if target is not None and target.socket is not None and taken is not None:
                self._write_rest(target, data, taken)

    def _sends_of(self, recipients: Recipients) -> tuple[Send, ...]:
        """Return the recipients' send methods, in their order. For a larger audience they are looked up once and stored
        for these `Recipients`."""
        if len(recipients.connections) <= SMALL_AUDIENCE:
            return self._look_up(recipients.connections)
        sends = self._sends.get(recipients)
        if sends is None:
            sends = self._sends[recipients] = self._look_up(recipients.connections)
        return sends

    def _look_up(self, numbers: tuple[int, ...]) -> tuple[Send, ...]:
        """Return the send method of each of these connections, and for one that is gone a function that discards the
        bytes."""
        table = self._table
        # For a connection lost in this turn `len` stands in, which discards the bytes and returns how many they are.
        # The edge will hear of the loss and give other `Recipients`.
        return tuple([table[number].send if number in table else len for number in numbers])

    def _is_closing(self, number: int) -> bool:
        """Return whether the connection is closing or gone."""
        target = self._table.get(number)
        return target is None or target.transport.is_closing()

    def _multicast_checked(self, data: bytes, numbers: tuple[int, ...]) -> None:
        """Write the bytes to each recipient: straight to its socket, or through its transport if it is behind or has
        TLS. Closing connections get nothing."""
        for number in numbers:
            target = self._table.get(number)
            if target is None:
                continue
            if target not in self._behind and target.socket is not None:
                self._send(target, data)
            elif not target.transport.is_closing():
                target.transport.write(data)
                if target.socket is not None:
                    self.note(target)

    def _send(self, target: Target, data: bytes) -> None:
        """Write the bytes to the socket of a connection that is not behind, and what the socket does not take to its
        transport."""
        try:
            taken = target.send(data)
        except BlockingIOError:
            taken = 0
        except OSError:
            taken = BROKEN
        if taken is not None and taken != len(data):
            self._write_rest(target, data, taken)

    def _write_rest(self, target: Target, data: bytes, taken: int) -> None:
        """Write the bytes after the first `taken` to the transport, and record that the connection is behind. With
        `taken` BROKEN abort the connection instead."""
        if taken == BROKEN:
            target.transport.abort()
        elif not target.transport.is_closing():
            target.transport.write(data[taken:])
        self.note(target)
