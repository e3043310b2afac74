"""Listening sockets: bind addresses, accept TCP connections of clients, peers and the administration, and start the
protocol of each, after the TLS handshake where there is TLS.

The broker accepts by itself, because an asyncio server ends or spins when descriptors run out, and accepts without a
limit. Here connections beyond the rate stay in the kernel's backlog, so that a storm of connects does not starve the
connected clients. Connections beyond the descriptors are answered 503 and closed, with a spare descriptor if no other
is free; those beyond the limits of their address are answered 429 and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from migratory_broker.runtime.accepting.addresses import AddressLease, AddressLimits, AddressRefusal, address_key
from migratory_broker.runtime.accepting.limits import AcceptBudget, Pace, UnidentifiedConnections
from migratory_broker.runtime.accepting.tls_connection import NothingReceivedError, TlsConnection
from migratory_broker.runtime.accepting.tls_queue import Defer, TlsHandshakeQueue
from migratory_broker.runtime.errors import ListenError
from migratory_broker.runtime.logs import Log

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

BACKLOG = 4096
"""The largest number of connections that the kernel holds for a listener until they are accepted."""
RETRY_DELAY = 0.2
"""Seconds until the next attempt after the operating system refused to accept."""

MAX_UNSENT_BYTES = 131_072
"""The largest number of unsent bytes of a connection that the kernel takes (`TCP_NOTSENT_LOWAT`), besides those on
their way to a receiver that has room for them. By default the kernel takes up to 4 MB (`net.ipv4.tcp_wmem`) for each
client that does not read, which no limit of the broker counts."""

TLS_HANDSHAKE_BYTES = 49_152
"""Bytes of memory of a connection in its TLS handshake, as measured."""

TLS_MESSAGE_BYTES = 172_032
"""Bytes more of a connection that has sent a part of a handshake's message, as measured: OpenSSL takes memory for the
whole message, which may be as large as that, when it has read its length."""

NO_DESCRIPTORS_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 35\r\n"
    b"Retry-After: 5\r\nConnection: close\r\n\r\nno file descriptors left; try later"
)

_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def bind(host: str, port: int, purpose: str) -> socket.socket:
    """Return a non-blocking socket that is bound to the address and does not listen yet (`listen` does that). An empty
    `host` stands for every address of the machine; of a host name with several addresses, the first is used. `port` 0
    takes a free port. `purpose` names the socket in errors. Raises ListenError with the address and the reason."""
    endpoint = f"{host or '*'}:{port}"
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"cannot listen for {purpose} on {endpoint}: {error.strerror}") from error
    # without a host, prefer the address that accepts both IPv4 and IPv6
    addresses.sort(key=lambda entry: entry[0] != socket.AF_INET6 if not host else 0)
    family, kind, protocol, _, address = addresses[0]
    try:
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen for {purpose} on {endpoint}: {error.strerror}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # accepted sockets inherit both: saves system calls for each connection
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not host else 1)
        listening.setblocking(False)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise _listen_error(purpose, endpoint, error) from error
    return listening


def listen(bound: socket.socket, purpose: str) -> socket.socket:
    """Begin to listen on a bound socket, and return the same socket: until then the kernel refuses connections.
    `purpose` names it in errors. Raises ListenError."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        raise _listen_error(purpose, address_of(bound), error) from error
    return bound


def _listen_error(purpose: str, endpoint: str, error: OSError) -> ListenError:
    """Return the error for an address, HOST:PORT, on which the broker cannot listen."""
    reason = "the address is in use by another process" if error.errno == errno.EADDRINUSE else error.strerror
    return ListenError(f"cannot listen for {purpose} on {endpoint}: {reason}")


