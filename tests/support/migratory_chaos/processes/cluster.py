"""The cluster of a run: a local cluster, each process in a network namespace of its own where there are namespaces.
Health is judged from outside, as an operator would see it."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from migratory_local.cluster.local_cluster import LocalCluster
from migratory_local.cluster.zookeeper import ZooKeeperMember
from migratory_local.processes.network import LOCAL_PLACEMENT, Placement
from migratory_resources.validation.loading import load_cluster

from migratory_chaos.brokers import Metrics, ObservedCluster, parse_metrics
from migratory_chaos.engine import poll_until
from migratory_chaos.processes.network import Network, is_inside, mount_disk

CLIENTS = "clients"
"""The name of the network node in which all clients run."""
MEMBERS = tuple(f"zookeeper-{number}" for number in range(3))
GROUPS = 20
DISK_MEGABYTES = 64
"""Megabytes of each ZooKeeper member's disk and of the logs' disk: enough for an hour, and quickly filled."""
_SPEC = f"""
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {{name: chaos}}
spec:
  brokers: {{replicas: %d}}
  zookeeper: {{replicas: {len(MEMBERS)}}}
  topics: {{groups: {GROUPS}, cache: {{messagesPerTopic: 12000, minAge: 1m, maxAge: 10m}}}}
  delivery: {{minCopies: %d}}
  limits: {{heartbeat: 5s, queuePerClient: 8Mi}}
  security: {{hosts: ["*"]}}
"""
"""The cluster's resource. It caches more than a minute of each topic, because clients may be away that long. `hosts`
allows the addresses of namespaces."""


class ChaosCluster(LocalCluster, ObservedCluster):
    """A local cluster whose processes and disks are placed in namespaces. Without them `network` is None, and all
    processes share the loopback address. :param copies: minCopies."""

    ready_seconds = 180.0  # on a machine with much other work

    def __init__(self, brokers: int, copies: int, folder: Path) -> None:
        super().__init__(load_cluster(_SPEC % (brokers, copies)).cluster, folder)
        names = self.resource.broker_names
        self.network = Network([CLIENTS, *MEMBERS, *names]) if is_inside() else None

    def placement(self, name: str) -> Placement:
        return LOCAL_PLACEMENT if self.network is None else self.network.nodes[name].placement

    def clear_workdir(self) -> None:
        super().clear_workdir()
        if self.network is not None:
            for name in ("logs", *MEMBERS):
                mount_disk(self.workdir / name, DISK_MEGABYTES)

    def save_logs(self, folder: Path) -> None:
        """Copy the logs to `folder`: their disk is gone when the run ends."""
        shutil.copytree(self.workdir / "logs", folder, dirs_exist_ok=True)

    def broker_names(self) -> list[str]:
        return list(self.resource.broker_names)

    async def metrics(self, broker: str) -> Metrics | None:
        answer = await self.broker(broker).get_admin(self.http, "/metrics")
        return parse_metrics(broker, answer[1]) if answer is not None and answer[0] == 200 else None

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
        return found + await self.find_unhealthy_brokers(GROUPS)

    async def wait_healthy(self, within: float) -> list[str]:
        """Return [] once the cluster is healthy, or what is still wrong after `within` seconds."""
        found: list[str] = []

        async def look() -> bool:
            found[:] = await self.find_unhealthy()
            return not found

        await poll_until(look, within)
        return found

    async def leader(self) -> ZooKeeperMember | None:
        return await asyncio.to_thread(self.ensemble.leader)

    def used_descriptors(self, name: str) -> int:
        pid = self.broker(name).process.pid
        return len(os.listdir(f"/proc/{pid}/fd")) if pid is not None else 0
