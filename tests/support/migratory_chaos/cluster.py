"""The cluster of a run: a ZooKeeper ensemble of three, brokers, a supervisor; each process in its own network where
there are networks. Says what is not well (`unwell`), from outside, as a person would find out."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from migratory_local.cluster.brokers import MIGRATORY_COMMAND, BrokerPorts, LocalBroker, wait_ready, write_config
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperMember
from migratory_local.metrics.exposition import SeriesTable
from migratory_local.processes.network import LOCAL_PLACEMENT, HttpClient, Placement, free_ports
from migratory_local.processes.process import Process, stop_all
from migratory_local.processes.supervisor import Supervisor, SupervisorEvent
from migratory_resources import MigratoryCluster
from migratory_resources.validation.loading import load_cluster

from migratory_chaos.network import Network, mount_disk

CLIENTS = "clients"
MEMBERS = 3
MEMBER_DISK = LOG_DISK = 64
"""Megabytes."""
READY_SECONDS = 180.0
"""For each step of the start; a machine may have much else to do."""
_ASK_SECONDS = 2.0
_GRACE = 3.0

_SPEC = """
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {{name: chaos}}
spec:
  brokers: {{replicas: {brokers}}}
  zookeeper: {{replicas: {members}}}
  topics: {{groups: {groups}, cache: {{messagesPerTopic: 12000, minAge: 1m, maxAge: 10m}}}}
  delivery: {{minCopies: {copies}}}
  limits: {{heartbeat: 5s, queuePerClient: 8Mi}}
