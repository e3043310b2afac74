"""Three real brokers on a real ZooKeeper ensemble, and a client that speaks the JSON subprotocol by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import websockets
from migratory_testing.processes import Broker, Brokers
from migratory_testing.waiting import poll
from migratory_testing.zookeeper import ensemble

LIMIT = 20.0


class Hand:
    """One connection; `receive` takes the next message of an operation and keeps the others. The fixture closes all."""

    opened: ClassVar[list[websockets.ClientConnection]] = []

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket
        self.kept: list[dict[str, Any]] = []

    @classmethod
    async def connect(cls, broker: Broker) -> Hand:
        socket = await websockets.connect(broker.url, subprotocols=[websockets.Subprotocol("migratory.v1.json")])
        cls.opened.append(socket)
        hand = cls(socket)
        await hand.send(op="connect", version=1, client="hand")
        assert (await hand.receive("welcome"))["broker"] == broker.name
        return hand

    async def send(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def receive(self, *operations: str, limit: float = LIMIT) -> dict[str, Any]:
        for index, message in enumerate(self.kept):
            if message["op"] in operations:
                return self.kept.pop(index)
        async with asyncio.timeout(limit):
            while True:
                found = json.loads(await self.socket.recv())
                for message in found if isinstance(found, list) else [found]:
                    self.kept.append(message)
                if any(message["op"] in operations for message in self.kept):
                    return await self.receive(*operations)

    async def subscribe(self, topic: str, after: str | None = None) -> dict[str, Any]:
        request: dict[str, Any] = {"topic": topic}
        if after is not None:
            request["after"] = after
        await self.send(op="subscribe", request=1, topics=[request])
        receipt: dict[str, Any] = (await self.receive("subscribed"))["topics"][0]
        return receipt

    async def publish(self, topic: str, number: int, data: str, limit: float = LIMIT) -> str:
        """Until it is acknowledged, as a client has to: with the same id after `retry` and `gap`."""
        async with asyncio.timeout(limit):
            while True:
                await self.send(op="publish", topic=topic, data=data, qos=1, publisher="hand", id=number, mark=number)
                answer = await self.receive("ack", "nack")
                assert answer["id"] == number
                if answer["op"] == "ack":
                    return str(answer["position"])
                assert answer["code"] in ("retry", "gap"), answer
                await asyncio.sleep(answer.get("retry_after", 0.2))

    async def messages(self, count: int) -> list[str]:
        return [(await self.receive("message"))["data"] for _ in range(count)]


@pytest.fixture
async def hand() -> AsyncIterator[type[Hand]]:
    yield Hand
    while Hand.opened:
        socket = Hand.opened.pop()
        socket.transport.abort()  # a broker that was killed or stands still answers no closing handshake
        await socket.wait_closed()


@pytest.fixture(scope="module")
def zookeepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with ensemble(tmp_path_factory.mktemp("zookeeper"), 3) as running:
        yield running


@pytest.fixture
def brokers(zookeepers: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    """A cluster of its own for each test, ready. A test may be given another number of I/O processes than none."""
    cluster = "c" + str(abs(hash(request.node.nodeid)))
    processes = getattr(request, "param", 0)
    with Brokers(tmp_path / "brokers", zookeepers.servers, cluster=cluster, ioProcesses=processes) as running:
        running.start_all()
        for broker in running.all():  # a broker hears of the others' readiness a moment later
            what = f"{broker.name} names all to its clients"
            poll(lambda broker=broker: len(broker.status()["servers"]) == 3, what)  # type: ignore[misc]
        yield running
