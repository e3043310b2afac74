"""Centrifugo's JSON protocol over WebSocket: one command or reply a line, several in a message."""

from __future__ import annotations

import json

from migratory_protocol.positions import Position

from benchmarks.protocols.base import ClientProtocol, Conversation, RefusedByServer


def channel(topic: str) -> str:
    """Return a topic's channel, whose name may not contain a slash."""
    return topic.replace("/", "-")


class _CentrifugeConversation(Conversation):
    """The conversation of a subscriber, or with `topic` None of a publisher."""

    def __init__(self, client: str, topic: str | None) -> None:
        self._client = client
        self._topic = topic
        self._number = 2

    def greeting(self) -> list[bytes]:
        messages: list[dict[str, object]] = [{"id": 1, "connect": {"name": self._client}}]
        if self._topic is not None:
            messages.append({"id": 2, "subscribe": {"channel": channel(self._topic)}})
        return ["\n".join(json.dumps(command) for command in messages).encode()]

    def received(self, message: bytes) -> list[bytes]:
        answers = []
        for line in message.splitlines():
            if line == b"{}":
                answers.append(b"{}")
                continue
            reply = json.loads(line)
            if "error" in reply or "disconnect" in reply.get("push", {}):
                raise RefusedByServer(f"{self._client}: {line.decode()}")
            if "publish" in reply:
                self.answered += 1
            elif "connect" in reply:
                self.ready = self._topic is None
            elif "subscribe" in reply:
                self.ready = True
        return answers

    def publish(self, topic: str, payload: bytes) -> bytes:
        self._number += 1
        return b'{"id":%d,"publish":{"channel":"%s","data":"%s"}}' % (
            self._number, channel(topic).encode(), payload,
        )  # fmt: skip

    def join(self, messages: list[bytes]) -> bytes:
        return b"\n".join(messages)


class CentrifugeProtocol(ClientProtocol):
    """Centrifugo's JSON protocol over WebSocket."""

    name = "centrifuge"
    binary = False
    path = "/connection/websocket"

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Conversation:
        return _CentrifugeConversation(client, topic)

    def publisher(self, client: str) -> Conversation:
        return _CentrifugeConversation(client, None)
