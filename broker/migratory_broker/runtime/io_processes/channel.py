"""The channel between a broker's process and an I/O process: batches of messages, and accepted sockets.

Messages are sent over a Unix stream socket, one batch a turn of the loop. Neither end reads more than it can process:
while too many bytes were received and not yet reported as processed (`acknowledge`), the socket is not read. The sender
then sees its channel as `full`, and defers what can wait.

Accepted sockets go to the I/O process as descriptors over a second Unix socket that keeps message boundaries: the
broker's process accepts, so that it decides how connections are spread (docs/decisions/0003-io-processes.md). The
kernel closes sockets in flight when the other end dies.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from migratory_broker.runtime.framing import Deframer, length_prefix

FULL_BYTES = 4_194_304
"""Bytes that wait to be sent, above which the channel is full: some 60 pages of replays."""

MAX_UNREAD_BYTES = 4_194_304
"""Bytes received and not acknowledged, above which this end stops reading."""

MAX_OPEN_BATCH = 1_048_576
"""Bytes of a batch above which it is sent before the turn ends: the other end decodes one batch at a time."""

MAX_BATCH = 2**32 - 1
"""Bytes of the largest batch that is received. A batch has at least one message, which may be as long as the largest
publication."""


MAX_KEY = 64
"""Bytes of the largest message with an accepted socket. It has the key of the client's address, an IP network of 43
characters at most."""


class Channel(asyncio.Protocol):
    """One end of the channel. `batches` is the number of batches sent so far. `closed` is True once the connection has
    ended.

    :param decoder: decodes a batch.
    :param receive: called with each batch's messages and its size in bytes; `acknowledge(size)` must follow when they
        are processed.
    :param on_lost: called once, when the connection has ended.
    :param on_writable: called when the channel was full and has room again.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[Any]],
        receive: Callable[[list[Any], int], None],
        on_lost: Callable[[], None],
        on_writable: Callable[[], None] = lambda: None,
    ) -> None:
        self._decoder = decoder
        self._receive = receive
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._deframer = Deframer(MAX_BATCH)
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._unprocessed = 0
        self._reading = True
        self._transport: asyncio.Transport | None = None
        self.batches = 0
        self.closed = False

    # ---- sending -------------------------------------------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Add one encoded message to the batch that `flush` will send. Once the batch has `MAX_OPEN_BATCH` bytes or
        more, it is sent at once."""
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size >= MAX_OPEN_BATCH:
            self.flush()

    def flush(self) -> None:
        """Send the messages that were added since the last batch as one batch; nothing without any. Before the
        connection is made they wait; after it ends they are dropped."""
        if not self._pending or self._transport is None:
            return
        pending, self._pending, self._pending_size = self._pending, [], 0
        if not self._transport.is_closing():
            body = b"".join((b"\xdd", len(pending).to_bytes(4), *pending))  # a list, in MessagePack
            self._transport.writelines((length_prefix(body), body))
            self.batches += 1

    @property
    def waiting(self) -> int:
        """The number of bytes that wait to be sent."""
        sending = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._pending_size + sending

    @property
    def full(self) -> bool:
        """True while more than `FULL_BYTES` wait to be sent."""
        return self.waiting > FULL_BYTES

    def close(self) -> None:
        """Drop the messages that wait to be sent, and close the channel."""
        if self._transport is not None:
            self._transport.abort()

    # ---- receiving -----------------------------------------------------------------------------------------------

    def acknowledge(self, size: int) -> None:
        """Record that `size` received bytes were processed. If reading was stopped, resume it once at most half of
        `MAX_UNREAD_BYTES` are unprocessed."""
        self._unprocessed -= size
        if not self._reading and self._unprocessed <= MAX_UNREAD_BYTES // 2 and not self.closed:
            self._reading = True
            cast("asyncio.Transport", self._transport).resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(FULL_BYTES, FULL_BYTES // 4)

    def data_received(self, data: bytes) -> None:
        """Pass each batch that is complete now to `receive`. Stop reading while more than `MAX_UNREAD_BYTES` are
        unprocessed."""
        self._deframer.feed(data, self._batch)
        if self._reading and self._unprocessed > MAX_UNREAD_BYTES and not self.closed:
            self._reading = False
            cast("asyncio.Transport", self._transport).pause_reading()

    def _batch(self, body: memoryview) -> None:
        """Decode a batch, count its bytes as unprocessed, and pass its messages to `receive`."""
        size = len(body)
        self._unprocessed += size
        self._receive(self._decoder.decode(body), size)

    def resume_writing(self) -> None:
        self._on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._on_lost()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of the connection over which accepted sockets are sent. Both are non-blocking."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.setblocking(False)
    second.setblocking(False)
    return first, second


def send_socket(pipe: socket.socket, accepted: socket.socket, key: str = "") -> bool:
    """Send an accepted socket with the key of its address to the other end of `pipe`, and close it here. Return False
    if it could not be sent: then it is still open here.

    :param key: the `address_key` under which the socket counts for the limit of its address, "" if it does not count.
    """
    try:
        socket.send_fds(pipe, [b"c" + key.encode()], [accepted.fileno()])
    except OSError:
        return False
    accepted.close()
    return True


def receive_sockets(pipe: socket.socket, limit: int) -> list[tuple[socket.socket | None, str]]:
    """Receive up to `limit` accepted sockets that wait. Return them, each with the key of its address ("" if it does
    not count), and None in place of each socket that the kernel dropped because no descriptor was free. Return an empty
    list if none waits or the other end is gone."""
    received: list[tuple[socket.socket | None, str]] = []
    while len(received) < limit:
        try:
            data, descriptors, _, _ = socket.recv_fds(pipe, MAX_KEY, 1)
        except (BlockingIOError, InterruptedError):
            break
        if not data:
            break  # the other end is gone
        accepted = None
        for descriptor in descriptors:
            accepted = socket.socket(fileno=descriptor)
            accepted.setblocking(False)
        received.append((accepted, data[1:].decode()))
    return received
