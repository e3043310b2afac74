"""Three broker processes and three ZooKeeper members: what a client sees when a broker dies, drains, freezes or comes
back, and when ZooKeeper is away."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from kazoo.client import KazooClient
from migratory_testing.processes import Broker, Brokers
from migratory_testing.rawclient import ConnectionEnded, RawClient, payload
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

TOPIC = "quotes/eur"

both = pytest.mark.parametrize("brokers", [0, 2], indirect=True, ids=["one process", "two I/O processes"])
"""Runs a test twice: with clients in the brokers' own processes, and with two I/O processes per broker."""


async def join(broker: Broker) -> RawClient:
    """Connect a client to a broker, check that the welcome names this broker, and return the client."""
    client = await RawClient.open(broker.address("clients"))
    assert (await client.connect())["broker"] == broker.name
    return client


async def deliveries(client: RawClient, count: int) -> list[str]:
    """Wait for the next `count` messages and return their payloads as text."""
    return [payload(await client.receive("message")).decode() for _ in range(count)]


async def ready(*brokers: Broker) -> None:
    for broker in brokers:
        await asyncio.to_thread(broker.wait_ready)


@both
async def test_publishing_goes_on_when_the_coordinator_is_killed(brokers: Brokers) -> None:
    """A client subscribes on one broker, another publishes on a second one, and the coordinator is killed with
    SIGKILL. Every publication arrives once, in order, and the restarted broker serves a client that resumes."""
    coordinator = brokers.coordinator(TOPIC, "b0")
    incarnation = coordinator.status()["logic"]["incarnation"]
    others = [broker for broker in brokers.all() if broker is not coordinator]
    subscriber, publisher = await join(others[0]), await join(others[1])
    assert (await subscriber.subscribe(TOPIC))["receipt"] == "complete"
    for number in range(1, 21):
        await publisher.publish(TOPIC, b"m%d" % number, number)
    coordinator.kill()
    positions = [await publisher.publish(TOPIC, b"m%d" % number, number) for number in range(21, 41)]
    assert await deliveries(subscriber, 40) == [f"m{number}" for number in range(1, 41)]
    assert [int(position.split(":")[1]) for position in positions] == list(range(21, 41))
    # the killed one comes back as a learner and gets everything before it takes clients
    coordinator.start()
    await ready(coordinator)
    late = await join(coordinator)
    first = positions[0].split(":")[0]
    assert (await late.subscribe(TOPIC, after=positions[0]))["receipt"] == "complete"
    assert await deliveries(late, 19) == [f"m{number}" for number in range(22, 41)]
    assert int(first) > 0
    assert coordinator.status()["logic"]["incarnation"] > incarnation
    # nobody else was disconnected
    await publisher.publish(TOPIC, b"m41", 41)
    assert await deliveries(subscriber, 1) == ["m41"]


@both
async def test_a_drain_hands_over_tells_clients_and_ends_with_1001(brokers: Brokers) -> None:
    leaving = brokers.coordinator(TOPIC, "b0")
    staying = [broker for broker in brokers.all() if broker is not leaving]
    subscriber, publisher = await join(leaving), await join(staying[0])
    await subscriber.subscribe(TOPIC)
    await publisher.publish(TOPIC, b"before", 1)
    leaving.signal(signal.SIGTERM)
    drain = await subscriber.receive("drain")
    named = {server["url"] for server in drain["servers"]}
    assert named  # by what is known of their clients: those that have their share already are not named
    assert named <= {broker.url for broker in staying}
    for number in range(2, 30):
        await publisher.publish(TOPIC, b"m%d" % number, number)
    assert await deliveries(subscriber, 29) == ["before", *(f"m{number}" for number in range(2, 30))]
    assert leaving.get("/readyz")[0] == 503
    with pytest.raises(ConnectionEnded) as ended:
        await subscriber.receive("never", limit=15)
    assert ended.value.code == 1001
    assert await asyncio.to_thread(leaving.wait) == 0
    # ended by itself: its session is gone at once, others coordinate
    assert brokers.coordinator(TOPIC, staying[0].name) in staying


@both
async def test_the_clients_of_the_last_broker_end_with_1001(brokers: Brokers) -> None:
    """When all brokers drain one after the other, the clients of the last one are closed with 1001 and it exits with
    0. Regression: the last broker fenced itself during its drain, and closed its clients with 4004."""
    *others, last = brokers.all()
    client = await join(last)
    for broker in (*others, last):
        broker.signal(signal.SIGTERM)
        if broker is not last:
            assert await asyncio.to_thread(broker.wait) == 0
    with pytest.raises(ConnectionEnded) as ended:
        await client.receive("never", limit=15)
    assert ended.value.code == 1001
    assert await asyncio.to_thread(last.wait) == 0


