"""The product's protocol in MessagePack, publishing with QoS 1."""

from __future__ import annotations

import time
from collections.abc import Iterable

from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK
from migratory_protocol.positions import Position

from benchmarks.protocols.base import ClientProtocol, Conversation, RefusedByServer


class _ProductSubscriber(Conversation):
    """A subscriber of one topic, which checks that a resume is complete."""

    def __init__(self, client: str, topic: str, after: Position | None, token: str) -> None:
        self._client = client
        self._token = token
        self._topic = topic
        self._after = after

    def greeting(self) -> list[bytes]:
        topics = [wire.TopicRequest(self._topic, self._after)]
        connect = wire.Connect(client=self._client, token=self._token or None)
        return [MSGPACK.encode(connect), MSGPACK.encode(wire.Subscribe(1, topics))]

    def received(self, message: bytes) -> list[bytes]:
        for decoded in MSGPACK.decode_broker(message):
            if isinstance(decoded, wire.Error):
                raise RefusedByServer(f"{self._client}: {decoded.code}: {decoded.text}")
            if isinstance(decoded, wire.Subscribed):
                receipt = decoded.topics[0]
                if receipt.receipt is None:
                    raise RefusedByServer(f"{self._client}: {receipt.code}: {receipt.text}")
                if self._after is not None and receipt.receipt != "complete":
                    raise RefusedByServer(
                        f"{self._client}: resumed at {self._after} with a receipt {receipt.receipt!r}"
                    )
                self.position = receipt.position
                self.ready = True
        return []


class _ProductPublisher(Conversation):
    """A publisher whose ids rise per topic. Its mark is the lowest id without an answer."""

    def __init__(self, client: str, token: str) -> None:
        self._client = client
        self._token = token
        self._sent: dict[str, int] = {}
        self._answered: dict[str, int] = {}

    def greeting(self) -> list[bytes]:
        return [MSGPACK.encode(wire.Connect(client=self._client, token=self._token or None))]

    def received(self, message: bytes) -> list[bytes]:
        for decoded in MSGPACK.decode_broker(message):
            if isinstance(decoded, wire.Ack):
                self.answered += 1
                self._answered[decoded.topic] = max(decoded.id, self._answered.get(decoded.topic, 0))
            elif isinstance(decoded, wire.Error | wire.Nack):
                raise RefusedByServer(f"{self._client}: {decoded.code}: {decoded.text}")
            elif isinstance(decoded, wire.Welcome):
                self.ready = True
        return []

    def publish(self, topic: str, payload: bytes) -> bytes:
        number = self._sent.get(topic, 0) + 1
        self._sent[topic] = number
        mark = self._answered.get(topic, 0) + 1
        return MSGPACK.encode(wire.Publish(topic, payload, 1, self._client, number, mark, time.time()))

    def join(self, messages: list[bytes]) -> bytes:
        return MSGPACK.join(messages)


class ProductProtocol(ClientProtocol):
    """The product's protocol, with the system's name in results."""

    name = "product"
    path = "/ws"
    subprotocols = (MSGPACK.subprotocol,)
    heartbeat = MSGPACK.encode(wire.Ping())
    resumes = True

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Conversation:
        return _ProductSubscriber(client, topic, after, self.token)

    def publisher(self, client: str) -> Conversation:
        return _ProductPublisher(client, self.token)

    def positions(self, message: bytes) -> Iterable[tuple[bytes, Position]]:
        for decoded in MSGPACK.decode_broker(message):
            if isinstance(decoded, wire.Message):
                yield decoded.payload, decoded.position
