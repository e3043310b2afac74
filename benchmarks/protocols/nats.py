"""The NATS protocol over WebSocket. Core NATS has no acknowledgement of its own (`+OK`, the verbose mode, says that the
server has read it); JetStreamProtocol answers to a reply subject when a quorum has stored the publication.
"""

from __future__ import annotations

import json

from migratory_protocol.positions import Position

from benchmarks.protocols.base import ClientProtocol, Conversation, RefusedByServer

_END = b"\r\n"
_OK, _PONG, _ERROR = b"+OK\r\n", b"PONG\r\n", b"-ERR"
_STREAM_ACK = b"MSG _INBOX."


def subject(topic: str) -> str:
    """Return a topic's subject, whose levels are separated by dots."""
    return topic.replace("/", ".")


def _connect(client: str, verbose: bool) -> bytes:
    options = {"verbose": verbose, "pedantic": False, "tls_required": False, "name": client, "lang": "python",
               "version": "1", "protocol": 1}  # fmt: skip
    return b"CONNECT " + json.dumps(options).encode() + _END


class _NatsConversation(Conversation):
    """The conversation of a subscriber, or with `topic` None of a publisher. It counts the acknowledgement `counted` in
    a stream of bytes, because a WebSocket frame may end in the middle of one."""

    counted = _OK
    verbose = False

    def __init__(self, client: str, topic: str | None) -> None:
        self._client = client
        self._topic = topic
        self._tail = b""

    def greeting(self) -> list[bytes]:
        data = _connect(self._client, self.verbose)
        if self._topic is not None:
            data += f"SUB {subject(self._topic)} 1".encode() + _END
        return [data + b"PING\r\n"]

    def received(self, message: bytes) -> list[bytes]:
        data = self._tail + message
        if _ERROR in data or b'"error"' in data:
            raise RefusedByServer(f"{self._client}: {data[:300].decode(errors='replace')}")
        if not self.ready and _PONG in data:
            self.ready = True
            data = data.split(_PONG, 1)[1]
        if self.ready and self._topic is None:
            self.answered += data.count(self.counted)
        keep = len(self.counted) - 1
        whole = data.rfind(self.counted)
        # A counted acknowledgement must not stay in the tail, or it would be counted again.
        self._tail = data[max(len(data) - keep, whole + len(self.counted) if whole >= 0 else 0) :]
        return [b"PONG\r\n"] if b"PING\r\n" in message else []

    def publish(self, topic: str, payload: bytes) -> bytes:
        return b"PUB %s %d\r\n%s\r\n" % (subject(topic).encode(), len(payload), payload)


class _NatsPublisher(_NatsConversation):
    """A publisher of core NATS, whose publications are confirmed with `+OK`."""

    verbose = True


class NatsProtocol(ClientProtocol):
    """Core NATS over WebSocket."""

    name = "nats"

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Conversation:
        return _NatsConversation(client, topic)

    def publisher(self, client: str) -> Conversation:
        return _NatsPublisher(client, None)


class _StreamPublisher(_NatsConversation):
    """A publisher of JetStream, which is acknowledged on a reply subject of its own."""

    counted = _STREAM_ACK

    def __init__(self, client: str) -> None:
        super().__init__(client, None)
        self._inbox = f"_INBOX.{client}"

    def greeting(self) -> list[bytes]:
        return [_connect(self._client, False) + f"SUB {self._inbox} 1\r\nPING\r\n".encode()]

    def publish(self, topic: str, payload: bytes) -> bytes:
        head = f"PUB {subject(topic)} {self._inbox} {len(payload)}"
        return head.encode() + _END + payload + _END


class JetStreamProtocol(NatsProtocol):
    """NATS with JetStream's acknowledgements."""

    name = "jetstream"

    def publisher(self, client: str) -> Conversation:
        return _StreamPublisher(client)
