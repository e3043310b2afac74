"""Limits of what clients make a broker hold, on real sockets: handshakes, subscriptions and connections of one address.
Each is answered with the limit, and other clients go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from migratory_client import Client
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_testing.processes import Broker, Brokers
from migratory_testing.rawclient import RawClient, request
from migratory_testing.waiting import poll_apart

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

LIMITED, EXEMPT = "127.0.0.2", "127.0.0.9"
ADDRESSES = {"connections": 5, "connectsPerSecond": 20, "exempt": ["127.0.0.1", "127.0.0.8/29"]}
SETTINGS = {"limits": {"subscriptionsTotal": 2_000_000, "inputTotal": 16_777_216, "addresses": ADDRESSES}}


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "I/O processes"])
def broker(
    zookeeper_member: ZooKeeperEnsemble, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Broker]:
    settings: dict[str, Any] = {"delivery": {"minCopies": 1}, "ioProcesses": request.param, **SETTINGS}
    folder = tmp_path_factory.mktemp("broker")
    with Brokers(folder, zookeeper_member.servers, size=1, cluster=f"budget{request.param}", **settings) as brokers:
        brokers.start_all()
        yield brokers["b0"]


def labelled(broker: Broker, name: str, label: str) -> float:
    """Return the value of the metric's only sample in which a label has the value `label`."""
    lines = broker.get("/metrics")[1].splitlines()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(name + "{") and f'="{label}"' in line]
    return float(value)


async def test_unfinished_handshakes_hold_little_memory(broker: Broker, bystander: Any) -> None:
    """Handshakes with a megabyte of headers are refused with 431 or evicted, unfinished ones of 20 KB count with 80 to
    100 KB each until they end, and another client is served meanwhile. Regression: twenty held a megabyte each for ten
    seconds, which no limit counted."""
    address = broker.address("clients")
    head = request()[:-2] + b"".join(b"X-%d: %s\r\n" % (number, b"x" * 8000) for number in range(130))
    before = labelled(broker, "migratory_client_bytes", "handshakes")
    large = [await asyncio.open_connection(*address) for _ in range(20)]
    for _, writer in large:
        writer.write(head)
    small = [await asyncio.open_connection(*address) for _ in range(20)]
    for _, writer in small:
        writer.write(head[:20_000])
    held = 0.0
    for _ in range(5):
        await bystander.unharmed()
        held = max(held, labelled(broker, "migratory_client_bytes", "handshakes") - before)
    for reader, _ in large:
        with suppress(ConnectionError):
            assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 431 ")
    await poll_apart(
        lambda: labelled(broker, "migratory_client_bytes", "handshakes") - before >= 20 * 80_000,
        "the unfinished ones are counted",
    )
    assert labelled(broker, "migratory_client_bytes", "handshakes") - before < 20 * 100_000
    status = broker.status()
    assert status["requests_malformed"] + status["handshakes_evicted"] >= 20
    for _, writer in (*large, *small):
        writer.close()
    await poll_apart(
        lambda: labelled(broker, "migratory_client_bytes", "handshakes") <= before, "they do not count any more"
    )


async def test_mass_subscriptions_end_at_the_limit_and_others_subscribe(broker: Broker, bystander: Any) -> None:
    clients = [await RawClient.join(broker, name=f"hog {number}") for number in range(4)]
    refused = []
    for number, client in enumerate(clients):
        topics = [{"topic": f"{number}-{topic:04}-{'x' * 240}"} for topic in range(1000)]
        client.send("subscribe", request=1, topics=topics)
        receipts: list[dict[str, Any]] = []
        while len(receipts) < len(topics):
            receipts += (await client.receive("subscribed"))["topics"]
        refused += [receipt for receipt in receipts if receipt.get("code")]
    assert {(receipt["code"], receipt["retry_after"]) for receipt in refused} == {("overloaded", 5.0)}
    assert all("bytes are free" in receipt["text"] and "try again after 5 s" in receipt["text"] for receipt in refused)
    await poll_apart(  # I/O processes report what they count and hold a moment later
        lambda: labelled(broker, "migratory_refusals_total", "subscriptions_total") == len(refused), "all are counted"
    )
    await poll_apart(lambda: labelled(broker, "migratory_client_bytes", "subscriptions") > 1_000_000, "all are held")
    held = labelled(broker, "migratory_client_bytes", "subscriptions")
    assert held <= labelled(broker, "migratory_client_bytes_limit", "subscriptions") == 2_000_000
    await bystander.unharmed()
    other = await RawClient.join(broker, name="other")
    for number in range(20):
        assert (await other.subscribe(f"other/{number}", number=number + 1))["receipt"] == "complete"
    for client in clients:
        client.send("bye")
    await poll_apart(
        lambda: labelled(broker, "migratory_client_bytes", "subscriptions") < 100_000, "their memory is free again"
    )
    again = await RawClient.join(broker, name="again")
    assert (await again.subscribe(f"0-0000-{'x' * 240}"))["receipt"] == "complete"


