"""A broker for tests of clients: all "brokers" share one memory, nothing is replicated, and the test injects faults.

It speaks the MessagePack subprotocol through aiohttp's WebSocket server, so that a client under test does not meet
its own frame parser on the other side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from aiohttp import WSMsgType, web
from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK
from migratory_protocol.positions import Position, parse_position

Delivery = Literal["send", "skip", "twice"]
Planted = Callable[[str, wire.Message], Delivery]


class Topic:
    """The publications of a topic and the known message ids."""

    def __init__(self) -> None:
        self.log: list[wire.Message] = []
        self.ids: dict[str, dict[int, Position]] = {}  # publisher -> message id -> position


class SmallCluster:
    """Brokers that share one memory. `planted` decides for each live delivery, by client name and message, whether it
    is sent, skipped or doubled."""

    def __init__(self, brokers: int = 1, planted: Planted = lambda client, message: "send", epoch: int = 1) -> None:
        self.brokers = [SmallBroker(self, f"broker-{number}") for number in range(brokers)]
        self.topics: dict[str, Topic] = {}
        self.planted = planted
        self.epoch = epoch
        self.answering = True

    async def __aenter__(self) -> SmallCluster:
        for broker in self.brokers:
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.kill()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(broker.url for broker in self.brokers)

    def topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic())

    def position(self, name: str) -> Position:
        log = self.topic(name).log
        return log[-1].position if log else Position(self.epoch, 0)

    def publish(self, publish: wire.Publish) -> Position:
        topic = self.topic(publish.topic)
        known = topic.ids.setdefault(publish.publisher, {})
        if publish.qos and publish.id in known:
            return known[publish.id]
        position = Position(self.epoch, len(topic.log) + 1)
        message = wire.Message(publish.topic, position, publish.payload, publish.sent, time.time())
        topic.log.append(message)
        if publish.qos:
            known[publish.id] = position
        for broker in self.brokers:
            broker.fan_out(message)
        return position


class SmallBroker:
    """One listener of the cluster."""

    def __init__(self, cluster: SmallCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._clients: dict[web.WebSocketResponse, str] = {}
        self._subscribers: dict[str, dict[web.WebSocketResponse, asyncio.Queue[wire.BrokerMessage]]] = {}

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/ws", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"ws://127.0.0.1:{port}/ws"

    async def kill(self) -> None:
        """End like a killed process, without a close frame."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        for socket in list(self._clients):
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()
        await runner.cleanup()

    @property
    def subscriptions(self) -> int:
        return sum(len(subscribers) for subscribers in self._subscribers.values())

    def fan_out(self, message: wire.Message) -> None:
        for socket, queue in self._subscribers.get(message.topic, {}).items():
            what = self.cluster.planted(self._clients.get(socket, ""), message)
            for _ in range({"send": 1, "skip": 0, "twice": 2}[what]):
                queue.put_nowait(message)

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(MSGPACK.subprotocol,))
        await socket.prepare(request)
        queue: asyncio.Queue[wire.BrokerMessage] = asyncio.Queue()
        self._clients[socket] = ""
        writer = asyncio.create_task(self._write(socket, queue))
        try:
            async for frame in socket:
                if frame.type is not WSMsgType.BINARY:
                    break
                for message in MSGPACK.decode_client(frame.data):
                    self._take(socket, queue, message)
        finally:
            writer.cancel()
            self._clients.pop(socket, None)
            for subscribers in self._subscribers.values():
                subscribers.pop(socket, None)
        return socket

    async def _write(self, socket: web.WebSocketResponse, queue: asyncio.Queue[wire.BrokerMessage]) -> None:
        while True:
            await socket.send_bytes(MSGPACK.encode(await queue.get()))

    def _take(
        self, socket: web.WebSocketResponse, queue: asyncio.Queue[wire.BrokerMessage], message: wire.ClientMessage
    ) -> None:
        cluster = self.cluster
        match message:
            case wire.Connect():
                self._clients[socket] = message.client
                servers = [wire.Server(url) for url in cluster.urls]
                limits = wire.Limits(2**20, 255, 1000, 2**20)
                queue.put_nowait(wire.Welcome(wire.VERSION, "small", self.name, 1, servers, 15.0, limits))
            case wire.Subscribe():
                receipts = []
                replay: list[wire.BrokerMessage] = []
                for topic in message.topics:
                    self._subscribers.setdefault(topic.topic, {})[socket] = queue
                    receipts.append(wire.TopicReceipt(topic.topic, "complete", cluster.position(topic.topic)))
                    if topic.after is not None:
                        after = parse_position(topic.after)
                        replay += [
                            wire.Message(m.topic, m.position, m.payload, m.sent, m.time, True)
                            for m in cluster.topic(topic.topic).log
                            if m.position > after
                        ]
                queue.put_nowait(wire.Subscribed(message.request, receipts))
                for one in replay:
                    queue.put_nowait(one)
            case wire.Publish():
                position = cluster.publish(message)
                if message.qos and cluster.answering:
                    queue.put_nowait(wire.Ack(message.topic, message.publisher, message.id, position))
            case wire.Ping():
                queue.put_nowait(wire.Pong())
            case _:
                pass
