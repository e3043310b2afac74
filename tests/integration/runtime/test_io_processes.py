"""A broker whose clients are in I/O processes of their own: how clients are spread, what happens when the processes or
the broker are killed or stopped, when the broker drains or is fenced, and what the status shows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migratory_testing.processes import Broker, Brokers
from migratory_testing.rawclient import ConnectionEnded, RawClient, answer, close_all, payload
from migratory_testing.waiting import poll, poll_apart, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
CLIENTS = 41


@pytest.fixture
def broker(zookeepers: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Run one broker with two I/O processes, and yield it once both are up."""
    cluster = "io" + str(abs(hash(request.node.nodeid)))
    with Brokers(
        tmp_path / "broker", zookeepers.servers, 1, cluster=cluster, delivery={"minCopies": 1}, ioProcesses=2
    ) as process:
        process.start_all()
        poll(lambda: both_up(process["b0"]), "both are up, on a busy machine too", 60)
        yield process["b0"]


@pytest.fixture(autouse=True)
async def closed_at_the_end() -> Any:
    yield
    await close_all()


def processes(broker: Broker) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = broker.status()["io_processes"]
    return entries


def both_up(broker: Broker) -> list[dict[str, Any]]:
    entries = processes(broker)
    return entries if [entry["state"] for entry in entries] == ["up", "up"] else []


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ended(client: RawClient) -> int:
    """Wait until the connection ends, and return its close code, or 1006 if there was no close frame. Ignore
    messages. Raise TimeoutError after 20 s."""
    try:
        await client.receive("never", limit=20)
    except ConnectionEnded as end:
        return end.code
    except (ConnectionError, asyncio.IncompleteReadError):
        return 1006
    raise AssertionError("it goes on")


def gone(clients: list[RawClient]) -> list[RawClient]:
    """Return those of the clients whose connection has ended."""
    return [client for client in clients if client.reader.at_eof() or client.reader.exception() is not None]


async def fill(broker: Broker) -> list[RawClient]:
    """Connect `CLIENTS` clients to the broker, each subscribed to the topic `t`, and return them."""
    clients = [await RawClient.join(broker, name=f"c{number}") for number in range(CLIENTS)]
    for client in clients:
        await client.subscribe("t")
    return clients


async def heard(clients: list[RawClient], data: bytes) -> None:
    for client in clients:
        assert payload(await client.receive("message")) == data


async def test_connections_are_spread_evenly_also_after_a_death(broker: Broker) -> None:
    """The two I/O processes have about the same number of connections (at most 10 % above the mean), also after one
    was killed and its clients connected again."""
    await fill(broker)
    poll(lambda: sum(entry["connections"] for entry in processes(broker)) == CLIENTS, "all are counted")
    counts = [entry["connections"] for entry in processes(broker)]
    assert max(counts) / (sum(counts) / 2) <= 1.1
    os.kill(processes(broker)[0]["pid"], signal.SIGKILL)
    await poll_apart(
        lambda: broker.metric("migratory_io_process_deaths_total") == 1 and both_up(broker), "a new one is up"
    )
    lost_count = CLIENTS - await poll_apart(lambda: processes(broker)[1]["connections"], "the other has its own")
    for number in range(lost_count):
        await RawClient.join(broker, name=f"again{number}")
    poll(lambda: sum(entry["connections"] for entry in processes(broker)) == CLIENTS, "all are counted again")
    counts = [entry["connections"] for entry in processes(broker)]
    assert max(counts) / (sum(counts) / 2) <= 1.1
    gauge = [line for line in broker.get("/metrics")[1].splitlines() if "io_process_clients{" in line]
    assert sorted(float(line.split()[-1]) for line in gauge) == sorted(counts)


