"""Centrifugo's JSON protocol over WebSocket: one command or reply a line, several in a message."""

from __future__ import annotations

import json

from migratory_protocol.positions import Position

from benchmarks.dialects.base import Dialect, Refused, Speaker


def channel(topic: str) -> str:
    return topic.replace("/", "-")


class _Client(Speaker):
    """`topic` None: a publisher."""

    def __init__(self, client: str, topic: str | None) -> None:
        self._client = client
        self._topic = topic
        self._number = 2

    def greeting(self) -> list[bytes]:
        said: list[dict[str, object]] = [{"id": 1, "connect": {"name": self._client}}]
        if self._topic is not None:
            said.append({"id": 2, "subscribe": {"channel": channel(self._topic)}})
        return ["\n".join(json.dumps(one) for one in said).encode()]

    def received(self, message: bytes) -> list[bytes]:
        answers = []
        for line in message.splitlines():
            if line == b"{}":
                answers.append(b"{}")
                continue
            reply = json.loads(line)
            if "error" in reply or "disconnect" in reply.get("push", {}):
                raise Refused(f"{self._client}: {line.decode()}")
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

    def together(self, messages: list[bytes]) -> bytes:
        return b"\n".join(messages)


class Centrifuge(Dialect):
    name = "centrifuge"
    binary = False
    path = "/connection/websocket"

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Speaker:
        return _Client(client, topic)

    def publisher(self, client: str) -> Speaker:
        return _Client(client, None)
