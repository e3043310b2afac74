"""A real ZooKeeper ensemble for tests, on free ports. It ends with the test, and with the test process however that
ends.

Use it as a context manager, or through the fixtures: in a conftest.py, `from migratory_testing.zookeeper import
zookeeper, zookeeper_ensemble` (and name them in `__all__`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble

__all__ = ["ensemble", "zookeeper", "zookeeper_ensemble"]


def ensemble(folder: Path, size: int = 3) -> ZooKeeperEnsemble:
    """Return an ensemble: `with ensemble(tmp_path, 3) as zk: zk.servers, zk.leader(), zk.kill(member),
    member.process.start()`."""
    return ZooKeeperEnsemble(folder, size)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """Run one member, which takes about a second to start."""
    with ZooKeeperEnsemble(tmp_path / "zookeeper", 1) as running:
        yield running


@pytest.fixture
def zookeeper_ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """Run three members, which take about two seconds to start."""
    with ZooKeeperEnsemble(tmp_path / "zookeeper", 3) as running:
        yield running