async def test_a_killed_process_loses_its_own_clients_only(broker: Broker) -> None:
    clients = await fill(broker)
    publisher = await RawClient.join(broker, name="publisher")
    await publisher.publish("t", b"one", 1, "p")
    await heard(clients, b"one")
    position = (await clients[0].subscribe("t", number=9))["position"]
    poll(lambda: broker.metric("migratory_delivered_total") >= CLIENTS, "deliveries are counted")
    victim = processes(broker)[1]
    before = {name: broker.metric(f"migratory_{name}_total") for name in ("delivered", "published", "sent_bytes")}
    os.kill(victim["pid"], signal.SIGKILL)
    await poll_apart(lambda: broker.metric("migratory_io_process_deaths_total") == 1, "the death is counted")
    died = broker.event("io_process_died")
    assert (died["io_process"], died["pid"], died["level"]) == (1, victim["pid"], "error")
    for name, value in before.items():
        assert broker.metric(f"migratory_{name}_total") >= value, name
    await until(lambda: len(gone([*clients, publisher])) == died["clients"], "all ends of connections are read")
    lost_count = gone(clients)
    assert len(lost_count) in (CLIENTS // 2, CLIENTS // 2 + 1)
    assert died["clients"] - len(lost_count) in (0, 1)  # the publisher is one of them, or not
    # the others stay, and those come back to where they were
    await poll_apart(lambda: both_up(broker), "a new one is up")
    second = await RawClient.join(broker, name="second")
    await second.publish("t", b"two", 1, "q")
    await heard([client for client in clients if client not in lost_count], b"two")
    for number in range(len(lost_count)):
        again = await RawClient.join(broker, name=f"again{number}")
        receipt = await again.subscribe("t", after=position)
        assert receipt["receipt"] == "complete"
        await heard([again], b"two")
    assert broker.ready()
    assert broker.status()["edge"]["closed"]["io_process"] == died["clients"]


async def test_a_stopped_process_is_killed_and_delays_no_other_client(broker: Broker) -> None:
    clients = await fill(broker)
    poll(lambda: sum(entry["connections"] for entry in processes(broker)) == CLIENTS, "all are counted")
    victim = processes(broker)[0]
    os.kill(victim["pid"], signal.SIGSTOP)
    publisher = None
    for _ in range(4):  # one of two goes to the process that stands still, until it is known to
        try:
            publisher = await asyncio.wait_for(RawClient.join(broker, name="publisher"), 3)
            break
        except TimeoutError:
            continue
    assert publisher is not None
    began = time.monotonic()
    for number in range(1, 31):
        await publisher.publish("t", b"%d" % number, number, "p")
        await asyncio.sleep(0.02)
    assert not broker.status()["io_process_deaths"], f"{time.monotonic() - began} s"
    await poll_apart(lambda: broker.metric("migratory_io_process_deaths_total") == 1, "it is killed")
    assert "silent" in broker.event("io_process_died")["reason"]
    await until(lambda: len(gone(clients)) == victim["connections"], "all ends of connections are read")
    others = [client for client in clients if client not in gone(clients)]
    assert len(others) in (CLIENTS // 2, CLIENTS // 2 + 1)
    for number in range(1, 31):
        await heard(others, b"%d" % number)


@pytest.mark.parametrize("stopped", [False, True], ids=["that run", "that stand still"])
async def test_a_killed_broker_leaves_no_processes_behind(broker: Broker, stopped: bool) -> None:
    """When a broker is killed, its I/O processes end too, even stopped ones: the client's connection ends, the port
    is free, and the broker can start on it again."""
    client = await RawClient.join(broker, name="c")
    address = broker.address("clients")
    pids = [entry["pid"] for entry in processes(broker)]
    if stopped:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    broker.kill()
    await poll_apart(lambda: not any(alive(pid) for pid in pids), "they are gone")
    assert await ended(client) == 1006
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    broker.start("--clients", f"{address[0]}:{address[1]}")
    await poll_apart(broker.ready, "it is back on its port")


async def test_io_processes_close_their_clients_when_the_broker_stalls(broker: Broker) -> None:
    """While the broker's own process is stopped, its I/O processes close all their clients with 4004 after the
    fencing time; when it continues, it replaces both I/O processes and becomes ready."""
    clients = await fill(broker)
    pids = [entry["pid"] for entry in processes(broker)]
    broker.signal(signal.SIGSTOP)
    try:
        codes = Counter(await asyncio.wait_for(asyncio.gather(*map(ended, clients)), 20))
    finally:
        broker.signal(signal.SIGCONT)
    assert codes == {4004: CLIENTS}
    fresh = await poll_apart(lambda: broker.status()["io_process_deaths"] == 2 and both_up(broker), "it has others")
    assert not {entry["pid"] for entry in fresh} & set(pids)
    await poll_apart(broker.ready, "it takes clients again")
    await RawClient.join(broker, name="again")


async def test_signals_to_the_process_group_are_handled_by_the_broker(broker: Broker) -> None:
    """When the broker and its I/O processes all receive the signal, as with Ctrl-C in a terminal, the broker drains
    as usual: all clients are closed with 1001, it exits with 0, and no I/O process counts as dead."""
    clients = await fill(broker)
    for entry in processes(broker):
        os.kill(entry["pid"], signal.SIGTERM)
        os.kill(entry["pid"], signal.SIGINT)
    broker.signal(signal.SIGTERM)
    codes = Counter(await asyncio.gather(*map(ended, clients)))
    assert codes == {1001: CLIENTS}
    assert await asyncio.to_thread(broker.wait) == 0
    assert [line for line in broker.lines() if line["event"] == "io_process_died"] == []


async def test_every_process_is_in_the_status_and_all_of_them_in_the_memory(broker: Broker) -> None:
    entries = await poll_apart(lambda: both_up(broker), "both are up")
    assert [entry["process"] for entry in entries] == [0, 1]
    assert len({entry["edge"]["edge"] for entry in entries}) == 2
    status = broker.status()
    apart = [entry["memory_bytes"] for entry in entries]
    assert all(10_000_000 < size < 200_000_000 for size in apart)
    assert status["memory_bytes"] > sum(apart)
    assert broker.metric("migratory_memory_bytes") == pytest.approx(status["memory_bytes"], rel=0.2)
    assert broker.metric("migratory_io_process_deaths_total") == 0
    for _ in entries:  # each answers for itself
        request = b"GET /v1/servers HTTP/1.1\r\nHost: localhost\r\n\r\n"
        code, _, body = await answer(broker.address("clients"), request)
        assert (code, json.loads(body)) == (200, {"servers": [{"url": broker.url, "weight": 100}]})


@pytest.mark.parametrize("brokers", [2], indirect=True, ids=["two I/O processes"])
async def test_a_fenced_broker_has_no_clients_in_time_even_if_a_process_hangs(brokers: Brokers) -> None:
    """A broker that loses the other two is fenced, and all its clients lose their connections within 4 s, also those
    of an I/O process that hangs: the broker kills that process."""
    alone = brokers["b0"]
    hangs = (await poll_apart(lambda: both_up(alone), "both are up", 60))[0]["pid"]
    clients = [await RawClient.join(alone, name=f"c{number}") for number in range(10)]
    for client in clients:
        await client.subscribe("t")
    for other in ("b1", "b2"):
        brokers[other].signal(signal.SIGSTOP)
    try:
        # before the broker is fenced, and not much before: five seconds of silence are a reason to be killed as well
        await asyncio.sleep(1.5)
        os.kill(hangs, signal.SIGSTOP)
        fenced = await asyncio.to_thread(alone.event, "fenced", 20)
        codes = Counter(await asyncio.wait_for(asyncio.gather(*map(ended, clients)), 20))
        died = await asyncio.to_thread(alone.event, "io_process_died", 20)
    finally:
        for other in ("b1", "b2"):
            brokers[other].signal(signal.SIGCONT)
    assert codes == {4004: 5, 1006: 5}
    assert died["pid"] == hangs
    assert died["time"] - fenced["time"] < 4.0  # the fencing time leaves a session (Fencing, replication.md)
    await poll_apart(alone.ready, "it hears the others, and takes clients again", 60)
