"""The clients of one process, the broker's own or an I/O process: handshakes, connections and their edge, and the
limits that the configuration sets for them.

`ClientBackend` is what a broker needs of its clients, wherever they are: `LocalClients` here, or `IoProcessPool`.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from migratory_protocol.limits import ENVELOPE
from migratory_protocol.messages import Server
from migratory_protocol.origins import OriginPolicy
from msgspec import structs

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.edge.config import ConflationRule, EdgeConfig
from migratory_broker.core.edge.core import Edge
from migratory_broker.core.logic import events
from migratory_broker.core.logic.config import MAX_PENDING_BYTES
from migratory_broker.core.security.authorizer import Authorizer
from migratory_broker.runtime.accepting.addresses import AddressLimits, CountedAddresses
from migratory_broker.runtime.accepting.limits import AcceptRate, connection_capacity
from migratory_broker.runtime.accepting.listener import (
    TLS_HANDSHAKE_BYTES,
    TLS_MESSAGE_BYTES,
    Acceptor,
    ConnectionStarter,
)
from migratory_broker.runtime.accepting.tls_connection import MAX_WAITING_BYTES
from migratory_broker.runtime.clients.connection import ClientConnections
from migratory_broker.runtime.clients.console import Console
from migratory_broker.runtime.clients.handshake_queue import DeferredHandshake
from migratory_broker.runtime.clients.server import REFUSAL_REASONS, ClientServer, TokenPlaces, servers_page
from migratory_broker.runtime.config import BrokerConfig, RatesSection
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.pump import Pump
from migratory_broker.runtime.security.config import security_config
from migratory_broker.runtime.tls import Certificate

CLOSE_WAIT = 2.0
"""Seconds that a broker that ends waits for its clients to receive their last close frame."""

MIN_INCOMING_MESSAGES = 4
"""The smallest limit of unprocessed input of one process, in messages of the largest size: a single message that has
not arrived as a whole must not exceed it."""

MIN_TLS_HANDSHAKES = 16
"""TLS handshakes at once that the share of one process always allows, however small the limit of memory."""

_GC_THRESHOLDS = (10_000, 100, 50)
"""Thresholds of the garbage collector. Young objects here are events and effects, which reference counting frees."""


def edge_config(config: BrokerConfig, name: str, incarnation: int) -> EdgeConfig:
    """Return the configuration of each edge of the broker `name`. The limits of queues, subscriptions and input over
    all clients are divided among the I/O processes; those of one client, and rates, are not. Of its share of input
    an edge gets what `unhandled_bytes` leaves, and at least `MIN_INCOMING_MESSAGES` of the largest messages."""
    limits = config.limits
    share = max(1, config.io_processes)
    edge = EdgeConfig(
        cluster=config.cluster,
        broker=name,
        incarnation=incarnation,
        handshake=limits.handshake,
        heartbeat=limits.heartbeat,
        duplicate_window=config.delivery.duplicate_window,
        max_payload=limits.max_payload,
        subscriptions_per_client=limits.subscriptions_per_client,
        queue_per_client=limits.queue_per_client,
        queue_total=limits.queue_total // share,
        subscriptions_total=max(1, limits.subscriptions_total // share),
        batch_delay=config.delivery.batching.max_delay,
        batch_bytes=config.delivery.batching.max_bytes,
        conflation=tuple(ConflationRule(rule.topics, rule.interval) for rule in config.delivery.conflation),
        rates=rate_limits(config),
    )
    room = limits.input_total // share - unhandled_bytes(config)
    return replace(edge, input_total=max(room, MIN_INCOMING_MESSAGES * edge.max_message))


def rate_limits(config: BrokerConfig) -> edge_events.RateLimits:
    """Return the rates of clients, identities and addresses, for each edge. They are not divided among I/O processes:
    each process counts for itself."""

    def rates(section: RatesSection) -> edge_events.Rates:
        return edge_events.Rates(
            section.publications_per_second, section.bytes_per_second, section.subscriptions_per_second
        )

    limits = config.limits
    return edge_events.RateLimits(rates(limits.clients), rates(limits.identities), rates(limits.addresses))


def unhandled_bytes(config: BrokerConfig) -> int:
    """Return the bytes of memory of one process for input that was read from clients and has not had its turn at the
    edge: a quarter of its share of the limit of input. The other three quarters are for input that the edge holds."""
    return config.limits.input_total // 4 // max(1, config.io_processes)


def client_byte_limits(config: BrokerConfig) -> dict[str, int]:
    """Return the bytes of memory that all clients of a broker may take, by kind: the labels of
    `migratory_client_bytes_limit`. Their sum is the most that clients can make the broker hold."""
    limits = config.limits
    return {
        "handshakes": limits.input_total // 2 + tls_handshake_bytes(config),
        "input": limits.input_total,
        "subscriptions": limits.subscriptions_total,
        "publications": MAX_PENDING_BYTES,
        "queues": limits.queue_total,
    }


def tls_handshake_bytes(config: BrokerConfig) -> int:
    """Return the bytes of memory that all TLS handshakes of clients of a broker may take; 0 without TLS. By default
    they are enough for 4,096 handshakes, because a program with thousands of clients begins all of them before it ends
    one, for 195 that sent a part of a message, and for 32 MiB that wait for their turn."""
    return config.limits.input_total if config.tls.clients is not None else 0


def configure_addresses(addresses: AddressLimits, config: BrokerConfig) -> None:
    """Set in `addresses` the limits of connections of each client address, from the configuration."""
    limits = config.limits.addresses
    addresses.configure(limits.connections, limits.connects_per_second, limits.exempt)


def _token_places(config: BrokerConfig) -> TokenPlaces | None:
    """Return where requests may carry tokens; None where no token is accepted."""
    security = config.security
    if security is None or security.tokens is None:
        return None
    return TokenPlaces(security.tokens.in_query)


def _is_anonymous(config: BrokerConfig) -> bool:
    """Return whether no token is needed: there is no `security`, it has no tokens, or it lets clients connect without
    one."""
    security = config.security
    return security is None or security.tokens is None or security.anonymous


def _console(config: BrokerConfig, read: Callable[[], Awaitable[bytes]] | None) -> Console | None:
    """Return the console, or None if it is not configured or there is no status to `read`. Its status needs a token of
    the administration if there are any. With `security` and without such tokens, nobody may read the status."""
    if not config.console or read is None:
        return None
    tokens = config.administration.tokens
    return Console(read, tokens if tokens or config.security is not None else None)


def freeze_heap() -> None:
    """Exempt all present objects from garbage collection, and make collections rarer: these objects live to the end of
    the process, and full collections would stall the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class ClientService:
    """The handshakes, connections and edge of this process. `edge` is None until `start_edge`. `start_connection` takes
    accepted sockets, each with its lease. `servers` are the brokers that `/v1/servers` lists.

    With `certificate` clients connect over TLS; `on_note` writes a log line. `console_status` returns what the console
    shows of the broker; None: there is no console.
    """

    def __init__(
        self,
        config: BrokerConfig,
        name: str,
        pump: Pump,
        clock: Callable[[], float],
        certificate: Certificate | None = None,
        on_note: Callable[[events.Note], object] = lambda note: None,
        console_status: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        origins = config.origins
        share = max(1, config.io_processes)
        self._config = config
        self._name = name
        self._pump = pump
        self._clock = clock
        self.connections = ClientConnections(pump, clock, unhandled_bytes(config))
        self.servers: tuple[Server, ...] = ()
        self.server = ClientServer(
            self.connections,
            OriginPolicy(origins.allowed, origins.hosts, origins.without_origin),
            servers_page(lambda: self.servers),
            clock,
            handshake_limit=config.limits.handshake,
            max_held=config.limits.input_total // 2 // share,
            compression=config.compression,
            max_body=config.limits.max_payload + ENVELOPE,
            heartbeat=config.limits.heartbeat,
            tokens=_token_places(config),
            brokers=(lambda: self.servers) if _is_anonymous(config) and "*" in origins.hosts else None,
            on_note=on_note,
            console=_console(config, console_status),
        )
        if certificate is None:
            self.start_connection = ConnectionStarter(
                self.server.protocol,
                wrap=lambda http, accepted, lease: DeferredHandshake(http, accepted, pump.defer, lease),
            )
        else:  # multicasts cannot go past TLS to the socket
            tls_bytes = tls_handshake_bytes(config) // share
            self.start_connection = ConnectionStarter(
                self.server.protocol,
                tls=lambda: certificate.server,
                tls_timeout=config.limits.handshake,
                max_handshakes=max(MIN_TLS_HANDSHAKES, tls_bytes * 3 // 4 // TLS_HANDSHAKE_BYTES),
                max_partial=max(MIN_TLS_HANDSHAKES, tls_bytes // 8 // TLS_MESSAGE_BYTES),
                max_waiting_bytes=max(MIN_TLS_HANDSHAKES * MAX_WAITING_BYTES, tls_bytes // 8),
                defer=pump.defer,
                on_tls_failure=certificate.refuse,
                wrap=lambda http, accepted, lease: DeferredHandshake(http, None, pump.defer, lease),
            )
        self.edge: Edge | None = None
        self._set_counted_addresses(config)
        self._checks_identity = config.security is not None

    def handlers(self) -> dict[type, Callable[[Any], object]]:
        """Return the functions that carry out the edge's effects on connections, by class of effect, for the pump."""
        return {
            edge_events.Multicast: self.connections.multicaster.multicast,
            edge_events.Send: self.connections.send,
            edge_events.Close: self.connections.close,
            edge_events.Hold: self.connections.hold,
            edge_events.Later: self._later,
        }

    def with_address(self, note: events.Note) -> events.Note:
        """Return the log line with the address of the client that it names, or unchanged if it names none."""
        if not note.connection:
            return note
        return events.Note(note.level, note.event, {**note.fields, "remote": self.connections.remote(note.connection)})

    def edge_status(self) -> dict[str, Any] | None:
        """Return the status of the edge, with the unhandled input added to `input_bytes` and the addresses of the slow
        clients; None before there is an edge."""
        if self.edge is None:
            return None
        status: dict[str, Any] = self.edge.status()
        status["input_bytes"] += self.connections.unhandled.total
        for client in status["slow"]:
            client["remote"] = self.connections.remote(client["connection"])
        return status

    def set_rate_limits(self, config: BrokerConfig) -> None:
        """Apply the changed rates of clients, identities and addresses to all connections, open ones included."""
        self._config = config
        self._set_counted_addresses(config)
        if self.edge is not None:
            addresses = self.connections.counted_addresses()
            self._pump.to_edge(structs.replace(rate_limits(config), addresses=addresses))

    def _set_counted_addresses(self, config: BrokerConfig) -> None:
        """Set which addresses count for rates: none if there is no rate of addresses, else all that are not exempt."""
        is_limited = rate_limits(config).address != edge_events.Rates()
        self.connections.counted = CountedAddresses(config.limits.addresses.exempt) if is_limited else None

    def _later(self, effect: edge_events.Later) -> None:
        """Step a `Later` as an event of the edge when its time has come."""
        delay = max(0.0, effect.at - self._clock())
        asyncio.get_running_loop().call_later(delay, self._pump.to_edge, effect)

    def start_edge(self, incarnation: int, number: int) -> None:
        """Create the edge `number` of the broker, connect it to the pump, and give it its first tick. From now on
        `start_connection` may be called with accepted sockets."""
        security = self._config.security
        authorizer = Authorizer(security_config(security)) if security is not None else None
        self.edge = Edge(edge_config(self._config, self._name, incarnation), number, authorizer)
        self._pump.attach(self.edge)
        self._pump.to_edge(self._tick_event())

    def _tick_event(self) -> events.Tick:
        """Return a `Tick` for the edge, with the wall clock's time if the configuration has security, else with 0."""
        return events.Tick(time.time() if self._checks_identity else 0.0)

    def __len__(self) -> int:
        """Return the number of connections whose handshake is done."""
        return len(self.connections)

    @property
    def load(self) -> int:
        """The number of client connections, including those in their handshake and accepted sockets without a
        protocol."""
        return len(self.connections) + self.server.pending + len(self.start_connection)

    def tick(self, now: float) -> None:
        """Give the edge a tick, and end the connections and handshakes that are over their limit of time. Abort the
        oldest connections if there are more than the limit of descriptors allows: it was lowered."""
        self._pump.to_edge(self._tick_event())
        self.connections.tick(now)
        self.server.tick()
        excess = self.load - connection_capacity()
        if excess > 0:  # the limit was lowered: peers and ZooKeeper need the reserve
            self.connections.abort_oldest(excess)

    def handshake_counts(self) -> dict[str, int]:
        """Return, for /v1/status and /metrics, the numbers of waiting, slow and evicted handshakes, of malformed and
        refused requests, the bytes of the waiting handshakes, the number of TLS handshakes that wait for their turn,
        and the number of connections that were evicted for their input. Those that are not about waiting count from the
        start."""
        tls = self.start_connection
        return {
            "handshakes_waiting": self.server.pending + tls.handshakes,
            "handshake_bytes_waiting": self.server.held + tls.handshake_bytes,
            "tls_handshakes_waiting": tls.waiting_handshakes,
            "handshakes_too_slow": self.server.slow_handshakes,
            "handshakes_evicted": self.server.evicted + tls.evicted,
            "requests_malformed": self.server.malformed,
            "input_evicted": self.connections.evicted,
            **{f"requests_refused_{reason}": self.server.refused[reason] for reason in REFUSAL_REASONS.values()},
        }

    async def wait_until_empty(self) -> None:
        """Wait until all client connections have ended, but at most `CLOSE_WAIT` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT):
                await self.connections.empty.wait()

    async def close(self) -> None:
        """Abort all connections, and close the HTTP server."""
        self.connections.abort_all()
        await self.server.close()


class ClientBackend(Protocol):
    """The interface to the clients of a broker, wherever their sockets are: `LocalClients` or `IoProcessPool`.
    `servers` are the brokers that `/v1/servers` lists, `addresses` the limits of each client address. `tick` is called
    every 100 ms with the monotonic time in seconds. `stop_listening` ends the accepting of clients."""

    servers: tuple[Server, ...]

    def handlers(self) -> dict[type, Callable[[Any], object]]:
        """Return the functions that carry out effects on connections of this process, by class of effect, for the
        pump."""

    def with_address(self, note: events.Note) -> events.Note:
        """Return the edge's log line with the address of the client that it names, or unchanged if it names none."""

    addresses: AddressLimits

    def set_limits(self, config: BrokerConfig) -> None:
        """Apply changed limits: those of the connections of an address to new connections, and rates to all."""

    @property
    def not_ready_reason(self) -> str:
        """The reason for which clients are not accepted yet, "" when they are."""

    def __len__(self) -> int:
        """Return the number of client connections whose handshake is done."""

    def open(self, incarnation: int, listening: socket.socket) -> None:
        """Begin to accept clients on the socket `listening`, once the incarnation of this broker is known."""

    def tick(self, now: float) -> None: ...

    def edge_status(self) -> Mapping[str, Any] | None:
        """Return the status of the edge, or the sum of those of all edges in I/O processes. Return None before the
        broker's own edge exists."""

    def status(self) -> dict[str, Any]:
        """Return the fields of /v1/status that are about clients."""

    def handshake_counts(self) -> dict[str, int]:
        """Return the counters of the handshakes, for /v1/status and /metrics."""

    @property
    def capacity(self) -> int:
        """The number of client connections that the limits of descriptors allow now, open ones included."""

    @property
    def refused(self) -> int:
        """The number of connections so far that were refused because no descriptor was left."""

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of the processes that hold clients' sockets, without the broker's own."""

    def stop_listening(self) -> None: ...

    async def wait_until_empty(self) -> None:
        """Wait until all client connections have ended, but at most `CLOSE_WAIT` seconds. Call this after the edges
        were told to close them."""

    async def close(self) -> None:
        """Abort the remaining connections and end what serves them."""


class LocalClients(ClientService):
    """The clients of a broker without I/O processes: they are served in the broker's own process. `log` gets the log
    lines of clients and of their listener."""

    def __init__(
        self,
        config: BrokerConfig,
        name: str,
        pump: Pump,
        clock: Callable[[], float],
        log: Log,
        certificate: Certificate | None = None,
        console_status: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        super().__init__(
            config,
            name,
            pump,
            clock,
            certificate,
            lambda note: log(note.level, note.event, **note.fields),
            console_status,
        )
        self._clock = clock
        self._log = log
        self._acceptor: Acceptor | None = None
        self.addresses = AddressLimits(clock)
        configure_addresses(self.addresses, config)

    @property
    def not_ready_reason(self) -> str:
        return "" if self.edge is not None else "starting"

    def open(self, incarnation: int, listening: socket.socket) -> None:
        self.start_edge(incarnation, 0)
        self._acceptor = Acceptor(
            listening,
            self.start_connection,
            self._log,
            rate=AcceptRate(self._config.limits.connects_per_second, self._clock),
            room=lambda: connection_capacity() - self.load,
            addresses=self.addresses,
        )

    def set_limits(self, config: BrokerConfig) -> None:
        configure_addresses(self.addresses, config)
        self.set_rate_limits(config)

    pids: Sequence[int] = ()

    @property
    def capacity(self) -> int:
        return connection_capacity()

    @property
    def refused(self) -> int:
        return self._acceptor.refused if self._acceptor is not None else 0

    def status(self) -> dict[str, Any]:
        return {**self.handshake_counts(), "connections_refused": self.refused, "edge": self.edge_status()}

    def stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
