"""The I/O processes of a broker, in the place of its edge: effects of the logic go to the processes that need them, and
requests of the processes to the logic.

For the pump this is the edge. A publication is encoded once and sent once to each process with subscribers of its
topic. A process's requests for subscriptions and replays are answered only while its channel is not full, so that a
slow process is waited for and not filled. Pages of replays are answered in the deferred queue, as in one process
(pump.py).
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from migratory_protocol.messages import Server

from migratory_broker.core.edge.events import Credentials, Detach, KeysNeeded
from migratory_broker.core.edge.subscriptions import TopicInterest
from migratory_broker.core.logic.events import Admission, Attach, ClientCounts, NextPage, Note, Observe, ServerList
from migratory_broker.runtime.accepting.addresses import AddressLimits
from migratory_broker.runtime.accepting.limits import AcceptRate
from migratory_broker.runtime.admin.metrics import MemoryReader
from migratory_broker.runtime.clients.service import CLOSE_WAIT, configure_addresses
from migratory_broker.runtime.config import BrokerConfig
from migratory_broker.runtime.io_processes.counters import IoProcessCounters
from migratory_broker.runtime.io_processes.dispatcher import SocketDispatcher
from migratory_broker.runtime.io_processes.handle import IoProcessHandle, start_process
from migratory_broker.runtime.io_processes.messages import (
    ROUTES,
    Begin,
    ConsoleStatus,
    ConsoleStatusNeeded,
    EdgeReport,
    IoHello,
    LimitsChanged,
    ReleasedAddresses,
    SocketCounts,
    encode,
)
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.pump import Pump

FIRST_DELAY = 0.1
LAST_DELAY = 10.0
STABLE_AFTER = 30.0
"""Seconds until a process that died is started again: `FIRST_DELAY`, doubled each time up to `LAST_DELAY`. After a life
of at least `STABLE_AFTER` the delay begins at `FIRST_DELAY` again."""

ALL_UP_TIMEOUT = 30.0
"""Seconds for which a starting broker is not ready because some of its processes have not started, so that each gets
its part of the clients."""

END_TIMEOUT = 1.0
"""Seconds in which processes must end after their channel was closed; then they are killed."""

MAX_WAITING = 67_108_864
"""Bytes that may wait to be sent to a process, besides four publications of the largest size. A process for which more
wait is killed."""


class IoProcessPool:
    """The I/O processes of a broker: an edge for the pump, and the `ClientBackend` of the broker. They are started when
    this object is created, and again after they died.

    :param level: the level of the I/O processes' logs.
    :param fencing: seconds of silence from the broker's process, after which an I/O process closes its clients.
    :param observe: adds a value to the broker's metrics.
    :param start_process: starts a process.
    :param on_keys_needed: called when a token names an unknown key; it fetches the keys.
    :param console_status: returns what the console shows of the broker, as JSON.
    """

    def __init__(
        self,
        config: BrokerConfig,
        name: str,
        pump: Pump,
        clock: Callable[[], float],
        log: Log,
        level: str,
        fencing: float,
        observe: Callable[[Observe], None],
        start_process: Callable[[tuple[int, int]], subprocess.Popen[bytes]] = start_process,
        on_keys_needed: Callable[[KeysNeeded], None] = lambda _: None,
        console_status: Callable[[], bytes] = lambda: b"{}",
    ) -> None:
        self.servers: tuple[Server, ...] = ()
        self._config = config
        self._name = name
        self._pump = pump
        self._clock = clock
        self._log = log
        self._level = level
        self._fencing = fencing
        self._observe = observe
        self._start = start_process
        self._on_keys_needed = on_keys_needed
        self._console_status = console_status
        self._credentials: Credentials | None = None
        self._max_waiting = MAX_WAITING + 4 * config.limits.max_payload
        self._interest = TopicInterest()
        self._processes: dict[int, IoProcessHandle] = {}  # edge number -> process, while it is alive
        self._last_edge = 0
        self._start_at: dict[int, float] = dict.fromkeys(range(config.io_processes), 0.0)  # index -> when to start it
        self._delays = dict.fromkeys(range(config.io_processes), FIRST_DELAY)
        self._ending: list[tuple[IoProcessHandle, float]] = []  # lost, maybe not reaped yet; until when they may end
        self._ever_up: set[int] = set()  # indexes of those that served at least once
        self._opened: float | None = None
        self._incarnation = 0
        self._admission = Admission(False, "learning")
        self._dealer: SocketDispatcher | None = None
        self._closing = False
        self._ticked = clock()
        self._counts = IoProcessCounters()
        self._empty = asyncio.Event()
        self._memory = MemoryReader(clock)
        self.addresses = AddressLimits(clock)
        configure_addresses(self.addresses, config)
        self._start_due(clock())

    # ---- as the edge of the pump ---------------------------------------------------------------------------------

    def step(self, event: Any, now: float) -> tuple[()]:
        """Queue an effect of the logic, or an event of the runtime for edges, for the processes whose edges need it;
        `flush` sends it. Also store admission, server list and credentials for processes that start later. Return no
        effects. After an `Admission` that closes all clients, each process must close them in time. Raises KeyError for
        an event without a route."""
        kind = type(event)
        if kind is Admission:
            self._admission = event
        elif kind is ServerList:
            self.servers = event.servers
        elif kind is Credentials:
            self._credentials = event
        route = ROUTES[kind]
        if route == "topic":
            numbers = self._interest.edges_of(event.topic)
            if numbers:
                data = encode(event)
                for number in numbers:
                    self._processes[number].channel.put(data)
        elif route == "one":
            process = self._processes.get(event.edge)
            if process is not None:
                process.channel.put(encode(event))
        else:
            data = encode(event)
            for process in self._serving():
                process.channel.put(data)
                if kind is Admission and event.ends:
                    process.expect_close(now)
        return ()

    def with_address(self, note: Note) -> Note:
        """Return the log line unchanged: the process that has the client's socket has already added the address."""
        return note

    def flush(self) -> None:
        """Send each process the messages that this turn collected for it, as one batch, and continue to answer its
        waiting requests."""
        for process in self._processes.values():
            process.channel.flush()
            process.resume()

    # ---- from the processes --------------------------------------------------------------------------------------

    def _receive(self, process: IoProcessHandle, messages: list[Any], size: int) -> None:
        """Handle the messages of a batch, or queue those that are requests for the logic. The batch is acknowledged
        once the pump has come to it."""
        process.last_heard = self._clock()
        for message in messages:
            kind = type(message)
            if kind is SocketCounts:
                process.counts = message
            elif kind is ReleasedAddresses:
                process.release(message.keys)
            elif kind is EdgeReport:
                process.report = message
                process.counts = message.held
                process.capacity = message.room
                self._check_empty()
            elif kind is IoHello:
                process.greeted = True
                process.capacity = message.room
                self._start_serving(process)
            elif kind is Observe:
                self._observe(message)
            elif kind is KeysNeeded:
                self._on_keys_needed(message)
            elif kind is ConsoleStatusNeeded:
                process.channel.put(encode(ConsoleStatus(self._console_status())))
                process.channel.flush()
            elif kind is Note:
                self._log(message.level, message.event, io_process=process.index, **message.fields)
            else:
                self._pump.call_for_client(self._handle_request, (process, message))
        self._pump.call_for_client(process.channel.acknowledge, size)

    def _handle_request(self, item: tuple[IoProcessHandle, Any]) -> None:
        """Step the logic with a message of an I/O process. `Attach`, `NextPage` and `Detach` go through the process's
        queue of deferred requests."""
        process, message = item
        if isinstance(message, (Attach, NextPage, Detach)):
            process.request(message)
        else:
            self._pump.step_logic(message)

    def _answer(self, process: IoProcessHandle, message: Attach | NextPage | Detach) -> None:
        """Step the logic with a request of a process, and record to which topics its edge is subscribed. Drop the
        request of a process that is dead."""
        if not process.alive:
            return
        if isinstance(message, Detach):
            self._interest.remove(message.edge, message.topic)
            return
        if isinstance(message, Attach):
            self._interest.add(message.edge, message.topic)
        self._pump.step_logic(message)

    # ---- starts and deaths ----------------------------------------------------------------------------------------

    def _start_due(self, now: float) -> None:
        """Start each process whose time has come. If one cannot be started, log it and try again in `LAST_DELAY`."""
        for index in [index for index, start_at in self._start_at.items() if start_at <= now]:
            self._last_edge += 1
            try:
                process = IoProcessHandle(
                    index, self._last_edge, now, self._receive, self._on_death, self._answer, self._pump, self._start
                )
            except OSError as error:
                self._log("error", "io_process_start_failed", io_process=index, reason=str(error))
                self._start_at[index] = now + LAST_DELAY
                continue
            del self._start_at[index]
            self._processes[process.number] = process

    def _start_serving(self, process: IoProcessHandle) -> None:
        """Send a process its edge's number, the configuration and the present state, so that it serves clients. Do
        nothing until the process runs and the incarnation is known, or if it serves already."""
        if not (self._incarnation and process.greeted) or process.serving:
            return
        config = msgspec.json.encode(self._config)
        process.serving = True
        self._ever_up.add(process.index)
        begin = Begin(process.number, process.index, self._incarnation, self._name, config, self._level, self._fencing)
        credentials = [self._credentials] if self._credentials is not None else []
        for message in (begin, *credentials, self._admission, ServerList(self.servers)):
            process.channel.put(encode(message))
        process.channel.flush()
        self._log("info", "io_process_up", io_process=process.index, pid=process.popen.pid, edge=process.number)

    def _on_death(self, process: IoProcessHandle) -> None:
        """Report to the logic that the edge of `process` ended, and kill the process if it still runs after
        `END_TIMEOUT`. Unless the broker closes, also count and log the loss of the process and its clients, and
        schedule the start of another one. The clients resume by themselves."""
        now = self._clock()
        del self._processes[process.number]
        self._interest.remove_edge(process.number)
        self._pump.request(ClientCounts(process.number, ()))  # behind its own last messages
        self._ending.append((process, now + END_TIMEOUT))
        clients = self._counts.record_death(process, closing=self._closing)
        if self._closing:
            return
        self._observe(Observe("migratory_io_process_deaths_total"))
        if clients:
            self._observe(Observe("migratory_closed_total", clients, "io_process"))
        delay = FIRST_DELAY if now - process.started >= STABLE_AFTER else self._delays[process.index]
        self._delays[process.index] = min(LAST_DELAY, 2 * delay)
        self._start_at[process.index] = now + delay
        self._log(
            "error", "io_process_died", io_process=process.index, pid=process.popen.pid, edge=process.number,
            clients=clients, reason=process.kill_reason or "ended by itself",
            lived_seconds=round(now - process.started, 3),
        )  # fmt: skip

    def _serving(self) -> list[IoProcessHandle]:
        return [process for process in self._processes.values() if process.serving]

    # ---- as the broker's client backend --------------------------------------------------------------------------

    @property
    def not_ready_reason(self) -> str:
        """The reason for which clients are not accepted, "starting", or "" when they are: `open` was called and a
        process serves, and each one served once or `ALL_UP_TIMEOUT` has passed since `open`."""
        if self._opened is None or not any(process.serving for process in self._processes.values()):
            return "starting"
        waits = len(self._ever_up) < self._config.io_processes and self._clock() - self._opened < ALL_UP_TIMEOUT
        return "starting" if waits else ""

    def handlers(self) -> dict[type, Callable[[Any], object]]:
        return {}  # no connection is in this process

    def __len__(self) -> int:
        return sum(process.counts.connections for process in self._processes.values())

    def open(self, incarnation: int, listening: socket.socket) -> None:
        """Connect this object to the pump as its edge, let the processes that run serve clients, and begin to accept
        clients on the socket `listening`."""
        self._opened = self._clock()
        self._incarnation = incarnation
        self._pump.attach(self, self.flush)
        for process in self._processes.values():
            self._start_serving(process)
        rate = AcceptRate(self._config.limits.connects_per_second, self._clock)
        self._dealer = SocketDispatcher(listening, self._serving, self._clock, rate, self._log, self.addresses)

    def set_limits(self, config: BrokerConfig) -> None:
        """Apply changed limits: those of connections of an address to new connections, and rates to all, by way of the
        processes."""
        self._config = config
        configure_addresses(self.addresses, config)
        for process in self._serving():
            process.channel.put(encode(LimitsChanged(msgspec.json.encode(config))))
            process.channel.flush()

    def tick(self, now: float) -> None:
        """Supervise the processes: kill those that break a limit, reap those that ended, and start those that are
        due."""
        stalled = now - self._ticked > 1.0
        self._ticked = now
        for process in list(self._processes.values()):
            process.tick(now, stalled, self._max_waiting)
        self._ending = [(process, until) for process, until in self._ending if process.popen.poll() is None]
        for process, until in self._ending:
            if now > until:
                process.popen.kill()  # it closed its channel and still runs
        if not self._closing:
            self._start_due(now)

    def stop_listening(self) -> None:
        if self._dealer is not None and not self._closing:
            self._dealer.close()
        self._closing = True

    def _check_empty(self) -> None:
        """End the wait of `wait_until_empty` if all clients are closed. A count of zero from before the processes
        closed their clients is not enough: a client may have connected since."""
        closed = self._admission.ends and all(process.closed_clients for process in self._serving())
        if self._closing and closed and not len(self):
            self._empty.set()

    async def wait_until_empty(self) -> None:
        self._check_empty()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT):
                await self._empty.wait()

    async def close(self) -> None:
        """End all processes, and wait for their end: after `END_TIMEOUT` they are killed."""
        self._closing = True
        processes = [*self._processes.values()]
        for process in processes:
            process.close()
        popens = [process.popen for process in (*processes, *(process for process, _ in self._ending))]
        await asyncio.to_thread(_reap, popens, self._clock)

    # ---- status --------------------------------------------------------------------------------------------------

    def edge_status(self) -> Mapping[str, Any] | None:
        return {
            **self._counts.total(self._processes.values()),
            "admission": "open" if self._admission.open else self._admission.reason or "closed",
            "topics": len(self._interest),
        }

    def handshake_counts(self) -> dict[str, int]:
        return self._counts.handshake_counts(self._processes.values())

    def status(self) -> dict[str, Any]:
        now = self._clock()
        processes = sorted(self._processes.values(), key=lambda process: process.index)
        return {
            **self.handshake_counts(),
            "connections_refused": self.refused,
            "edge": self.edge_status(),
            "io_process_deaths": self._counts.deaths,
            "io_processes": [
                {**process.status(now), "memory_bytes": self._memory.pss(process.popen.pid)} for process in processes
            ],
        }

    @property
    def capacity(self) -> int:
        return sum(process.capacity for process in self._processes.values())

    @property
    def refused(self) -> int:
        return self._dealer.refused if self._dealer is not None else 0

    @property
    def pids(self) -> list[int]:
        return [process.popen.pid for process in self._processes.values()]


def _reap(popens: list[subprocess.Popen[bytes]], clock: Callable[[], float]) -> None:
    """Wait until the processes have ended, and kill those that still run after `END_TIMEOUT`. Blocks."""
    deadline = clock() + END_TIMEOUT
    for index in popens:
        try:
            index.wait(max(0.0, deadline - clock()))
        except subprocess.TimeoutExpired:
            index.kill()
            index.wait()
