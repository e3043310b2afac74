"""The I/O processes of a broker: what the logic says goes to those that need it, what they say to the logic, and new
connections to the one that has fewest.

To the pump this is the edge. A publication is encoded once and crosses once to each process in which somebody wants its
topic. Requests for replays are answered only while the channel is not full, so that a process which works slowly is
waited for and not filled; pages of replays, as in one process, in what a turn has for them (`pump.py`).
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from migratory_protocol.messages import Server

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge
from migratory_broker.core.edge.events import Detach
from migratory_broker.core.edge.interest import Interest
from migratory_broker.core.logic.events import Admission, Attach, Clients, NextPage, Note, Observe, ServerList
from migratory_broker.runtime import listener, memory
from migratory_broker.runtime.config import BrokerConfig
from migratory_broker.runtime.crossing import ROUTES, Begin, Held, Hello, Report, encode
from migratory_broker.runtime.iolife import IoLife, start
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.pump import Pump
from migratory_broker.runtime.readings import EDGE_COUNTERS
from migratory_broker.runtime.serving import CLOSE_WAIT

FIRST_DELAY = 0.1
LAST_DELAY = 10.0
STEADY = 30.0
"""Seconds until a process that died is started again, doubled each time unless it had lived for `STEADY`."""

ALL_UP = 30.0
"""Seconds that clients wait for the last of the processes to start, so that it gets its share of them."""

END_LIMIT = 1.0
"""Seconds that they have to end when their channel has ended."""

NOBODY = 0.05
"""Seconds until a connection is taken, when no process takes any now."""

MOST = 67_108_864
"""Bytes that may wait for a process, besides some publications of the largest size."""


class Edges:
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
        start: Callable[[tuple[int, int]], subprocess.Popen[bytes]] = start,
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
        self._start = start
        self._most = MOST + 4 * config.limits.max_payload
        self._interest = Interest()
        self._lives: dict[int, IoLife] = {}  # by number: those that are alive
        self._numbers = 0
        self._due: dict[int, float] = dict.fromkeys(range(config.io_processes), 0.0)  # process -> when to start it
        self._delays = dict.fromkeys(range(config.io_processes), FIRST_DELAY)
        self._ended: list[tuple[IoLife, float]] = []  # whose process the kernel may not have given up yet
        self._up: set[int] = set()  # processes that were up once
        self._opened: float | None = None
        self._incarnation = 0
        self._admission = Admission(False, "learning")
        self._acceptor: listener.Acceptor | None = None
        self._closing = False
        self._ticked = clock()
        self._dead: Counter[str] = Counter()  # what those that died had counted
        self._dead_closed: Counter[str] = Counter()
        self._none_left = asyncio.Event()
        self.deaths = 0
        self._memory = memory.Reader(clock)
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
            numbers = self._interest.edges(event.topic)
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

    def flush(self) -> None:
        """The turn is over."""
        for life in self._lives.values():
            life.channel.flush()
            life.go_on()

    # ---- from the processes --------------------------------------------------------------------------------------

    def _take(self, life: IoLife, messages: list[Any], size: int) -> None:
        life.heard = self._clock()
        for message in messages:
            kind = type(message)
            if kind is Held:
                life.held = message
            elif kind is Report:
                life.report = message
                life.held = message.held
                self._look_whether_empty()
            elif kind is Hello:
                life.room = message.room
                self._begin(life)
            elif kind is Observe:
                self._observe(message)
            elif kind is Note:
                self._log(message.level, message.event, io_process=life.process, **message.fields)
            else:
                self._pump.call(self._give, (life, message))
        self._pump.call(life.channel.done, size)

    def _give(self, said: tuple[IoLife, Any]) -> None:
        """A request, in its place among the events."""
        life, message = said
        if isinstance(message, (Attach, NextPage, Detach)):
            life.request(message)
        else:
            self._pump.step_logic(message)

    def _ask(self, life: IoLife, message: Attach | NextPage | Detach) -> None:
        if not life.alive:
            return
        if isinstance(message, Detach):
            self._interest.leave(message.edge, message.topic)
            return
        if isinstance(message, Attach):
            self._interest.ask(message.edge, message.topic)
        self._pump.step_logic(message)

    # ---- lives ---------------------------------------------------------------------------------------------------

    def _start_due(self, now: float) -> None:
        for process in [process for process, due in self._due.items() if due <= now]:
            self._numbers += 1
            try:
                life = IoLife(process, self._numbers, now, self._take, self._lost, self._ask, self._pump, self._start)
            except OSError as error:
                self._log("error", "io_process_not_started", io_process=process, reason=str(error))
                self._due[process] = now + LAST_DELAY
                continue
            del self._due[process]
            self._lives[life.number] = life

    def _begin(self, life: IoLife) -> None:
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

    def _lost(self, life: IoLife) -> None:
        """It is gone, and its clients with it: they resume."""
        now = self._clock()
        del self._lives[life.number]
        self._interest.gone(life.number)
        self._pump.to_logic(Clients(life.number, ()))  # behind what it had said itself
        self._ended.append((life, now + END_LIMIT))
        clients = self._bury(life)
        if self._closing:
            return
        self.deaths += 1
        self._observe(Observe("migratory_io_process_deaths_total"))
        delay = FIRST_DELAY if now - life.started >= STEADY else self._delays[life.process]
        self._delays[life.process] = min(LAST_DELAY, 2 * delay)
        self._due[life.process] = now + delay
        self._log(
            "error", "io_process_died", io_process=life.process, pid=life.popen.pid, edge=life.number, clients=clients,
            reason=life.killed or "it ended by itself", lived_seconds=round(now - life.started, 3),
        )  # fmt: skip

    def _bury(self, life: IoLife) -> int:
        """What it had counted stays counted. How many clients went with it."""
        if life.report is None:
            return 0
        edge = life.report.edge
        for key in EDGE_COUNTERS:
            self._dead[key] += edge[key]
        for key, value in life.report.server.items():
            if not key.endswith("waiting"):
                self._dead[key] += value
        self._dead_closed.update(edge["closed"])
        clients = int(edge["clients"])
        if clients and not self._closing:
            self._dead_closed["io_process"] += clients
            self._observe(Observe("migratory_closed_total", clients, "io_process"))
        return clients

    def _begun(self) -> list[IoLife]:
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
        self._acceptor = listener.Acceptor(
            listening,
            self._pass_on,
            self._log,
            admission=_SomebodyTakes(
                self._fewest, listener.Admission(self._config.limits.connects_per_second, self._clock)
            ),
            room=lambda: max((life.room - life.load for life in self._begun()), default=1),
        )

    def _fewest(self) -> IoLife | None:
        """Who gets the next connection."""
        now = self._clock()
        takes = [life for life in self._lives.values() if life.takes(now)]
        return min(takes, key=lambda life: (life.load - life.room >= 0, life.load, life.given), default=None)

    def _pass_on(self, accepted: socket.socket) -> None:
        life = self._fewest()
        if life is None or not life.give(accepted):
            accepted.close()  # it died in this very moment; its client tries again

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
        if self._acceptor is not None and not self._closing:
            self._acceptor.close()
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
        """All edges together, as one edge's status. What died ones had counted stays counted."""
        reports = [life.report for life in self._lives.values() if life.report is not None]
        edges = [report.edge for report in reports]
        closed = Counter(self._dead_closed)
        for edge in edges:
            closed.update(edge["closed"])
        total = Counter({key: self._dead[key] for key in EDGE_COUNTERS})
        for edge in edges:
            total.update({key: value for key, value in edge.items() if type(value) in (int, float)})
        slow = sorted((one for edge in edges for one in edge["slow"]), key=lambda one: -one["queued_bytes"])
        return {
            **NOTHING,
            **total,
            "edge": "all",
            "admission": "open" if self._admission.open else self._admission.reason or "closed",
            "draining": any(edge["draining"] for edge in edges),
            "topics": self._interest.topics,
            "closed": dict(sorted(closed.items())),
            "slow": slow[:20],
            "by_process": {str(life.process): life.held.connections for life in self._lives.values()},
        }

    def status(self) -> dict[str, Any]:
        now = self._clock()
        counts = Counter({key: self._dead[key] for key in ("handshakes_too_slow", "requests_malformed")})
        counts["handshakes_waiting"] = 0
        for life in self._lives.values():
            if life.report is not None:
                counts.update(life.report.server)
        return {
            **counts,
            "connections_refused": self._acceptor.refused if self._acceptor is not None else 0,
            "edge": self.readings(),
            "io_process_deaths": self.deaths,
            "io_processes": [
                {
                    "process": life.process,
                    "pid": life.popen.pid,
                    "state": "up" if life.report is not None else "starting",
                    "uptime_seconds": round(now - life.started, 3),
                    "silent_seconds": round(now - life.heard, 3),
                    "connections": life.held.connections,
                    "sockets_under_way": life.given - life.held.given,
                    "waiting_bytes": life.channel.waiting,
                    "requests_held_back": life.held_back,
                    "memory_bytes": self._memory.pss(life.popen.pid),
                    "edge": life.report.edge if life.report is not None else None,
                }
                for life in sorted(self._lives.values(), key=lambda life: life.process)
            ],
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


NOTHING = {key: 0 for key, value in Edge(EdgeConfig()).status().items() if type(value) is int}
"""What an edge without clients counts."""


class _SomebodyTakes:
    """Connections stay in the kernel's backlog while no process takes any; else the rate is what counts."""

    def __init__(self, fewest: Callable[[], IoLife | None], rate: listener.Admission) -> None:
        self._fewest = fewest
        self._rate = rate
        self._nobody = False

    def take(self) -> bool:
        self._nobody = self._fewest() is None
        return not self._nobody and self._rate.take()

    def wait(self) -> float:
        return NOBODY if self._nobody else self._rate.wait()
