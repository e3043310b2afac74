"""One broker's process: bind the addresses, find ZooKeeper, run the cores, drain the clients, shut down.

The order matters. Addresses are bound first, because they are announced to others. The edge and the links to other
brokers start once the logic knows the broker's incarnation. Every wait has a limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
import uvloop
from migratory_compiled import activate

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic import events
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.logic import Logic
from migratory_broker.core.logic.status import describe_logic
from migratory_broker.runtime.accepting.limits import NEEDED_DESCRIPTORS, check_descriptors, descriptor_limit
from migratory_broker.runtime.accepting.listener import Acceptor, Listener, address_of, bind, listen
from migratory_broker.runtime.admin.metrics import BrokerMetrics, MemoryReader, metric_values
from migratory_broker.runtime.admin.server import MAX_ADMIN, AdminServer, health_page, readiness_page, status_page
from migratory_broker.runtime.clients.console import CachedStatus
from migratory_broker.runtime.clients.server import REFUSAL_REASONS, servers_page
from migratory_broker.runtime.clients.service import ClientBackend, LocalClients, client_byte_limits, freeze_heap
from migratory_broker.runtime.config import BrokerConfig, Identity, check_identity, split_address
from migratory_broker.runtime.config_reload import ConfigReloader
from migratory_broker.runtime.errors import EXIT_FAILED, BrokerError, ListenError, ZooKeeperError
from migratory_broker.runtime.io_processes.pool import IoProcessPool
from migratory_broker.runtime.logs import LibraryLog, Log
from migratory_broker.runtime.peers.links import HELLO_LIMIT, MAX_TLS_HANDSHAKES, PeerLinks
from migratory_broker.runtime.pump import Pump
from migratory_broker.runtime.security.credentials import CredentialStore
from migratory_broker.runtime.tls import Certificate, Purpose
from migratory_broker.runtime.watchdog import LATE_TICK, Watchdog, stall_limit
from migratory_broker.runtime.zookeeper import ZooKeeper, ZooKeeperCredentials

TICK = 0.1
"""Seconds between two ticks of the cores."""

ZOOKEEPER_STOP_TIMEOUT = 3.0
"""Seconds to wait for the end of the ZooKeeper session; after that it expires by itself."""

PEER_BUFFER = 67_108_864
"""Bytes that may wait for a peer, in addition to twice the cache and four publications of the largest size."""


def logic_config(config: BrokerConfig, name: str, url: str, peer: str, revision: str = "") -> LogicConfig:
    """Return the logic's configuration, from the content of the file, the broker's name, the addresses that it
    announces to clients (`url`) and brokers (`peer`), and its revision."""
    cache = config.topics.cache
    return LogicConfig(
        cluster=config.cluster,
        name=name,
        brokers=config.brokers,
        url=url,
        peer=peer,
        weight=config.weight(name),
        revision=revision,
        groups=config.topics.groups,
        max_topics=config.topics.max_topics,
        topic_idle_timeout=config.topics.idle_timeout,
        topics_per_client=config.limits.topics_per_client,
        messages_per_topic=cache.messages_per_topic,
        min_age=cache.min_age,
        max_age=cache.max_age,
        max_bytes=cache.max_bytes,
        min_copies=config.delivery.min_copies,
        duplicate_window=config.delivery.duplicate_window,
        on_history_loss=config.delivery.on_history_loss,
        session_timeout=config.zookeeper.session_timeout,
    )


def names_of_host(address: str) -> list[str]:
    """Return the names by which the host in HOST:PORT may be addressed: `a`, `a.b` and `a.b.c` for `a.b.c`. Return an
    empty list for an IP address. Raises ConfigError for another form than HOST:PORT."""
    host, _ = split_address(address, "address")
    labels = host.split(".")
    return [] if ":" in host or labels[-1].isdigit() else [".".join(labels[: end + 1]) for end in range(len(labels))]


class Broker:
    """A broker process. `await run()` runs it to its end and returns the exit code; it raises BrokerError when the
    broker cannot start. `source` is the file of the configuration, which is checked for changes; None: no file is
    checked."""

    def __init__(self, config: BrokerConfig, identity: Identity, log: Log, source: Path | None = None) -> None:
        self._config = config
        self._identity = identity
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._listeners: list[Acceptor] = []
        self._opened = False
        self._admission = events.Admission(False, "learning")
        self._drain_until: float | None = None
        self._abrupt = False
        self._reloader = (
            ConfigReloader(source, config, identity.name, log, self._reconfigure) if source is not None else None
        )
        self._next_tick = 0.0
        self._late_ticks = 0
        self._longest_stall = 0.0
        self._descriptor_limit = descriptor_limit()
        self._started = time.monotonic()

    async def run(self) -> int:
        """Run the broker to its end, and return the exit code. Raises BrokerError when it cannot start."""
        check_descriptors()
        sockets = self._bind()
        try:
            self._build(*sockets)
            return await self._serve()
        finally:
            for listening in sockets:
                listening.close()

    # ---- start ----------------------------------------------------------------------------------------------------

    def _bind(self) -> tuple[socket.socket, socket.socket, socket.socket]:
        """Return sockets that are bound to the addresses for clients, peers and administration. Raises ListenError."""
        identity = self._identity
        bound: list[socket.socket] = []
        try:
            for purpose, address in (
                ("clients", identity.clients),
                ("peers", identity.peers),
                ("administration", identity.admin),
            ):
                bound.append(bind(*split_address(address, purpose), purpose))
        except BaseException:
            for listening in bound:
                listening.close()
            raise
        return bound[0], bound[1], bound[2]

    def _build(self, clients: socket.socket, peers: socket.socket, administration: socket.socket) -> None:
        """Create the parts of the broker and connect them, and begin to serve the administration. Clients and peers are
        accepted later. Raises BrokerError for certificates, credentials or an address that cannot be used."""
        config, name, log = self._config, self._identity.name, self._log
        clock = time.monotonic
        self._certificates: dict[Purpose, Certificate] = {}
        for purpose in get_args(Purpose):
            if (files := getattr(config.tls, purpose)) is not None:
                self._certificates[purpose] = Certificate(purpose, files, name, log)
        scheme = "wss" if config.tls.clients is not None else "ws"
        url = self._identity.advertise_url or f"{scheme}://{address_of(clients)}/ws"
        peer = self._identity.advertise_peer or address_of(peers)
        self._client_socket, self._peer_socket = clients, peers
        self._logic = Logic(logic_config(config, name, url, peer, self._identity.revision))
        self._pump = Pump(self._logic, self._loop.call_soon, clock, self._on_core_failure)
        self._peers = PeerLinks(
            cluster=config.cluster,
            name=name,
            brokers=config.brokers,
            groups=config.topics.groups,
            pump=self._pump,
            log=log,
            clock=clock,
            max_buffer=PEER_BUFFER + 2 * config.topics.cache.max_bytes + 4 * config.limits.max_payload,
            certificate=self._certificates.get("peers"),
        )
        self._zookeeper = ZooKeeper(
            config.zookeeper.servers,
            config.zookeeper.path or f"/migratory/{config.cluster}",
            config.zookeeper.session_timeout,
            self._pump.to_logic,
            log,
            ZooKeeperCredentials.load(credentials)
            if (credentials := config.zookeeper.credentials) is not None
            else None,
            self._certificates.get("zookeeper"),
        )
        self._metrics = BrokerMetrics(config.cluster, name, self._metric_values)
        self._memory = MemoryReader(clock)
        self._credentials = self._credential_store()
        self._console_status = CachedStatus(self._status, clock)
        self._clients = self._client_backend()
        pages = {
            "/healthz": health_page,
            "/readyz": readiness_page(self._not_ready_reason),
            "/metrics": self._metrics.page,
            "/v1/status": status_page(self._status),
            "/v1/servers": servers_page(lambda: self._clients.servers),
        }
        self._admin_server = AdminServer(
            pages, clock, log, tokens=config.administration.tokens, hosts=(*config.origins.hosts, *names_of_host(peer))
        )
        self._pump.set_handlers(
            {
                events.ZkGet: self._zookeeper.get,
                events.ZkChildren: self._zookeeper.children,
                events.ZkCommit: self._zookeeper.commit,
                events.ConnectPeers: self._peers.connect,
                events.SendPeer: self._peers.send,
                events.RefusePeer: self._peers.refuse_peer,
                events.Observe: self._metrics.observe,
                events.Note: self._note,
                events.Stop: self._stop,
                events.Admission: self._update_admission,
                events.ServerList: self._update_servers,
                edge_events.KeysNeeded: self._request_keys,
                **self._clients.handlers(),
            }
        )
        if self._credentials is not None:
            self._credentials.load()
        own = self._certificates.get("administration")
        self._listeners.append(
            Listener(
                listen(administration, "administration"),
                self._admin_server.protocol,
                log,
                serve_on_spare=True,
                tls=(lambda: own.server) if own is not None else None,
                tls_timeout=HELLO_LIMIT,
                max_handshakes=MAX_ADMIN,
                on_tls_failure=own.refuse if own is not None else lambda host, error: None,
            )
        )
        log(
            "info",
            "listening",
            clients=address_of(clients),
            peers=address_of(peers),
            admin=address_of(administration),
            url=url,
        )

    def _credential_store(self) -> CredentialStore | None:
        """Return the source of keys and revocations, None where no tokens are configured."""
        security = self._config.security
        if security is None or security.tokens is None:
            return None
        return CredentialStore(security.tokens, time.monotonic, self._log, self._pump.to_edge)

    def _request_keys(self, _: edge_events.KeysNeeded) -> None:
        if self._credentials is not None:
            self._credentials.request()

    def _client_backend(self) -> ClientBackend:
        """Return the clients of the broker: in this process, or in I/O processes if the configuration has any."""
        config, name, clock = self._config, self._identity.name, time.monotonic
        if not config.io_processes:
            certificate = self._certificates.get("clients")
            return LocalClients(config, name, self._pump, clock, self._log, certificate, self._console_status.read)
        return IoProcessPool(
            config,
            name,
            self._pump,
            clock,
            self._log,
            self._log.level,
            self._logic.config.fencing,
            self._metrics.observe,
            on_keys_needed=self._request_keys,
            console_status=self._console_status.get,
        )

    # ---- run -------------------------------------------------------------------------------------------------------

    async def _serve(self) -> int:
        """Start the logic, connect to ZooKeeper, run until the broker ends, and shut down. Return the exit code. Raises
        ZooKeeperError if there is no session within `zookeeper.startTimeout`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        logic = self._logic.config
        # Before the session: from then on, others wait for this process.
        Watchdog(stall_limit(logic.session_timeout, logic.fencing), self._log)
        wall_ms = max(1, int(time.time() * 1000))  # a clock before 1970: messages carry no negative time
        self._pump.to_logic(events.Start(wall_ms, random.SystemRandom().getrandbits(63)))
        self._zookeeper.start()
        self._next_tick = time.monotonic() + TICK
        self._loop.call_later(TICK, self._tick)
        try:
            await self._wait_for_zookeeper()
            code = await self._ended
        finally:
            await self._shut_down()
        return code

    async def _wait_for_zookeeper(self) -> None:
        """Wait until the first session of ZooKeeper, or the end of the broker. Raises ZooKeeperError after
        `zookeeper.startTimeout` seconds."""
        limit = self._config.zookeeper.start_timeout
        connected = self._loop.create_task(self._zookeeper.first_connected.wait())
        waiting: set[asyncio.Future[Any]] = {connected, self._ended}
        await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        connected.cancel()
        if self._zookeeper.first_connected.is_set() or self._ended.done():
            return
        if denied := self._zookeeper.denied:
            raise ZooKeeperError(
                f"ZooKeeper at {self._config.zookeeper.servers} denied access to {denied} for {limit:g} s: the nodes "
                "of this cluster belong to other credentials (zookeeper.credentials)"
            )
        raise ZooKeeperError(
            f"no ZooKeeper answered at {self._config.zookeeper.servers} within {limit:g} s "
            "(zookeeper.servers, zookeeper.startTimeout)"
        )

    def _tick(self) -> None:
        """Do everything that is due by time: ticks of all parts, checks of files and limits, opening for clients and
        peers once the incarnation is known, and the end of a drain."""
        now = time.monotonic()
        if self._ended.done():
            return
        late = now - self._next_tick
        if late > LATE_TICK:
            self._late_ticks += 1
            self._longest_stall = max(self._longest_stall, late)
            self._metrics.observe(events.Observe("migratory_loop_stalls_total"))
            self._log("warning", "loop_stalled", seconds=round(late, 3))
        self._next_tick = now + TICK
        self._loop.call_later(TICK, self._tick)
        self._pump.to_logic(events.Tick())
        self._peers.tick(now)
        self._clients.tick(now)
        self._admin_server.tick()
        self._check_descriptor_limit()
        if self._credentials is not None:
            self._credentials.tick(now)
        if self._reloader is not None:
            self._reloader.tick(now)
        for certificate in self._certificates.values():
            certificate.tick(now)
        if not self._opened and self._logic.incarnation:
            try:
                self._open(self._logic.incarnation)
            except ListenError as error:
                self._finish(error.code, str(error))
        if self._drain_until is not None and (now >= self._drain_until or self._drained()):
            self._finish(0, "drained")

    def _check_descriptor_limit(self) -> None:
        """Log a change of the limit of descriptors."""
        limit = descriptor_limit()
        if limit != self._descriptor_limit:
            level = "error" if limit < NEEDED_DESCRIPTORS else "warning"
            self._log(
                level,
                "descriptor_limit_changed",
                limit=limit,
                before=self._descriptor_limit,
                needed=NEEDED_DESCRIPTORS,
                capacity=self._clients.capacity,
            )
            self._descriptor_limit = limit

    def _open(self, incarnation: int) -> None:
        """Begin to accept peers and clients: the incarnation of this broker is known. Raises ListenError."""
        self._opened = True
        self._peers.start(incarnation)
        peers = self._certificates.get("peers")
        self._listeners.append(
            Listener(
                listen(self._peer_socket, "peers"),
                self._peers.protocol,
                self._log,
                refusal=b"",
                tls=(lambda: peers.server) if peers is not None else None,
                tls_timeout=HELLO_LIMIT,
                max_handshakes=MAX_TLS_HANDSHAKES,
                on_tls_failure=peers.refuse if peers is not None else lambda host, error: None,
            )
        )
        self._clients.open(incarnation, listen(self._client_socket, "clients"))
        self._log("info", "started", incarnation=incarnation)
        freeze_heap()

    # ---- shutdown--------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """Begin to drain, at the first signal; at a second one end at once with exit code 1."""
        if self._drain_until is not None or self._ended.done():
            self._abrupt = True
            self._log("warning", "second_signal", signal=signal.Signals(number).name)
            self._finish(EXIT_FAILED, "second signal")
            return
        period = self._config.drain.period
        self._log("info", "draining", signal=signal.Signals(number).name, period=period)
        self._drain_until = time.monotonic() + period
        self._pump.to_logic(events.DrainRequest(period))

    def _drained(self) -> bool:
        """Return whether all groups are handed over and no client is connected."""
        return self._logic.drained and not len(self._clients)

    def _finish(self, code: int, reason: str) -> None:
        """End the broker with an exit code; only the first call counts."""
        if not self._ended.done():
            self._log("info" if code == 0 else "error", "stopping", reason=reason, code=code)
            self._ended.set_result(code)

    def _on_core_failure(self, error: Exception) -> None:
        """Log the exception with which a core broke an invariant, and end the broker with exit code 1."""
        self._log(
            "error",
            "invariant_violated",
            error=repr(error),
            trace=traceback.format_exception(error),
        )
        self._abrupt = True
        self._finish(EXIT_FAILED, "a core broke an invariant")

    async def _shut_down(self) -> None:
        """Close listeners, clients, links and the ZooKeeper session, in a few seconds at most."""
        for listener in self._listeners:
            listener.close()
        self._clients.stop_listening()
        if self._opened and not self._pump.stopped:
            # I/O processes have their own clocks: the drain may end here while it still runs there
            drained = self._drain_until is not None
            self._pump.to_edge(events.Admission(False, "drained" if drained else "stopping"))
            await self._clients.wait_until_empty()
        self._pump.stopped = True
        await self._clients.close()
        if self._credentials is not None:
            await self._credentials.close()
        await self._peers.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._admin_server.close()
        if not await self._zookeeper.stop(0.5 if self._abrupt else ZOOKEEPER_STOP_TIMEOUT):
            self._log("warning", "zookeeper_session_not_closed")

    def _reconfigure(self, config: BrokerConfig) -> None:
        """Apply the parts of a changed configuration that a running broker can change: limits, ZooKeeper's servers,
        brokers and the own weight."""
        before, self._config = self._config, config
        if config.limits != before.limits:
            self._clients.set_limits(config)
        if config.limits.addresses != before.limits.addresses:
            self._log("info", "address_limits_configured", **msgspec.to_builtins(config.limits.addresses))
        rates = {"clients": config.limits.clients, "identities": config.limits.identities}
        if rates != {"clients": before.limits.clients, "identities": before.limits.identities}:
            self._log("info", "rate_limits_configured", **msgspec.to_builtins(rates))
        if config.zookeeper.servers != before.zookeeper.servers:
            self._zookeeper.set_servers(config.zookeeper.servers)
            self._log("info", "zookeeper_servers_configured", servers=config.zookeeper.servers)
        if (config.brokers, config.leaving) != (before.brokers, before.leaving):
            self._peers.set_brokers(config.brokers)  # brokers that leave keep their links to the end
            self._pump.to_logic(events.BrokersConfigured(config.staying(self._identity.name)))
        if (weight := config.weight(self._identity.name)) != before.weight(self._identity.name):
            self._pump.to_logic(events.WeightConfigured(weight))

    # ---- effects of the logic --------------------------------------------------------------------------------------

    def _note(self, effect: events.Note) -> None:
        """Write a log line of a core, with the address of the client that it names."""
        note = self._clients.with_address(effect)
        self._log(note.level, note.event, **note.fields)

    def _stop(self, effect: events.Stop) -> None:
        """End the process at once, with the exit code that the logic demands: no event is handled any more."""
        self._pump.stopped = True
        self._abrupt = True
        self._finish(effect.code, effect.reason)

    def _update_admission(self, effect: events.Admission) -> None:
        self._admission = effect
        self._pump.step_edge(effect)

    def _update_servers(self, effect: events.ServerList) -> None:
        self._clients.servers = effect.servers
        self._pump.step_edge(effect)

    # ---- status ----------------------------------------------------------------------------------------------------

    def _not_ready_reason(self) -> str:
        """Return why this broker accepts no clients, "" if it accepts them."""
        if self._drain_until is not None or self._ended.done():
            return "draining"
        reason = self._clients.not_ready_reason
        if not reason and not self._admission.open:
            reason = self._admission.reason or "closed"
        return "zookeeper_access_denied" if reason and self._zookeeper.denied else reason

    def _metric_values(self) -> Mapping[str, Any]:
        """Return the values of the metrics that the parts of the broker keep, by name of the metric."""
        handshakes = self._clients.handshake_counts()
        return metric_values(
            describe_logic(self._logic),
            self._clients.edge_status(),
            memory=self._memory.total(self._clients.pids),
            longest_stall=self._longest_stall,
            capacity=self._clients.capacity,
            refused=self._refused(self._clients.refused),
            peer_refusals=self._peers.refusals,
            credential_sources_failing=len(self._credentials.failing) if self._credentials is not None else 0,
            handshake_bytes=handshakes["handshake_bytes_waiting"],
            tls_handshakes_waiting=handshakes["tls_handshakes_waiting"],
            byte_limits=client_byte_limits(self._config),
            refusals={
                "descriptors": self._refused(self._clients.refused),
                "handshakes_total": handshakes["handshakes_evicted"],
                "input_total": handshakes["input_evicted"],
                **self._clients.addresses.refused,
            },
            requests_refused={reason: handshakes[f"requests_refused_{reason}"] for reason in REFUSAL_REASONS.values()},
            certificates=self._certificates,
            administration_refused=self._admin_server.refused,
            zookeeper_denials=self._zookeeper.denials,
        )

    def _refused(self, clients: int) -> int:
        """Return the number of connections that all listeners refused for want of descriptors. `clients` is the number
        of the clients' listener."""
        return clients + sum(listener.refused for listener in self._listeners)

    def _status(self) -> Mapping[str, object]:
        """Return the content of /v1/status."""
        clients = self._clients.status()
        return {
            "cluster": self._config.cluster,
            "broker": self._identity.name,
            "staying": self._config.staying(self._identity.name),
            "pid": os.getpid(),
            "cores": activate(),
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "ready": not self._not_ready_reason(),
            "reason": self._not_ready_reason(),
            "zookeeper_connected": self._zookeeper.connected,
            "zookeeper_denied": self._zookeeper.denied,
            "late_ticks": self._late_ticks,
            "memory_bytes": self._memory.total(self._clients.pids),
            **clients,
            "requests_malformed": clients["requests_malformed"] + self._admin_server.malformed,
            "connections_refused": self._refused(clients["connections_refused"]),
            "admin_connections_crowded_out": self._admin_server.evicted,
            "peer_links": self._peers.status(),
            "servers": [{"url": server.url, "weight": server.weight} for server in self._clients.servers],
            "logic": describe_logic(self._logic),
        }


def run(config: BrokerConfig, identity: Identity, level: str = "info", source: Path | None = None) -> int:
    """Run one broker until it is stopped. Return its exit code (errors.py), also when it cannot start: the reason is
    logged then. Raises ConfigError for an `identity` that is not valid.

    :param level: the level of the log.
    :param source: the file of `config`, which is checked for changes (config_reload.py). None: no file is checked.
    """
    check_identity(config, identity)
    log = Log(level=level, common={"cluster": config.cluster, "broker": identity.name})
    library = LibraryLog(log)
    logging.getLogger().addHandler(library)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(config, identity, log, source))
    except BrokerError as error:
        log("error", "start_failed", reason=str(error), code=error.code)
        return error.code
    finally:
        logging.getLogger().removeHandler(library)
        log.close()


async def _run(config: BrokerConfig, identity: Identity, log: Log, source: Path | None) -> int:
    return await Broker(config, identity, log, source).run()
