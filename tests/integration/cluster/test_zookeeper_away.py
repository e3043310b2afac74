"""ZooKeeper is gone for a minute: publishing and delivery go on; what needs it waits, and all heals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest
from migratory_loadtest.api import Load, Scenario
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_testing.traffic import SECOND, Traffic, scenario
from migratory_testing.waiting import until
from msgspec import structs

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def patient(cluster: LocalCluster) -> Scenario:
    """ZooKeeper is gone for a minute of it."""
    return structs.replace(scenario(cluster), duration=240.0, seed=11, patience=60.0)


def stop_zookeeper(cluster: LocalCluster) -> None:
    for member in cluster.ensemble.members:
        cluster.supervisor.hold(member.process.name)
        member.process.kill()


def start_zookeeper(cluster: LocalCluster) -> None:
    for member in cluster.ensemble.members:
        cluster.supervisor.release(member.process.name)


async def nobody_hears_zookeeper(cluster: LocalCluster, names: Iterable[str]) -> bool:
    return not any([(await cluster.status(name))["zookeeper_connected"] for name in names])


async def all_hear_zookeeper(cluster: LocalCluster, names: Iterable[str]) -> bool:
    return all([(await cluster.status(name))["zookeeper_connected"] for name in names])


async def asked_to_move(cluster: LocalCluster) -> list[int]:
    """By broker: clients that it asked to go to another one, for balance."""
    statuses: list[Any] = [await cluster.status(broker.name) for broker in cluster.brokers]
    return [status["logic"]["balance"]["asked"] for status in statuses]


async def test_sixty_seconds_without_zookeeper_are_not_noticed_by_anybody(start_cluster: Any) -> None:
    """No link is lost. Clients that came at random may be evened out, and do not notice that either: when the brokers
    have been calm for ten seconds, before and after, but not while ZooKeeper is away."""
    async with start_cluster() as cluster:
        traffic = Traffic()
        async with Load(patient(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            await load.mark("zookeeper away")
            stop_zookeeper(cluster)
            back = time.monotonic() + 60  # so long it is away
            assert await asyncio.to_thread(cluster.ensemble.leader) is None
            names = cluster.resource.broker_names
            await until(lambda: nobody_hears_zookeeper(cluster, names), "every broker has lost ZooKeeper", 20)
            asked = await asked_to_move(cluster)
            await asyncio.sleep(back - time.monotonic())
            assert await asked_to_move(cluster) == asked
            start_zookeeper(cluster)
            await until(lambda: all_hear_zookeeper(cluster, names), "every broker has it again", 30)
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
async def test_a_broker_killed_meanwhile_leaves_its_groups_waiting_until_zookeeper_is_back(
    start_cluster: Any, policy: str
) -> None:
    """Under `reset` the two left hear neither ZooKeeper nor every listed member: they fence after two sessions, and
    everybody waits. Under `halt` they go on with the groups that they coordinate. Nothing acknowledged is lost."""
    async with start_cluster(delivery={"onHistoryLoss": policy}) as cluster:
        victim = cluster.resource.broker_names[1]
        others = [name for name in cluster.resource.broker_names if name != victim]

        async def fenced() -> list[bool]:
            return [(await cluster.status(name))["logic"]["fenced"] for name in others]

        async def all_fenced() -> bool:
            return all(await fenced())

        async def healed() -> bool:
            counts = await cluster.coordinated_groups()
            return bool(sum(counts.values()) == cluster.resource.spec.topics.groups)

        traffic = Traffic()
        async with Load(patient(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            stop_zookeeper(cluster)
            await until(lambda: nobody_hears_zookeeper(cluster, others), "every broker has lost ZooKeeper", 20)
            await traffic.flows(2 * SECOND, within=20)
            cluster.kill_broker(victim, restart=False)
            if policy == "reset":
                await until(all_fenced, "both fence themselves", 30)
            else:
                await asyncio.sleep(15)  # nothing may come of it: almost twice as long as under `reset`
                assert await fenced() == [False, False]
            start_zookeeper(cluster)
            cluster.supervisor.release(victim)
            await until(healed, "a coordinator for every group", 60)
            await traffic.flows(2 * SECOND, within=20)
            await cluster.wait_ready(30)
            load.stop_publishing()
            result = await load.result()
        assert result.problems == []
        assert (result.lost, result.duplicates, result.reordered) == (0, 0, 0)
