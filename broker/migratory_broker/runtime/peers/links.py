"""Links to the other brokers: raw TCP, each message behind its length in four bytes, `PeerHello` first from both.

Of two brokers the one with the smaller name dials. A link that broke is dialled again with a backoff; what the cores
were promised (`PeerUp`, then messages in order, then `PeerDown`) is kept by giving a link to the logic in its place
among the events: nothing meant for an old link leaves on a new one. Malformed input ends its own link only. What a turn
has for a peer leaves at its end (`flush`) in one frame: of a hundred topic groups each says little.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import cast

from migratory_protocol.peer import (
    MAX_PEER_MESSAGE,
    PEER_VERSION,
    BadPeerMessage,
    PeerHello,
    PeerMessage,
    decode_peers,
    encode_peer,
    join_peer,
)

from migratory_broker.core.logic.events import ConnectPeers, PeerDown, PeerReceived, PeerUp, SendPeer
from migratory_broker.runtime.accepting.limits import UnidentifiedConnections, host_of
from migratory_broker.runtime.framing import Deframer, FrameTooLong, length_prefix
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.pump import Pump

DIAL_LIMIT = 2.0
HELLO_LIMIT = 3.0
SILENCE_LIMIT = 5.0
"""Seconds; brokers send a heartbeat every half second, so a link that is silent for so long is dead."""

FIRST_DELAY = 0.05
LAST_DELAY = 1.0
"""Seconds between two attempts to dial, doubled each time, with jitter."""

LONG = 1_048_576
"""Bytes of messages above which each leaves in a frame of its own: parts of snapshots are long as they are."""

UNREAD = 33_554_432
"""Bytes that came over a link and the logic has not taken yet, above which nothing more is read from it until half of
them are worked off: the others have a limit to what waits for a peer, and then break the link."""

MAX_HELLO = 4096
MAX_UNIDENTIFIED = 64
"""Connections of others that have not said who they are: one more, and one of these goes."""


class PeerLink(asyncio.Protocol):
    """One TCP connection to another broker. `peer` is "" until its `PeerHello` was accepted."""

    __slots__ = (
        "_peers",
        "batches",
        "dialled",
        "done",
        "framing",
        "heard",
        "incarnation",
        "paused",
        "peer",
        "read",
        "since",
        "transport",
        "unread",
        "waiting",
    )

    transport: asyncio.Transport

    def __init__(self, peers: PeerLinks, dialled: str = "") -> None:
        self._peers = peers
        self.framing = Deframer(MAX_HELLO)
        self.dialled = dialled
        self.peer = ""
        self.incarnation = 0
        self.batches = False  # the other end takes frames of several messages
        self.waiting: list[bytes] = []  # messages of this turn
        self.read = 0  # bytes behind the last whole message
        self.unread = 0  # bytes that the logic has not taken
        self.paused = False  # too many
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.since = self.heard = peers.clock()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self.transport = cast("asyncio.Transport", transport)
        self._peers.made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.lost(self)
        if not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.heard = self._peers.clock()
        self.read += len(data)
        messages: list[PeerMessage] = []
        try:
            self.framing.feed(data, partial(self._message, messages))
        except (BadPeerMessage, FrameTooLong) as error:
            self._peers.refuse(self, str(error))
        if messages:
            self._peers.received(self, tuple(messages))

    def _message(self, messages: list[PeerMessage], part: memoryview) -> None:
        found = decode_peers(part)
        if self.peer and not isinstance(found[0], PeerHello):  # which is never one of several
            messages += found
        else:
            self._peers.greeted(self, found[0])

    def write(self, data: bytes) -> None:
        self.transport.writelines((length_prefix(data), data))


class PeerLinks:
    """All links of this broker.

    `max_buffer`: bytes that may wait for a peer that does not read; beyond it the link is broken, and what is missing
    is asked for when it stands again.
    """

    def __init__(
        self,
        *,
        cluster: str,
        name: str,
        brokers: tuple[str, ...],
        groups: int,
        pump: Pump,
        log: Log,
        clock: Callable[[], float],
        max_buffer: int,
    ) -> None:
        self.clock = clock
        self._cluster = cluster
        self._name = name
        self._brokers = frozenset(brokers)
        self._groups = groups
        self._pump = pump
        self._log = log
        self._max_buffer = max_buffer
        self._hello: PeerHello | None = None
        self._wanted: dict[str, tuple[int, str]] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._unidentified: UnidentifiedConnections[PeerLink] = UnidentifiedConnections(MAX_UNIDENTIFIED)
        self._calling: set[PeerLink] = set()  # dialled, and not answered with a Hello yet
        self._links: dict[str, PeerLink] = {}  # as the sockets have it
        self._active: dict[str, PeerLink] = {}  # as the logic knows it
        self._writing: list[PeerLink] = []  # those with something that waits for the end of the turn
        self._encoded: tuple[PeerMessage | None, bytes] = (None, b"")
        self._ticked = clock()
        self._complained: dict[str, float] = {}
        self.refused = 0
        pump.at_turn_end(self.flush)

    # ---- from the process ------------------------------------------------------------------------------------------

    def start(self, incarnation: int) -> None:
        """From now on links are made and taken: this broker knows which life of its own it is."""
        self._hello = PeerHello(PEER_VERSION, self._cluster, self._name, incarnation, self._groups, batches=True)
        self._dial_wanted()

    def protocol(self) -> PeerLink:
        """For one more connection that another broker opened."""
        return PeerLink(self)

    def configured(self, brokers: tuple[str, ...]) -> None:
        """From now on the cluster has these brokers: links of others are refused. Those that stand stay."""
        self._brokers = frozenset(brokers)

    def connect(self, effect: ConnectPeers) -> None:
        wanted = {peer: target for peer, target in effect.peers.items() if peer != self._name}
        for peer in [peer for peer in self._wanted if peer not in wanted]:
            self._drop(peer)
        for peer, (incarnation, _) in wanted.items():
            link = self._links.get(peer)
            if link is not None and link.incarnation < incarnation:
                link.transport.abort()  # of a process that is gone
        self._wanted = wanted
        self._dial_wanted()

    def send(self, effect: SendPeer) -> None:
        link = self._active.get(effect.peer)
        if link is None:
            return  # `PeerDown` is on its way to the logic
        message, data = self._encoded
        if message is not effect.message:
            try:
                data = encode_peer(effect.message)
            except BadPeerMessage as error:
                self._log("error", "peer_message_too_large", peer=effect.peer, text=error.text)
                link.transport.abort()
                return
            self._encoded = (effect.message, data)
        if not link.waiting:
            self._writing.append(link)
        link.waiting.append(data)

    def flush(self) -> None:
        """The turn is over: what it had to say leaves."""
        if not self._writing:
            return
        writing, self._writing = self._writing, []
        for link in writing:
            messages, link.waiting = link.waiting, []
            transport = link.transport
            if transport.is_closing():
                continue
            if len(messages) == 1:
                link.write(messages[0])
            elif link.batches and sum(map(len, messages)) <= LONG:
                link.write(join_peer(messages))
            else:
                for data in messages:
                    link.write(data)
            waiting = transport.get_write_buffer_size()
            if waiting > self._max_buffer:
                self._log("warning", "peer_too_slow", peer=link.peer, waiting_bytes=waiting)
                transport.abort()

    def tick(self, now: float) -> None:
        self._encoded = (None, b"")  # holds no snapshot longer than needed
        stalled = now - self._ticked > 1.0
        self._ticked = now
        for link in [*self._links.values()]:
            if stalled:
                link.heard = now  # we were frozen, not they
            elif link.paused:
                link.heard = now  # it is not listened to
            elif now - link.heard > SILENCE_LIMIT:
                self._log("warning", "peer_silent", peer=link.peer, seconds=round(now - link.heard, 1))
                link.transport.abort()
        for link in [*self._unidentified, *self._calling]:
            if now - link.since > HELLO_LIMIT:
                self.refuse(link, "no Hello in time")

    async def close(self) -> None:
        """Break all links and end all tasks."""
        self._hello = None
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in [*self._unidentified, *self._calling, *self._links.values()]:
            link.transport.abort()

    def status(self) -> dict[str, object]:
        return {
            peer: {"incarnation": link.incarnation, "waiting_bytes": link.transport.get_write_buffer_size()}
            for peer, link in sorted(self._links.items())
        }

    # ---- from the links --------------------------------------------------------------------------------------------

    def made(self, link: PeerLink) -> None:
        if self._hello is None:
            link.transport.abort()
        elif link.dialled:
            self._calling.add(link)
            link.write(encode_peer(self._hello))
        else:
            gone = self._unidentified.add(link, host_of(link.transport))
            if gone is not None:
                self.refuse(gone, "others came, and it had said no Hello yet")

    def received(self, link: PeerLink, messages: tuple[PeerMessage, ...]) -> None:
        """What came in one read goes to the logic in one event."""
        if self._links.get(link.peer) is not link:
            return
        size, link.read = link.read, 0
        link.unread += size
        self._pump.call(self._give, (link, size, PeerReceived(link.peer, messages)))
        if link.unread > UNREAD and not link.paused:
            link.paused = True
            link.transport.pause_reading()

    def _give(self, read: tuple[PeerLink, int, PeerReceived]) -> None:
        """In its place among the events."""
        link, size, event = read
        link.unread -= size
        if link.paused and link.unread <= UNREAD // 2:
            link.paused = False
            link.transport.resume_reading()
        self._pump.step_logic(event)

    def greeted(self, link: PeerLink, message: PeerMessage) -> None:
        """The first message, which must be a Hello. No other one is."""
        if link.peer:
            raise BadPeerMessage("a second Hello")
        if not isinstance(message, PeerHello):
            raise BadPeerMessage(f"a link begins with Hello, not with {type(message).__name__}")
        self._check(link, message)
        if not link.dialled and self._hello is not None:
            link.write(encode_peer(self._hello))
        self._known(link)
        link.peer, link.incarnation, link.batches = message.broker, message.incarnation, message.batches
        link.framing.limit = MAX_PEER_MESSAGE
        old = self._links.get(link.peer)
        if old is not None:
            # the other side saw the break before this one did
            self._pump.call(self._down, old)
            old.transport.abort()
        self._links[link.peer] = link
        self._pump.call(self._up, link)

    def lost(self, link: PeerLink) -> None:
        self._known(link)
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._pump.call(self._down, link)

    def _known(self, link: PeerLink) -> None:
        """It has said who it is, or is gone."""
        self._unidentified.discard(link)
        self._calling.discard(link)

    def refuse(self, link: PeerLink, reason: str) -> None:
        """End a link for what came over it; one log line in ten seconds for each place it comes from."""
        self.refused += 1
        host = host_of(link.transport)
        now = self.clock()
        if now - self._complained.get(link.peer or host, -60.0) >= 10.0:
            if len(self._complained) >= 100:
                self._complained.clear()
            self._complained[link.peer or host] = now
            self._log("warning", "peer_refused", peer=link.peer or link.dialled, remote=host, reason=reason)
        link.transport.abort()

    # ---- in their place among the events ---------------------------------------------------------------------------

    def _up(self, link: PeerLink) -> None:
        self._active[link.peer] = link
        self._log("info", "peer_up", peer=link.peer, incarnation=link.incarnation)
        self._pump.step_logic(PeerUp(link.peer, link.incarnation))

    def _down(self, link: PeerLink) -> None:
        if self._active.get(link.peer) is link:
            del self._active[link.peer]
            self._log("info", "peer_down", peer=link.peer, incarnation=link.incarnation)
            self._pump.step_logic(PeerDown(link.peer))

    # ---- dialling --------------------------------------------------------------------------------------------------

    def _check(self, link: PeerLink, hello: PeerHello) -> None:
        if hello.version != PEER_VERSION:
            raise BadPeerMessage(f"peer protocol {hello.version}, this broker speaks {PEER_VERSION}")
        if hello.cluster != self._cluster:
            raise BadPeerMessage(f"it belongs to the cluster {hello.cluster[:100]!r}, this one is {self._cluster!r}")
        if hello.groups != self._groups:
            raise BadPeerMessage(f"it has {hello.groups} topic groups, this broker {self._groups}")
        if hello.broker == self._name or hello.broker not in self._brokers:
            raise BadPeerMessage(f"it calls itself {hello.broker[:100]!r}, which is no other broker of this cluster")
        if link.dialled and hello.broker != link.dialled:
            raise BadPeerMessage(f"it is {hello.broker}, not {link.dialled}")
        if not link.dialled and hello.broker > self._name:
            raise BadPeerMessage("of two brokers the one with the smaller name dials")
        known = self._links.get(hello.broker)
        newest = max(self._wanted.get(hello.broker, (0, ""))[0], known.incarnation if known is not None else 0)
        if hello.incarnation < newest:
            raise BadPeerMessage(f"its incarnation {hello.incarnation} is over: {newest} is known")

    def _drop(self, peer: str) -> None:
        task = self._dialling.pop(peer, None)
        if task is not None:
            task.cancel()
        link = self._links.get(peer)
        if link is not None:
            link.transport.abort()

    def _dial_wanted(self) -> None:
        if self._hello is None:
            return
        for peer in self._wanted:
            if self._name < peer and peer not in self._dialling:
                self._dialling[peer] = asyncio.get_running_loop().create_task(self._dial(peer))

    async def _dial(self, peer: str) -> None:
        """Keep a link to `peer`, as long as it is wanted."""
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY
        while True:
            host, _, port = self._wanted[peer][1].rpartition(":")
            try:
                async with asyncio.timeout(DIAL_LIMIT):
                    _, link = await loop.create_connection(lambda: PeerLink(self, peer), host.strip("[]"), int(port))
            except (OSError, TimeoutError, ValueError) as error:
                self._log("debug", "peer_unreachable", peer=peer, reason=str(error))
            else:
                await link.done
                if link.peer:
                    delay = FIRST_DELAY
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(LAST_DELAY, 2 * delay)
