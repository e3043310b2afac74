"""TLS on accepted connections: OpenSSL with buffers in memory, between a socket's transport and a protocol.

A record goes straight to the socket in one system call, as a delivery without TLS does; the loop's own TLS writes it
into a buffer, and from there through the transport's queue at the end of the turn. What the socket does not take waits
in its transport, whose size and limits are those that the protocol sees (decision 10).

Buffers in memory keep the largest size that they ever had. So bytes pass through them in pieces of `PIECE_BYTES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from migratory_broker.runtime.accepting.tls_queue import TlsHandshakeQueue

PIECE_BYTES = 4096
"""Bytes that pass through a connection's buffers in memory at once, and bytes of data in a record at most: each buffer
keeps a third more than that while the connection lives. Larger pieces would save 5% of the CPU of a large write."""

MAX_RECORD = 16_384
"""Bytes of data in a record of the other end at most (RFC 8446, section 5.1)."""

MAX_ANSWERS = 4096
"""Bytes of answers of TLS itself, as to changes of keys, that wait for a client that does not read. Nothing else bounds
them: the edge stops its own messages and not these."""

MAX_WAITING_BYTES = 16_384
"""Bytes that are buffered for a handshake until its turn, exceeded by one read at most; the rest stays in the
kernel."""


class NothingReceivedError(ConnectionResetError):
    """The error for a connection that ended before a byte came: that is a probe of the port, and no failed TLS
    handshake."""


@dataclass(slots=True)
class _Handshake:
    """The state of a connection until its TLS handshake is done: then `factory` creates the protocol that gets the
    connection, and `done` is set. If the handshake fails, `done` gets the error.

    Received bytes wait in `chunks`, `size` bytes, for the connection's turn in the queue, where it counts for
    `address`. `on_partial` is called at most once, when a part of a TLS handshake message was received and the rest of
    the message is missing. `begun`: at least one byte was received. `continued`: the connection had a turn. `paused`:
    nothing more is read before the next turn. `ended`: the other end sends nothing more.
    """

    factory: Callable[[], asyncio.BaseProtocol]
    done: asyncio.Future[None]
    queue: TlsHandshakeQueue
    address: str
    on_partial: Callable[[TlsConnection], None] | None
    begun: bool = False
    continued: bool = False
    paused: bool = False
    ended: bool = False
    size: int = 0
    chunks: list[bytes] = field(default_factory=list)


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """The protocol of an accepted socket's transport, and after the TLS handshake the transport of another protocol.
    `start` begins it. What the other end does wrong ends this connection alone.

    :param factory: makes the protocol that gets the connection, once the handshake is done.
    :param queue: gives the handshake its turns, as one of `address`.
    :param on_partial: called with this connection, at most once, when a part of a message of the handshake waits for
        the rest of that message.
    """

    __slots__ = (
        "_answers",
        "_behind",
        "_closing",
        "_handshake",
        "_incoming",
        "_object",
        "_outgoing",
        "_protocol",
        "_raw",
        "_socket",
    )

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        accepted: socket.socket,
        context: ssl.SSLContext,
        queue: TlsHandshakeQueue,
        address: str = "",
        on_partial: Callable[[TlsConnection], None] | None = None,
    ) -> None:
        done = asyncio.get_running_loop().create_future()
        self._socket = accepted
        self._handshake: _Handshake | None = _Handshake(factory, done, queue, address, on_partial)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport
        self._protocol: Any = None
        self._closing = False  # nothing more is written
        self._behind = False  # records may be in the buffer of the socket's transport
        self._answers = 0  # bytes of answers among them

    # ---- the handshake -----------------------------------------------------------------------------------------------

    async def start(self, limit: float) -> None:
        """Read from the accepted socket, and wait until the TLS handshake is done. Call this once. Raise OSError if the
        handshake fails, is evicted or takes more than `limit` seconds, and NothingReceivedError, an OSError as well, if
        the connection ends before a byte came. Whenever it raises, the connection has ended."""
        assert self._handshake is not None
        done = self._handshake.done
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self._socket)
        try:
            async with asyncio.timeout(limit):
                await done
        except TimeoutError:
            self.abort()
            raise ConnectionAbortedError(f"the TLS handshake took more than {limit:g} s") from None
        except (OSError, asyncio.CancelledError):
            self.abort()
            raise

    def evict(self, reason: str) -> None:
        """Let the handshake fail at once: `start` raises ConnectionAbortedError with the reason. Nothing happens if the
        handshake is done."""
        if self._handshake is not None and not self._handshake.done.done():
            self._handshake.queue.discard(self, self._handshake.address)
            self._handshake.done.set_exception(ConnectionAbortedError(reason))

    def _await_turn(self, handshake: _Handshake, data: bytes) -> None:
        """Keep received bytes until the handshake has its turn, and queue it for one. Stop reading above
        `MAX_WAITING_BYTES`. Drop the bytes if the handshake was evicted."""
        if handshake.done.done():
            return  # evicted
        handshake.begun = True
        handshake.chunks.append(data)
        handshake.size += len(data)
        if handshake.size > MAX_WAITING_BYTES and not handshake.paused:
            handshake.paused = True
            self._raw.pause_reading()
        handshake.queue.add(self, handshake.address, len(data), handshake.continued)

    def advance(self) -> None:
        """Continue the handshake with all bytes that were received: its turn has come. Resume reading if it was paused.
        Close the connection afterwards if the other end sends nothing more."""
        handshake = self._handshake
        assert handshake is not None
        data = b"".join(handshake.chunks)
        handshake.chunks, handshake.size, handshake.continued = [], 0, True
        if handshake.paused:
            handshake.paused = False
            self._raw.resume_reading()
        self._process(data)
        if handshake.ended:
            self._closing = True
            self._raw.close()

    # ---- the protocol of the socket's transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self._raw = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Decrypt received bytes, or keep them until the handshake has its turn."""
        if self._handshake is None:
            self._process(data)
        else:
            self._await_turn(self._handshake, data)

    def _process(self, data: bytes) -> None:
        """Give received bytes to TLS in pieces: continue the handshake until it is done, then decrypt, and pass all
        data to the protocol in one call. Send the messages of TLS itself. Abort the connection after a TLS error, and
        close it when the other end has ended its data."""
        chunks: list[bytes] = []
        ended = False
        error: ssl.SSLError | None = None
        for start in range(0, len(data), PIECE_BYTES):
            self._incoming.write(data[start : start + PIECE_BYTES])
            try:
                if self._handshake is not None:
                    self._shake_hands(self._handshake)
                ended = self._decrypt(chunks)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as broken:
                error = broken
            if ended or error is not None:
                break
        self._flush_answers()
        if chunks and not self._closing:
            self._protocol.data_received(b"".join(chunks))
        if error is not None:
            self._fail(error)
        elif ended:
            self.close()

    def eof_received(self) -> bool:
        """Return whether the socket's transport stays open although the other end sends nothing more. True while
        received bytes of a handshake wait for their turn, because the last message of the handshake says why it failed.
        Otherwise False: as without TLS, the transport sends the bytes that it holds, and closes."""
        if self._handshake is not None and self._handshake.chunks:
            self._handshake.ended = True
            return True
        self._closing = True
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection to its protocol, or let the handshake fail: with NothingReceivedError if no
        byte came."""
        self._closing = True
        protocol, self._protocol = self._protocol, None  # the two refer to each other
        if protocol is not None:
            protocol.connection_lost(exc)
        elif self._handshake is not None and not self._handshake.begun:
            self._fail(NothingReceivedError("the connection ended before the TLS handshake"))
        else:
            self._fail(exc or ConnectionResetError("the connection ended during the TLS handshake"))

    def _shake_hands(self, handshake: _Handshake) -> None:
        """Continue the handshake. Once it is done, a new protocol of the factory has the connection. Raises
        SSLWantReadError while more bytes are needed, after calling `on_partial` if a message is incomplete, and
        SSLError if the handshake fails."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            if handshake.on_partial is not None and not self._outgoing.pending:
                on_partial, handshake.on_partial = handshake.on_partial, None
                on_partial(self)
            raise
        self._flush()
        self._handshake = None
        self._protocol = handshake.factory()
        self._protocol.connection_made(self)
        if not handshake.done.done():
            handshake.done.set_result(None)

    def _decrypt(self, chunks: list[bytes]) -> bool:
        """Add the data of all whole records to `chunks`. Return whether the other end has ended its data. Raises
        SSLWantReadError if the received bytes end inside a record, after the whole records were added, and SSLError if
        a record is broken."""
        while self._incoming.pending:
            chunk = self._object.read(MAX_RECORD)
            if not chunk:
                return True
            chunks.append(chunk)
        return False

    def _fail(self, error: Exception) -> None:
        """Abort the connection. If its handshake is not done, it fails with this error."""
        if self._handshake is not None and not self._handshake.done.done():
            self._handshake.done.set_exception(error)
        self.abort()

    def _flush(self) -> None:
        """Send the records that TLS has written into its buffer."""
        if self._outgoing.pending:
            self._send(self._outgoing.read())

    def _flush_answers(self) -> None:
        """Send the messages that TLS itself has written in answer to the other end, as to changes of keys. Abort the
        connection if more than `MAX_ANSWERS` bytes of them came after the handshake while earlier bytes wait in the
        socket's transport: the other end asks for ever more and does not read."""
        size = self._outgoing.pending
        if not size:
            return
        self._flush()
        if self._behind and self._protocol is not None:
            self._answers += size
            if self._answers > MAX_ANSWERS:
                self.abort()

    def _send(self, records: bytes) -> None:
        """Write records to the socket, or to its transport while that holds earlier ones. Bytes that the socket does
        not take wait in the transport. Abort the connection after an error of the socket."""
        if self._behind:
            if self._raw.is_closing():
                return  # by itself, as after an error of its reading; what it held is lost
            if self._raw.get_write_buffer_size():
                self._raw.write(records)
                return
            self._behind, self._answers = False, 0
        try:
            taken = self._socket.send(records)
        except BlockingIOError:
            taken = 0
        except OSError:
            self.abort()
            return
        if taken != len(records):
            self._behind = True
            self._raw.write(records[taken:])

    # ---- the transport of the protocol -------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Write `data` in TLS records, and return its length, as if all was taken. A closing connection discards the
        data. Abort the connection after a TLS error."""
        size = len(data)
        if self._closing or not size:
            return size
        try:
            if size <= PIECE_BYTES:
                self._object.write(data)
                records = self._outgoing.read()
            else:
                records = b"".join([self._encrypt(data[at : at + PIECE_BYTES]) for at in range(0, size, PIECE_BYTES)])
        except ssl.SSLError:  # an error of its reading that is not over yet
            self.abort()
        else:
            self._send(records)
        return size

    def _encrypt(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return the TLS records with `data`."""
        self._object.write(data)
        return self._outgoing.read()

    def close(self) -> None:
        """Close the connection once all bytes that were written are sent. The end of TLS is announced; the other end's
        answer is not waited for. Nothing happens if the connection is closing."""
        if not self._closing:
            with contextlib.suppress(ssl.SSLError):  # the other end's close_notify is not waited for
                self._object.unwrap()
            self._flush()
            self._closing = True
            self._raw.close()

    def abort(self) -> None:
        """End the connection at once, and drop unsent bytes. A handshake leaves its queue."""
        self._closing = True
        if self._handshake is not None:
            self._handshake.queue.discard(self, self._handshake.address)
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self._protocol)

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection: `ssl_object`, `sslcontext` and `peercert` of TLS, and `socket`, the
        accepted one. For other names return what the socket's transport knows, or `default`."""
        match name:
            case "ssl_object":
                return self._object
            case "sslcontext":
                return self._object.context
            case "socket":
                return self._socket
            case "peercert":
                return self._object.getpeercert()
            case _:
                return self._raw.get_extra_info(name, default)
