"""ZooKeeper is down for a minute: publishing and delivery continue, takeovers wait, and the cluster recovers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable
from typing import Any

import pytest
from kazoo.client import KazooClient
from migratory_loadtest.api import Load, Scenario
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_testing.traffic import SECOND, Traffic, scenario
from migratory_testing.waiting import poll_apart, until
from msgspec import structs

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def long_scenario(cluster: LocalCluster) -> Scenario:
    """Return a scenario that is long enough for a minute without ZooKeeper."""
    return structs.replace(scenario(cluster), duration=240.0, seed=11, patience=60.0)


def stop_zookeeper(cluster: LocalCluster) -> None:
    for member in cluster.ensemble.members:
        cluster.supervisor.hold(member.process.name)
        member.process.kill()


def start_zookeeper(cluster: LocalCluster) -> None:
    for member in cluster.ensemble.members:
        cluster.supervisor.release(member.process.name)


async def none_connected(cluster: LocalCluster, names: Iterable[str]) -> bool:
    return not any([(await cluster.status(name))["zookeeper_connected"] for name in names])


async def all_connected(cluster: LocalCluster, names: Iterable[str]) -> bool:
    return all([(await cluster.status(name))["zookeeper_connected"] for name in names])


async def all_coordinated(cluster: LocalCluster) -> bool:
    counts = await cluster.coordinated_groups()
    return bool(sum(counts.values()) == cluster.resource.spec.topics.groups)


def count_records(cluster: LocalCluster) -> int:
    """Return the number of topic groups' records in ZooKeeper."""
    client = KazooClient(cluster.ensemble.servers)
    client.start(timeout=10)
    try:
        return len(client.get_children(f"/migratory/{cluster.resource.metadata.name}/groups"))
    finally:
        client.stop()
        client.close()


async def moves_requested(cluster: LocalCluster) -> list[int]:
    """Return for each broker the number of clients that it has asked to move for balance."""
    statuses: list[Any] = [await cluster.status(broker.name) for broker in cluster.brokers]
    return [status["logic"]["balance"]["moves_asked"] for status in statuses]


async def test_clients_notice_nothing_of_60_seconds_without_zookeeper(start_cluster: Any) -> None:
    """During 60 seconds without ZooKeeper no client loses its link, every publication is acknowledged and delivered,
    and no client is asked to move for balance."""
    async with start_cluster() as cluster:
        traffic = Traffic()
        async with Load(long_scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            await load.mark("zookeeper away")
            stop_zookeeper(cluster)
            back = time.monotonic() + 60  # end of the outage
            assert await asyncio.to_thread(cluster.ensemble.leader) is None
            names = cluster.resource.broker_names
            await until(lambda: none_connected(cluster, names), "every broker has lost ZooKeeper", 20)
            requested = await moves_requested(cluster)
            await asyncio.sleep(back - time.monotonic())
            assert await moves_requested(cluster) == requested
            start_zookeeper(cluster)
            await until(lambda: all_connected(cluster, names), "every broker has it again", 30)
            await traffic.flows(2 * SECOND, within=20)
            load.stop_publishing()
            result = await load.result()
        assert result.problems == []
        assert set(result.reconnect_reasons) <= {"moved"}
        assert result.marks[0].others_disconnected == 0
        assert result.failed == 0
        assert result.acknowledged == result.published
        assert result.delivered == result.expected > 0


@pytest.mark.parametrize("policy", ["reset", "halt"])
async def test_groups_of_a_broker_killed_meanwhile_wait_for_zookeeper(start_cluster: Any, policy: str) -> None:
    """A broker is killed while ZooKeeper is down: its groups get a coordinator once ZooKeeper is back, and nothing is
    lost, repeated or reordered.

    Under `reset` the other two brokers reach neither ZooKeeper nor every listed member: they fence themselves after two
    sessions. Under `halt` they continue with the groups that they coordinate.
    """
    async with start_cluster(delivery={"onHistoryLoss": policy}) as cluster:
        victim = cluster.resource.broker_names[1]
        others = [name for name in cluster.resource.broker_names if name != victim]

        async def fenced() -> list[bool]:
            return [(await cluster.status(name))["logic"]["fenced"] for name in others]

        async def all_fenced() -> bool:
            return all(await fenced())

        traffic = Traffic()
        async with Load(long_scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            stop_zookeeper(cluster)
            await until(lambda: none_connected(cluster, others), "every broker has lost ZooKeeper", 20)
            await traffic.flows(2 * SECOND, within=20)
            cluster.kill_broker(victim, restart=False)
            if policy == "reset":
                await until(all_fenced, "both fence themselves", 30)
            else:
                await asyncio.sleep(15)  # almost twice as long as the fencing takes under `reset`
                assert await fenced() == [False, False]
            start_zookeeper(cluster)
            cluster.supervisor.release(victim)
            await until(lambda: all_coordinated(cluster), "a coordinator for every group", 60)
            await traffic.flows(2 * SECOND, within=20)
            await cluster.wait_ready(30)
            load.stop_publishing()
            result = await load.result()
        assert result.problems == []
        assert (result.lost, result.duplicates, result.reordered) == (0, 0, 0)


async def test_records_are_restored_when_zookeeper_comes_back_empty(start_cluster: Any) -> None:
    """All members of ZooKeeper lose their data. Publishing goes on, and a broker that is killed afterwards is taken
    over: nothing is lost, repeated or reordered."""
    async with start_cluster() as cluster:
        names = cluster.resource.broker_names

        async def restored() -> bool:
            return all([(await cluster.status(name))["logic"]["zookeeper"]["data_losses"] == 1 for name in names])

        traffic = Traffic()
        async with Load(long_scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            stop_zookeeper(cluster)
            await until(lambda: none_connected(cluster, names), "every broker has lost ZooKeeper", 20)
            for member in cluster.ensemble.members:
                shutil.rmtree(member.folder / "version-2")
            start_zookeeper(cluster)
            await until(restored, "every broker noticed the loss", 60)
            groups = cluster.resource.spec.topics.groups
            await poll_apart(lambda: count_records(cluster) == groups, "a record for every group", 30)
            await traffic.flows(2 * SECOND, within=20)
            cluster.kill_broker(names[1])
            await until(lambda: all_coordinated(cluster), "a coordinator for every group", 60)
            await traffic.flows(2 * SECOND, within=20)
            await cluster.wait_ready(60)
            load.stop_publishing()
            result = await load.result()
        assert result.problems == []
        assert (result.lost, result.duplicates, result.reordered) == (0, 0, 0)
