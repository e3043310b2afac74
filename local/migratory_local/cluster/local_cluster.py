"""Runs a cluster on this machine: ZooKeeper members, brokers, and a supervisor that starts them again when they end.

    cluster = LocalCluster(resource, workdir)
    await cluster.start()          # every broker is ready
    cluster.kill_broker("quotes-broker-1")
    await cluster.stop()           # every process has ended

A broker that was drained, for which the file drained/NAME exists, is not started again.

Work folder: broker.json, zookeeper-N/, zookeeper.password, administration.token, tls/, logs/NAME.log, drained/NAME,
lock. ZooKeeper starts empty each time: topic histories are in the brokers' memory, so nothing that ZooKeeper stores is
of use after the brokers have ended.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Self

import msgspec
from migratory_resources import MigratoryCluster
from migratory_resources.cluster.identity import ZooKeeperUserSpec
from migratory_resources.cluster.spec import AdministrationSpec
from migratory_resources.cluster.tls import CertificateFiles, FileSource, TlsSpec

from migratory_local import LocalError
from migratory_local.cluster.brokers import MIGRATORY_COMMAND, BrokerPorts, LocalBroker, wait_ready, write_config
from migratory_local.cluster.state import (
    DRAINED_FOLDER,
    BrokerState,
    ClusterState,
    WorkdirLock,
    own_start_time,
    write_secret,
)
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperMember, ZooKeeperTls
from migratory_local.metrics.exposition import SeriesTable
from migratory_local.processes.java import Java, find_java
from migratory_local.processes.network import (
    LOCAL_PLACEMENT,
    HttpClient,
    Placement,
    check_free,
    claim,
    free_ports,
    is_free,
)
from migratory_local.processes.preflight import check_disk_space, check_platform
from migratory_local.processes.process import Process, stop_all
from migratory_local.processes.supervisor import Supervisor, SupervisorEvent

FIRST_CLIENT_PORT = 8800
"""The port of the first broker's clients, if it is free. `migratory pub` and `sub` try it by default."""
READY_SECONDS = 60.0
"""Seconds for a broker to join: bootstrap waits up to 5 s for all brokers, a new history after a loss 3 sessions."""
_REQUEST_TIMEOUT = 2.0
"""Seconds for an HTTP answer of a broker, which may be frozen."""
_GRACE_SECONDS = 3.0
"""Seconds for brokers to end after SIGTERM, without a drain."""
_ADMIN_OFFSET, _PEERS_OFFSET, _ZOOKEEPER_OFFSET = 100, 200, 300
"""Offsets of the other ports from --ports BASE. A cluster has up to 99 brokers and 5 ZooKeeper members."""


def _with_zookeeper_user(resource: MigratoryCluster, password_file: Path) -> MigratoryCluster:
    """Return the resource with `password_file` as that of ZooKeeper's user, if the resource names a user without a
    file. If it names no user and secures anything else (tokens, rules, administration or TLS), also add a user.
    Otherwise return it unchanged."""
    security = resource.spec.security
    user = security.zookeeper
    if user is None:
        if not (security.tokens or security.rules or security.administration.tokens or security.tls != TlsSpec()):
            return resource
        user = ZooKeeperUserSpec()
    if user.password_file is None:
        user = user.model_copy(update={"password_file": str(password_file)})
    security = security.model_copy(update={"zookeeper": user})
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"security": security})})


def _certificates(folder: Path) -> CertificateFiles:
    """Return the certificate files that `write_certificates` writes into this folder for brokers. `{broker}` in a name
    stands for the name of each broker."""
    return CertificateFiles(
        cert=str(folder / "{broker}.crt"), key=str(folder / "{broker}.key"), ca=str(folder / "ca.crt")
    )


def _with_tls(resource: MigratoryCluster, folder: Path) -> MigratoryCluster:
    """Return the resource with the certificates in this folder for clients, peers and administration, one for each
    broker."""
    source = FileSource(files=_certificates(folder))
    return _with_security(resource, tls=TlsSpec(clients=source, peers=source, administration=source))


