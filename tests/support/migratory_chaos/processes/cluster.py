"""The cluster of a run: ZooKeeper ensemble, brokers and a supervisor, each process in a network namespace of its own
where there are namespaces. Health is judged from outside, as an operator would see it."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
from migratory_local.cluster.brokers import MIGRATORY_COMMAND, BrokerPorts, LocalBroker, wait_ready, write_config
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperMember
from migratory_local.processes.network import LOCAL_PLACEMENT, HttpClient, Placement, free_ports
from migratory_local.processes.process import Process, stop_all
from migratory_local.processes.supervisor import Supervisor
from migratory_resources import MigratoryCluster
from migratory_resources.validation.loading import load_cluster

from migratory_chaos.engine import poll_until
from migratory_chaos.metrics import Metrics, coordinated_groups, find_unhealthy_brokers, parse_metrics, sum_metric
from migratory_chaos.processes.network import Network, mount_disk

CLIENTS = "clients"
"""The node of all clients."""
MEMBERS = 3
DISK_MEGABYTES = 64
"""Of each ZooKeeper member's disk and the logs' disk: enough for an hour, and quickly filled."""
READY_SECONDS = 180.0
"""For each step of the start, on a machine with much other work."""
_REQUEST_SECONDS = 2.0
_STOP_SECONDS = 3.0
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


def make_resource(brokers: int, copies: int, groups: int) -> MigratoryCluster:
    """Return the resource of a cluster that caches more than a minute of each topic: clients may be away that long."""
    return load_cluster(_SPEC.format(brokers=brokers, members=MEMBERS, groups=groups, copies=copies)).cluster


class ChaosCluster:
    """A local cluster whose processes are placed in namespaces.

    :param network: None on a machine without namespaces: then all processes share the loopback address.
    """

    def __init__(self, spec: MigratoryCluster, folder: Path, network: Network | None) -> None:
        self.resource = spec
        self.folder = folder
        self.network = network
        self.http = HttpClient(_REQUEST_SECONDS)
        self.supervisor = Supervisor(lambda _: None)
        self._supervision: asyncio.Task[None] | None = None
        ports = free_ports(3 * len(spec.broker_names))
        logs = folder / "logs"
        members = [f"zookeeper-{number}" for number in range(MEMBERS)]
        if network is not None:
            for disk in (logs, *(folder / member for member in members)):
                mount_disk(disk, DISK_MEGABYTES)
        self.ensemble = ZooKeeperEnsemble(folder, MEMBERS, placements=[self.placement(member) for member in members])
        config = write_config(spec, self.ensemble.servers, folder)
        self.brokers = [
            LocalBroker(
                name,
                BrokerPorts(*ports[3 * number : 3 * number + 3]),
                config,
                logs,
                MIGRATORY_COMMAND,
                self.placement(name),
            )
            for number, name in enumerate(spec.broker_names)
        ]

    @staticmethod
    def nodes(spec: MigratoryCluster) -> list[str]:
        """Return the names of everything that needs a namespace."""
        return [CLIENTS, *(f"zookeeper-{number}" for number in range(MEMBERS)), *spec.broker_names]

    def placement(self, name: str) -> Placement:
        return LOCAL_PLACEMENT if self.network is None else self.network.nodes[name].placement

    # ---- start and stop ---------------------------------------------------------------------------------------------

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
        await asyncio.to_thread(stop_all, [broker.process for broker in self.brokers], _STOP_SECONDS)
        await asyncio.to_thread(self.ensemble.stop)

    def save_logs(self, folder: Path) -> None:
        """Copy the logs, whose disk is gone with the run."""
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

    # ---- state and health -------------------------------------------------------------------------------------------

    async def metrics(self, name: str) -> Metrics | None:
        """Return a broker's metrics, or None when it does not answer."""
        answer = await self.broker(name).get_admin(self.http, "/metrics")
        return parse_metrics(name, answer[1]) if answer is not None and answer[0] == 200 else None

    async def all_metrics(self, names: list[str] | None = None) -> dict[str, Metrics | None]:
        chosen = self.names if names is None else names
        return dict(zip(chosen, await asyncio.gather(*(self.metrics(name) for name in chosen)), strict=True))

    async def total(self, metric: str, names: list[str]) -> float:
        """Return the sum over the named brokers that answer."""
        return sum_metric(await self.all_metrics(names), metric)

    async def coordinated(self) -> dict[str, int]:
        """Return how many topic groups each answering broker coordinates."""
        return coordinated_groups(await self.all_metrics())

    async def find_unhealthy(self) -> list[str]:
        """Return what is wrong with the cluster; empty when it is healthy."""
        modes = await asyncio.gather(*(asyncio.to_thread(member.mode) for member in self.ensemble.members))
        members = zip(self.ensemble.members, modes, strict=True)
        found = [f"{member.name} does not serve" for member, mode in members if mode is None]
        urls = set(self.urls)
        for broker in self.brokers:
            if not await broker.is_ready(self.http):
                answer = await broker.get_admin(self.http, "/readyz")
                found.append(f"{broker.name} is not ready: {answer[1].strip() if answer else 'no answer'}")
            elif missing := urls - await broker.advertised_urls(self.http):
                found.append(f"{broker.name} does not name {', '.join(sorted(missing))} to clients")
        return found + find_unhealthy_brokers(await self.all_metrics(), self.resource.spec.topics.groups)

    async def leader(self) -> ZooKeeperMember | None:
        return await asyncio.to_thread(self.ensemble.leader)

    async def wait_healthy(self, within: float) -> list[str]:
        """Return [] once the cluster is healthy, or what is still wrong after `within` seconds."""
        found: list[str] = []

        async def look() -> bool:
            found[:] = await self.find_unhealthy()
            return not found

        await poll_until(look, within)
        return found

    async def statuses(self) -> dict[str, object]:
        """Return every broker's /v1/status, which explains histories that show a fault of the product."""
        answers = {broker.name: await broker.get_admin(self.http, "/v1/status") for broker in self.brokers}
        return {
            name: msgspec.json.decode(answer[1]) if answer is not None else "no answer"
            for name, answer in answers.items()
        }

    def used_descriptors(self, name: str) -> int:
        pid = self.broker(name).process.pid
        return len(os.listdir(f"/proc/{pid}/fd")) if pid is not None else 0