async def test_an_address_has_its_limits_and_an_exempt_one_has_none(broker: Broker, bystander: Any) -> None:
    address = broker.address("clients")

    async def opened(source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
        writer.write(request())
        return reader, writer

    async def status(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> int:
        with suppress(ConnectionError):
            return int((await asyncio.wait_for(connection[0].readline(), 10)).split()[1])
        return 0  # reset behind the refusal, which it did not read

    limited = [await opened(LIMITED) for _ in range(8)]
    assert [await status(connection) for connection in limited[:5]] == [101] * 5
    assert {await status(connection) for connection in limited[5:]} <= {429, 0}
    exempt = [await opened(EXEMPT) for _ in range(30)]
    assert [await status(connection) for connection in exempt] == [101] * 30
    await bystander.unharmed()
    assert labelled(broker, "migratory_refusals_total", "address_connections") == 3
    limited[0][1].close()

    async def accepted() -> bool:
        connection = await opened(LIMITED)
        limited.append(connection)
        return await status(connection) == 101

    await poll_apart_async(accepted)
    for _, writer in (*limited, *exempt):
        writer.close()


async def poll_apart_async(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_rates_change_while_the_broker_runs_and_nothing_is_lost(broker: Broker, bystander: Any) -> None:
    """A client that publishes faster than its new rate waits, gets every acknowledgement, and delivers each publication
    once and in order; others go on."""
    label = "migratory_rate_limited_total", "client_publications"
    set_limits(broker, clients={"publicationsPerSecond": 20})
    broker.event("rate_limits_configured")
    statuses: list[Any] = []
    async with Client([broker.url], on_status=statuses.append) as client:
        stream = client.subscribe("rates/all")
        await client.publish("rates/all", b"first")
        assert (await asyncio.wait_for(anext(stream), 10)).payload == b"first"
        before, begin = labelled(broker, *label), time.monotonic()
        publications = [asyncio.create_task(client.publish("rates/all", b"%d" % number)) for number in range(80)]
        await bystander.unharmed()
        await asyncio.wait_for(asyncio.gather(*publications), 60)
        assert time.monotonic() - begin > (80 - 20) / 20 - 1  # a burst of a second, and then the rate
        received = [await asyncio.wait_for(anext(stream), 10) for _ in range(80)]
        assert [message.payload for message in received] == [b"%d" % number for number in range(80)]
        assert labelled(broker, *label) > before
        assert "rate_limited" in {getattr(status, "code", "") for status in statuses}
        set_limits(broker, clients={})


async def test_limits_of_addresses_change_while_the_broker_runs(broker: Broker, bystander: Any) -> None:
    source = "127.0.0.3"

    async def statuses() -> list[int]:
        """Return the statuses of two connections at a time."""
        connections = [
            await asyncio.open_connection(*broker.address("clients"), local_addr=(source, 0)) for _ in range(2)
        ]
        found = []
        for reader, writer in connections:
            writer.write(request())
            with suppress(ConnectionError):
                found.append(int((await asyncio.wait_for(reader.readline(), 10)).split()[1]))
        for _, writer in connections:
            writer.close()
        return found

    assert await statuses() == [101, 101]
    set_limits(broker, addresses={**ADDRESSES, "connections": 1})
    await poll_apart_async(lambda: _is(statuses, [101]))
    set_limits(broker, addresses={**ADDRESSES, "connections": 1, "exempt": [f"{source}/32"]})
    await poll_apart_async(lambda: _is(statuses, [101, 101]))
    set_limits(broker, addresses=ADDRESSES)
    await bystander.unharmed()
    assert broker.event("address_limits_configured")["connections"] == 1


async def _is(statuses: Any, wanted: list[int]) -> bool:
    return [status for status in await statuses() if status == 101] == wanted


def set_limits(broker: Broker, **limits: dict[str, Any]) -> None:
    """Write these limits into the broker's configuration file, which is replaced as a whole, as Kubernetes does."""
    config = json.loads(broker.config.read_text())
    config["limits"] |= limits
    fresh = broker.config.with_suffix(".new")
    fresh.write_text(json.dumps(config))
    fresh.rename(broker.config)
