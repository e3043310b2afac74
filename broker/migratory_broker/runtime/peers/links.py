"""The links to the other brokers, for `Broker`: TCP, each message after its length in four bytes, a `PeerHello` first
in both directions.

Of two brokers the one with the smaller name dials. A broken link is dialled again with a backoff. The logic is promised
`PeerUp`, then messages in order, then `PeerDown`, so each of these is posted in its place among the events, and nothing
meant for an old link leaves on a new one. Malformed input ends its own link only. The messages of one turn for a peer
are sent at the turn's end in one frame, because each of a hundred topic groups has few.

A link is accepted only for a broker and incarnation that ZooKeeper has confirmed. ZooKeeper's news of a broker that has
just started may come after its `Hello`, which then waits.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any

from migratory_protocol.peer import (
    MAX_PEER_MESSAGE,
    PEER_VERSION,
    BadPeerMessage,
    PeerHello,
    PeerMessage,
    encode_peer,
    join_peer,
)

from migratory_broker.core.logic.events import (
    ConnectPeers,
    PeerDown,
    PeerReceived,
    PeerRefused,
    PeerUp,
    RefusePeer,
    SendPeer,
)
from migratory_broker.runtime.accepting.limits import UnidentifiedConnections, host_of
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.peers.link import Arrivals, PeerLink
from migratory_broker.runtime.pump import Pump
from migratory_broker.runtime.tls import Certificate, names_of

DIAL_LIMIT = 2.0
HELLO_LIMIT = 3.0
"""Seconds to dial (`DIAL_LIMIT`) and to send the Hello (`HELLO_LIMIT`), after which a connection is ended."""

FIRST_DELAY = 0.05
LAST_DELAY = 1.0
"""Seconds between two attempts to dial: `FIRST_DELAY`, doubled each time up to `LAST_DELAY`, with jitter."""

PROBE_DELAYS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each connection that is tried to the other end of a broken link, until one is refused. The kernel
closes the sockets of a process that ends one after the other, so that the first one may still be accepted."""

MAX_JOINED_BYTES = 1_048_576
"""Bytes of a turn's messages for a peer above which each is sent in a frame of its own. Parts of snapshots are so
large."""

MAX_UNPROCESSED_BYTES = 33_554_432
"""Bytes received over a link that the logic has not processed, above which reading pauses until at most half of this
number is left. The other end limits the bytes that wait for this broker, and breaks the link above the limit."""

MAX_UNIDENTIFIED = 64
"""The largest number of accepted connections without a Hello; above it, the oldest one of the host with the most is
evicted."""

MAX_TLS_HANDSHAKES = 64
"""The largest number of TLS handshakes with peers at once; above it, the oldest one of the host with the most is
evicted. The same number as `MAX_UNIDENTIFIED`."""


