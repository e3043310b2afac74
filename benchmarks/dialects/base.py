"""What receiver and publisher must know of a server's protocol."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar

from migratory_protocol.frames import binary_frame, text_frame
from migratory_protocol.positions import Position


class Refused(Exception):
    """The server refused something: the run is void, and the text says what it said."""


class Speaker:
    """One connection's conversation. `received` gets the WebSocket messages in order."""

    ready = False
    """The greeting is over: what was asked for is subscribed."""
    answered = 0
    """Publications that the server has acknowledged."""
    stands: Position | None = None
    """Where the topic stood when it was subscribed: a client that heard nothing resumes there."""

    def greeting(self) -> list[bytes]:
        """Messages to send as soon as the connection is open."""
        return []

    def received(self, message: bytes) -> list[bytes]:
        """Takes one message of the server and returns what must be said in answer. Raises `Refused`."""
        raise NotImplementedError

    def publish(self, topic: str, payload: bytes) -> bytes:
        """The message that publishes, and asks for an acknowledgement where the protocol has one."""
        raise NotImplementedError

    def together(self, messages: list[bytes]) -> bytes:
        """Several publications as one message: a client with much to say does so, and every protocol here lets it."""
        return b"".join(messages)


class Dialect:
    """One server's protocol. `websocket` False: nothing is said, bytes come as soon as the connection is open."""

    name: ClassVar[str]
    websocket: ClassVar[bool] = True
    binary: ClassVar[bool] = True
    path: ClassVar[str] = "/"
    subprotocols: ClassVar[tuple[str, ...]] = ()
    heartbeat: ClassVar[bytes | None] = None
    """A message that a client says when it has heard nothing for `HEARTBEAT` seconds."""
    numbered: ClassVar[bool] = True
    """Publications carry rising numbers, so that what is lost or repeated shows."""
    resumes: ClassVar[bool] = False
    """A client that comes back says its position and gets what it missed."""

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Speaker:
        raise NotImplementedError

    def publisher(self, client: str) -> Speaker:
        raise NotImplementedError

    def positions(self, message: bytes) -> Iterable[tuple[bytes, Position]]:
        """(payload, position) of a message's publications, where `resumes`."""
        raise NotImplementedError

    def frame(self, message: bytes) -> bytes:
        """As a client sends it."""
        make = binary_frame if self.binary else text_frame
        return make(message, os.urandom(4))


HEARTBEAT = 12.0


class RawBytes(Dialect):
    """Of the raw loops: a bare TCP connection; the same bytes each time."""

    name = "raw"
    websocket = False
    numbered = False

    def subscriber(self, client: str, topic: str, after: Position | None = None) -> Speaker:
        return Speaker()
