"""One of three brokers is killed or frozen under load, with exact verification of all deliveries."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from kazoo.client import KazooClient
from migratory_loadtest.api import Load
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_testing.traffic import SECOND, Traffic, flawless, scenario
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


def members(cluster: LocalCluster) -> list[str]:
    """Return the brokers whose sessions with ZooKeeper have not ended."""
    client = KazooClient(cluster.ensemble.servers)
    client.start(timeout=10)
    try:
        return sorted(client.get_children(f"/migratory/{cluster.resource.metadata.name}/members"))
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize("processes", [0, 2], ids=["one process", "two I/O processes"])
async def test_killed_broker_loses_nothing_and_rejoins_as_a_member(start_cluster: Any, processes: int) -> None:
    async with start_cluster(brokers={"ioProcesses": processes}) as cluster:

        async def every_group_has_a_coordinator() -> bool:
            counts = await cluster.coordinated_groups()
            return bool(sum(counts.values()) == cluster.resource.spec.topics.groups)

        victim = await cluster.busiest_coordinator()
        traffic = Traffic()
        async with Load(scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            before = await load.connections()
            await load.mark("kill", victim)
            cluster.kill_broker(victim, restart=False)
            await until(every_group_has_a_coordinator, "the others take the groups over", 20)
            await traffic.flows(2 * SECOND, within=20)

            # A broker that is still learning is not ready. Once ready, it is a synced member of every group.
            await cluster.restart_broker(victim)
            status = await cluster.status(victim)
            assert status["ready"] is True
            await traffic.flows(2 * SECOND, within=20)
            load.stop_publishing()
            result = await load.result()
        flawless(result)
        (mark,) = result.marks
        assert mark.clients >= before[victim] > 0  # publishers count as well
        assert mark.disconnected == mark.resumed == mark.within_limit == mark.clients
        assert mark.others_disconnected == 0
        await until(every_group_has_a_coordinator, "a coordinator for every group", 20)


@pytest.mark.parametrize("fate", ["killed", "frozen"])
async def test_coordinator_is_replaced_before_its_session_ends(start_cluster: Any, fate: str) -> None:
    """SUSPECT: the others find that it refuses connections, or that none of them hears it, and do not wait for its
    session, which lasts 30 s here."""
    async with start_cluster(zookeeper={"sessionTimeout": "30s"}, topics={"cache": {"minAge": "2m"}}) as cluster:
        groups = cluster.resource.spec.topics.groups
        fallen: list[str] = []

        async def every_group_has_a_coordinator() -> bool:
            counts = await cluster.coordinated_groups()
            return bool(sum(count for name, count in counts.items() if name not in fallen) == groups)

        await until(every_group_has_a_coordinator, "a coordinator for every group", 20)
        victim = await cluster.busiest_coordinator()
        traffic = Traffic()
        async with Load(scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            fallen.append(victim)
            if fate == "killed":
                cluster.kill_broker(victim, restart=False)
            else:
                cluster.broker(victim).process.signal(signal.SIGSTOP)
            await until(every_group_has_a_coordinator, "the others take the groups over", 15)
            assert victim in await asyncio.to_thread(members, cluster)
            if fate == "frozen":
                cluster.broker(victim).process.signal(signal.SIGCONT)
            await traffic.flows(2 * SECOND, within=20)
            load.stop_publishing()
            result = await load.result()
        flawless(result)


async def test_frozen_coordinator_is_replaced_and_fenced_when_it_thaws(start_cluster: Any) -> None:
    async with start_cluster() as cluster:
        victim = await cluster.busiest_coordinator()
        process = cluster.broker(victim).process
        traffic = Traffic()
        async with Load(scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            await load.mark("freeze")
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(10)  # longer than the session and a takeover
            process.signal(signal.SIGCONT)
            await traffic.flows(5 * SECOND, within=30)
            await cluster.wait_ready(30)
            load.stop_publishing()
            result = await load.result()
        flawless(result)
        assert result.reconnect_reasons.get("broken", 0) > 0  # in addition to moves for balance
        assert process.starts == 1  # a process that was stopped as a whole does not hang
