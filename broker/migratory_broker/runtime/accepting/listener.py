"""Accepting TCP connections, with one admission limit over all listeners of clients.

The broker accepts by itself, because a server of the loop ends or spins when descriptors run out, and takes whatever
comes. Here connections beyond the limit stay in the kernel's backlog until there is room (a storm must not starve
those already connected), and connections beyond the descriptors are answered 503 from a reserve and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial

from migratory_broker.runtime.accepting.limits import AcceptBudget, Pace
from migratory_broker.runtime.clients.handshake_queue import DeferredHandshake, Late
from migratory_broker.runtime.errors import ListenError
from migratory_broker.runtime.logs import Log

BACKLOG = 4096
RETRY = 0.2
"""Seconds until accepting is tried again after the system refused."""

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 35\r\n"
    b"Retry-After: 5\r\nConnection: close\r\n\r\nthis broker has no more descriptors"
)

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def bind(host: str, port: int, what: str) -> socket.socket:
    """A bound socket, for `listen`. Raises ListenError, which names the address and what is wrong with it."""
    where = f"{host or '*'}:{port}"
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"cannot listen for {what} on {where}: {error.strerror}") from error
    # without a host, the address that takes IPv4 and IPv6 alike where there is IPv6
    found.sort(key=lambda entry: entry[0] != socket.AF_INET6 if not host else 0)
    family, kind, protocol, _, address = found[0]
    try:
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen for {what} on {where}: {error.strerror}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # inherited by what is accepted: no call for each connection
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not host else 1)
        listening.setblocking(False)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise _listen_error(what, where, error) from error
    return listening


def listen(bound: socket.socket, what: str) -> socket.socket:
    """From now on connections are taken; before, they are refused at once. Raises ListenError."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        raise _listen_error(what, address_of(bound), error) from error
    return bound


def _listen_error(what: str, where: str, error: OSError) -> ListenError:
    reason = "the address is in use by another process" if error.errno == errno.EADDRINUSE else error.strerror
    return ListenError(f"cannot listen for {what} on {where}: {reason}")


def address_of(listening: socket.socket) -> str:
    """HOST:PORT of a bound socket."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ConnectionStarter:
    """Starts `factory()`'s protocol on accepted sockets. `late`: where there is no TLS, it is told in its turn of what
    comes (door.py), and the socket may be written to past its transport afterwards (direct.py). Its length: those that
    are being started."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        late: Late | None = None,
    ) -> None:
        self._factory = factory
        self._tls = tls
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __call__(self, accepted: socket.socket) -> None:
        factory = self._factory
        if self._late is not None and self._tls is None:
            factory = partial(DeferredHandshake, factory, accepted, self._late)
        task = self._loop.create_task(self._start(factory, accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, factory: Callable[[], asyncio.BaseProtocol], accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(factory, accepted, ssl=self._tls)
        except OSError:
            # gone, or no TLS: harms only its sender
            accepted.close()


class Acceptor:
    """Accepts on one socket and gives each connection to `take`.

    `admission` None takes all that come. `room` says how many more connections may be held now.
    """

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[socket.socket], None],
        log: Log,
        *,
        admission: Pace | None = None,
        room: Callable[[], int] = lambda: 2**31,
    ) -> None:
        self._socket = listening
        self._take = take
        self._log = log
        self._admission = admission
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._intake = AcceptBudget(self._loop.time)
        self._timer: asyncio.TimerHandle | None = None
        self._logged = -60.0
        self.refused = 0
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        self._intake.left(self._accept_some(self._intake.most()))

    def _accept_some(self, most: int) -> bool:
        """Whether others wait, who could be accepted at once."""
        for _ in range(most):
            if self._admission is not None and not self._admission.take():
                self._rest(self._admission.wait())
                return False
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._complain(error.strerror or str(error))
                    self._rest(RETRY)
                    return False
                continue  # the one at the head of the backlog went away
            accepted.setblocking(False)
            if self._room() <= 0:
                self._refuse(accepted)
            else:
                self._take(accepted)
        return True

    def _refuse(self, accepted: socket.socket) -> None:
        self.refused += 1
        self._complain("no descriptors left for more clients")
        # the answer is a courtesy: who is gone already, or speaks TLS, sees the connection end
        with contextlib.suppress(OSError):
            accepted.send(FULL)
        accepted.close()

    def _rest(self, delay: float) -> None:
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(delay, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def _complain(self, reason: str) -> None:
        now = self._loop.time()
        if now - self._logged >= 10:
            self._logged = now
            self._log("warning", "accept_failed", reason=reason, refused=self.refused)


class Listener(Acceptor):
    """Accepts on one socket and starts `factory()`'s protocol on each connection, in this process."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        log: Log,
        *,
        admission: Pace | None = None,
        room: Callable[[], int] = lambda: 2**31,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        starting = ConnectionStarter(factory, tls=tls)
        super().__init__(listening, starting, log, admission=admission, room=lambda: room() - len(starting))
