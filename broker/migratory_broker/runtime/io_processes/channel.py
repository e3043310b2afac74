"""One end of the way between a broker's process and an I/O process: batches of messages over a Unix socket, in order.

A turn of the loop sends one batch. Neither end reads more than it can work off: what was read and not yet worked off
(`done`) is bounded, then the socket is left alone until some of it is. The other end meets that as a channel that is
`full`, and says less that can wait.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from migratory_broker.runtime.framing import Deframer, length

FULL = 4_194_304
"""Bytes that wait to be sent, above which the channel is full: some 60 pages of replays."""

UNREAD = 4_194_304
"""Bytes that were read and not worked off, above which nothing more is read."""

MAX_OPEN_BATCH = 1_048_576
"""A turn that says more sends more than one batch: the other end decodes one at a time."""

MAX_BATCH = 2**32 - 1
"""A batch holds one message at least, and that may be as long as the largest publication."""


class Channel(asyncio.Protocol):
    """`take(messages, size)` gets each batch; `done(size)` must follow when it is worked off. `lost` is called once, at
    the end; `flows` when the channel is not full any more."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[Any]],
        take: Callable[[list[Any], int], None],
        lost: Callable[[], None],
        flows: Callable[[], None] = lambda: None,
    ) -> None:
        self._decoder = decoder
        self._take = take
        self._lost = lost
        self._flows = flows
        self._deframer = Deframer(MAX_BATCH)
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._unread = 0
        self._reading = True
        self._transport: asyncio.Transport | None = None
        self.batches = 0
        self.closed = False

    # ---- sending -------------------------------------------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """One encoded message, to leave with `flush`."""
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size >= MAX_OPEN_BATCH:
            self.flush()

    def flush(self) -> None:
        if not self._pending or self._transport is None:
            return
        pending, self._pending, self._pending_size = self._pending, [], 0
        if not self._transport.is_closing():
            body = b"".join((b"\xdd", len(pending).to_bytes(4), *pending))  # a list, in MessagePack
            self._transport.writelines((length(body), body))
            self.batches += 1

    @property
    def waiting(self) -> int:
        """Bytes that wait to be sent."""
        sending = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._pending_size + sending

    @property
    def full(self) -> bool:
        return self.waiting > FULL

    def close(self) -> None:
        """What waits is dropped."""
        if self._transport is not None:
            self._transport.abort()

    # ---- receiving -----------------------------------------------------------------------------------------------

    def done(self, size: int) -> None:
        """So many bytes were worked off."""
        self._unread -= size
        if not self._reading and self._unread <= UNREAD // 2 and not self.closed:
            self._reading = True
            cast("asyncio.Transport", self._transport).resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(FULL, FULL // 4)

    def data_received(self, data: bytes) -> None:
        self._deframer.feed(data, self._batch)
        if self._reading and self._unread > UNREAD and not self.closed:
            self._reading = False
            cast("asyncio.Transport", self._transport).pause_reading()

    def _batch(self, body: memoryview) -> None:
        size = len(body)
        self._unread += size
        self._take(self._decoder.decode(body), size)

    def resume_writing(self) -> None:
        self._flows()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._lost()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    other.setblocking(False)
    return one, other


def send_socket(way: socket.socket, accepted: socket.socket) -> bool:
    """Gives a socket away; it is closed here. False: it could not be given, and is still the caller's."""
    try:
        socket.send_fds(way, [b"c"], [accepted.fileno()])
    except OSError:
        return False
    accepted.close()
    return True


def receive_sockets(way: socket.socket, most: int) -> tuple[int, list[socket.socket]]:
    """Of those that have come. `most` that were given are looked for, and not all may be there: the kernel drops what
    there is no descriptor for."""
    given = 0
    taken: list[socket.socket] = []
    while given < most:
        try:
            data, descriptors, _, _ = socket.recv_fds(way, 1, 1)
        except (BlockingIOError, InterruptedError):
            break
        if not data:
            break  # the other end is gone
        given += 1
        for descriptor in descriptors:
            accepted = socket.socket(fileno=descriptor)
            accepted.setblocking(False)
            taken.append(accepted)
    return given, taken
