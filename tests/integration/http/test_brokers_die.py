"""HTTP clients of three brokers that are killed one after the other: each publication that was acknowledged comes once
and in order, directly and through nginx with its default settings, which sends each request to another broker."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, cycle
from pathlib import Path

import aiohttp
import pytest
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_testing.eventstream import EventStream
from migratory_testing.processes import Brokers
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

KILLS = 3
TOPIC = "http/killed"
RECOVERY = 60.0

CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream brokers {{ {servers} }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://brokers; }}
    }}
}}
"""
"""nginx's settings: those that it needs to run anywhere, and none about streams. Buffering, timeouts and HTTP/1.0 to
the brokers are its defaults."""


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def ports() -> dict[str, int]:
    return dict(zip(["b0", "b1", "b2", "nginx"], free_ports(4), strict=True))


@pytest.fixture
def brokers(zookeeper_member: ZooKeeperEnsemble, tmp_path: Path, ports: dict[str, int]) -> Iterator[Brokers]:
    with Brokers(tmp_path / "brokers", zookeeper_member.servers, cluster=f"killed-{ports['b0']}") as running:
        for broker in running.all():
            broker.start("--clients", f"127.0.0.1:{ports[broker.name]}")
        for broker in running.all():
            broker.wait_ready()
        yield running


@pytest.fixture
def nginx(tmp_path: Path, ports: dict[str, int]) -> Iterator[Callable[[], None]]:
    """Return a function that starts nginx before the brokers."""
    command = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if command is None:
        pytest.skip("nginx is not installed (make debian)")
    folder = tmp_path / "nginx"
    folder.mkdir()
    servers = " ".join(f"server 127.0.0.1:{ports[name]};" for name in ("b0", "b1", "b2"))
    configuration = folder / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, servers=servers, port=ports["nginx"]))
    with ExitStack() as stack:

        def start() -> None:
            process = stack.enter_context(
                subprocess.Popen([command, "-e", f"{folder}/error.log", "-p", str(folder), "-c", str(configuration)])
            )
            stack.callback(process.terminate)

        yield start


class Publisher:
    """A program that publishes numbers over HTTP, at QoS 1, and repeats each with its id until it is acknowledged."""

    def __init__(self, session: aiohttp.ClientSession, bases: list[str]) -> None:
        self._session = session
        self._bases = cycle(bases)
        self.acknowledged = 0
        self.stopped = False

    async def run(self) -> None:
        for number in count(1):
            if self.stopped:
                return
            parameters = {"topic": TOPIC, "publisher": "numbers", "id": str(number)}
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


async def follow_over_kills(brokers: Brokers, ports: dict[str, int], bases: list[str], kind: str) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=30.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        follower, publisher = Follower(session, bases, kind), Publisher(session, bases)
        following = asyncio.create_task(follower.run())
        await until(lambda: follower.subscribed, "the topic is followed", RECOVERY)
        publishing = asyncio.create_task(publisher.run())
        try:
            for _ in range(KILLS):
                begin = len(follower.received)
                await until(lambda begin=begin: len(follower.received) > begin + 20, "publications come", RECOVERY)  # type: ignore[misc]
                victim = brokers[follower.broker or "b0"]
                victim.kill()
                begin = len(follower.received)
                await until(lambda begin=begin: len(follower.received) > begin + 20, "the stream goes on", RECOVERY)  # type: ignore[misc]
                victim.start("--clients", f"127.0.0.1:{ports[victim.name]}")
                await until(victim.ready, f"{victim.name} is back", RECOVERY)
            publisher.stopped = True
            await publishing
            await until(lambda: len(follower.received) >= publisher.acknowledged, "all publications came", RECOVERY)
        finally:
            for task in (publishing, following):
                task.cancel()
            await asyncio.gather(publishing, following, return_exceptions=True)
    assert follower.received == list(range(1, publisher.acknowledged + 1))
    assert follower.gaps == []


@pytest.mark.parametrize("kind", ["stream", "poll"])
async def test_nothing_is_lost_or_doubled_when_brokers_are_killed(
    brokers: Brokers, ports: dict[str, int], kind: str
) -> None:
    await follow_over_kills(brokers, ports, [f"http://127.0.0.1:{ports[name]}" for name in ("b0", "b1", "b2")], kind)


async def test_nothing_is_lost_or_doubled_behind_nginx_with_its_defaults(
    nginx: Callable[[], None], brokers: Brokers, ports: dict[str, int]
) -> None:
    nginx()
    await follow_over_kills(brokers, ports, [f"http://127.0.0.1:{ports['nginx']}"], "stream")