@both
async def test_a_second_signal_ends_at_once_and_closes_clients_with_1001(brokers: Brokers) -> None:
    client = await join(brokers["b1"])
    brokers["b1"].signal(signal.SIGTERM)
    brokers["b1"].event("draining")
    brokers["b1"].signal(signal.SIGTERM)
    with pytest.raises(ConnectionEnded) as ended:
        await client.receive("never", limit=4)
    assert ended.value.code == 1001
    assert await asyncio.to_thread(brokers["b1"].wait, 4.0) == 1


async def test_a_frozen_coordinator_returns_with_the_same_incarnation(brokers: Brokers) -> None:
    """A coordinator that is stopped until its ZooKeeper session has expired continues with the same incarnation.
    Meanwhile the other brokers serve all publications, and later clients can resume at it."""
    coordinator = brokers.coordinator(TOPIC, "b0")
    incarnation = coordinator.status()["logic"]["incarnation"]
    other = next(broker for broker in brokers.all() if broker is not coordinator)
    subscriber, publisher = await join(other), await join(other)
    stale = await join(coordinator)
    await subscriber.subscribe(TOPIC)
    await stale.subscribe(TOPIC)
    await publisher.publish(TOPIC, b"m1", 1)
    assert coordinator.process is not None
    root = f"/migratory/{brokers.settings['cluster']}/members/{coordinator.name}"
    watching = KazooClient(brokers.settings["zookeeper"]["servers"])
    await asyncio.to_thread(watching.start)
    try:
        before = watching.exists(root).ephemeralOwner
        coordinator.signal(signal.SIGSTOP)
        try:
            await asyncio.to_thread(poll, lambda: watching.exists(root) is None, "its session has expired")
            positions = [await publisher.publish(TOPIC, b"m%d" % number, number) for number in range(2, 21)]
        finally:
            coordinator.signal(signal.SIGCONT)
        await asyncio.to_thread(poll, lambda: watching.exists(root) is not None, "its presence is there again")
        assert watching.exists(root).ephemeralOwner != before
    finally:
        await asyncio.to_thread(watching.stop)
        watching.close()
    assert coordinator.status()["logic"]["incarnation"] == incarnation
    assert await deliveries(subscriber, 20) == [f"m{number}" for number in range(1, 21)]
    # a client of the frozen one resumes where it was, there or elsewhere
    await ready(coordinator)
    again = await join(coordinator)
    assert (await again.subscribe(TOPIC, after=positions[0]))["receipt"] == "complete"
    assert await deliveries(again, 18) == [f"m{number}" for number in range(3, 21)]


@both
async def test_a_changed_weight_reaches_connected_clients_without_a_restart(brokers: Brokers) -> None:
    client = await join(brokers["b0"])
    pids = [broker.status()["pid"] for broker in brokers.all()]
    brokers.configure(weights={"b1": 20, "b2": 0})
    weights = {brokers["b0"].url: 100, brokers["b1"].url: 20, brokers["b2"].url: 0}

    async def told() -> None:
        while {one["url"]: one.get("weight", 100) for one in (await client.receive("servers"))["servers"]} != weights:
            pass  # a list for each broker that changed

    await asyncio.wait_for(told(), 30)
    assert [broker.status()["pid"] for broker in brokers.all()] == pids
    assert not [line for broker in brokers.all() for line in broker.lines() if "needs_restart" in line["event"]]


async def test_without_zookeeper_publishing_goes_on(brokers: Brokers, zookeepers: Any) -> None:
    """While all ZooKeeper members are down for longer than two sessions, every publication is stored and delivered;
    afterwards all brokers connect again and a takeover works."""
    subscriber, publisher = await join(brokers["b0"]), await join(brokers["b1"])
    await subscriber.subscribe(TOPIC)
    await publisher.publish(TOPIC, b"m1", 1)
    for member in zookeepers.members:
        await asyncio.to_thread(zookeepers.kill, member)
    number = 1
    try:
        async with asyncio.timeout(60):
            begun = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - begun < 12:
                number += 1
                await publisher.publish(TOPIC, b"m%d" % number, number, limit=5)
                await asyncio.sleep(0.1)
    finally:
        for member in zookeepers.members:
            member.process.start()  # not in a thread of this test's loop, with which it would end
    assert await deliveries(subscriber, number) == [f"m{sequence}" for sequence in range(1, number + 1)]
    for broker in brokers.all():
        await asyncio.to_thread(
            poll, lambda broker=broker: broker.status()["zookeeper_connected"], f"{broker.name} is connected again"
        )
    # and a takeover is possible again
    coordinator = brokers.coordinator(TOPIC, "b0")
    if coordinator.name == "b2":
        coordinator.kill()
    await publisher.publish(TOPIC, b"last", number + 1, limit=40)
    assert await deliveries(subscriber, 1) == ["last"]
