"""MQTT 3.1.1 over WebSocket: publications with QoS 1 (acknowledged by PUBACK), subscriptions with QoS 0."""

from __future__ import annotations

from collections.abc import Iterator

from migratory_protocol.positions import Position

from benchmarks.protocols.base import ClientProtocol, Conversation, RefusedByServer

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x40, 0x82, 0x90


def packet(first: int, body: bytes) -> bytes:
    """Return a packet with this first byte and body."""
    length, remaining = b"", len(body)
    while True:
        remaining, low = divmod(remaining, 128)
        length += bytes([low | (128 if remaining else 0)])
        if not remaining:
            return bytes([first]) + length + body


def packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (first byte, body) of each packet of a message, which contains whole packets."""
    offset = 0
    while offset < len(data):
        first, length, shift, at = data[offset], 0, 0, offset + 1
        while True:
            length |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        yield first, data[at : at + length]
        offset = at + length


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


class _MqttConversation(Conversation):
    """The conversation of a subscriber, or with `topic` None of a publisher."""

    def __init__(self, client: str, topic: str | None) -> None:
        self._client = client
        self._topic = topic
        self._packet = 0

    def greeting(self) -> list[bytes]:
        # Clean session without keep-alive: no packets while nothing is published.
        messages = [packet(CONNECT, _text("MQTT") + bytes([4, 2, 0, 0]) + _text(self._client))]
        if self._topic is not None:
            messages.append(packet(SUBSCRIBE, b"\x00\x01" + _text(self._topic) + b"\x00"))
        return messages

    def received(self, message: bytes) -> list[bytes]:
        for first, body in packets(message):
            kind = first & 0xF0
            if kind == PUBACK:
                self.answered += 1
            elif kind == CONNACK:
                if body[1]:
                    raise RefusedByServer(f"{self._client}: CONNACK with {body[1]}")
                self.ready = self._topic is None
            elif kind == SUBACK:
                if body[2] > 2:
                    raise RefusedByServer(f"{self._client}: SUBACK with {body[2]}")
                self.ready = True
        return []

    def publish(self, topic: str, payload: bytes) -> bytes:
        self._packet = self._packet % 65535 + 1
        return packet(PUBLISH | 2, _text(topic) + self._packet.to_bytes(2, "big") + payload)


class MqttProtocol(ClientProtocol):
    """MQTT 3.1.1 over WebSocket."""

    name = "mqtt"
    path = "/mqtt"
    subprotocols = ("mqtt",)

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Conversation:
        return _MqttConversation(client, topic)

    def publisher(self, client: str) -> Conversation:
        return _MqttConversation(client, None)
