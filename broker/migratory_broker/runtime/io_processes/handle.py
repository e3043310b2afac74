"""One I/O process as the broker's process sees it, for `IoProcessPool`: started, given clients, supervised and ended.
Its requests are put off while its channel is full.

A process may end in any way and at any moment, and only its own clients lose their connections. A process that does not
answer, does not read its channel, or does not close its clients when it must is killed. Its clients then notice at once
that their connections are gone, and resume elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any

from migratory_broker.core.edge.events import Detach
from migratory_broker.core.logic.events import Attach, NextPage
from migratory_broker.runtime.accepting.addresses import AddressLease
from migratory_broker.runtime.io_processes.channel import Channel, send_socket, socket_pair
from migratory_broker.runtime.io_processes.messages import Beat, EdgeReport, FromIo, SocketCounts, decoder, encode
from migratory_broker.runtime.pump import Pump

BEAT_INTERVAL = 0.4
"""Seconds between two `Beat`s, the signs of life that are sent to an I/O process."""

SUSPECT_AFTER = 1.0
"""Seconds without a message from a process after which it gets no new clients until it is heard again."""

KILL_AFTER = 5.0
"""Seconds without a message from a serving process after which it is taken to hang, and killed."""

START_TIMEOUT = 120.0
"""Seconds without a message after which a process that does not serve yet is killed: it imports libraries, slowly on a
busy machine."""

CLOSE_TIMEOUT = 1.0
"""Seconds that a process has to close its clients when the broker is fenced or ends."""

MAX_SOCKETS_IN_FLIGHT = 128
"""The largest number of sockets that were sent to a process and are not received yet. At this number no more are
sent."""

_FROM_IO = decoder(FromIo)
_ENCODED_BEAT = encode(Beat())


def start_process(ends: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start an I/O process of this broker, and return it. It inherits the descriptors `ends`: the other ends of its
    channel and its socket pipe. Raises OSError."""
    module = "migratory_broker.runtime.io_processes.process"
    command = [sys.executable, "-P", "-m", module, str(os.getpid()), *map(str, ends)]  # nothing of this folder
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends)


