"""Cases A7, A9 and A10 on three real brokers: a connection that is lost before the first message, a coordinator that
dies after it received a publication and before it replicated it, and a ZooKeeper session that ends while its broker
lives."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_protocol.topics import topic_group
from migratory_testing.processes import Broker, Brokers
from migratory_testing.rawclient import RawClient, payload, position
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SESSION = 4.0
GROUPS = 8
EXPIRIES = int(os.environ.get("MIGRATORY_EXPIRIES", "3"))
"""How often the test ends the broker's ZooKeeper session: 3, or the number in the environment variable
MIGRATORY_EXPIRIES."""


@pytest.fixture
def brokers(zookeeper_member: ZooKeeperEnsemble, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    cluster = "three" + str(abs(hash(request.node.nodeid)))
    with Brokers(tmp_path / "b", zookeeper_member.servers, cluster=cluster, topics={"groups": GROUPS}) as running:
        running.start_all()
        yield running


@pytest.fixture
def watching(zookeeper_member: ZooKeeperEnsemble) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper_member.servers)
    client.start()
    yield client
    client.stop()
    client.close()


async def coordinator(brokers: Brokers, topic: str) -> tuple[Broker, list[Broker]]:
    """Return the broker that coordinates the topic, and the other brokers."""
    leader = await asyncio.to_thread(brokers.coordinator, topic, "b0")
    return leader, [broker for broker in brokers.all() if broker is not leader]


# ---- A7 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 17])
async def test_client_lost_before_its_first_message_resumes_at_its_receipt(brokers: Brokers, before: int) -> None:
    """A client whose connection is lost before its first message resumes at another broker from the position of its
    receipt, also from sequence number 0, and receives exactly the publications of the meantime."""
    writer = await RawClient.join(brokers["b1"])
    for number in range(1, before + 1):
        await writer.publish("early", b"%d" % number, number)
    reader = await RawClient.join(brokers["b0"])
    receipt = await reader.subscribe("early")
    while position(receipt["position"])[1] < before:  # a follower may hear of the last ones a moment later
        reader = await RawClient.join(brokers["b0"])
        receipt = await reader.subscribe("early")
    assert (receipt["receipt"], position(receipt["position"])[1]) == ("complete", before)
    epoch = position(receipt["position"])[0]
    assert epoch > 0, "a position to resume from, before there was any message"
    reader.reset()

    missed = [await writer.publish("early", b"%d" % number, number) for number in range(before + 1, before + 4)]
    again = await RawClient.join(brokers["b2"])
    after = await again.subscribe("early", receipt["position"])
    assert after["receipt"] == "complete"
    messages = [await again.receive("message") for _ in range(3)]
    assert [message["position"] for message in messages] == missed
    assert [payload(message) for message in messages] == [b"%d" % number for number in range(before + 1, before + 4)]
    assert all(position(message["position"])[0] == epoch for message in messages)
    await again.ping()
    assert again.buffered == []


# ---- A9 ------------------------------------------------------------------------------------------------------


async def test_a_publication_lost_with_the_coordinator_is_stored_by_the_retry(brokers: Brokers) -> None:
    """A publication that waits in the socket of a stopped coordinator, which is then killed, is stored once when the
    publisher sends it again."""
    await retried(brokers, stop_followers=False)


async def test_a_publication_that_no_follower_confirmed_is_stored_once(brokers: Brokers) -> None:
    """A publication that the killed coordinator had stored, but that no follower had confirmed, is stored once when the
    publisher sends it again.

    The next coordinator may adopt the publication at its old position; if not, the repeat gets a new position.
    """
    await retried(brokers, stop_followers=True)


async def retried(brokers: Brokers, *, stop_followers: bool) -> None:
    topic = "retried"
    leader, (follower, second) = await coordinator(brokers, topic)
    reader = await RawClient.join(second)
    await reader.subscribe(topic)
    first = await RawClient.join(follower)
    epoch, sequence = position(await first.publish(topic, b"before", 1, "p1"))
    assert payload(await reader.receive("message")) == b"before"

    stopped = [follower, second] if stop_followers else [leader]
    for broker in stopped:
        broker.signal(signal.SIGSTOP)
    try:
        contact = await RawClient.join(leader) if stop_followers else first
        contact.send_publish(topic, b"x", 2, "p1")
        if stop_followers:
            # its own clients are served meanwhile: it has taken what came before
            await contact.ping()
        with pytest.raises(TimeoutError):
            await contact.receive("ack", "nack", limit=0.5)
        leader.kill()
    finally:
        for broker in stopped:
            if broker is not leader:
                broker.signal(signal.SIGCONT)

    # the publisher times out, and says it again through another broker
    again = await RawClient.join(second)
    given = position(await again.publish(topic, b"x", 2, "p1"))
    assert given[0] > epoch or (stop_followers and given[0] == epoch)
    assert given[1] == sequence + 1
    message = await reader.receive("message")
    assert (payload(message), position(message["position"])) == (b"x", given)
    # now it is a duplicate of something that is committed, with its position, at any broker
    for broker in (follower, second):
        third = await RawClient.join(broker)
        assert position(await third.publish(topic, b"x", 2, "p1")) == given
    resumed = await RawClient.join(follower)
    assert (await resumed.subscribe(topic, f"{epoch}:{sequence}"))["receipt"] == "complete"
    for client in (reader, resumed):
        await again.publish(topic, b"last", 3, "p1")
        records = []
        while b"last" not in records:
            records.append(payload(await client.receive("message")))
        assert records in ([b"last"], [b"x", b"last"])
        assert records.count(b"x") == (1 if client is resumed else 0), "once, and the reader has it already"


# ---- A10 -----------------------------------------------------------------------------------------------------


def password(session: int) -> bytes:
    """Return the password of a ZooKeeper session: `java.util.Random(session ^ 0xB3415C00L).nextBytes(16)`
    (SessionTrackerImpl, ZooKeeperServer.generatePasswd)."""
    seed = ((session ^ 0xB3415C00) ^ 0x5DEECE66D) & (2**48 - 1)
    content_ = b""
    while len(content_) < 16:
        seed = (seed * 0x5DEECE66D + 0xB) & (2**48 - 1)
        content_ += (seed >> 16).to_bytes(4, "little")
    return content_


def end_session(servers: str, session: int) -> None:
    """End a ZooKeeper session: a second client takes it over with its id and password and closes it. The first
    client notices this only when it connects again."""
    thief = KazooClient(servers, client_id=(session, password(session)))
    thief.start()
    assert thief.client_id[0] == session, "the session was not taken over: the password is wrong"
    thief.stop()
    thief.close()


def records(watching: KazooClient, root: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(watching.get(f"{root}/groups/{number}")[0]) for number in range(GROUPS)]


async def test_broker_whose_zookeeper_session_ends_loses_no_publication(
    brokers: Brokers, zookeeper_member: ZooKeeperEnsemble, watching: KazooClient
) -> None:
    """A broker whose ZooKeeper session is ended several times loses no acknowledged publication of the two groups that
    it coordinates at first, is never restarted, and answers `/healthz` within a second.

    After each end, the group's record names the same owner with no lower epoch, or another owner with a higher epoch.
    """
    servers = zookeeper_member.servers
    root = f"/migratory/{brokers.settings['cluster']}"
    victim = brokers["b1"]
    incarnation = victim.status()["logic"]["incarnation"]
    topics = await asyncio.to_thread(topics_of, brokers, victim)
    readers = {(broker.name, topic): await RawClient.join(broker) for broker in brokers.all() for topic in topics}
    for (_, topic), reader in readers.items():
        await reader.subscribe(topic)
    acknowledged: dict[str, list[bytes]] = {topic: [] for topic in topics}
    slowest = 0.0
    ending = False

    async def publish(topic: str) -> None:
        writer = await RawClient.join(brokers["b2"])
        number = 0
        while not ending:
            number += 1
            await writer.publish(topic, b"%d" % number, number, f"to {topic}")
            acknowledged[topic].append(b"%d" % number)
            await asyncio.sleep(0.02)

    async def watch_health() -> None:
        nonlocal slowest
        while not ending:
            began = time.monotonic()
            assert (await asyncio.to_thread(victim.get, "/healthz"))[0] == 200
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as tasks:
        for topic in topics:
            tasks.create_task(publish(topic))
        tasks.create_task(watch_health())
        for _ in range(EXPIRIES):
            before = await asyncio.to_thread(records, watching, root)
            session = watching.exists(f"{root}/members/b1").ephemeralOwner
            await asyncio.to_thread(end_session, servers, session)
            await asyncio.to_thread(
                poll,
                lambda old=session: restored(watching, root, old),
                "one owner each, presence restored",
                SESSION + 5,
            )
            for old, new in zip(before, await asyncio.to_thread(records, watching, root), strict=True):
                if new["owner"] == old["owner"]:
                    assert new["epoch"] >= old["epoch"]
                else:
                    assert new["epoch"] > old["epoch"]
            count = {topic: len(publications) for topic, publications in acknowledged.items()}
            await asyncio.to_thread(
                poll,
                lambda count=count: all(len(acknowledged[topic]) > count[topic] + 5 for topic in topics),
                "publishing goes on", SESSION + 10,
            )  # fmt: skip
        ending = True
    assert slowest < 1.0, "a thread was blocked"
    for (name, topic), reader in readers.items():
        payloads = [payload(await reader.receive("message")) for _ in acknowledged[topic]]
        assert payloads == acknowledged[topic], f"at {name}"
    assert victim.status()["logic"]["incarnation"] == incarnation, "it was never restarted"


def topics_of(brokers: Brokers, broker: Broker) -> list[str]:
    """Return two topics of different groups that this broker coordinates. Wait until there are two such groups."""

    def find() -> list[str]:
        groups = brokers["b0"].status()["logic"]["groups"]
        mine = {group["group"] for group in groups if group["coordinator"] == broker.name}
        names: dict[int, str] = {}
        for number in range(200):
            if (group := topic_group(f"t{number}", GROUPS)) in mine:
                names.setdefault(group, f"t{number}")
        return list(names.values())[:2] if len(names) >= 2 else []

    return poll(find, f"{broker.name} coordinates two groups")


def restored(watching: KazooClient, root: str, old: int) -> bool:
    """Return whether every group has a coordinator with a live ZooKeeper session, and b1's member node belongs to
    another session than `old`."""
    presence = watching.exists(f"{root}/members/b1")
    if presence is None or presence.ephemeralOwner == old:
        return False
    sessions = set()
    for name in watching.get_children(f"{root}/members"):
        stat = watching.exists(f"{root}/members/{name}")
        sessions.add(stat.ephemeralOwner if stat else None)
    for number in range(GROUPS):
        owner = watching.exists(f"{root}/coordinators/{number}")
        if owner is None or owner.ephemeralOwner not in sessions:
            return False
    return True
