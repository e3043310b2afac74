"""An I/O process of a broker: an edge and its clients' sockets. The broker starts it with `python -m`; it is of no use
otherwise.

The broker's process sends the logic's effects and accepted sockets to the I/O process. The I/O process ends when the
channel does, and the kernel kills it when the broker's process dies. When it hears nothing from the broker's process
for the fencing time, it closes its clients and ends, because other brokers may continue without this broker. SIGTERM
and SIGINT to the process group are for the broker's process and ignored here.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import uvloop

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic import events
from migratory_broker.runtime.accepting.addresses import AddressLease
from migratory_broker.runtime.accepting.limits import AcceptBudget, connection_capacity
from migratory_broker.runtime.clients.console import RemoteStatus
from migratory_broker.runtime.clients.service import ClientService, freeze_heap
from migratory_broker.runtime.config import parse
from migratory_broker.runtime.errors import EXIT_FAILED
from migratory_broker.runtime.io_processes.channel import Channel, receive_sockets
from migratory_broker.runtime.io_processes.messages import (
    Beat,
    Begin,
    ConsoleStatus,
    ConsoleStatusNeeded,
    EdgeReport,
    IoHello,
    LimitsChanged,
    ReleasedAddresses,
    SocketCounts,
    ToIo,
    decoder,
    encode,
)
from migratory_broker.runtime.logs import LibraryLog, Log
from migratory_broker.runtime.pump import Pump
from migratory_broker.runtime.tls import Certificate
from migratory_broker.runtime.watchdog import LATE_TICK, Watchdog, stall_limit

TICK = 0.1
"""Seconds between two ticks of the edge."""
REPORT_EVERY = 5
"""Number of ticks after which a report is sent even if nothing changed."""

STALL = 1.0
"""Seconds between two ticks above which this process itself was stopped: then the broker is not to blame for the
silence."""

PR_SET_PDEATHSIG = 1
"""The number of the operation of `prctl` that makes the kernel send a signal when the parent dies."""


class LogicProxy:
    """The substitute for the logic in the pump of an I/O process. It sends events to the logic in the broker's process,
    in one batch a turn, or in several when a batch reaches `MAX_OPEN_BATCH` bytes. `on_full` is called at the end of a
    turn in which the channel is full."""

    def __init__(self, channel: Channel, on_full: Callable[[], None]) -> None:
        self._channel = channel
        self._on_channel_full = on_full

    def step(self, event: Any, now: float) -> tuple[()]:
        """Add an event to the batch, or send the batch at a `Flush`. Return no effects."""
        if type(event) is events.Flush:
            self._channel.flush()
            if self._channel.full:
                self._on_channel_full()
        else:
            self._channel.put(encode(event))
        return ()


class IoProcess:
    """The I/O process, which begins to serve clients at the broker's `Begin`. `pipe` is the socket over which it gets
    accepted sockets."""

    def __init__(self, pipe: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pipe = pipe
        self._channel = Channel(decoder(ToIo), self._receive, self._on_lost, self._on_channel_writable)
        self._pump = Pump(
            LogicProxy(self._channel, self._on_channel_full), self._loop.call_soon, time.monotonic, self._failed
        )
        self._console_status = RemoteStatus(self._ask_console_status, time.monotonic)
        self._clients: ClientService | None = None
        self._certificate: Certificate | None = None
        self._log: Log | None = None
        self._fencing = 0.0
        self._last_heard = self._ticked = time.monotonic()
        self._budget = AcceptBudget(time.monotonic)
        self._batches = 0
        self._received = 0
        self._released: list[str] = []  # keys of ended connections, for the next report
        self._ticks = 0
        self._last_report: EdgeReport | None = None

    async def run(self, channel: socket.socket) -> int:
        """Serve as the broker's process demands over `channel`, a connected socket, until this process must end. Return
        the exit code: 0 when the channel has ended, 1 after a failure of a core, or after the broker's process was
        silent for the fencing time."""
        channel.setblocking(False)
        await self._loop.create_unix_connection(lambda: self._channel, sock=channel)
        self._channel.put(encode(IoHello(connection_capacity())))
        self._channel.flush()
        code = await self._ended
        self._pump.stopped = True
        if self._clients is not None:
            await self._clients.close()
        if self._log is not None:
            self._log.close()
        return code

    # ---- from the broker's process -------------------------------------------------------------------------------

    def _receive(self, messages: list[Any], size: int) -> None:
        """Handle the messages of a batch, or queue those that are events for the edge. The batch is acknowledged once
        the pump has handled them."""
        self._last_heard = time.monotonic()
        for message in messages:
            kind = type(message)
            if kind is Begin:
                self._start_serving(message)
            elif kind is LimitsChanged:
                if self._clients is not None:
                    self._clients.set_rate_limits(parse(message.config))
            elif kind is ConsoleStatus:
                self._console_status.receive(message.status)
            elif kind is not Beat:
                if kind is events.ServerList and self._clients is not None:
                    self._clients.servers = message.servers
                self._pump.to_edge(message)
        self._pump.call(self._worked_off, size)

    def _worked_off(self, size: int) -> None:
        """Count a batch whose messages the pump has handled, and let the channel resume reading if few enough of the
        received bytes wait. `size` is the bytes of the batch."""
        self._batches += 1
        self._channel.acknowledge(size)

    def _start_serving(self, begin: Begin) -> None:
        """Start logs, watchdog, certificate, clients and edge as `begin` says, and begin to take accepted sockets."""
        config = parse(begin.config)
        log = self._log = Log(
            level=begin.level,
            common={"cluster": config.cluster, "broker": begin.broker, "io_process": begin.process},
        )
        logging.getLogger().addHandler(LibraryLog(log))
        self._fencing = begin.fencing
        Watchdog(stall_limit(config.zookeeper.session_timeout, begin.fencing), log)
        if config.tls.clients is not None:
            self._certificate = Certificate("clients", config.tls.clients, begin.broker, log, self._count_refused)
        clients = self._clients = ClientService(
            config,
            begin.broker,
            self._pump,
            time.monotonic,
            self._certificate,
            self._note,
            self._console_status.read,
        )
        request = self._pump.request
        self._pump.set_handlers(
            {
                **clients.handlers(),
                events.Observe: request,
                events.Note: self._note,
                edge_events.Detach: request,
                edge_events.KeysNeeded: request,
            }
        )
        clients.start_edge(begin.incarnation, begin.edge)
        self._loop.add_reader(self._pipe, self._accept_sockets)
        self._ticked = time.monotonic()
        self._loop.call_later(TICK, self._tick)
        freeze_heap()

    def _ask_console_status(self) -> None:
        self._channel.put(encode(ConsoleStatusNeeded()))
        self._channel.flush()

    def _count_refused(self) -> None:
        """Report a failed TLS handshake, for the metrics of the broker."""
        self._channel.put(encode(events.Observe("migratory_tls_refused_total", 1.0, "clients")))

    def _note(self, effect: events.Note) -> None:
        """Send a log line to the broker's process, with the address of the client that it names."""
        note: Any = self._clients.with_address(effect) if self._clients is not None else effect
        self._pump.request(note)

    def _on_lost(self) -> None:
        """End this process with exit code 0: the broker's process is gone, or has closed the channel."""
        self._end(0)

    def _accept_sockets(self) -> None:
        """Take the accepted sockets that wait, as many as the budget of the turn allows, start their connections, and
        report the counts."""
        assert self._clients is not None
        limit = self._budget.allowance()
        sockets = receive_sockets(self._pipe, limit)
        self._budget.end_turn(len(sockets) == limit)
        if not sockets:  # the other end is gone
            self._loop.remove_reader(self._pipe)
            return
        self._received += len(sockets)
        for accepted, key in sockets:
            lease = AddressLease(key, self._released.append) if key else None
            if accepted is not None:
                self._clients.start_connection(accepted, lease)
            elif lease is not None:
                lease.release()
        self._channel.put(encode(self._socket_counts()))
        self._channel.flush()

    def _on_channel_full(self) -> None:
        """Throttle reading from clients, so that the bytes of a flood wait in its sockets."""
        if self._clients is not None:
            self._clients.connections.throttle(on=True)

    def _on_channel_writable(self) -> None:
        """End the throttling of reading from clients."""
        if self._clients is not None:
            self._clients.connections.throttle(on=False)

    # ---- time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Report a stall, give the clients and the certificate their tick, and queue the report. If the broker's
        process was silent for longer than the fencing time, close all clients and end. After a tick that came more than
        `STALL` late, the broker's process counts as heard now."""
        clients = self._clients
        if self._ended.done() or clients is None:
            return
        now = time.monotonic()
        late = now - self._ticked - TICK
        if late > LATE_TICK:
            self._write_log("warning", "loop_stalled", seconds=round(late, 3))
            self._channel.put(encode(events.Observe("migratory_loop_stalls_total")))  # sent with the next report
        if now - self._ticked > STALL:
            self._last_heard = now
        self._ticked = now
        self._loop.call_later(TICK, self._tick)
        clients.tick(now)
        if self._certificate is not None:
            self._certificate.tick(now)
        self._pump.call(self._report, clients)
        if now - self._last_heard > self._fencing:
            self._write_log("error", "broker_process_silent", seconds=round(now - self._last_heard, 1))
            self._fencing = float("inf")
            self._pump.to_edge(events.Admission(False, "fenced"))
            self._closing = self._loop.create_task(self._close_clients(clients))

    async def _close_clients(self, clients: ClientService) -> None:
        """Wait until the clients are closed, at most `CLOSE_WAIT` seconds, and end this process with exit code 1."""
        await clients.wait_until_empty()
        self._end(EXIT_FAILED)

    def _report(self, clients: ClientService) -> None:
        """Send the keys of ended connections, and the state of this process if it changed or a report is due."""
        status = clients.edge_status()
        assert status is not None
        report = EdgeReport(
            self._batches, connection_capacity(), self._socket_counts(), status, clients.handshake_counts()
        )
        self._ticks += 1
        if self._released:
            self._channel.put(encode(ReleasedAddresses(tuple(self._released))))
            self._released.clear()
        if report != self._last_report or self._ticks % REPORT_EVERY == 0:
            self._last_report = report
            self._channel.put(encode(report))
        self._channel.flush()

    def _socket_counts(self) -> SocketCounts:
        assert self._clients is not None
        return SocketCounts(self._received, self._clients.load, len(self._clients))

    # ---- the end -------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        """Log the exception of a core that broke an invariant, and end this process with exit code 1."""
        self._write_log("error", "invariant_violated", error=repr(error), trace=traceback.format_exception(error))
        self._end(EXIT_FAILED)

    def _write_log(self, level: str, event: str, **fields: object) -> None:
        assert self._log is not None
        self._log(level, event, **fields)

    def _end(self, code: int) -> None:
        """End `run` with an exit code; only the first call counts."""
        if not self._ended.done():
            self._ended.set_result(code)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even if this process hangs. If the parent is not the
    process `parent` (an id) any more, exit with status 1. Raises OSError if the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(1)  # the parent died before the setting was in force


def main(arguments: Iterable[str]) -> int:
    """Run the I/O process to its end, and return the exit code. The arguments are numbers: the broker's process id, and
    the descriptors of the channel and of the socket pipe."""
    parent, channel, pipe = map(int, arguments)
    die_with_parent(parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    async def run() -> int:
        return await IoProcess(socket.socket(fileno=pipe)).run(socket.socket(fileno=channel))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
