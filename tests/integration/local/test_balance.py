"""Clients of real brokers come out even again by themselves: after a kill, and after a rolling update, in which none of
them changes its broker more than twice. Under load, with nothing lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from migratory_loadtest import Load, LoadResult, Scenario
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_resources.validation.loading import load_cluster
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.alone, pytest.mark.timeout(300)]

CLIENTS = 300
# Most clients of a broker over the mean. 1.15 is promised; above 1.1 the brokers still see to it, and nothing rests.
EVEN = 1.1
QUIET = 12.0  # seconds in which nobody moves: a round takes 7
WITHIN = 100.0  # seconds for brokers to be back, calm, and even


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    monkeypatch.setenv("MIGRATORY_REVISION", "before")
    document = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "even"},
        "spec": {"brokers": {"drain": {"period": "5s"}}, "topics": {"groups": 12}},
    }
    async with LocalCluster(load_cluster(yaml.safe_dump(document)).cluster, tmp_path / "cluster") as running:
        yield running


class Watch:
    """What the brokers say of their clients."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    async def balance(self) -> list[dict[str, Any]]:
        found = []
        for broker in self.cluster.brokers:
            status: dict[str, Any] = await self.cluster.status(broker.name)
            found.append(status["logic"]["balance"])
        return found

    async def counts(self) -> list[int]:
        return [entry["clients"] for entry in await self.balance()]

    async def even(self) -> bool:
        """All are there, once, nobody has much more than the others, and nothing is in the way of evening out."""
        found = await self.balance()
        counts = [entry["clients"] for entry in found]
        calm = not any(entry["waits_for"] for entry in found)
        return calm and sum(counts) == CLIENTS and max(counts) <= EVEN * CLIENTS / len(counts)

    async def rests(self) -> None:
        """For `QUIET` seconds no broker asks anybody to move."""
        before = [entry["asked"] for entry in await self.balance()]
        loop = asyncio.get_running_loop()
        end = loop.time() + QUIET
        while loop.time() < end:
            await asyncio.sleep(1.0)  # looked at all the while, so that a failure comes early
            assert [entry["asked"] for entry in await self.balance()] == before
        assert await self.even(), await self.balance()


def load_on(cluster: LocalCluster) -> Load:
    scenario = Scenario(
        servers=tuple(cluster.urls),
        subscribers=CLIENTS - 10,
        topics=50,
        publishers=10,
        rate=0.5,
        warmup=0.5,
        duration=600.0,
        workers=1,
        groups=12,
        resume_limit=20.0,
    )
    return Load(scenario)


def nothing_went_wrong(result: LoadResult) -> None:
    assert (result.lost, result.duplicates, result.reordered, result.unexpected) == (0, 0, 0, 0)
    assert (result.failed, result.unanswered) == (0, 0)
    assert result.received > 10 * CLIENTS


async def test_a_killed_broker_gets_its_share_back(cluster: LocalCluster) -> None:
    watch = Watch(cluster)
    async with load_on(cluster) as load:
        await until(watch.even, "even at first", limit=WITHIN)
        early = sum(entry["asked"] for entry in await watch.balance())  # those that came at random were evened out
        name = cluster.brokers[1].name
        cluster.kill_broker(name)
        await cluster.wait_ready()
        assert (await watch.counts())[1] <= CLIENTS / 10  # its clients are elsewhere, and don't rush back
        await until(watch.even, "even again", limit=WITHIN)
        await watch.rests()
        load.stop_publishing()
        result = await load.result()
    nothing_went_wrong(result)
    assert set(result.reconnect_reasons) == {"broken", "moved"}
    moved = result.reconnect_reasons["moved"] - early
    assert 0 < moved <= CLIENTS / 2, "those that a broker has too many, and no others"


async def test_a_rolling_update_moves_nobody_more_than_twice(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(cluster)
    async with load_on(cluster) as load:
        await until(watch.even, "even at first", limit=WITHIN)
        early = sum(entry["asked"] for entry in await watch.balance())  # those that came at random were evened out
        monkeypatch.setenv("MIGRATORY_REVISION", "after")
        for broker in reversed(cluster.brokers):
            cluster.supervisor.hold(broker.name)
            broker.process.signal(signal.SIGTERM)
            await until(lambda process=broker.process: not process.alive, "drained", 30)  # type: ignore[misc, arg-type]
            await cluster.restart_broker(broker.name)
        await until(watch.even, "even after the update", limit=WITHIN)
        await watch.rests()
        load.stop_publishing()
        result = await load.result()
    nothing_went_wrong(result)
    assert set(result.reconnect_reasons) <= {"drained", "moved"}  # nobody lost a link
    assert sum(result.reconnect_reasons.values()) - early <= 1.7 * CLIENTS
    assert max(map(int, result.clients_by_reconnects)) <= 2 + bool(early), result.clients_by_reconnects
