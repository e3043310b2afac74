"""An edge and the sockets of its clients, in one process: the broker's own, or an I/O process."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from migratory_protocol.messages import Server
from migratory_protocol.origins import OriginPolicy

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.edge.config import ConflationRule, EdgeConfig
from migratory_broker.core.edge.core import Edge
from migratory_broker.core.logic import events
from migratory_broker.runtime.accepting.limits import AcceptRate, descriptor_room
from migratory_broker.runtime.accepting.listener import Acceptor, ConnectionStarter
from migratory_broker.runtime.clients.connection import ClientConnections
from migratory_broker.runtime.clients.server import ClientServer, servers_page
from migratory_broker.runtime.config import BrokerConfig
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.pump import Pump

CLOSE_WAIT = 2.0
"""Seconds that clients have to take the last close frame."""

INCOMING = 268_435_456
"""Bytes that all clients of a broker together may have sent that nobody could look at yet,"""

FEW = 4
"""or so many messages of the largest size in each process: of one the half must not be too much already."""

_GC_THRESHOLDS = (50_000, 20, 50)
"""Young objects here are events and effects, freed by counting; the collector has little to find."""


def edge_config(config: BrokerConfig, name: str, incarnation: int) -> EdgeConfig:
    """What each edge of the broker is told. What holds for all clients together is divided among I/O processes."""
    limits = config.limits
    share = max(1, config.io_processes)
    edge = EdgeConfig(
        cluster=config.cluster,
        broker=name,
        incarnation=incarnation,
        handshake=limits.handshake,
        heartbeat=limits.heartbeat,
        max_payload=limits.max_payload,
        subscriptions_per_client=limits.subscriptions_per_client,
        queue_per_client=limits.queue_per_client,
        queue_total=limits.queue_total // share,
        batch_delay=config.delivery.batching.max_delay,
        batch_bytes=config.delivery.batching.max_bytes,
        conflation=tuple(ConflationRule(rule.topics, rule.interval) for rule in config.delivery.conflation),
    )
    return replace(edge, incoming_total=max(INCOMING // share, FEW * edge.max_message))


def freeze() -> None:
    """What lives until the end is not looked at again; a full collection would stop the loop for longer and longer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class ClientService:
    """The handshakes, connections and edge of this process. `servers` is what `/v1/servers` answers."""

    def __init__(self, config: BrokerConfig, name: str, pump: Pump, clock: Callable[[], float]) -> None:
        origins = config.origins
        self._config = config
        self._name = name
        self._pump = pump
        self._clock = clock
        self.connections = ClientConnections(pump, clock)
        self.servers: tuple[Server, ...] = ()
        self.server = ClientServer(
            self.connections,
            OriginPolicy(origins.allowed, origins.hosts, origins.without_origin),
            servers_page(lambda: self.servers),
            clock,
            handshake_limit=config.limits.handshake,
            compression=config.compression,
        )
        self.start = ConnectionStarter(self.server.protocol, late=pump.call_late)
        self.edge: Edge | None = None

    def handlers(self) -> dict[type, Callable[[Any], object]]:
        """What carries out the edge's effects on its connections, for the pump."""
        return {
            edge_events.Multicast: self.connections.multicaster.multicast,
            edge_events.Send: self.connections.send,
            edge_events.Close: self.connections.close,
            edge_events.Hold: self.connections.hold,
            edge_events.Later: self._later,
        }

    def named(self, note: events.Note) -> events.Note:
        """With the address of the client that it is about."""
        if not note.connection:
            return note
        return events.Note(note.level, note.event, {**note.fields, "remote": self.connections.remote(note.connection)})

    def readings(self) -> dict[str, Any] | None:
        """The status of the edge, its slow clients with their addresses; None before there is one."""
        if self.edge is None:
            return None
        readings: dict[str, Any] = self.edge.status()
        for one in readings["slow"]:
            one["remote"] = self.connections.remote(one["connection"])
        return readings

    def _later(self, effect: edge_events.Later) -> None:
        delay = max(0.0, effect.at - self._clock())
        asyncio.get_running_loop().call_later(delay, self._pump.to_edge, effect)

    def begin(self, incarnation: int, number: int) -> None:
        """From now on sockets may come (`start`)."""
        self.edge = Edge(edge_config(self._config, self._name, incarnation), number)
        self._pump.attach(self.edge)

    def __len__(self) -> int:
        """Connections behind their handshake."""
        return len(self.connections)

    @property
    def load(self) -> int:
        """Connections, those in their handshake too."""
        return len(self.connections) + self.server.waiting + len(self.start)

    def tick(self, now: float) -> None:
        self._pump.to_edge(events.Tick())
        self.connections.tick(now)
        self.server.tick()

    def counts(self) -> dict[str, int]:
        """Of the handshakes, for /v1/status."""
        return {
            "handshakes_waiting": self.server.waiting,
            "handshakes_too_slow": self.server.slow_handshakes,
            "requests_malformed": self.server.malformed,
        }

    async def emptied(self) -> None:
        """The clients have taken their close frames, or had the time to."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT):
                await self.connections.none_left.wait()

    async def close(self) -> None:
        self.connections.abort_all()
        await self.server.close()


class ClientBackend(Protocol):
    """All that a broker has of its clients, wherever their sockets are."""

    servers: tuple[Server, ...]

    def handlers(self) -> dict[type, Callable[[Any], object]]:
        """What carries out an edge's effects on connections of this process, for the pump."""

    def named(self, note: events.Note) -> events.Note:
        """A log line of the edge's, with the address of the client that it is about."""

    @property
    def why_not(self) -> str:
        """Why no clients can be taken yet, "" when they can."""

    def __len__(self) -> int:
        """Connections of clients."""

    def open(self, incarnation: int, listening: socket.socket) -> None:
        """Take clients: it is known which life of the broker this is."""

    def tick(self, now: float) -> None: ...

    def readings(self) -> Mapping[str, Any] | None:
        """The status of the edge, of all edges together; None before there is one."""

    def status(self) -> dict[str, Any]:
        """For /v1/status."""

    @property
    def pids(self) -> Sequence[int]:
        """Of the processes besides the broker's own."""

    def stop_listening(self) -> None: ...

    async def emptied(self) -> None:
        """The clients were told to go: until they have, with a limit."""

    async def close(self) -> None:
        """Whoever is still there is cut off."""


class LocalClients(ClientService):
    """The clients are served in the broker's own process."""

    def __init__(self, config: BrokerConfig, name: str, pump: Pump, clock: Callable[[], float], log: Log) -> None:
        super().__init__(config, name, pump, clock)
        self._clock = clock
        self._log = log
        self._acceptor: Acceptor | None = None

    @property
    def why_not(self) -> str:
        return "" if self.edge is not None else "starting"

    def open(self, incarnation: int, listening: socket.socket) -> None:
        self.begin(incarnation, 0)
        room = descriptor_room()
        self._acceptor = Acceptor(
            listening,
            self.start,
            self._log,
            admission=AcceptRate(self._config.limits.connects_per_second, self._clock),
            room=lambda: room - self.load,
        )

    pids: Sequence[int] = ()

    def status(self) -> dict[str, Any]:
        refused = self._acceptor.refused if self._acceptor is not None else 0
        return {**self.counts(), "connections_refused": refused, "edge": self.readings()}

    def stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
