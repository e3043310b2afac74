"""A fake broker for exact faults, on the `websockets` library: independent of the product's frames and of aiohttp.

Several fakes may share one `Memory`, as the brokers of a cluster share a history. A test changes the behaviour with the
broker's switches (`greets`, `answers`, `mute`), with the memory's `copies`, or on single connections (`send`, `close`,
`reset`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self, TypeVar

import msgspec
import websockets
from migratory_client import Settings
from migratory_protocol import messages as wire
from migratory_protocol.codec import CODECS, Codec, find_codec
from migratory_protocol.messages import BrokerMessage, ClientMessage
from migratory_protocol.positions import Position, parse_position
from websockets.asyncio.server import Server, ServerConnection, broadcast, serve

T = TypeVar("T")

QUICK = Settings(first_retry=0.05, ack_timeout=0.2)
"""Settings with short waits: reconnect within 0.05 s, and send unanswered publications again after 0.2 s."""


class Memory:
    """The published messages by topic. A repeat is recognised by publisher and id, as within a duplicate window.

    `copies` returns how often a live message is delivered to a subscriber: 0 to lose it, 2 to repeat it. A replay from
    before the sequence number `first_cached` is truncated.
    """

    def __init__(self) -> None:
        self.epoch = 1
        self.topics: dict[str, list[wire.Message]] = {}
        self.known: dict[tuple[str, str, int], Position] = {}
        self.first_cached = 1
        self.brokers: list[FakeBroker] = []
        self.copies: Callable[[wire.Message], int] = lambda message: 1

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(broker.url for broker in self.brokers)

    def position(self, topic: str) -> Position:
        log = self.topics.get(topic)
        return log[-1].position if log else Position(self.epoch, 0)

    def append(self, topic: str, payload: bytes, sent: float | None = None) -> wire.Message:
        """Store a message with the topic's next position, and return it. It is delivered to nobody."""
        log = self.topics.setdefault(topic, [])
        log.append(wire.Message(topic, Position(self.epoch, len(log) + 1), payload, sent, time.time()))
        return log[-1]


class FakeConnection:
    """The connection of one client to a fake broker. `received` holds the client's messages in order, `topics` its
    subscriptions. `ended` is set when the connection has ended."""

    def __init__(self, broker: FakeBroker, connection: ServerConnection, codec: Codec) -> None:
        self.broker = broker
        self.connection = connection
        self.codec = codec
        self.received: list[ClientMessage] = []
        self.frames: list[int] = []  # messages in each frame
        self.topics: set[str] = set()
        self.ended = asyncio.Event()

    def send(self, *messages: BrokerMessage) -> None:
        """Send each message in a frame of its own, without waiting. Do nothing if the connection has ended."""
        for message in messages:
            data = self.codec.encode(message)
            broadcast([self.connection], data if self.codec.binary else data.decode())

    async def close(self, code: int, reason: str = "") -> None:
        await self.connection.close(code, reason)

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        plain: socket.socket = self.connection.transport.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.transport.abort()

    def of(self, kind: type[T]) -> list[T]:
        return [message for message in self.received if isinstance(message, kind)]


