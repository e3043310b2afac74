"""The clients are served in I/O processes: what the logic says goes to those that need it, what they say to the logic.

To the pump this is the edge. A publication is encoded once and crosses once to each process in which somebody wants its
topic. Requests for replays are answered only while the channel is not full, so that a process which works slowly is
waited for and not filled; pages of replays, as in one process, in what a turn has for them (`pump.py`).
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

from migratory_broker.core.edge.events import Detach
from migratory_broker.core.edge.subscriptions import TopicInterest
from migratory_broker.core.logic.events import Admission, Attach, ClientCounts, NextPage, Note, Observe, ServerList
from migratory_broker.runtime.accepting.limits import AcceptRate
from migratory_broker.runtime.admin.metrics import MemoryReader
from migratory_broker.runtime.clients.serving import CLOSE_WAIT
from migratory_broker.runtime.config import BrokerConfig
from migratory_broker.runtime.io_processes.counters import IoProcessCounters
from migratory_broker.runtime.io_processes.dispatcher import SocketDispatcher
from migratory_broker.runtime.io_processes.handle import IoProcessHandle, start_process
from migratory_broker.runtime.io_processes.messages import ROUTES, Begin, EdgeReport, IoHello, SocketCounts, encode
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.pump import Pump

FIRST_DELAY = 0.1
LAST_DELAY = 10.0
STEADY = 30.0
"""Seconds until a process that died is started again, doubled each time unless it had lived for `STEADY`."""

ALL_UP = 30.0
"""Seconds that clients wait for the last of the processes to start, so that it gets its share of them."""

END_LIMIT = 1.0
"""Seconds that they have to end when their channel has ended."""

MAX_WAITING = 67_108_864
"""Bytes that may wait for a process, besides some publications of the largest size."""


class IoProcessPool:
    """:param level: of the log. :param fencing: seconds without a word of the broker's process, after which an I/O
    process sends its clients away. :param start: starts a process (`iolife.start`)."""

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
        self._most = MAX_WAITING + 4 * config.limits.max_payload
        self._interest = TopicInterest()
        self._lives: dict[int, IoProcessHandle] = {}  # by number: those that are alive
        self._numbers = 0
        self._due: dict[int, float] = dict.fromkeys(range(config.io_processes), 0.0)  # process -> when to start it
        self._delays = dict.fromkeys(range(config.io_processes), FIRST_DELAY)
        self._ended: list[tuple[IoProcessHandle, float]] = []  # whose process the kernel may not have given up yet
        self._up: set[int] = set()  # processes that were up once
        self._opened: float | None = None
        self._incarnation = 0
        self._admission = Admission(False, "learning")
        self._dealer: SocketDispatcher | None = None
        self._closing = False
        self._ticked = clock()
        self._counts = IoProcessCounters()
        self._none_left = asyncio.Event()
        self._memory = MemoryReader(clock)
        self._start_due(clock())

    # ---- as the edge of the pump ---------------------------------------------------------------------------------

    def step(self, event: Any, now: float) -> tuple[()]:
        """An effect of the logic, to the edges that it is for."""
        kind = type(event)
        if kind is Admission:
            self._admission = event
        elif kind is ServerList:
            self.servers = event.servers
        route = ROUTES[kind]
        if route == "topic":
            numbers = self._interest.edges_of(event.topic)
            if numbers:
                data = encode(event)
                for number in numbers:
                    self._lives[number].channel.put(data)
        elif route == "one":
            life = self._lives.get(event.edge)
            if life is not None:
                life.channel.put(encode(event))
        else:
            data = encode(event)
            for life in self._begun():
                life.channel.put(data)
                if kind is Admission and event.ends:
                    life.must_close(now)
        return ()

    def named(self, note: Note) -> Note:
        """The logic's are of no client; those of an edge are named where its sockets are."""
        return note

    def flush(self) -> None:
        """The turn is over."""
        for life in self._lives.values():
            life.channel.flush()
            life.go_on()

    # ---- from the processes --------------------------------------------------------------------------------------

    def _take(self, life: IoProcessHandle, messages: list[Any], size: int) -> None:
        life.heard = self._clock()
        for message in messages:
            kind = type(message)
            if kind is SocketCounts:
                life.held = message
            elif kind is EdgeReport:
                life.report = message
                life.held = message.held
                self._look_whether_empty()
            elif kind is IoHello:
                life.room = message.room
                self._begin(life)
            elif kind is Observe:
                self._observe(message)
            elif kind is Note:
                self._log(message.level, message.event, io_process=life.process, **message.fields)
            else:
                self._pump.call(self._give, (life, message))
        self._pump.call(life.channel.done, size)

    def _give(self, said: tuple[IoProcessHandle, Any]) -> None:
        """A request, in its place among the events."""
        life, message = said
        if isinstance(message, (Attach, NextPage, Detach)):
            life.request(message)
        else:
            self._pump.step_logic(message)

    def _ask(self, life: IoProcessHandle, message: Attach | NextPage | Detach) -> None:
        if not life.alive:
            return
        if isinstance(message, Detach):
            self._interest.remove(message.edge, message.topic)
            return
        if isinstance(message, Attach):
            self._interest.add(message.edge, message.topic)
        self._pump.step_logic(message)

    # ---- lives ---------------------------------------------------------------------------------------------------

    def _start_due(self, now: float) -> None:
        for process in [process for process, due in self._due.items() if due <= now]:
            self._numbers += 1
            try:
                life = IoProcessHandle(
                    process, self._numbers, now, self._take, self._lost, self._ask, self._pump, self._start
                )
            except OSError as error:
                self._log("error", "io_process_not_started", io_process=process, reason=str(error))
                self._due[process] = now + LAST_DELAY
                continue
            del self._due[process]
            self._lives[life.number] = life

    def _begin(self, life: IoProcessHandle) -> None:
        """It is there; once it is known which life of the broker this is, it is told how things stand."""
        if not (self._incarnation and life.room) or life.begun:
            return
        config = msgspec.json.encode(self._config)
        life.begun = True
        self._up.add(life.process)
        begin = Begin(life.number, life.process, self._incarnation, self._name, config, self._level, self._fencing)
        for message in (begin, self._admission, ServerList(self.servers)):
            life.channel.put(encode(message))
        life.channel.flush()
        self._log("info", "io_process_up", io_process=life.process, pid=life.popen.pid, edge=life.number)

    def _lost(self, life: IoProcessHandle) -> None:
        """It is gone, and its clients with it: they resume."""
        now = self._clock()
        del self._lives[life.number]
        self._interest.remove_edge(life.number)
        self._pump.to_logic(ClientCounts(life.number, ()))  # behind what it had said itself
        self._ended.append((life, now + END_LIMIT))
        clients = self._counts.bury(life, closing=self._closing)
        if self._closing:
            return
        self._observe(Observe("migratory_io_process_deaths_total"))
        if clients:
            self._observe(Observe("migratory_closed_total", clients, "io_process"))
        delay = FIRST_DELAY if now - life.started >= STEADY else self._delays[life.process]
        self._delays[life.process] = min(LAST_DELAY, 2 * delay)
        self._due[life.process] = now + delay
        self._log(
            "error", "io_process_died", io_process=life.process, pid=life.popen.pid, edge=life.number, clients=clients,
            reason=life.killed or "it ended by itself", lived_seconds=round(now - life.started, 3),
        )  # fmt: skip

    def _begun(self) -> list[IoProcessHandle]:
        return [life for life in self._lives.values() if life.begun]

    # ---- as the broker's client side -----------------------------------------------------------------------------

    @property
    def why_not(self) -> str:
        if self._opened is None or not any(life.begun for life in self._lives.values()):
            return "starting"
        waits = len(self._up) < self._config.io_processes and self._clock() - self._opened < ALL_UP
        return "starting" if waits else ""

    def handlers(self) -> dict[type, Callable[[Any], object]]:
        return {}  # no connection is here

    def __len__(self) -> int:
        return sum(life.held.connections for life in self._lives.values())

    def open(self, incarnation: int, listening: socket.socket) -> None:
        self._opened = self._clock()
        self._incarnation = incarnation
        self._pump.attach(self, self.flush)
        for life in self._lives.values():
            self._begin(life)
        rate = AcceptRate(self._config.limits.connects_per_second, self._clock)
        self._dealer = SocketDispatcher(listening, self._begun, self._clock, rate, self._log)

    def tick(self, now: float) -> None:
        stalled = now - self._ticked > 1.0
        self._ticked = now
        for life in list(self._lives.values()):
            life.tick(now, stalled, self._most)
        self._ended = [(life, until) for life, until in self._ended if life.popen.poll() is None]
        for life, until in self._ended:
            if now > until:
                life.popen.kill()  # it has closed its channel, and is still there
        if not self._closing:
            self._start_due(now)

    def stop_listening(self) -> None:
        if self._dealer is not None and not self._closing:
            self._dealer.close()
        self._closing = True

    def _look_whether_empty(self) -> None:
        if self._closing and not len(self):
            self._none_left.set()

    async def emptied(self) -> None:
        self._look_whether_empty()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT):
                await self._none_left.wait()

    async def close(self) -> None:
        self._closing = True
        lives = [*self._lives.values()]
        for life in lives:
            life.close()
        processes = [life.popen for life in (*lives, *(life for life, _ in self._ended))]
        await asyncio.to_thread(_wait, processes, self._clock)

    # ---- for those who ask ---------------------------------------------------------------------------------------

    def readings(self) -> Mapping[str, Any] | None:
        return {
            **self._counts.together(self._lives.values()),
            "admission": "open" if self._admission.open else self._admission.reason or "closed",
            "topics": len(self._interest),
        }

    def status(self) -> dict[str, Any]:
        now = self._clock()
        lives = sorted(self._lives.values(), key=lambda life: life.process)
        return {
            **self._counts.handshakes(lives),
            "connections_refused": self._dealer.refused if self._dealer is not None else 0,
            "edge": self.readings(),
            "io_process_deaths": self._counts.deaths,
            "io_processes": [{**life.status(now), "memory_bytes": self._memory.pss(life.popen.pid)} for life in lives],
        }

    @property
    def pids(self) -> list[int]:
        return [life.popen.pid for life in self._lives.values()]


def _wait(processes: list[subprocess.Popen[bytes]], clock: Callable[[], float]) -> None:
    """Until they have ended; who does not is killed."""
    deadline = clock() + END_LIMIT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - clock()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
