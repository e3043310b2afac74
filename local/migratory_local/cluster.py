"""A cluster on this machine: ZooKeeper members, brokers and the supervisor that starts again what dies.

    cluster = LocalCluster(resource, workdir)
    await cluster.start()          # everything ready
    cluster.kill_broker("quotes-broker-1")
    await cluster.stop()           # nothing is left

Work folder: broker.json, zookeeper-N/, logs/NAME.log, drained/NAME, lock. ZooKeeper begins empty each time: histories
live in the brokers' memory, so nothing that it could remember outlives the brokers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec
from migratory_resources import MigratoryCluster

from migratory_local.brokers import COMMAND, Broker, Ports, wait_ready, write_config
from migratory_local.errors import LocalError
from migratory_local.exposition import SeriesTable
from migratory_local.http import Http
from migratory_local.java import Java, find_java
from migratory_local.machine import check_platform, check_room
from migratory_local.ports import check_free, free_ports, is_free, reserve
from migratory_local.process import Process, stop_all
from migratory_local.state import DRAINED, BrokerState, ClusterState, FolderLock, own_start_time
from migratory_local.supervisor import Happening, Supervisor
from migratory_local.zookeeper import Ensemble, Member

FIRST_CLIENT_PORT = 8800
READY_SECONDS = 60.0
"""For a broker to join: bootstrap waits up to 5 s for all brokers, a new history after loss 3 sessions."""
_ASK_SECONDS = 2.0
_GRACE = 3.0
# Offsets from --ports BASE; a cluster has up to 99 brokers and 5 members.
_ADMIN, _PEERS, _ZOOKEEPER = 100, 200, 300


class LocalCluster:
    """:param ports: the first client port; administration, peers and ZooKeeper follow from 100, 200 and 300 above it.
    By default clients' ports begin at 8800 where those are free, and all others are free ones.
    :param on_happening: told of deaths and restarts.
    :param broker_command: what runs a broker, up to and without the word `broker`.
    """

    def __init__(
        self,
        resource: MigratoryCluster,
        workdir: Path,
        *,
        ports: int | None = None,
        on_happening: Callable[[Happening], None] = lambda _: None,
        java: Java | None = None,
        broker_command: Sequence[str] = COMMAND,
    ) -> None:
        self.resource = resource
        self.workdir = workdir.absolute()
        self.http = Http(_ASK_SECONDS)
        self.brokers: list[Broker] = []
        self.supervisor = Supervisor(on_happening)
        self._ports = ports
        self._java = java
        self._command = broker_command
        self._lock = FolderLock(self.workdir)
        self._ensemble: Ensemble | None = None
        self._others: list[Process] = []
        self._reserved: dict[int, socket.socket] = {}
        self._supervision: asyncio.Task[None] | None = None

    # ---- its life -----------------------------------------------------------------------------------------------

    async def start(self, on_step: Callable[[str], None] = lambda _: None) -> None:
        """Starts everything and returns when every broker is ready; on an error nothing is left running.

        :raises LocalError: with what to do about it.
        """
        try:
            await self._start(on_step)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends everything. Nobody is left for clients to be moved to, so brokers get no time for a drain."""
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
            self._supervision = None
        await self.http.close()
        first = [*(broker.process for broker in self.brokers), *self._others]
        await asyncio.to_thread(stop_all, first, _GRACE)
        if self._ensemble is not None:
            await asyncio.to_thread(self._ensemble.stop)
        for port in list(self._reserved):
            self._release(port)
        self._lock.release()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self, on_step: Callable[[str], None]) -> None:
        check_platform()
        spec = self.resource.spec
        check_room(self.workdir, spec.zookeeper.replicas)
        java = self._java or await asyncio.to_thread(find_java)
        if not self.workdir.exists():
            # Nobody runs there, so a busy port is found before the folder is made, and leaves none behind.
            self._check_ports()
        self._lock.take()
        logs = self.workdir / "logs"
        try:
            for old in [logs, self.workdir / DRAINED, *self.workdir.glob("zookeeper-*")]:
                if old.exists():
                    shutil.rmtree(old)
        except OSError as error:
            raise LocalError(f"cannot clear {self.workdir}: {error}") from error

        ports = self._choose_ports(on_step)
        began = time.monotonic()
        ensemble = Ensemble(
            self.workdir,
            spec.zookeeper.replicas,
            java=java,
            first_port=None if self._ports is None else self._ports + _ZOOKEEPER,
        )
        self._ensemble = ensemble
        config = write_config(self.resource, ensemble.servers, self.workdir)
        self.brokers = [
            Broker(name, own, config, logs, self._command)
            for name, own in zip(self.resource.broker_names, ports, strict=True)
        ]
        on_step(f"Starting {_count(spec.zookeeper.replicas, 'ZooKeeper member')} and {_count(len(ports), 'broker')}")
        ensemble.start()
        await asyncio.to_thread(ensemble.wait_ready)
        on_step(f"ZooKeeper is up: {ensemble.servers} ({time.monotonic() - began:.1f} s)")
        for broker in self.brokers:
            self._release(broker.ports.clients)
            broker.process.start()
        await wait_ready(self.brokers, self.http, READY_SECONDS)
        ready = f"{_count(len(self.brokers), 'broker')} {'is' if len(self.brokers) == 1 else 'are'} ready"
        on_step(f"{ready} ({time.monotonic() - began:.1f} s)")
        for process in self.processes:
            self.supervisor.watch(process, self.workdir / DRAINED / process.name)
        self._supervision = asyncio.create_task(self.supervisor.run(), name="supervisor")

    def check(self) -> None:
        """:raises Exception: whatever ended the supervision, which must not end unseen: nothing would start again."""
        if self._supervision is not None and self._supervision.done() and not self._supervision.cancelled():
            self._supervision.result()

    def add(self, process: Process) -> None:
        """Starts one more process that lives as long as the cluster."""
        process.start()
        self._others.append(process)
        self.supervisor.watch(process)

    # ---- what it is ---------------------------------------------------------------------------------------------

    @property
    def ensemble(self) -> Ensemble:
        if self._ensemble is None:
            raise LocalError("the cluster was not started")
        return self._ensemble

    @property
    def processes(self) -> list[Process]:
        members = self._ensemble.processes if self._ensemble is not None else []
        return [*(broker.process for broker in self.brokers), *self._others, *members]

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def broker(self, name: str) -> Broker:
        """:raises LocalError: when there is none of that name."""
        for broker in self.brokers:
            if broker.name == name:
                return broker
        raise LocalError(f"no broker {name!r}; there are {', '.join(broker.name for broker in self.brokers)}")

    def state(self, metrics: str = "") -> ClusterState:
        return ClusterState(
            name=self.resource.name,
            pid=os.getpid(),
            started=own_start_time(),
            workdir=str(self.workdir),
            zookeeper=self.ensemble.servers,
            brokers=[BrokerState(broker.name, broker.url, broker.admin_url) for broker in self.brokers],
            metrics=metrics,
        )

    # ---- faults -------------------------------------------------------------------------------------------------

    def kill_broker(self, name: str, *, restart: bool = True) -> None:
        """SIGKILL. The supervisor starts it again unless `restart` is False (then: `restart_broker`)."""
        process = self.broker(name).process
        if not restart:
            self.supervisor.hold(name)
        process.kill()

    async def restart_broker(self, name: str, *, within: float = READY_SECONDS) -> None:
        """Lets a held broker start again and returns when it is ready."""
        self.supervisor.release(name)
        await wait_ready([self.broker(name)], self.http, within, died_is_final=False)

    async def wait_ready(self, within: float = READY_SECONDS) -> None:
        """Returns when every broker is ready, whatever died in between."""
        await wait_ready(self.brokers, self.http, within, died_is_final=False)

    async def zookeeper_leader(self) -> Member:
        """:raises LocalError: when there is none."""
        leader = await asyncio.to_thread(self.ensemble.leader)
        if leader is None:
            raise LocalError("ZooKeeper has no leader now")
        return leader

    # ---- what brokers say ---------------------------------------------------------------------------------------

    async def status(self, name: str) -> dict[str, object]:
        """A broker's /v1/status.

        :raises LocalError: when it does not answer.
        """
        broker = self.broker(name)
        answer = await self.http.get(broker.ports.admin, "/v1/status")
        if answer is None or answer[0] != 200:
            raise LocalError(f"{name} does not tell its status ({broker.admin_url}/v1/status)")
        return msgspec.json.decode(answer[1], type=dict[str, object])

    async def coordinated_groups(self) -> dict[str, int]:
        """How many topic groups each broker that answers coordinates now."""
        counts: dict[str, int] = {}
        for broker in self.brokers:
            answer = await self.http.get(broker.ports.admin, "/metrics")
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
        """The broker that coordinates most groups (by name among equals).

        :raises LocalError: when nobody coordinates any.
        """
        counts = await self.coordinated_groups()
        if not any(counts.values()):
            raise LocalError("no broker coordinates a topic group now")
        return max(sorted(counts), key=lambda name: counts[name])

    def _release(self, port: int) -> None:
        holder = self._reserved.pop(port, None)
        if holder is not None:
            holder.close()

    # ---- ports --------------------------------------------------------------------------------------------------

    def _check_ports(self) -> list[Ports]:
        """The brokers' ports by --ports; none without it.

        :raises LocalError: when one of them or of ZooKeeper's is in use.
        """
        base = self._ports
        if base is None:
            return []
        names = self.resource.broker_names
        chosen = [Ports(base + i, base + _PEERS + i, base + _ADMIN + i) for i in range(len(names))]
        for name, own in zip(names, chosen, strict=True):
            check_free(own.clients, f"{name}'s clients")
            check_free(own.peers, f"{name}'s peers")
            check_free(own.admin, f"{name}'s administration")
        for port in range(base + _ZOOKEEPER, base + _ZOOKEEPER + 3 * self.resource.spec.zookeeper.replicas):
            check_free(port, "ZooKeeper")
        return chosen

    def _choose_ports(self, on_step: Callable[[str], None]) -> list[Ports]:
        count = len(self.resource.broker_names)
        if self._ports is not None:
            return self._check_ports()
        usual = list(range(FIRST_CLIENT_PORT, FIRST_CLIENT_PORT + count))
        if all(map(is_free, usual)):
            # Another cluster that starts at this moment wants the same ones, and ZooKeeper takes seconds to come up.
            self._reserved = {port: holder for port in usual if (holder := reserve(port)) is not None}
        busy = [port for port in usual if port not in self._reserved and not is_free(port)]
        clients = free_ports(count) if busy else usual
        if busy:
            on_step(
                f"Clients' ports are not the usual ones from {FIRST_CLIENT_PORT} on: {', '.join(map(str, busy))} "
                f"{'is' if len(busy) == 1 else 'are'} in use (--ports BASE chooses them)"
            )
        for port in set(self._reserved) - set(clients):
            self._release(port)
        others = free_ports(2 * count)
        return [Ports(clients[i], others[i], others[count + i]) for i in range(count)]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