class IoProcessHandle:
    """A running I/O process, started when this object is created. Creating it raises what `start_process` raises.

    :param index: the place of this I/O process among the broker's.
    :param number: the number of the edge in this I/O process, never reused.
    :param on_messages: called with each batch that the I/O process sent: the messages, and their size in bytes.
    :param on_lost: called once, when the channel has ended.
    :param on_request: called, in a turn of the pump, with each message given to `request`, when the channel has room.
    :param start_process: starts the I/O process, as the function `start_process` does.
    """

    def __init__(
        self,
        index: int,
        number: int,
        now: float,
        on_messages: Callable[[IoProcessHandle, list[Any], int], None],
        on_lost: Callable[[IoProcessHandle], None],
        on_request: Callable[[IoProcessHandle, Any], None],
        pump: Pump,
        start_process: Callable[[tuple[int, int]], subprocess.Popen[bytes]],
    ) -> None:
        self.index = index
        self.number = number
        self.started = self.last_heard = now
        self.alive = True
        self.greeted = False  # it sent its first message
        self.capacity = 0  # connections that it can hold
        self.serving = False  # it was sent `Begin`
        self.sockets_sent = 0
        self._leases: dict[str, list[AddressLease]] = {}  # by key
        self.counts = SocketCounts(0, 0, 0)
        self.report: EdgeReport | None = None
        self.kill_reason = ""
        self._last_sent = now
        self._close_batch = 0  # the batch that closes its clients, 0: none
        self._close_until = inf
        self.channel = Channel(
            _FROM_IO, lambda messages, size: on_messages(self, messages, size), lambda: self._lost(on_lost), self.resume
        )
        self._answer: Callable[[Any], None] = partial(on_request, self)
        self._requests = DeferredRequests(pump.call_for_client, self._is_full, self._answer)
        self._pages = DeferredRequests(pump.defer, self._is_full, self._answer)
        own_end, other_end = socket.socketpair()
        self._pipe, other_pipe = socket_pair()
        try:
            with other_end, other_pipe:
                self.popen = start_process((other_end.fileno(), other_pipe.fileno()))
        except BaseException:
            own_end.close()
            self._pipe.close()
            raise
        self._connecting = asyncio.get_running_loop().create_task(self._connect(own_end))

    async def _connect(self, own_end: socket.socket) -> None:
        own_end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=own_end)

    def _lost(self, on_lost: Callable[[IoProcessHandle], None]) -> None:
        """Forget the waiting requests, release all leases, and report the loss: the channel has ended."""
        if self.alive:
            self.alive = False
            self._requests.clear()
            self._pages.clear()
            self._pipe.close()
            self.release_all()
            on_lost(self)

    # ---- requests ------------------------------------------------------------------------------------------------

    def request(self, message: Attach | NextPage | Detach) -> None:
        """Give a message of the I/O process to `on_request`: now if the channel has room and no earlier message waits,
        else later, in order. Requests for pages of replays (`NextPage`) are always deferred, in an order of their
        own."""
        if isinstance(message, NextPage):
            self._pages.put(message)
        elif self._requests or self._is_full():
            self._requests.put(message)
        else:
            self._answer(message)

    def resume(self) -> None:
        """Continue to answer waiting requests if the channel has room again."""
        self._requests.resume()
        self._pages.resume()

    def _is_full(self) -> bool:
        return self.channel.full

    @property
    def deferred(self) -> int:
        """The number of requests that wait for room in the channel."""
        return len(self._requests) + len(self._pages)

    # ---- clients -------------------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """The number of connections that the I/O process holds, those in their handshake included, and of sockets that
        were sent to it and not received yet."""
        return self.counts.load + self.sockets_sent - self.counts.given

    def is_accepting(self, now: float) -> bool:
        """Return whether the I/O process may be sent one more socket now: it serves, was heard within `SUSPECT_AFTER`,
        and fewer than `MAX_SOCKETS_IN_FLIGHT` sockets were sent to it and not received yet. Whether it has room does
        not count."""
        return (
            self.serving
            and self.alive
            and not self.kill_reason
            and now - self.last_heard < SUSPECT_AFTER
            and self.sockets_sent - self.counts.given < MAX_SOCKETS_IN_FLIGHT
        )

    def send_client(self, accepted: socket.socket, lease: AddressLease | None = None) -> bool:
        """Send an accepted socket, with the key of its lease, to the I/O process, and close it here. The lease is held
        until the I/O process reports that the connection ended. Return False if the socket could not be sent: it is
        still open here, and the caller has to release the lease."""
        sent = send_socket(self._pipe, accepted, lease.key if lease is not None else "")
        self.sockets_sent += sent
        if sent and lease is not None:
            self._leases.setdefault(lease.key, []).append(lease)
        return sent

    def release(self, keys: Iterable[str]) -> None:
        """Release one lease for each of `keys`, in which a key occurs once for each connection that ended. Raises
        KeyError for a key without a lease."""
        for key in keys:
            leases = self._leases[key]
            leases.pop().release()
            if not leases:
                del self._leases[key]

    def release_all(self) -> None:
        """Release all leases: the I/O process is dead."""
        for leases in self._leases.values():
            for lease in leases:
                lease.release()
        self._leases.clear()

    # ---- status --------------------------------------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """Return the I/O process's entry in /v1/status, as JSON values."""
        return {
            "process": self.index,
            "pid": self.popen.pid,
            "state": "up" if self.report is not None else "starting",
            "uptime_seconds": round(now - self.started, 3),
            "silent_seconds": round(now - self.last_heard, 3),
            "connections": self.counts.connections,
            "sockets_in_transit": self.sockets_sent - self.counts.given,
            "waiting_bytes": self.channel.waiting,
            "requests_deferred": self.deferred,
            "edge": self.report.edge if self.report is not None else None,
        }

    # ---- supervision ---------------------------------------------------------------------------------------------

    def expect_close(self, now: float) -> None:
        """Require that the I/O process handles the next batch, which closes all its clients, within `CLOSE_TIMEOUT`.
        Otherwise `tick` kills it."""
        self._close_batch, self._close_until = self.channel.batches + 1, now + CLOSE_TIMEOUT

    @property
    def closed_clients(self) -> bool:
        """True if `expect_close` was called and the process has reported that it handled the batch that closes all its
        clients."""
        return self.report is not None and 0 < self._close_batch <= self.report.batches

    def tick(self, now: float, stalled: bool, max_waiting: int) -> None:
        """Kill the I/O process if it did not close its clients in time, was not heard for `KILL_AFTER` (before it
        serves: `START_TIMEOUT`), or has too many bytes waiting. Send it a `Beat` if one is due.

        `stalled`: the broker's own process did not run for a while, so that the I/O process counts as heard now.
        `max_waiting`: bytes that may wait to be sent to the I/O process.
        """
        if stalled:
            self.last_heard = now
        if self._close_batch and not self.closed_clients and now > self._close_until and not stalled:
            self.kill(f"did not close its clients within {CLOSE_TIMEOUT:g} s")
        if self.channel.waiting > max_waiting:
            self.kill(f"{self.channel.waiting} bytes wait to be sent to it")
        if now - self.last_heard > (KILL_AFTER if self.serving else START_TIMEOUT):
            self.kill(f"silent for {now - self.last_heard:.1f} s")
        if self.serving and now - self._last_sent >= BEAT_INTERVAL:
            self._last_sent = now
            self.channel.put(_ENCODED_BEAT)
            self.channel.flush()

    def kill(self, reason: str) -> None:
        """Send SIGKILL to the I/O process for `reason`, unless it was killed before or is dead. When it is dead its
        sockets close, and `on_lost` is called."""
        if not self.kill_reason and self.alive:
            self.kill_reason = reason
            self.popen.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the channel to the I/O process, which makes the process end."""
        self.channel.close()


class DeferredRequests:
    """Requests that wait for room in a channel, answered one after the other in their order.

    Each answer is an action of its own in the pump, after the events that arrived meanwhile, so that one process delays
    neither publications nor the other processes.

    :param call: schedules `action(argument)` in a turn of the pump.
    :param full: returns whether the channel has no room now.
    :param answer: answers a request; called in a turn of the pump.
    """

    def __init__(
        self,
        call: Callable[[Callable[[Any], None], Any], None],
        full: Callable[[], bool],
        answer: Callable[[Any], None],
    ) -> None:
        self._call = call
        self._is_full = full
        self._answer = answer
        self._waiting: deque[Any] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Any) -> None:
        """Add a request behind those that wait, and schedule the next answer if the channel has room."""
        self._waiting.append(request)
        self.resume()

    def resume(self) -> None:
        """Schedule the next answer if a request waits and the channel has room."""
        if self._waiting and not self._scheduled and not self._is_full():
            self._scheduled = True
            self._call(self._answer_next, None)

    def clear(self) -> None:
        self._waiting.clear()

    def _answer_next(self, _: None) -> None:
        """Answer the first request that waits, if the channel has room, and schedule the next answer."""
        self._scheduled = False
        if self._waiting and not self._is_full():
            self._answer(self._waiting.popleft())
        self.resume()
