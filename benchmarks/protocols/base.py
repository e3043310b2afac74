"""The interface of a client protocol: what receiver and publisher must know about a server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar

from migratory_protocol.frames import binary_frame, text_frame
from migratory_protocol.positions import Position

HEARTBEAT = 12.0
"""Seconds of silence after which a subscriber sends a heartbeat, and between two of a publisher. Below the brokers'
default timeout of 30 s."""


class RefusedByServer(Exception):
    """The server refused a request or closed the connection, so the run is void.

    The text names the client, and has the server's answer if it gave one.
    """


class Conversation:
    """The protocol state of one connection. `received` is called with the WebSocket messages in order."""

    ready = False
    """True once the handshake is complete and the requested topic is subscribed."""

    answered = 0
    """Publications that the server has acknowledged."""

    position: Position | None = None
    """The topic's position at the subscription, from which a subscriber that received nothing resumes."""

    def greeting(self) -> list[bytes]:
        """Return the messages to send when the connection is open."""
        return []

    def received(self, message: bytes) -> list[bytes]:
        """Handle a message of the server. Return the messages to send in answer. Raise `RefusedByServer`."""
        raise NotImplementedError

    def publish(self, topic: str, payload: bytes) -> bytes:
        """Return the message that publishes, and asks for an acknowledgement where the protocol has one. Each call
        takes the next message id where the protocol has ids."""
        raise NotImplementedError

    def join(self, messages: list[bytes]) -> bytes:
        """Return several publications as one message, as a client with many publications sends them."""
        return b"".join(messages)


class ClientProtocol:
    """One server's protocol. `token` is what clients show of themselves, where the protocol has such a thing; empty for
    nothing. With `websocket` False the client sends nothing, and bytes arrive once it is connected."""

    name: ClassVar[str]
    websocket: ClassVar[bool] = True
    binary: ClassVar[bool] = True
    path: ClassVar[str] = "/"
    subprotocols: ClassVar[tuple[str, ...]] = ()

    heartbeat: ClassVar[bytes | None] = None
    """The message that a subscriber sends when it has received nothing for `HEARTBEAT` seconds, and a publisher every
    `HEARTBEAT` seconds; None for none."""

    numbered: ClassVar[bool] = True
    """True if publications have rising numbers, so that losses and repeats can be detected."""

    resumes: ClassVar[bool] = False
    """True if a client that reconnects sends its position and receives what it missed."""

    def __init__(self, token: str = "") -> None:
        self.token = token

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Conversation:
        """Return the conversation of a subscriber, which resumes after `after` if the protocol `resumes`."""
        raise NotImplementedError

    def publisher(self, client: str) -> Conversation:
        """Return the conversation of a publisher."""
        raise NotImplementedError

    def positions(self, message: bytes) -> Iterable[tuple[bytes, Position]]:
        """Yield (payload, position) of a message's publications. Called only if the protocol `resumes`."""
        raise NotImplementedError

    def frame(self, message: bytes) -> bytes:
        """Return a message as the WebSocket frame that a client sends."""
        make = binary_frame if self.binary else text_frame
        return make(message, os.urandom(4))


class RawProtocol(ClientProtocol):
    """The protocol of the raw loops: a TCP connection that carries the same bytes again and again."""

    name = "raw"
    websocket = False
    numbered = False

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Conversation:
        return Conversation()
