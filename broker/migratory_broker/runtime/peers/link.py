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


SILENCE_LIMIT = 2.0
LONGEST_SILENCE_LIMIT = 5.0
"""Seconds without a message after which a link is broken: `SILENCE_LIMIT`, half the default fencing time, or twice the
longest pause between two messages of the last minutes if that is longer, up to `LONGEST_SILENCE_LIMIT`. Brokers send a
heartbeat every half second."""

PAUSE_WINDOW = 60.0
"""Seconds for which the longest pause is kept, and then once more."""


class Arrivals:
    """The times at which messages arrived from a peer: the last one (`last`), and the longest pause between two in the
    last one or two `PAUSE_WINDOW`. A peer that is slow now and then, because its machine is busy, gets more time."""

    __slots__ = ("_longest", "_longest_before", "_window_began", "last")

    def __init__(self, now: float) -> None:
        self.last = self._window_began = now
        self._longest = self._longest_before = 0.0

    def note(self, now: float) -> None:
        """Record that something arrived at the time `now`."""
        if now - self._window_began > PAUSE_WINDOW:
            self._window_began, self._longest, self._longest_before = now, 0.0, self._longest
        self._longest = max(self._longest, now - self.last)
        self.last = now

    def excuse(self, now: float) -> None:
        """Begin a new pause at the time `now`: the pause until then was not the peer's and does not count."""
        self.last = now

    @property
    def limit(self) -> float:
        """The seconds without a message after which the link is to be broken: twice the longest pause, from
        `SILENCE_LIMIT` to `LONGEST_SILENCE_LIMIT`."""
        usual = 2 * max(self._longest, self._longest_before)
        return min(LONGEST_SILENCE_LIMIT, max(SILENCE_LIMIT, usual))


class PeerLinkOwner(Protocol):
    """The interface through which a link reports what happens; `PeerLinks` implements it. `connection_opened`: the TCP
    connection is made. `lost`: it has ended. `refuse`: its input is malformed, so that it must be aborted and counted
    by `reason`. `received`: messages of an identified peer. `handle_hello`: a message of a peer that is not identified,
    or a second Hello; it raises BadPeerMessage for one that is not allowed. `clock` returns the time in seconds,
    monotonic."""

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
        "arrivals",
        "batches",
        "closed",
        "dialled",
        "framing",
        "hello",
        "incarnation",
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
        self.opened_at = owner.clock()
        self.arrivals = Arrivals(self.opened_at)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self.transport = cast("asyncio.Transport", transport)
        self._owner.connection_opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Report the messages that are complete now. Refuse the link if the data are malformed; the messages before the
        malformed one are still reported. Data of a closing connection are ignored."""
        if self.transport.is_closing():
            return
        self.arrivals.note(self._owner.clock())
        self.received_bytes += len(data)
        messages: list[PeerMessage] = []
        try:
            self.framing.feed(data, partial(self._message, messages))
        except (BadPeerMessage, FrameTooLong) as error:
            self._owner.refuse(self, "malformed" if self.peer else "hello", str(error))
        if messages:
            self._owner.received(self, tuple(messages))

    def _message(self, messages: list[PeerMessage], part: memoryview) -> None:
        """Decode a frame, and add its messages to `messages`; pass on the message of a peer that is not identified as a
        Hello. Raises BadPeerMessage."""
        decoded = decode_peers(part)
        if self.peer and not isinstance(decoded[0], PeerHello):  # a Hello is never one of several
            messages += decoded
        else:
            self._owner.handle_hello(self, decoded[0])

    def write(self, data: bytes) -> None:
        """Write one frame: the length of `data`, and `data`."""
        self.transport.writelines((length_prefix(data), data))
