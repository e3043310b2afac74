"""Three real brokers on a real ZooKeeper ensemble, for tests with the raw client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_testing.onebroker import closed_at_the_end
from migratory_testing.processes import Brokers
from migratory_testing.waiting import poll

__all__ = ["brokers", "closed_at_the_end", "zookeepers"]


@pytest.fixture(scope="module")
def zookeepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), 3) as running:
        yield running


@pytest.fixture
def brokers(zookeepers: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    """Run a cluster of three ready brokers for one test and yield it. The parameter of the fixture is the number of
    I/O processes per broker; without one it is 0."""
    cluster = "c" + str(abs(hash(request.node.nodeid)))
    processes = getattr(request, "param", 0)
    with Brokers(tmp_path / "brokers", zookeepers.servers, cluster=cluster, ioProcesses=processes) as running:
        running.start_all()
        for broker in running.all():  # a broker hears of the others' readiness a moment later
            what = f"{broker.name} names all to its clients"
            poll(lambda broker=broker: len(broker.status()["servers"]) == 3, what)  # type: ignore[misc]
        yield running
