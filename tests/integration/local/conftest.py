"""The fixture of a real ZooKeeper ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble


@pytest.fixture
def zookeeper_ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """Run a ZooKeeper ensemble of three members, which takes about two seconds to start, and yield it."""
    with ZooKeeperEnsemble(tmp_path / "zookeeper", 3) as running:
        yield running
