"""The fixture of a real ZooKeeper ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble


@pytest.fixture
def zookeeper_ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """Run three members, which take about two seconds to start."""
    with ZooKeeperEnsemble(tmp_path / "zookeeper", 3) as running:
        yield running