def address_of(listening: socket.socket) -> str:
    """Return the address of a bound socket as HOST:PORT, or [HOST]:PORT for IPv6."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ConnectionStarter:
    """A function object that attaches a protocol of `factory()` to each accepted socket, after the TLS handshake if
    there is TLS. A call returns at once; a task of its own does the work. `len()` is the number of sockets that have no
    protocol yet. If the attempt fails, the socket is closed and its lease released.

    :param tls: returns the TLS context of the next connection; None without TLS.
    :param tls_timeout: the seconds for a TLS handshake.
    :param max_handshakes: TLS handshakes at once; above it, the oldest one of the address with the most is evicted.
    :param max_partial: TLS handshakes at once that have sent a part of a message; above it, one of these is evicted in
        the same way.
    :param max_waiting_bytes: bytes that all TLS handshakes have received and that wait for their turn; above it, the
        one with the most is evicted.
    :param defer: schedules the next step of a TLS handshake, as `Pump.defer` does. Without it, each turn of the loop
        makes one step, and no client's work delays it: for peers and the administration.
    :param on_tls_failure: called with the IP address and the error of a connection whose handshake failed, took too
        long or was evicted; not for one that ends before it has sent anything.
    :param wrap: given the factory, an accepted socket and its lease, returns the protocol to use instead, such as one
        that defers the HTTP request.
    """

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        tls_timeout: float = 10.0,
        max_handshakes: int = 1024,
        max_partial: int = 128,
        max_waiting_bytes: int = 8_388_608,
        defer: Defer | None = None,
        on_tls_failure: Callable[[str, OSError], None] = lambda host, error: None,
        wrap: Callable[[ProtocolFactory, socket.socket, AddressLease | None], asyncio.BaseProtocol] | None = None,
    ) -> None:
        self._factory = factory
        self._tls = tls
        self._tls_timeout = tls_timeout
        self._handshakes: UnidentifiedConnections[TlsConnection] = UnidentifiedConnections(max_handshakes)
        self._partial: UnidentifiedConnections[TlsConnection] = UnidentifiedConnections(max_partial)
        self._queue = TlsHandshakeQueue(defer if defer is not None else self._defer_to_next_turn, max_waiting_bytes)
        self._evicted = 0
        self._on_tls_failure = on_tls_failure
        self._wrap = wrap
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def handshakes(self) -> int:
        """The number of TLS handshakes that are under way."""
        return len(self._handshakes)

    @property
    def waiting_handshakes(self) -> int:
        """The number of TLS handshakes that have received something and wait for their turn."""
        return len(self._queue)

    @property
    def handshake_bytes(self) -> int:
        """An upper bound of the bytes of memory that all TLS handshakes under way take now."""
        messages = len(self._partial) * TLS_MESSAGE_BYTES
        return len(self._handshakes) * TLS_HANDSHAKE_BYTES + messages + self._queue.held

    @property
    def evicted(self) -> int:
        """The number of TLS handshakes so far that were ended at a limit of number or bytes."""
        return self._evicted + self._queue.evicted

    def __call__(self, accepted: socket.socket, lease: AddressLease | None = None) -> None:
        """Begin to attach a protocol to an accepted socket. If that fails, the lease is released; otherwise the
        protocol of `wrap` has to release it."""
        factory = self._factory
        if self._wrap is not None:
            factory = partial(self._wrap, factory, accepted, lease)
        task = self._loop.create_task(self._start(factory, accepted, lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(
        self, factory: Callable[[], asyncio.BaseProtocol], accepted: socket.socket, lease: AddressLease | None
    ) -> None:
        """Attach a protocol of `factory` to an accepted socket, after its TLS handshake if there is TLS. After an
        OSError close the socket and release the lease, and report a failed TLS handshake to `on_tls_failure`."""
        host = ""
        connection: TlsConnection | None = None
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(factory, accepted)
                return
            host = str(accepted.getpeername()[0])
            address = address_key(host)
            on_partial = partial(
                self._add_handshake, self._partial, "TLS handshakes with a part of a message at once", address
            )
            connection = TlsConnection(factory, accepted, self._tls(), self._queue, address, on_partial)
            self._add_handshake(self._handshakes, "TLS handshakes at once", address, connection)
            await connection.start(self._tls_timeout)
        except OSError as error:
            # the client is gone, or its TLS is not ours: only its own connection ends
            accepted.close()
            if lease is not None:
                lease.release()
            if host and not isinstance(error, NothingReceivedError):  # brokers probe each other's port (SUSPECT)
                self._on_tls_failure(host, error)
        finally:
            if connection is not None:
                self._handshakes.discard(connection)
                self._partial.discard(connection)

    def _add_handshake(
        self, handshakes: UnidentifiedConnections[TlsConnection], what: str, address: str, connection: TlsConnection
    ) -> None:
        """Count a TLS handshake of `address` in the table `handshakes`. Above the limit of the table, end the handshake
        that is evicted, which may be this one: it would occupy its place until its time limit. `what` names the counted
        handshakes in its error."""
        evicted = handshakes.add(connection, address)
        if evicted is not None:
            self._evicted += 1
            evicted.evict(f"more than {handshakes.limit} {what}")

    def _defer_to_next_turn(self, action: Callable[[Any], None], argument: Any, _: float) -> None:
        """Schedule `action(argument)` for the next turn of the loop. The third argument of a `Defer` does not count
        here."""
        self._loop.call_soon(action, argument)


class Acceptor:
    """The accepting of connections on one listening socket, which begins when this object is created. Each connection
    that is not refused is given to `start`, with the lease of its address, or None if it has no lease. `refused` is the
    number of connections so far that were refused because no descriptor was left; those at a limit of their address are
    not among them.

    :param rate: the limit of connections a second; None: no limit. Connections beyond it wait in the kernel.
    :param room: returns how many more connections may be held now.
    :param refusal: the bytes that are sent to a connection that is refused for want of descriptors, before it is
        closed.
    :param serve_on_spare: if descriptors run out, serve a connection with the spare one instead of refusing it. For
        listeners whose connections are short.
    :param addresses: the limits of each client address; None: no limits.
    """

    def __init__(
        self,
        listening: socket.socket,
        start: Callable[[socket.socket, AddressLease | None], None],
        log: Log,
        *,
        rate: Pace | None = None,
        room: Callable[[], int] = lambda: 2**31,
        refusal: bytes = NO_DESCRIPTORS_RESPONSE,
        serve_on_spare: bool = False,
        addresses: AddressLimits | None = None,
    ) -> None:
        self._socket = listening
        self._start = start
        self._log = log
        self._rate = rate
        self._room = room
        self._refusal = refusal
        self._serve_on_spare = serve_on_spare
        self._addresses = addresses
        self._spare = _open_spare()
        self._loop = asyncio.get_running_loop()
        self._budget = AcceptBudget(self._loop.time)
        self._timer: asyncio.TimerHandle | None = None
        self._logged = -60.0
        self.refused = 0
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting, and close the listening socket. Accepted connections stay."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._release_spare()

    def _accept(self) -> None:
        """Accept the connections of this turn, as many as its budget allows."""
        self._budget.end_turn(self._accept_up_to(self._budget.allowance()))

    def _accept_up_to(self, limit: int) -> bool:
        """Accept at most `limit` connections, refused ones included. Return True if the limit was reached, so that more
        may wait. Return False if none waits, or if accepting was paused: at the rate, or because the operating system
        refused to accept. An attempt that accepts no connection takes no token of the rate."""
        if self._spare is None:
            self._spare = _open_spare()
        for _ in range(limit):
            if self._rate is not None and not self._rate.try_acquire():
                self._pause(self._rate.delay())
                return False
            try:
                accepted, address = self._socket.accept()
            except OSError as error:
                out_of_resources = error.errno in _OUT_OF_RESOURCES
                if out_of_resources and self._accept_on_spare():
                    continue
                self._refund()
                if isinstance(error, (BlockingIOError, InterruptedError)):
                    return False
                if out_of_resources:
                    self._log_failure(error.strerror or str(error))
                    self._pause(RETRY_DELAY)
                    return False
                continue  # the client at the head of the backlog went away
            accepted.setblocking(False)
            if self._room() <= 0:
                self._refuse(accepted)
                continue
            lease = self._addresses.admit(address[0]) if self._addresses is not None else None
            if isinstance(lease, AddressRefusal):
                self._refuse_address(accepted, lease)
            else:
                self._start(accepted, lease)
        return True

    def _accept_on_spare(self) -> bool:
        """Close the spare descriptor, and accept one connection with it, which is served without a lease or refused.
        Return False if none waits, or if another thread took the descriptor."""
        self._release_spare()
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            self._spare = _open_spare()
            return False
        accepted.setblocking(False)
        if self._serve_on_spare:
            self._start(accepted, None)
        else:
            self._refuse(accepted)
            self._spare = _open_spare()
        return True

    def _release_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _refuse(self, accepted: socket.socket) -> None:
        """Count, log and close a connection for which there is no descriptor, after sending it `refusal`."""
        self.refused += 1
        self._log_failure("no descriptors left for more connections")
        self._answer(accepted, self._refusal)

    def _refuse_address(self, accepted: socket.socket, refusal: AddressRefusal) -> None:
        """Answer a connection at a limit of its address with status 429, close it, log it, and give its token back to
        the rate."""
        self._refund()
        self._log_failure(refusal.text)
        body = f"{refusal.text}; try again after {refusal.retry_after} s\n"
        head = (
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: {refusal.retry_after}\r\nConnection: close\r\n\r\n"
        )
        self._answer(accepted, (head + body).encode())

    def _refund(self) -> None:
        """Give a token back to the rate: no connection was accepted with it, or one that does not count."""
        if self._rate is not None:
            self._rate.refund()

    def _answer(self, accepted: socket.socket, response: bytes) -> None:
        """Send an answer on a refused connection, if the kernel takes it, and close the connection. A client that
        speaks TLS only sees the connection end."""
        with contextlib.suppress(OSError):
            accepted.send(response)
        accepted.close()

    def _pause(self, delay: float) -> None:
        """Stop accepting for `delay` seconds."""
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(delay, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def _log_failure(self, reason: str) -> None:
        """Log that a connection was refused or could not be accepted. At most one line in ten seconds."""
        now = self._loop.time()
        if now - self._logged >= 10:
            self._logged = now
            self._log("warning", "accept_failed", reason=reason, refused=self.refused)


def _open_spare() -> int | None:
    """Return an open descriptor to keep in reserve, None when none is free."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class Listener(Acceptor):
    """An acceptor that attaches a protocol of `factory()` to each connection, with TLS if `tls` is given. It has no
    limits of client addresses. Its parameters are those of `Acceptor` and `ConnectionStarter`."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        log: Log,
        *,
        rate: Pace | None = None,
        room: Callable[[], int] = lambda: 2**31,
        refusal: bytes = NO_DESCRIPTORS_RESPONSE,
        serve_on_spare: bool = False,
        tls: Callable[[], ssl.SSLContext] | None = None,
        tls_timeout: float = 10.0,
        max_handshakes: int = 1024,
        on_tls_failure: Callable[[str, OSError], None] = lambda host, error: None,
    ) -> None:
        start = ConnectionStarter(
            factory, tls=tls, tls_timeout=tls_timeout, max_handshakes=max_handshakes, on_tls_failure=on_tls_failure
        )
        super().__init__(listening, start, log, rate=rate, room=room, refusal=refusal, serve_on_spare=serve_on_spare)
