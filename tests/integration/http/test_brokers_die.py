"""HTTP clients of three brokers that are killed one after the other: each publication that was acknowledged comes once
and in order, directly and through nginx with its default settings, which sends each request to another broker. The same
when nginx is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count, cycle
from pathlib import Path

import aiohttp
import pytest
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_local.processes.network import free_ports
from migratory_testing.eventstream import EventStream
from migratory_testing.nginx import Nginx
from migratory_testing.processes import Brokers
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

KILLS = 3
TOPIC = "http/killed"
RECOVERY = 60.0


@pytest.fixture
def ports() -> dict[str, int]:
    return dict(zip(["b0", "b1", "b2"], free_ports(3), strict=True))


@pytest.fixture
def brokers(zookeeper_member: ZooKeeperEnsemble, tmp_path: Path, ports: dict[str, int]) -> Iterator[Brokers]:
    with Brokers(tmp_path / "brokers", zookeeper_member.servers, cluster=f"killed-{ports['b0']}") as running:
        for broker in running.all():
            broker.start("--clients", f"127.0.0.1:{ports[broker.name]}")
        for broker in running.all():
            broker.wait_ready()
        yield running


@pytest.fixture
def nginx(tmp_path: Path, ports: dict[str, int]) -> Iterator[Nginx]:
    """Return nginx before the brokers, not started yet."""
    proxy = Nginx(tmp_path / "nginx", [f"127.0.0.1:{port}" for port in ports.values()])
    yield proxy
    proxy.kill()


class Publisher:
    """A program that publishes numbers over HTTP, at QoS 1, and repeats each until it is acknowledged: with its id, or
    without a publisher's name."""

    def __init__(self, session: aiohttp.ClientSession, bases: list[str], name: str) -> None:
        self._session = session
        self._bases = cycle(bases)
        self._name = name
        self.acknowledged = 0
        self.stopped = False

    async def run(self) -> None:
        for number in count(1):
            if self.stopped:
                return
            parameters = {"topic": TOPIC}
            if self._name:
                parameters |= {"publisher": self._name, "id": str(number)}
            while True:
                if await self._publish(parameters, b"%d" % number):
                    break
                await asyncio.sleep(0.1)
            self.acknowledged = number
            await asyncio.sleep(0.02)

    async def _publish(self, parameters: dict[str, str], data: bytes) -> bool:
        url = f"{next(self._bases)}/v1/publish"
        try:
            async with self._session.post(url, params=parameters, data=data) as answer:
                assert answer.status in (200, 502, 503, 504), await answer.text()
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


class Follower:
    """A program that follows the topic over HTTP with nothing but `Last-Event-ID`, or with polls."""

    def __init__(self, session: aiohttp.ClientSession, bases: list[str], kind: str) -> None:
        self._session = session
        self._bases = cycle(bases)
        self._kind = kind
        self._stream = EventStream()
        self.broker = ""
        self.subscribed = False
        self.received: list[int] = []
        self.gaps: list[str] = []

    async def run(self) -> None:
        while True:
            try:
                await self._request(next(self._bases))
            except (aiohttp.ClientError, TimeoutError):
                self.broker = ""
            if self._kind == "stream":
                await asyncio.sleep(0.1)

    async def _request(self, base: str) -> None:
        parameters, headers = {"topic": TOPIC}, {}
        if self._kind == "poll" and self._stream.last_id:
            parameters["after"] = self._stream.last_id
        elif self._stream.last_id:
            headers["Last-Event-ID"] = self._stream.last_id
        async with self._session.get(f"{base}/v1/{self._kind}", params=parameters, headers=headers) as answer:
            if answer.status in (502, 503, 504):  # nginx finds no broker
                return
            async for event in self._stream.read(answer):
                if event.name == "message":
                    self.received.append(int(event.data["data"]))
                elif event.data["op"] == "welcome":
                    self.broker = event.data["broker"]
                elif event.data["op"] == "subscribed":
                    self.subscribed = True
                    self.gaps += [each["receipt"] for each in event.data["topics"] if each["receipt"] != "complete"]


Outage = Callable[[Follower], AbstractAsyncContextManager[None]]
"""A context in which something is killed, and at the end of which it runs again."""


def outages_of_brokers(brokers: Brokers, ports: dict[str, int]) -> Outage:
    @asynccontextmanager
    async def outage(follower: Follower) -> AsyncIterator[None]:
        victim = brokers[follower.broker or "b0"]
        victim.kill()
        yield
        victim.start("--clients", f"127.0.0.1:{ports[victim.name]}")
        await until(victim.ready, f"{victim.name} is back", RECOVERY)

    return outage


def outages_of_nginx(nginx: Nginx) -> Outage:
    @asynccontextmanager
    async def outage(follower: Follower) -> AsyncIterator[None]:
        nginx.kill()
        nginx.start()
        yield

    return outage


async def follow_over_kills(bases: list[str], kind: str, outage: Outage, *, name: str = "numbers") -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=30.0)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
        follower, publisher = Follower(session, bases, kind), Publisher(session, bases, name)

        async def more_come(what: str) -> None:
            begin = len(follower.received)
            await until(lambda: len(follower.received) > begin + 20, what, RECOVERY)

        following = tasks.create_task(follower.run())
        await until(lambda: follower.subscribed, "the topic is followed", RECOVERY)
        publishing = tasks.create_task(publisher.run())
        for _ in range(KILLS):
            await more_come("publications come")
            async with outage(follower):
                await more_come("the stream goes on")
        publisher.stopped = True
        await publishing
        await until(lambda: publisher.acknowledged in follower.received, "all publications came", RECOVERY)
        following.cancel()
    received = follower.received if name else list(dict.fromkeys(follower.received))
    assert received == list(range(1, publisher.acknowledged + 1))
    assert follower.gaps == []


@pytest.mark.parametrize("kind", ["stream", "poll"])
async def test_nothing_is_lost_or_doubled_when_brokers_are_killed(
    brokers: Brokers, ports: dict[str, int], kind: str
) -> None:
    bases = [f"http://127.0.0.1:{ports[name]}" for name in ("b0", "b1", "b2")]
    await follow_over_kills(bases, kind, outages_of_brokers(brokers, ports))


async def test_nothing_is_lost_of_a_publisher_without_a_name_when_brokers_are_killed(
    brokers: Brokers, ports: dict[str, int]
) -> None:
    bases = [f"http://127.0.0.1:{ports[name]}" for name in ("b0", "b1", "b2")]
    await follow_over_kills(bases, "stream", outages_of_brokers(brokers, ports), name="")


async def test_nothing_is_lost_or_doubled_behind_nginx_with_its_defaults(
    nginx: Nginx, brokers: Brokers, ports: dict[str, int]
) -> None:
    nginx.start()
    await follow_over_kills([nginx.url], "stream", outages_of_brokers(brokers, ports))


async def test_nothing_is_lost_or_doubled_when_nginx_is_killed(
    nginx: Nginx, brokers: Brokers, ports: dict[str, int]
) -> None:
    nginx.start()
    await follow_over_kills([nginx.url], "stream", outages_of_nginx(nginx))