class FakeBroker:
    """A broker for tests of clients, which listens at `url`: `async with FakeBroker() as broker:`. With `greets` it
    answers `connect`, with `answers` it acknowledges publications, and with `mute` it reads everything and sends
    nothing. It closes the connection of a client for whose token `refuses_token` returns true."""

    def __init__(self, memory: Memory | None = None, *, name: str = "fake-0", heartbeat: float = 15.0) -> None:
        self.memory = memory or Memory()
        self.memory.brokers.append(self)
        self.name = name
        self.heartbeat = heartbeat
        self.greets = True
        self.answers = True  # acknowledge publications
        self.mute = False  # read everything and send nothing
        self.refuses_token: Callable[[str | None], bool] = lambda token: False
        self.servers: list[wire.Server] = []
        self.connections: list[FakeConnection] = []
        self.port = 0
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    @property
    def live(self) -> list[FakeConnection]:
        """The connections that have not ended, in the order in which they were made."""
        return [connection for connection in self.connections if not connection.ended.is_set()]

    async def start(self) -> None:
        """Listen on a free port, or after a stop on the same port again."""
        subprotocols = [websockets.Subprotocol(codec.subprotocol) for codec in CODECS]
        self._server = await serve(
            self._serve, "127.0.0.1", self.port, subprotocols=subprotocols, ping_interval=None, compression=None,
            max_size=None, close_timeout=0.5,
        )  # fmt: skip
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """End like a killed process: reset all connections and stop listening."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close(close_connections=False)
        for connection in self.live:
            connection.reset()
        await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def publish(self, topic: str, payload: bytes, sent: float | None = None) -> Position:
        """Publish as another client, and return the position. Subscribers of all brokers with this memory, except
        mute ones, get the message."""
        message = self.memory.append(topic, payload, sent)
        for broker in self.memory.brokers:
            for connection in broker.live:
                if topic in connection.topics and not broker.mute:
                    connection.send(*[message] * self.memory.copies(message))
        return message.position

    async def _serve(self, connection: ServerConnection) -> None:
        """Serve a connection until it ends: record each message, and answer it unless the broker is mute."""
        client = FakeConnection(self, connection, find_codec(str(connection.subprotocol)))
        self.connections.append(client)
        try:
            async for frame in connection:
                data = frame.encode() if isinstance(frame, str) else frame
                messages = client.codec.decode_client(data)
                client.frames.append(len(messages))
                for message in messages:
                    client.received.append(message)
                    if not self.mute:
                        await self._answer(client, message)
        except websockets.ConnectionClosedError:
            pass  # resets are what this broker is for
        finally:
            client.ended.set()

    async def _answer(self, client: FakeConnection, message: ClientMessage) -> None:
        """Answer one message as a broker does, within what the switches allow."""
        match message:
            case wire.Connect(token=token):
                if self.refuses_token(token):
                    await client.close(4001, "unauthenticated")
                elif self.greets:
                    limits = wire.Limits(1 << 20, 255, 1000, 1 << 20)
                    client.send(wire.Welcome(wire.VERSION, "fake", self.name, 1, self.servers, self.heartbeat, limits))
            case wire.Subscribe():
                self._subscribe(client, message)
            case wire.Unsubscribe():
                client.topics -= set(message.topics)
                client.send(wire.Unsubscribed(message.request, message.topics))
            case wire.Publish():
                key = (message.topic, message.publisher, message.id)
                position = self.memory.known.get(key) if message.qos else None
                if position is None:
                    position = self.publish(message.topic, message.payload, message.sent)
                    if message.qos:
                        self.memory.known[key] = position
                if message.qos and self.answers:
                    client.send(wire.Ack(message.topic, message.publisher, message.id, position))
            case wire.Ping():
                client.send(wire.Pong())
            case _:
                pass

    def _subscribe(self, client: FakeConnection, message: wire.Subscribe) -> None:
        """Answer a subscribe request with a receipt for each topic, each followed by its replay, and deliver live
        messages from now on."""
        memory = self.memory
        for request in message.topics:
            topic = request.topic
            log = memory.topics.get(topic, [])
            receipt = wire.TopicReceipt(topic, "complete", memory.position(topic))
            start = memory.position(topic).sequence
            if request.after is not None:
                after = parse_position(request.after)
                start = after.sequence
                if after.epoch < memory.epoch or start > memory.position(topic).sequence:
                    receipt.receipt = "reset"
                    start = memory.position(topic).sequence
                elif start + 1 < memory.first_cached:
                    receipt.receipt, receipt.first, receipt.last = "truncated", start + 1, memory.first_cached - 1
                    start = memory.first_cached - 1
            elif request.snapshot:
                start = max(0, start - 1)
            client.topics.add(topic)
            replay = [msgspec.structs.replace(stored, replayed=True) for stored in log[start:]]
            client.send(wire.Subscribed(message.request, [receipt]), *replay)


@asynccontextmanager
async def fake_cluster(size: int, copies: Callable[[wire.Message], int] = lambda message: 1) -> AsyncIterator[Memory]:
    """Run `size` fake brokers, `broker-0`, `broker-1` and so on, which share the yielded memory and list each other
    to clients."""
    memory = Memory()
    memory.copies = copies
    async with AsyncExitStack() as running:
        for number in range(size):
            await running.enter_async_context(FakeBroker(memory, name=f"broker-{number}"))
        for broker in memory.brokers:
            broker.servers = [wire.Server(url) for url in memory.urls]
        yield memory


async def take(subscription: AsyncIterator[wire.Message], count: int) -> list[bytes]:
    """Return the payloads of the next `count` messages. Raise TimeoutError when they do not arrive within 10 s."""
    async with asyncio.timeout(10):
        return [(await anext(subscription)).payload for _ in range(count)]
