"""The product's brokers, as `migratory up` runs them, with their own ZooKeeper. Publications have QoS 1."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Mapping
from typing import Any

import yaml
from migratory_local import LocalError
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_local.processes.preflight import raise_descriptor_limit
from migratory_resources import ClusterFileError, load_cluster_file

from benchmarks import machine
from benchmarks.processes import MeasurementFailed, tails
from benchmarks.systems.base import System, Workload

# Below the ephemeral ports, of which clients will use thousands. Every cluster of a run has other ports.
_PORTS = itertools.cycle(random.sample(range(20_000, 32_000, 400), 30))


class UnsupportedField(Exception):
    """A field of the requested cluster file that the product does not support."""


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`, merged recursively."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result


class Product(System):
    """A cluster of the product with a number of brokers. `spec` overrides fields of its cluster file. With `dev_tls` it
    has certificates of an authority of its own. All clients show `token`."""

    protocol = "product"

    def __init__(
        self, name: str = "product", *, brokers: int = 1, spec: Mapping[str, Any] | None = None, dev_tls: bool = False,
        token: str = "",
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.token = token
        own = {
            "brokers": {"replicas": brokers},
            "zookeeper": {"replicas": 1},
            "delivery": {"minCopies": 1 if brokers == 1 else 2},
            "limits": {"connectsPerSecond": 1_000_000},
        }
        self._spec = merged(own, spec or {})
        self._dev_tls = dev_tls
        self._cluster: LocalCluster | None = None

    @property
    def cluster(self) -> LocalCluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def pids(self) -> list[int]:
        """The ids of the brokers' processes. ZooKeeper carries no publication and is not counted."""
        return [broker.process.pid for broker in self.cluster.brokers if broker.process.pid is not None]

    @property
    def last_log_lines(self) -> str:
        return tails([broker.process for broker in self._cluster.brokers]) if self._cluster is not None else ""

    @property
    def zookeeper_pids(self) -> list[int]:
        return [process.pid for process in self.cluster.ensemble.processes if process.pid is not None]

    async def start(self, work: Workload, core: int | None) -> None:
        """Start ZooKeeper and brokers. Raise UnsupportedField when the cluster file is invalid or a field of it would
        have no effect."""
        path = self.folder / "cluster.yaml"
        resource = {
            "apiVersion": "migratory.dev/v1alpha1",
            "kind": "MigratoryCluster",
            "metadata": {"name": "bench"},
            "spec": self._spec,
        }
        path.write_text(yaml.safe_dump(resource))
        try:
            loaded = load_cluster_file(path)
        except ClusterFileError as error:
            raise UnsupportedField(str(error)) from error
        if loaded.warnings:
            raise UnsupportedField("; ".join(loaded.warnings))
        cluster = loaded.cluster
        try:
            processes = cluster.spec.brokers.replicas * max(1, cluster.spec.brokers.io_processes)
            raise_descriptor_limit(
                work.subscribers // processes * 5 // 4 + 1000
            )  # processes have slightly uneven shares
            self._cluster = LocalCluster(cluster, self.folder / "run", ports=next(_PORTS), dev_tls=self._dev_tls)
            await self._cluster.start()
        except LocalError as error:
            raise MeasurementFailed(str(error)) from error
        self.authority = str(self._cluster.authority or "")
        self.addresses = [("127.0.0.1", broker.ports.clients) for broker in self._cluster.brokers]
        if core is not None:
            _, other_core = machine.cores()
            machine.pin(self.zookeeper_pids, [other_core])
            machine.pin(self.pids, [core])

    async def stop(self) -> None:
        if self._publisher is not None:
            await self._publisher.stop()
            self._publisher = None
        if self._cluster is not None:
            await self._cluster.stop()
        await super().stop()