def _with_token(resource: MigratoryCluster, token: str) -> MigratoryCluster:
    """Return the resource with one more token that the brokers' administration accepts, stored as its hash."""
    tokens = [*resource.spec.security.administration.tokens, sha256(token.encode()).hexdigest()]
    return _with_security(resource, administration=AdministrationSpec(tokens=tokens))


def _with_security(resource: MigratoryCluster, **fields: object) -> MigratoryCluster:
    """Return a copy of the resource with these fields of `spec.security` replaced."""
    security = resource.spec.security.model_copy(update=fields)
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"security": security})})


class LocalCluster:
    """A cluster that runs as processes of this machine. A subclass may place its processes in other networks.

    :param resource: the cluster's resource, as read from a file.
    :param workdir: the folder for configuration, logs and data.
    :param ports: the first client port; administration, peers and ZooKeeper follow 100, 200 and 300 above it. By
        default clients' ports begin at 8800 if those are free, and all others are any free ports.
    :param on_event: called with each event of the supervisor, such as a process that ended or was started again.
    :param java: the Java runtime; by default the first suitable one that `find_java` returns.
    :param broker_command: the command that runs a broker, without the word `broker`.
    :param dev_tls: True to make certificates in the work folder, for all listeners and ZooKeeper, instead of those of
        the resource.
    """

    ready_seconds: ClassVar[float] = READY_SECONDS
    """Seconds that `start` waits for the ZooKeeper members, and then again for the brokers."""

    def __init__(
        self,
        resource: MigratoryCluster,
        workdir: Path,
        *,
        ports: int | None = None,
        on_event: Callable[[SupervisorEvent], None] = lambda _: None,
        java: Java | None = None,
        broker_command: Sequence[str] = MIGRATORY_COMMAND,
        dev_tls: bool = False,
    ) -> None:
        self.workdir = workdir.absolute()
        self.authority = self.workdir / "tls" / "ca.crt" if dev_tls else None
        self.zookeeper_password = self.workdir / "zookeeper.password"
        self.resource = _with_zookeeper_user(
            _with_tls(resource, self.workdir / "tls") if dev_tls else resource, self.zookeeper_password
        )
        self._token = ""
        if resource.spec.security.administration.tokens:
            # the resource knows hashes only, and this runner and its commands read status pages as well
            self._token = secrets.token_urlsafe(32)
            self.resource = _with_token(self.resource, self._token)
        self.http = HttpClient(_REQUEST_TIMEOUT, self._token)
        self.brokers: list[LocalBroker] = []
        self.supervisor = Supervisor(on_event)
        self._ports = ports
        self._java = java
        self._command = broker_command
        self._lock = WorkdirLock(self.workdir)
        self._ensemble: ZooKeeperEnsemble | None = None
        self._others: list[Process] = []
        self._claims: list[socket.socket] = []
        self._supervision: asyncio.Task[None] | None = None

    # ---- start and stop -----------------------------------------------------------------------------------------

    async def start(self, on_step: Callable[[str], None] = lambda _: None) -> None:
        """Start ZooKeeper and the brokers, wait until every broker is ready, and then supervise all processes. If that
        fails or is cancelled, end what was started.

        :param on_step: shows a line of progress.
        :raises LocalError: the cluster cannot start.
        """
        try:
            await self._start(on_step)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all processes, and release the ports and the work folder. Brokers get no time for a drain: there is no
        other broker to which clients could move. Harmless if nothing was started."""
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
            self._supervision = None
        await self.http.close()
        for broker in self.brokers:  # the SIGTERM that follows is the second signal, which skips the drain
            broker.process.signal(signal.SIGINT)
        processes = [*(broker.process for broker in self.brokers), *self._others]
        await asyncio.to_thread(stop_all, processes, _GRACE_SECONDS)
        if self._ensemble is not None:
            await asyncio.to_thread(self._ensemble.stop)
        self._release_claims()
        self._lock.release()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self, on_step: Callable[[str], None]) -> None:
        """Do the work of `start`: check the machine, lock and clear the work folder, choose ports, write all files,
        start the processes in order, and wait for each kind.

        :raises LocalError: the cluster cannot start. What was started runs on; the caller ends it.
        """
        check_platform()
        spec = self.resource.spec
        check_disk_space(self.workdir, spec.zookeeper.replicas)
        java = self._java or await asyncio.to_thread(find_java)
        if not self.workdir.exists():
            # No cluster runs in this folder, so a port in use is found before the folder is made.
            self._check_ports()
        self._lock.acquire()
        self.clear_workdir()
        ports = self._choose_ports(on_step)
        started_at = time.monotonic()
        placements = [self.placement(f"zookeeper-{number}") for number in range(spec.zookeeper.replicas)]
        authority = self.authority
        ensemble = ZooKeeperEnsemble(
            self.workdir,
            spec.zookeeper.replicas,
            java=java,
            first_port=None if self._ports is None else self._ports + _ZOOKEEPER_OFFSET,
            placements=placements,
            tls=None if authority is None else ZooKeeperTls(authority.with_name("zookeeper.pem"), authority),
        )
        self._ensemble = ensemble
        zookeeper_tls = None
        if authority is not None:
            # needs a library of its own, and only here
            from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates

            folder, brokers = authority.parent, self.resource.broker_names
            members = sorted({placement.address for placement in placements})
            write_certificates(folder, DevelopmentAuthority(), brokers, LOCAL_PLACEMENT.address, members)
            zookeeper_tls = _certificates(folder)
        user = spec.security.zookeeper
        if user is not None and user.password_file == str(self.zookeeper_password):
            write_secret(self.zookeeper_password, secrets.token_urlsafe(32))
        config = write_config(self.resource, ensemble.servers, self.workdir, zookeeper_tls)
        if self._token:
            write_secret(self.token_file, self._token)
        scheme = "wss" if spec.security.tls.clients is not None else "ws"
        self.brokers = [
            LocalBroker(
                name,
                own,
                config,
                self.workdir / "logs",
                self._command,
                self.placement(name),
                scheme,
                self._admin_scheme,
            )
            for name, own in zip(self.resource.broker_names, ports, strict=True)
        ]
        on_step(f"Starting {_plural(spec.zookeeper.replicas, 'ZooKeeper member')} and {_plural(len(ports), 'broker')}")
        ensemble.start()
        await asyncio.to_thread(ensemble.wait_ready, self.ready_seconds)
        on_step(f"ZooKeeper is up: {ensemble.servers} ({time.monotonic() - started_at:.1f} s)")
        for broker in self.brokers:
            broker.process.start()
        await wait_ready(self.brokers, self.http, self.ready_seconds)
        ready = f"{_plural(len(self.brokers), 'broker')} {'is' if len(self.brokers) == 1 else 'are'} ready"
        on_step(f"{ready} ({time.monotonic() - started_at:.1f} s)")
        for broker in self.brokers:
            self.supervisor.watch(
                broker.process, self.workdir / DRAINED_FOLDER / broker.name, partial(broker.is_alive, self.http)
            )
        for process in [*self._others, *ensemble.processes]:
            self.supervisor.watch(process, self.workdir / DRAINED_FOLDER / process.name)
        self._supervision = asyncio.create_task(self.supervisor.run(), name="supervisor")

    def placement(self, name: str) -> Placement:
        """Return the network in which the broker or ZooKeeper member of this name runs: this machine's loopback
        address, unless a subclass overrides this."""
        return LOCAL_PLACEMENT

    def clear_workdir(self) -> None:
        """Remove logs, drained files and ZooKeeper data of an earlier run from the work folder. Called before anything
        is started.

        :raises LocalError: they cannot be removed.
        """
        try:
            for old in [self.workdir / "logs", self.workdir / DRAINED_FOLDER, *self.workdir.glob("zookeeper-*")]:
                if old.exists():
                    shutil.rmtree(old)
        except OSError as error:
            raise LocalError(f"cannot clear {self.workdir}: {error}") from error

    def check(self) -> None:
        """Raise the exception that ended the supervision, if there is one: then ended processes are not started again
        any more."""
        if self._supervision is not None and self._supervision.done() and not self._supervision.cancelled():
            self._supervision.result()

    def add(self, process: Process) -> None:
        """Start one more process and supervise it. `stop` ends it. Raise LocalError if it cannot be started."""
        process.start()
        self._others.append(process)
        self.supervisor.watch(process)

    # ---- parts --------------------------------------------------------------------------------------------------

    @property
    def ensemble(self) -> ZooKeeperEnsemble:
        """The ZooKeeper ensemble. Raise LocalError before `start`."""
        if self._ensemble is None:
            raise LocalError("the cluster is not running: start it first")
        return self._ensemble

    @property
    def processes(self) -> list[Process]:
        members = self._ensemble.processes if self._ensemble is not None else []
        return [*(broker.process for broker in self.brokers), *self._others, *members]

    @property
    def token_file(self) -> Path:
        """The path of the file with the token for the brokers' status pages. The file exists only if they need one."""
        return self.workdir / "administration.token"

    @property
    def _admin_scheme(self) -> str:
        return "https" if self.resource.spec.security.tls.administration is not None else "http"

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def broker(self, name: str) -> LocalBroker:
        """Return the broker of this name.

        :raises LocalError: the cluster has no such broker.
        """
        for broker in self.brokers:
            if broker.name == name:
                return broker
        raise LocalError(
            f"there is no broker {name!r}; the cluster has {', '.join(broker.name for broker in self.brokers)}"
        )

    def state(self, metrics: str = "") -> ClusterState:
        """Return the content of the cluster's state file, which other commands read. Raise LocalError before `start`.

        :param metrics: the folder or URL of the cluster's recorded metrics, "" for none.
        """
        return ClusterState(
            name=self.resource.name,
            pid=os.getpid(),
            started=own_start_time(),
            workdir=str(self.workdir),
            zookeeper=self.ensemble.servers,
            brokers=[BrokerState(broker.name, broker.url, broker.admin_url) for broker in self.brokers],
            metrics=metrics,
            authority=str(self.authority or ""),
            token_file=str(self.token_file) if self._token else "",
        )

    # ---- faults -------------------------------------------------------------------------------------------------

    def kill_broker(self, name: str, *, restart: bool = True) -> None:
        """Kill a broker's process with SIGKILL. Raise LocalError if the cluster has no such broker.

        :param restart: True to let the supervisor start the broker again; with False only `restart_broker` does.
        """
        process = self.broker(name).process
        if not restart:
            self.supervisor.hold(name)
        process.kill()

    async def restart_broker(self, name: str, *, max_wait: float = READY_SECONDS) -> None:
        """Let the supervisor start a broker again after `kill_broker(restart=False)`, and wait until it is ready.

        :raises LocalError: the broker is not ready within `max_wait` seconds, or does not exist.
        """
        self.supervisor.release(name)
        await wait_ready([self.broker(name)], self.http, max_wait, fail_on_exit=False)

    async def wait_ready(self, max_wait: float = READY_SECONDS) -> None:
        """Wait until every broker is ready and lists all of them for clients, even if brokers end and are started again
        meanwhile.

        :raises LocalError: that is not so within `max_wait` seconds.
        """
        await wait_ready(self.brokers, self.http, max_wait, fail_on_exit=False)

    async def zookeeper_leader(self) -> ZooKeeperMember:
        """Return the ZooKeeper member that is the leader now, or the only member.

        :raises LocalError: there is no leader.
        """
        leader = await asyncio.to_thread(self.ensemble.leader)
        if leader is None:
            raise LocalError("ZooKeeper has no leader now")
        return leader

    # ---- queries ------------------------------------------------------------------------------------------------

    async def status(self, name: str) -> dict[str, object]:
        """Return a broker's status page (/v1/status).

        :raises LocalError: the broker does not exist, or does not answer with status 200.
        """
        broker = self.broker(name)
        answer = await broker.get_admin(self.http, "/v1/status")
        if answer is None or answer[0] != 200:
            raise LocalError(f"{name} does not answer at {broker.admin_url}/v1/status")
        return msgspec.json.decode(answer[1], type=dict[str, object])

    async def coordinated_groups(self) -> dict[str, int]:
        """Return the number of topic groups that each broker coordinates now, by name. Brokers that do not answer are
        left out."""
        counts: dict[str, int] = {}
        for broker in self.brokers:
            answer = await broker.get_admin(self.http, "/metrics")
            if answer is None or answer[0] != 200:
                continue
            table = SeriesTable()
            numbers, values = table.read(broker.name, answer[1], {})
            counts[broker.name] = sum(
                int(value)
                for number, value in zip(numbers, values, strict=True)
                if table.metrics[number] == "migratory_groups" and table.labels[number].get("role") == "coordinator"
            )
        return counts

    async def busiest_coordinator(self) -> str:
        """Return the name of the broker that coordinates the most groups; of several, the first by name.

        :raises LocalError: no broker coordinates a group.
        """
        counts = await self.coordinated_groups()
        if not any(counts.values()):
            raise LocalError("no broker coordinates a topic group now")
        return max(sorted(counts), key=lambda name: counts[name])

    def _release_claims(self) -> None:
        for holder in self._claims:
            holder.close()
        self._claims = []

    # ---- ports --------------------------------------------------------------------------------------------------

    def _check_ports(self) -> list[BrokerPorts]:
        """Return the brokers' ports that follow from --ports, or an empty list without that option.

        :raises LocalError: one of these ports, or of ZooKeeper's, is not allowed or in use.
        """
        base = self._ports
        if base is None:
            return []
        names = self.resource.broker_names
        chosen = [BrokerPorts(base + i, base + _PEERS_OFFSET + i, base + _ADMIN_OFFSET + i) for i in range(len(names))]
        for name, own in zip(names, chosen, strict=True):
            check_free(own.clients, f"{name}'s clients")
            check_free(own.peers, f"{name}'s peers")
            check_free(own.admin, f"{name}'s administration")
        for port in range(
            base + _ZOOKEEPER_OFFSET, base + _ZOOKEEPER_OFFSET + 3 * self.resource.spec.zookeeper.replicas
        ):
            check_free(port, "ZooKeeper")
        return chosen

    def _choose_ports(self, on_step: Callable[[str], None]) -> list[BrokerPorts]:
        """Return the ports of each broker: those that follow from --ports. Without that option clients' ports begin at
        `FIRST_CLIENT_PORT`, and are claimed until the cluster stops. If one of them is not free, report that with
        `on_step` and use any free ports for clients. All other ports are any free ones.

        :raises LocalError: a port of --ports is not allowed or in use, or there are not enough free ports.
        """
        count = len(self.resource.broker_names)
        if self._ports is not None:
            return self._check_ports()
        default = list(range(FIRST_CLIENT_PORT, FIRST_CLIENT_PORT + count))
        # Claimed until the cluster stops: another cluster must not take the port of a broker that is being restarted.
        claims = {port: holder for port in default if is_free(port) and (holder := claim(port)) is not None}
        self._claims = list(claims.values())
        busy = [port for port in default if port not in claims]
        clients = default
        if busy:
            self._release_claims()
            clients = free_ports(count)
            on_step(
                f"Clients' ports are not the default ones from {FIRST_CLIENT_PORT} on: {', '.join(map(str, busy))} "
                f"{'is' if len(busy) == 1 else 'are'} in use (--ports BASE chooses them)"
            )
        others = free_ports(2 * count)
        return [BrokerPorts(clients[i], others[i], others[count + i]) for i in range(count)]


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