"""


def resource(brokers: int, copies: int, groups: int) -> MigratoryCluster:
    """The cache holds more than a minute of each topic, for a client may be away so long."""
    text = _SPEC.format(brokers=brokers, members=MEMBERS, groups=groups, copies=copies)
    return load_cluster(text).cluster


class ChaosCluster:
    """:param network: None on a machine where there can be none: all processes share the loopback address then."""

    def __init__(
        self,
        spec: MigratoryCluster,
        folder: Path,
        network: Network | None,
        on_happening: Callable[[SupervisorEvent], None] = lambda _: None,
    ) -> None:
        self.resource = spec
        self.folder = folder
        self.network = network
        self.http = HttpClient(_ASK_SECONDS)
        self.supervisor = Supervisor(on_happening)
        self._supervision: asyncio.Task[None] | None = None
        names = spec.broker_names
        ports = free_ports(3 * len(names))
        logs = folder / "logs"
        if network is not None:
            mount_disk(logs, LOG_DISK)
            for number in range(MEMBERS):
                mount_disk(folder / f"zookeeper-{number}", MEMBER_DISK)
        places = [self.place(f"zookeeper-{number}") for number in range(MEMBERS)]
        self.ensemble = ZooKeeperEnsemble(folder, MEMBERS, placements=places)
        config = write_config(spec, self.ensemble.servers, folder)
        self.brokers = [
            LocalBroker(
                name,
                BrokerPorts(*ports[3 * number : 3 * number + 3]),
                config,
                logs,
                MIGRATORY_COMMAND,
                self.place(name),
            )
            for number, name in enumerate(names)
        ]

    @staticmethod
    def nodes(spec: MigratoryCluster) -> list[str]:
        """The names of everything that wants a network of its own."""
        return [CLIENTS, *(f"zookeeper-{number}" for number in range(MEMBERS)), *spec.broker_names]

    def place(self, name: str) -> Placement:
        return LOCAL_PLACEMENT if self.network is None else self.network.nodes[name].place

    # ---- its life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.ensemble.start()
        await asyncio.to_thread(self.ensemble.wait_ready, READY_SECONDS)
        for broker in self.brokers:
            broker.process.start()
        await wait_ready(self.brokers, self.http, READY_SECONDS)
        for process in self.processes:
            self.supervisor.watch(process)
        self._supervision = asyncio.create_task(self.supervisor.run(), name="supervisor")

    async def stop(self) -> None:
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
        await self.http.close()
        await asyncio.to_thread(stop_all, [broker.process for broker in self.brokers], _GRACE)
        await asyncio.to_thread(self.ensemble.stop)

    def keep_logs(self, folder: Path) -> None:
        """The logs' disk is gone with the run."""
        shutil.copytree(self.folder / "logs", folder, dirs_exist_ok=True)

    @property
    def processes(self) -> list[Process]:
        return [*(broker.process for broker in self.brokers), *self.ensemble.processes]

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    @property
    def names(self) -> list[str]:
        return [broker.name for broker in self.brokers]

    def broker(self, name: str) -> LocalBroker:
        return next(broker for broker in self.brokers if broker.name == name)

    # ---- what it says of itself -----------------------------------------------------------------------------------

    async def metrics(self, name: str) -> dict[tuple[str, str], float] | None:
        """(metric, role or "") to the sum of its values; None when the broker does not answer."""
        answer = await self.broker(name).get_admin(self.http, "/metrics")
        if answer is None or answer[0] != 200:
            return None
        table = SeriesTable()
        found: dict[tuple[str, str], float] = {}
        for number, value in zip(*table.read(name, answer[1], {}), strict=True):
            key = (table.metrics[number], table.labels[number].get("role", ""))
            found[key] = found.get(key, 0.0) + value
        return found

    async def total(self, metric: str, names: list[str]) -> float:
        """Over the named brokers that answer."""
        answers = await asyncio.gather(*(self.metrics(name) for name in names))
        return sum(answer.get((metric, ""), 0.0) for answer in answers if answer is not None)

    async def coordinated(self) -> dict[str, int]:
        """How many topic groups each broker that answers coordinates."""
        answers = await asyncio.gather(*(self.metrics(name) for name in self.names))
        return {
            name: int(answer.get(("migratory_groups", "coordinator"), 0))
            for name, answer in zip(self.names, answers, strict=True)
            if answer is not None
        }

    async def unwell(self) -> list[str]:
        """What is not as it should be when no fault is there; empty when the cluster is whole again."""
        found = []
        for member, mode in zip(self.ensemble.members, await self.modes(), strict=True):
            if mode is None:
                found.append(f"{member.name} serves nobody")
        urls = set(self.urls)
        for broker in self.brokers:
            ready = await broker.is_ready(self.http)
            told = await self.metrics(broker.name)
            if not ready or told is None:
                answer = await broker.get_admin(self.http, "/readyz")
                found.append(f"{broker.name} is not ready: {answer[1].strip() if answer else 'no answer'}")
                continue
            if missing := urls - await broker.advertised_urls(self.http):
                found.append(f"{broker.name} does not name {', '.join(sorted(missing))} to clients")
            if told[("migratory_member", "")] != 1 or told[("migratory_fenced", "")] != 0:
                found.append(f"{broker.name} is no member of every group, or fenced")
            if waiting := told[("migratory_waiting_groups", "")]:
                found.append(f"{broker.name}: {waiting:g} groups wait")
        groups = sum((await self.coordinated()).values())
        if groups != self.resource.spec.topics.groups:
            found.append(f"{groups} groups of {self.resource.spec.topics.groups} have a coordinator")
        return found

    async def modes(self) -> list[str | None]:
        return list(await asyncio.gather(*(asyncio.to_thread(member.mode) for member in self.ensemble.members)))

    async def leader(self) -> ZooKeeperMember | None:
        return await asyncio.to_thread(self.ensemble.leader)

    async def wait_whole(self, within: float) -> list[str]:
        """Empty once nothing is wrong any more; else what still is when the time is up."""
        deadline = time.monotonic() + within
        while found := await self.unwell():
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.25)
        return found

    async def statuses(self) -> dict[str, object]:
        """Every broker's /v1/status, to be kept beside histories that show a fault."""
        found: dict[str, object] = {}
        for broker in self.brokers:
            answer = await broker.get_admin(self.http, "/v1/status")
            found[broker.name] = msgspec.json.decode(answer[1]) if answer is not None else "no answer"
        return found

    def used_descriptors(self, name: str) -> int:
        pid = self.broker(name).process.pid
        return len(os.listdir(f"/proc/{pid}/fd")) if pid is not None else 0
