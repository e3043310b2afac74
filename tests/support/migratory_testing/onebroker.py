"""Fixtures for one real broker and one ZooKeeper member, and a bystander that must not notice other clients' faults.

A conftest.py imports the fixtures: `from migratory_testing.onebroker import bystander, broker, ...` (and names them
in `__all__`). All files share one ZooKeeper member; each file has one broker, with the file's `SETTINGS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble

from migratory_testing.processes import Broker, Brokers
from migratory_testing.rawclient import RawClient, close_all, payload

__all__ = ["Bystander", "broker", "bystander", "closed_at_the_end", "zookeeper_member"]


class Bystander:
    """A client that must not notice other clients' faults: `unharmed` checks that it still gets new publications."""

    def __init__(self, reader: RawClient, writer: RawClient, topic: str) -> None:
        self._reader = reader
        self._writer = writer
        self._topic = topic
        self._count = 0

    async def unharmed(self, limit: float = 5.0) -> None:
        """Publish, and check that the bystander's connection delivers that next, within `limit` seconds of publishing.
        Raise an error otherwise."""
        self._count += 1
        data = b"%d" % self._count
        await self._writer.publish(self._topic, data, self._count, self._topic)
        message = await self._reader.receive("message", limit=limit)
        assert (message["topic"], payload(message)) == (self._topic, data)


@pytest.fixture(scope="session")
def zookeeper_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Run one ZooKeeper member for all tests of the session."""
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), 1) as running:
        yield running


@pytest.fixture(scope="module")
def broker(
    zookeeper_member: ZooKeeperEnsemble, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Broker]:
    """Run one real broker for the tests of a file, with the file's `SETTINGS`. It is the only broker of its cluster."""
    settings: dict[str, Any] = {"delivery": {"minCopies": 1}, **getattr(request.module, "SETTINGS", {})}
    folder = tmp_path_factory.mktemp("broker")
    name = Path(str(request.module.__file__)).stem
    with Brokers(folder, zookeeper_member.servers, size=1, cluster=name, **settings) as brokers:
        brokers.start_all()
        yield brokers["b0"]


@pytest.fixture(autouse=True)
async def closed_at_the_end() -> AsyncIterator[None]:
    """Close all raw clients at the end of each test."""
    yield
    await close_all()


@pytest.fixture
async def bystander(broker: Broker, request: pytest.FixtureRequest) -> AsyncIterator[Bystander]:
    """Connect a bystander. Check before and after the test that it gets new publications."""
    topic = f"bystander/{abs(hash(request.node.nodeid))}"
    reader, writer = await RawClient.join(broker, name="bystander"), await RawClient.join(broker, name="publisher")
    await reader.subscribe(topic)
    client = Bystander(reader, writer, topic)
    await client.unharmed()
    yield client
    await client.unharmed()