class PeerLinks:
    """All links of this broker to others. `refusals` is the number of links so far that were ended because of what the
    other end sent or did not send, by reason.

    :param brokers: the names of the cluster's brokers; links of all others are refused.
    :param groups: the number of topic groups, which the other end must have as well.
    :param certificate: the certificate of this broker, with which links use TLS; None: without TLS.
    :param max_buffer: bytes that may wait for a peer that does not read; above it the link is broken, and the peer
        requests what is missing over the next one.
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
        certificate: Certificate | None = None,
    ) -> None:
        self.clock = clock
        self._certificate = certificate
        self._cluster = cluster
        self._name = name
        self._brokers = frozenset(brokers)
        self._groups = groups
        self._pump = pump
        self._log = log
        self._max_buffer = max_buffer
        self._hello: PeerHello | None = None
        self._wanted: dict[str, tuple[int, str]] = {}  # peer -> incarnation, address
        self._confirmed: dict[str, int] = {}  # the newest incarnation that ZooKeeper has named of each broker
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._unidentified: UnidentifiedConnections[PeerLink] = UnidentifiedConnections(MAX_UNIDENTIFIED)
        self._dialled: set[PeerLink] = set()  # dialled, without the Hello of the other end
        self._links: dict[str, PeerLink] = {}  # as the sockets know them
        self._active: dict[str, PeerLink] = {}  # as the logic knows them
        self._arrivals: dict[str, tuple[int, Arrivals]] = {}  # of the last link to each peer, with its incarnation
        self._writing: list[PeerLink] = []  # links with messages for the end of the turn
        self._encoded: tuple[PeerMessage | None, bytes] = (None, b"")  # the last message, which several peers may get
        self._ticked = clock()
        self._last_refusal_log: dict[str, float] = {}
        self.refusals: Counter[str] = Counter()  # by reason
        pump.at_turn_end(self.flush)

    # ---- for the broker --------------------------------------------------------------------------------------------

    def start(self, incarnation: int) -> None:
        """Begin to dial and to accept Hellos, once the incarnation of this broker is known. Before that, accepted
        connections are aborted."""
        self._hello = PeerHello(PEER_VERSION, self._cluster, self._name, incarnation, self._groups, batches=True)
        self._dial_wanted()

    def protocol(self) -> PeerLink:
        """Return the asyncio protocol for a new accepted connection."""
        return PeerLink(self)

    def set_brokers(self, brokers: tuple[str, ...]) -> None:
        """Replace the names of the cluster's brokers. New links of other brokers are refused; present links stay."""
        self._brokers = frozenset(brokers)

    def connect(self, effect: ConnectPeers) -> None:
        """Replace the brokers to keep links to, each with its incarnation and address. Break links to all other brokers
        and to earlier incarnations of these, accept links that waited for this confirmation, and dial."""
        wanted = {peer: target for peer, target in effect.peers.items() if peer != self._name}
        for peer in [peer for peer in self._wanted if peer not in wanted]:
            self._drop(peer)
        for peer, (incarnation, _) in wanted.items():
            link = self._links.get(peer)
            if link is not None and link.incarnation < incarnation:
                link.transport.abort()  # to a process that is gone
            self._confirmed[peer] = max(incarnation, self._confirmed.get(peer, 0))
        self._wanted = wanted
        for link in [*self._unidentified, *self._dialled]:
            if link.hello is not None and link.hello.incarnation == self._confirmed.get(link.hello.broker):
                self._identify(link, link.hello)
        self._dial_wanted()

    def send(self, effect: SendPeer) -> None:
        """Encode a message and keep it for `flush`. Drop it if there is no link to its peer. If it is larger than
        `MAX_PEER_MESSAGE`, drop it and break the link."""
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
        """Send each peer the messages that this turn collected for it. Break the link to a peer that has more than
        `max_buffer` bytes waiting."""
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
            elif link.batches and sum(map(len, messages)) <= MAX_JOINED_BYTES:
                link.write(join_peer(messages))
            else:
                for data in messages:
                    link.write(data)
            waiting = transport.get_write_buffer_size()
            if waiting > self._max_buffer:
                self._log("warning", "peer_too_slow", peer=link.peer, waiting_bytes=waiting)
                transport.abort()

    def tick(self, now: float) -> None:
        """Break the links over which nothing came for too long (`Arrivals.limit`), unless this process did not run or
        does not read from them. Refuse the connections that are not identified within `HELLO_LIMIT`."""
        self._encoded = (None, b"")  # hold no snapshot longer than needed
        stalled = now - self._ticked > 1.0
        self._ticked = now
        for link in [*self._links.values()]:
            silence = now - link.arrivals.last
            if stalled or link.paused:
                link.arrivals.excuse(now)  # this process was frozen, or does not read
            elif silence > link.arrivals.limit:
                self._log("warning", "peer_silent", peer=link.peer, seconds=round(silence, 1))
                link.transport.abort()
        for link in [*self._unidentified, *self._dialled]:
            if now - link.opened_at <= HELLO_LIMIT:
                continue
            if link.hello is None:
                self.refuse(link, "hello", f"no Hello within {HELLO_LIMIT:g} s")
            else:
                text = f"incarnation {link.hello.incarnation} of {link.hello.broker!r} is not confirmed by ZooKeeper"
                self.refuse(link, "incarnation", text)

    async def close(self) -> None:
        """Stop dialling and probing, and break all links."""
        self._hello = None
        tasks = [*self._dialling.values(), *self._probing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in [*self._unidentified, *self._dialled, *self._links.values()]:
            link.transport.abort()

    def status(self) -> dict[str, object]:
        """Return the incarnation of the peer and the number of waiting bytes of each identified link, by the peer's
        name."""
        return {
            peer: {"incarnation": link.incarnation, "waiting_bytes": link.transport.get_write_buffer_size()}
            for peer, link in sorted(self._links.items())
        }

    # ---- for the links ----------------------------------------------------------------------------------------------

    def connection_opened(self, link: PeerLink) -> None:
        """Send the Hello of this broker over a connection that it dialled, and count an accepted one as unidentified,
        for which another one may be evicted. Abort the connection before `start` and after `close`."""
        if self._hello is None:
            link.transport.abort()
        elif link.dialled:
            self._dialled.add(link)
            link.write(encode_peer(self._hello))
        else:
            evicted = self._unidentified.add(link, host_of(link.transport))
            if evicted is not None:
                self.refuse(evicted, "hello", f"more than {MAX_UNIDENTIFIED} connections without a Hello")

    def received(self, link: PeerLink, messages: tuple[PeerMessage, ...]) -> None:
        """Post the messages of one read to the logic as one event. Pause reading while too many bytes are unprocessed.
        Ignore the messages of a link that another link to the same broker has replaced."""
        if self._links.get(link.peer) is not link:
            return
        size, link.received_bytes = link.received_bytes, 0
        link.unprocessed += size
        self._pump.call(self._deliver, (link, size, PeerReceived(link.peer, messages)))
        if link.unprocessed > MAX_UNPROCESSED_BYTES and not link.paused:
            link.paused = True
            link.transport.pause_reading()

    def _deliver(self, received_bytes: tuple[PeerLink, int, PeerReceived]) -> None:
        """Step the logic with received messages, and resume reading from the link when few enough bytes are
        unprocessed."""
        link, size, event = received_bytes
        link.unprocessed -= size
        if link.paused and link.unprocessed <= MAX_UNPROCESSED_BYTES // 2:
            link.paused = False
            link.transport.resume_reading()
        self._pump.step_logic(event)

    def handle_hello(self, link: PeerLink, message: PeerMessage) -> None:
        """Identify a link by its first message if ZooKeeper has confirmed the incarnation. Otherwise store the Hello: a
        later confirmation identifies the link, and without one within `HELLO_LIMIT` it is refused.

        Raises BadPeerMessage for a first message that is not an acceptable Hello, for any message while the first one
        waits for the confirmation, and for a Hello of an identified peer.
        """
        if link.peer or link.hello is not None:
            raise BadPeerMessage("a second Hello, or a message before the answer to the first")
        if not isinstance(message, PeerHello):
            raise BadPeerMessage(f"a link begins with Hello, not with {type(message).__name__}")
        self._check(link, message)
        if message.incarnation == self._confirmed.get(message.broker):
            self._identify(link, message)
        else:
            link.hello = message

    def _identify(self, link: PeerLink, message: PeerHello) -> None:
        """Put a link in the place of an earlier link to the same broker, answer the Hello of a broker that dialled, and
        report the link to the logic."""
        link.hello = None
        if not link.dialled and self._hello is not None:
            link.write(encode_peer(self._hello))
        self._remove_pending(link)
        link.peer, link.incarnation, link.batches = message.broker, message.incarnation, message.batches
        link.framing.limit = MAX_PEER_MESSAGE
        old = self._links.get(link.peer)
        if old is not None:
            # the other end noticed the break first
            self._pump.call(self._report_down, old)
            old.transport.abort()
        self._links[link.peer] = link
        incarnation, arrivals = self._arrivals.get(link.peer, (0, link.arrivals))
        if incarnation == link.incarnation:  # the pause between the links counts
            arrivals.note(self.clock())
            link.arrivals = arrivals
        self._arrivals[link.peer] = (link.incarnation, link.arrivals)
        self._pump.call(self._report_up, link)

    def lost(self, link: PeerLink) -> None:
        """Forget a link that ended. If it was identified, report the loss to the logic in its place among the events,
        and begin to probe whether the other end's process is gone (`_probe`), unless no link to that broker is wanted
        any more."""
        self._remove_pending(link)
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._pump.call(self._report_down, link)
            if link.peer in self._wanted and self._hello is not None and link.peer not in self._probing:
                probe = asyncio.get_running_loop().create_task(self._probe(link, self._wanted[link.peer][1]))
                self._probing[link.peer] = probe
                probe.add_done_callback(lambda _: self._probing.pop(link.peer, None))

    def _remove_pending(self, link: PeerLink) -> None:
        """Remove a link from those that wait for a Hello: it was identified or lost."""
        self._unidentified.discard(link)
        self._dialled.discard(link)

    def refuse_peer(self, effect: RefusePeer) -> None:
        """End the link of a peer whose message the logic has refused."""
        link = self._active.get(effect.peer)
        if link is not None:
            self.refuse(link, effect.reason, effect.text)

    def refuse(self, link: PeerLink, reason: str, text: str) -> None:
        """Abort a link because of what the other end sent or did not send. Count it by `reason`. Log at most one line
        in ten seconds for each peer or, before its Hello, each address."""
        self.refusals[reason] += 1
        host = host_of(link.transport)
        now = self.clock()
        if now - self._last_refusal_log.get(link.peer or host, -60.0) >= 10.0:
            if len(self._last_refusal_log) >= 100:
                self._last_refusal_log.clear()
            self._last_refusal_log[link.peer or host] = now
            peer = link.peer or link.dialled
            self._log("warning", "peer_refused", peer=peer, remote=host, kind=reason, reason=text)
        link.transport.abort()

    # ---- in their place among the events ---------------------------------------------------------------------------

    def _report_up(self, link: PeerLink) -> None:
        """Make the link the one over which the logic's messages leave, and report it to the logic with `PeerUp`."""
        self._active[link.peer] = link
        self._log("info", "peer_up", peer=link.peer, incarnation=link.incarnation)
        self._pump.step_logic(PeerUp(link.peer, link.incarnation))

    def _report_down(self, link: PeerLink) -> None:
        """Report a broken link to the logic with `PeerDown`, unless another link to the same broker was reported
        since."""
        if self._active.get(link.peer) is link:
            del self._active[link.peer]
            self._log("info", "peer_down", peer=link.peer, incarnation=link.incarnation)
            self._pump.step_logic(PeerDown(link.peer))

    def _report_refused(self, link: PeerLink) -> None:
        """Report to the logic with `PeerRefused` that the other end of a broken link refuses connections, unless there
        is another link to that broker."""
        if link.peer not in self._active:
            self._log("info", "peer_connection_refused", peer=link.peer, incarnation=link.incarnation)
            self._pump.step_logic(PeerRefused(link.peer, link.incarnation))

    # ---- dialling --------------------------------------------------------------------------------------------------

    def _check(self, link: PeerLink, hello: PeerHello) -> None:
        """Raise BadPeerMessage unless the link may be to the broker that the Hello names: version, cluster, number of
        groups, name, certificate, direction of dialling, and an incarnation that is not older than the newest known
        one."""
        if hello.version != PEER_VERSION:
            raise BadPeerMessage(f"peer protocol {hello.version}; this broker needs {PEER_VERSION}")
        if hello.cluster != self._cluster:
            raise BadPeerMessage(f"cluster {hello.cluster[:100]!r}; this broker belongs to {self._cluster!r}")
        if hello.groups != self._groups:
            raise BadPeerMessage(f"{hello.groups} topic groups; this broker has {self._groups}")
        if hello.broker == self._name or hello.broker not in self._brokers:
            raise BadPeerMessage(f"name {hello.broker[:100]!r} is not another broker of this cluster")
        if self._certificate is not None:
            names = names_of(link.transport.get_extra_info("peercert"))
            if hello.broker not in names:
                raise BadPeerMessage(f"the certificate is of {', '.join(names)[:100]!r}, not of {hello.broker!r}")
        if link.dialled and hello.broker != link.dialled:
            raise BadPeerMessage(f"dialled {link.dialled}, but {hello.broker} answered")
        if not link.dialled and hello.broker > self._name:
            raise BadPeerMessage("of two brokers the one with the smaller name dials")
        known = self._links.get(hello.broker)
        newest = max(self._confirmed.get(hello.broker, 0), known.incarnation if known is not None else 0)
        if hello.incarnation < newest:
            raise BadPeerMessage(f"incarnation {hello.incarnation} is outdated; {newest} is known")

    def _tls(self, peer: str) -> dict[str, Any]:
        """Return the options of a connection to `peer`, {} without TLS. With TLS, the peer's certificate must have the
        peer's name."""
        if self._certificate is None:
            return {}
        return {"ssl": self._certificate.client, "server_hostname": peer}

    def _drop(self, peer: str) -> None:
        """Stop dialling `peer`, and abort the link to it."""
        task = self._dialling.pop(peer, None)
        if task is not None:
            task.cancel()
        link = self._links.get(peer)
        if link is not None:
            link.transport.abort()

    def _dial_wanted(self) -> None:
        """Begin to dial each wanted broker with a larger name than this broker's that is not dialled yet. Nothing
        before `start`."""
        if self._hello is None:
            return
        for peer in self._wanted:
            if self._name < peer and peer not in self._dialling:
                self._dialling[peer] = asyncio.get_running_loop().create_task(self._dial(peer))

    async def _dial(self, peer: str) -> None:
        """Dial `peer` again and again, with a backoff, whenever there is no dialled connection to it. Runs until it is
        cancelled."""
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY
        while True:
            host, _, port = self._wanted[peer][1].rpartition(":")
            try:
                async with asyncio.timeout(DIAL_LIMIT):
                    _, link = await loop.create_connection(
                        lambda: PeerLink(self, peer), host.strip("[]"), int(port), **self._tls(peer)
                    )
            except (OSError, TimeoutError, ValueError) as error:
                if self._certificate is not None and isinstance(error, ssl.SSLError):
                    self._certificate.refuse(host, error)
                self._log("debug", "peer_unreachable", peer=peer, reason=str(error))
            else:
                await link.closed
                if link.peer and self.clock() - link.opened_at > LAST_DELAY:  # else it may have been refused
                    delay = FIRST_DELAY
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(LAST_DELAY, 2 * delay)

    async def _probe(self, link: PeerLink, address: str) -> None:
        """Connect to the other end of a broken link, to learn whether its process is gone (rule SUSPECT). Report a
        refused connection to the logic. Stop then, when a new link to that broker stands, or after the last of
        `PROBE_DELAYS`."""
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        for delay in PROBE_DELAYS:
            await asyncio.sleep(delay)
            if link.peer in self._links:
                return
            try:
                async with asyncio.timeout(DIAL_LIMIT):
                    transport, _ = await loop.create_connection(asyncio.Protocol, host.strip("[]"), int(port))
            except ConnectionRefusedError:
                self._pump.call(self._report_refused, link)
                return
            except (OSError, TimeoutError, ValueError) as error:
                self._log("debug", "peer_unreachable", peer=link.peer, reason=str(error))
            else:
                transport.abort()
