"""Accepts client connections, for `IoProcessPool`, and sends each to the I/O process with the fewest connections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from migratory_broker.runtime.accepting.addresses import AddressLease, AddressLimits
from migratory_broker.runtime.accepting.limits import AcceptRate
from migratory_broker.runtime.accepting.listener import Acceptor
from migratory_broker.runtime.io_processes.handle import IoProcessHandle
from migratory_broker.runtime.logs import Log

NONE_READY_DELAY = 0.05
"""Seconds until the next attempt to accept while no process may be sent a connection. Meanwhile connections wait in the
kernel's backlog."""


class SocketDispatcher:
    """The accepting of client connections for all I/O processes, which begins when this object is created. It is the
    `Pace` of its acceptor: nothing is accepted while no process may be sent a connection.

    :param processes: returns the processes that serve clients.
    :param rate: the limit of connections a second.
    :param addresses: the limits of each client address.
    """

    def __init__(
        self,
        listening: socket.socket,
        processes: Callable[[], Iterable[IoProcessHandle]],
        clock: Callable[[], float],
        rate: AcceptRate,
        log: Log,
        addresses: AddressLimits,
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._rate = rate
        self._none_accepting = False
        self._acceptor = Acceptor(listening, self._dispatch, log, rate=self, room=self._room, addresses=addresses)

    @property
    def refused(self) -> int:
        """The number of connections so far that were refused because no descriptor was left."""
        return self._acceptor.refused

    def close(self) -> None:
        """Stop accepting, and close the listening socket."""
        self._acceptor.close()

    def least_loaded(self) -> IoProcessHandle | None:
        """Return the process to send the next connection to: the one with the fewest connections of those that have
        room, or of all if none has room. Return None if none may be sent a connection now."""
        now = self._clock()
        candidates = [process for process in self._processes() if process.is_accepting(now)]
        return min(
            candidates,
            key=lambda process: (process.load - process.capacity >= 0, process.load, process.sockets_sent),
            default=None,
        )

    def _dispatch(self, accepted: socket.socket, lease: AddressLease | None) -> None:
        """Send an accepted socket to a process. If none takes it, close the socket and release its lease."""
        process = self.least_loaded()
        if process is None or not process.send_client(accepted, lease):
            accepted.close()  # the process died just now; the client retries
            if lease is not None:
                lease.release()

    def _room(self) -> int:
        """Return how many more connections the process with the most room can hold. 1 before there is a process, so
        that connections wait instead of being refused."""
        return max((process.capacity - process.load for process in self._processes()), default=1)

    # ---- as the acceptor's rate ----------------------------------------------------------------------------------

    def try_acquire(self) -> bool:
        """Return whether a process may be sent a connection now and the rate allows one more. If so, count it for the
        rate."""
        self._none_accepting = self.least_loaded() is None
        return not self._none_accepting and self._rate.try_acquire()

    def refund(self) -> None:
        """Take back the count of an attempt that accepted no connection, or of a connection that was refused at once
        for its address."""
        self._rate.refund()

    def delay(self) -> float:
        """Return the seconds until the next attempt to accept: `NONE_READY_DELAY` if no process may be sent a
        connection, else those of the rate."""
        return NONE_READY_DELAY if self._none_accepting else self._rate.delay()
