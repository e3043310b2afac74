"""One TCP connection to another broker, for `PeerLinks`: messages in frames, and a `PeerHello` first in both
directions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from migratory_protocol.peer import BadPeerMessage, PeerHello, PeerMessage, decode_peers

from migratory_broker.runtime.framing import Deframer, FrameTooLong, length_prefix

MAX_HELLO = 4096
"""Bytes of the largest message of a peer that is not identified yet."""


class PeerLinkOwner(Protocol):
    """The interface through which a link reports what happens; `PeerLinks` implements it."""

    clock: Callable[[], float]

    def connection_opened(self, link: PeerLink) -> None: ...

    def lost(self, link: PeerLink) -> None: ...

    def refuse(self, link: PeerLink, reason: str, text: str) -> None: ...

    def received(self, link: PeerLink, messages: tuple[PeerMessage, ...]) -> None: ...

    def handle_hello(self, link: PeerLink, message: PeerMessage) -> None: ...


class PeerLink(asyncio.Protocol):
    """A TCP connection to another broker. `dialled` is the name of the broker that was dialled, "" for an accepted
    connection. `peer` is the name of the other end, "" until its `PeerHello` was accepted. `hello` is a `PeerHello`
    whose incarnation ZooKeeper has not confirmed yet, None without one."""

    __slots__ = (
        "_owner",
        "batches",
        "closed",
        "dialled",
        "framing",
        "hello",
        "incarnation",
        "last_heard",
        "opened_at",
        "paused",
        "peer",
        "received_bytes",
        "transport",
        "unprocessed",
        "waiting",
    )

    transport: asyncio.Transport

    def __init__(self, owner: PeerLinkOwner, dialled: str = "") -> None:
        self._owner = owner
        self.framing = Deframer(MAX_HELLO)
        self.dialled = dialled
        self.hello: PeerHello | None = None
        self.peer = ""
        self.incarnation = 0
        self.batches = False  # the other end accepts frames of several messages
        self.waiting: list[bytes] = []  # messages of this turn, sent at its end
        self.received_bytes = 0  # bytes received since messages were last reported
        self.unprocessed = 0  # bytes that the logic has not processed
        self.paused = False  # reading is paused: too many bytes are unprocessed
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened_at = self.last_heard = owner.clock()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self.transport = cast("asyncio.Transport", transport)
        self._owner.connection_opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.last_heard = self._owner.clock()
        self.received_bytes += len(data)
        messages: list[PeerMessage] = []
        try:
            self.framing.feed(data, partial(self._message, messages))
        except (BadPeerMessage, FrameTooLong) as error:
            self._owner.refuse(self, "malformed" if self.peer else "hello", str(error))
        if messages:
            self._owner.received(self, tuple(messages))

    def _message(self, messages: list[PeerMessage], part: memoryview) -> None:
        decoded = decode_peers(part)
        if self.peer and not isinstance(decoded[0], PeerHello):  # a Hello is never one of several
            messages += decoded
        else:
            self._owner.handle_hello(self, decoded[0])

    def write(self, data: bytes) -> None:
        self.transport.writelines((length_prefix(data), data))
