"""The fixture of a real cluster: three brokers and a ZooKeeper ensemble, new for each test."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import yaml
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_local.processes.network import is_free
from migratory_resources.validation.loading import load_cluster

StartCluster = Callable[..., AbstractAsyncContextManager[LocalCluster]]


@pytest.fixture
def start_cluster(tmp_path: Path) -> StartCluster:
    """Return a function that starts a cluster and yields it once it is ready. Its arguments override parts of the spec.

    `async with start_cluster(delivery={"onHistoryLoss": "halt"}) as cluster:`
    """

    @asynccontextmanager
    async def start(**spec: object) -> AsyncIterator[LocalCluster]:
        document = {
            "apiVersion": "migratory.dev/v1alpha1",
            "kind": "MigratoryCluster",
            "metadata": {"name": "test"},
            "spec": spec,
        }
        resource = load_cluster(yaml.safe_dump(document)).cluster
        async with LocalCluster(resource, tmp_path / "cluster", ports=_free_base_port()) as cluster:
            yield cluster

    return start


def _free_base_port() -> int:
    """Return a base port for which all ports that a cluster of up to nine brokers may use are free. Raise StopIteration
    if there is none.

    The order of the tried ports differs per process, because another test process may be starting a cluster.
    """
    bases = list(range(12_000, 30_000, 400))
    random.Random(os.getpid()).shuffle(bases)
    needed = [block + number for block in (0, 100, 200, 300) for number in range(9)]
    return next(base for base in bases if all(is_free(base + offset) for offset in needed))
