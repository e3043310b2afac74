"""Peer links over real sockets: which broker dials, the order of events for the logic, what ends a link, and which
connections are refused, with and without TLS."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from migratory_broker.core.logic import events
from migratory_broker.runtime.accepting.listener import Listener, address_of, bind, listen
from migratory_broker.runtime.config import CertificateSection
from migratory_broker.runtime.peers import links as peers_module
from migratory_broker.runtime.peers.link import LONGEST_SILENCE_LIMIT, PAUSE_WINDOW, SILENCE_LIMIT, Arrivals, PeerLink
from migratory_broker.runtime.peers.links import MAX_JOINED_BYTES, PROBE_DELAYS, PeerLinks
from migratory_broker.runtime.pump import Pump
from migratory_broker.runtime.tls import Certificate
from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates
from migratory_protocol.peer import (
    PEER_VERSION,
    Accept,
    BadPeerMessage,
    ForwardReplies,
    PeerHello,
    Publication,
    Synced,
    TopicEntries,
    decode_peers,
    encode_peer,
    join_peer,
)
from migratory_testing.waiting import until

NAMES = ("a", "b", "c")


def numbered(number: int) -> Synced:
    return Synced(number, 1, 1, 1)


def framed(message: Any) -> bytes:
    data = encode_peer(message)
    return len(data).to_bytes(4) + data


class Side:
    """One broker's links, with a stand-in for the logic that only records events."""

    def __init__(
        self,
        core: Any,
        log: Any,
        name: str,
        incarnation: int = 1,
        max_buffer: int = 50_000_000,
        certificate: Certificate | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.log = log
        self.logic = core()
        self.errors: list[Exception] = []
        self.pump = Pump(self.logic, loop.call_soon, time.monotonic, self.errors.append)
        self.pump.set_handlers({})
        self.peers = PeerLinks(
            cluster="quotes",
            name=name,
            brokers=NAMES,
            groups=8,
            pump=self.pump,
            log=log,
            clock=time.monotonic,
            max_buffer=max_buffer,
            certificate=certificate,
        )
        listening = listen(bind("127.0.0.1", 0, "peers"), "peers")
        self.address = address_of(listening)
        self.port = listening.getsockname()
        tls = None if certificate is None else lambda: certificate.server
        refuse = (lambda host, error: None) if certificate is None else certificate.refuse
        self.listener = Listener(
            listening,
            self.peers.protocol,
            log,
            tls=tls,
            max_handshakes=peers_module.MAX_TLS_HANDSHAKES,
            on_tls_failure=refuse,
        )
        self.listens = True
        self.name = name
        self.incarnation = incarnation
        self.peers.start(incarnation)

    def want(self, *others: Side) -> None:
        self.peers.connect(events.ConnectPeers({side.name: (side.incarnation, side.address) for side in others}))

    def confirm(self, peer: str, incarnation: int = 1) -> None:
        """Let ZooKeeper name an incarnation of a broker that the test itself plays."""
        self.peers.connect(events.ConnectPeers({peer: (incarnation, "127.0.0.1:1")}))

    def send(self, peer: str, message: Any) -> None:
        self.pump.call(self.peers.send, events.SendPeer(peer, message))

    def last_heard(self) -> list[Any]:
        decoded: list[Any] = self.logic.of(events.PeerUp, events.PeerDown, events.PeerRefused, events.PeerReceived)
        return decoded

    def received(self) -> list[int]:
        return [message.group for event in self.logic.of(events.PeerReceived) for message in event.messages]

    def close_listener(self) -> None:
        if self.listens:
            self.listens = False
            self.listener.close()

    async def close(self) -> None:
        self.close_listener()
        await self.peers.close()


@pytest.fixture
async def sides(core: Any, log: Any) -> AsyncIterator[Any]:
    connection_opened: list[Side] = []

    def make(name: str, **options: Any) -> Side:
        connection_opened.append(Side(core, log, name, **options))
        return connection_opened[-1]

    yield make
    for side in connection_opened:
        await side.close()
    for side in connection_opened:
        assert not side.errors


async def joined(sides: Any) -> tuple[Side, Side]:
    a, b = sides("a"), sides("b", incarnation=4)
    a.want(b)
    b.want(a)
    await until(lambda: a.last_heard() and b.last_heard())
    return a, b


async def test_the_broker_with_the_smaller_name_dials_and_both_get_peer_up(sides: Any) -> None:
    a, b = await joined(sides)
    assert a.last_heard() == [events.PeerUp("b", 4)]
    assert b.last_heard() == [events.PeerUp("a", 1)]
    assert set(a.peers._dialling) == {"b"}
    assert not b.peers._dialling
    assert a.peers.status() == {"b": {"incarnation": 4, "waiting_bytes": 0}}


async def test_an_added_broker_is_accepted_once_it_is_configured(sides: Any, log: Any) -> None:
    a, b = sides("a"), sides("b")
    a.peers.set_brokers(("a",))
    a.want(b)
    b.want(a)
    await until(lambda: "peer_refused" in log.events())
    assert a.last_heard() == []
    a.peers.set_brokers(("a", "b"))
    await until(lambda: a.last_heard() == [events.PeerUp("b", 1)])


async def test_messages_arrive_in_order_and_whole(sides: Any) -> None:
    a, b = await joined(sides)
    large = Accept(3, 1, 1, [TopicEntries("t", [Publication(1, 1, bytes(5_000_000))])], [], [])
    for number in range(500):
        a.send("b", numbered(number))
    a.send("b", large)
    b.send("a", numbered(7))
    await until(lambda: len(b.received()) == 501)
    assert b.received() == [*range(500), 3]
    assert b.logic.of(events.PeerReceived)[-1].messages == (large,)
    await until(lambda: a.received() == [7])


def _frames(monkeypatch: pytest.MonkeyPatch, side: Side, peer: str) -> list[bytes]:
    """Return a list to which each frame that is written to the link with `peer` is added from now on."""
    link, write = side.peers._links[peer], PeerLink.write
    written: list[bytes] = []

    def note(self: PeerLink, data: bytes) -> None:
        if self is link:
            written.append(data)
        write(self, data)

    monkeypatch.setattr(PeerLink, "write", note)
    return written


async def test_messages_of_one_turn_leave_in_one_frame(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await joined(sides)
    written = _frames(monkeypatch, a, "b")
    a.send("b", numbered(0))
    await until(lambda: b.received() == [0])
    assert written == [encode_peer(numbered(0))]
    for number in range(1, 100):
        a.send("b", numbered(number))
    await until(lambda: len(b.received()) == 100)
    assert b.received() == [*range(100)]
    assert [len(decode_peers(frame)) for frame in written] == [1, 99]
    assert [len(event.messages) for event in b.logic.of(events.PeerReceived)] == [1, 99]


async def test_long_messages_leave_in_frames_of_their_own(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await joined(sides)
    written = _frames(monkeypatch, a, "b")
    for number in range(3):
        a.send(
            "b", Accept(number, 1, 1, [TopicEntries("t", [Publication(1, 1, bytes(MAX_JOINED_BYTES // 2))])], [], [])
        )
    await until(lambda: b.received() == [0, 1, 2])
    assert [len(decode_peers(frame)) for frame in written] == [1, 1, 1]


async def test_a_peer_without_joined_frames_gets_one_message_a_frame(
    sides: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = sides("a"), sides("b")
    b.peers._hello = PeerHello(PEER_VERSION, "quotes", "b", 1, 8)
    a.want(b)
    b.want(a)
    await until(lambda: a.last_heard() and b.last_heard())
    written = _frames(monkeypatch, a, "b")
    for number in range(5):
        a.send("b", numbered(number))
    await until(lambda: b.received() == [0, 1, 2, 3, 4])
    assert [len(decode_peers(frame)) for frame in written] == [1] * 5


async def test_a_hello_in_a_joined_frame_ends_the_link(sides: Any, log: Any) -> None:
    a, b = await joined(sides)
    hello = encode_peer(PeerHello(PEER_VERSION, "quotes", "a", 1, 8))
    a.peers._links["b"].write(join_peer([encode_peer(numbered(1)), hello]))
    await until(lambda: events.PeerDown("a") in b.last_heard())
    assert b.received() == []
    assert "peer_refused" in log.events()


async def test_a_broken_link_is_replaced_and_carries_no_old_messages(sides: Any) -> None:
    a, b = await joined(sides)
    b.peers._links["a"].transport.abort()
    await until(lambda: len(a.last_heard()) == 3 and len(b.last_heard()) == 3)
    assert a.last_heard() == [events.PeerUp("b", 4), events.PeerDown("b"), events.PeerUp("b", 4)]
    assert b.last_heard() == [events.PeerUp("a", 1), events.PeerDown("a"), events.PeerUp("a", 1)]


@pytest.mark.parametrize("dead", ["a", "b"])
async def test_a_peer_that_is_gone_is_reported_at_both_ends(sides: Any, dead: str) -> None:
    """SUSPECT: also the end that does not dial learns that the other end refuses connections."""
    a, b = await joined(sides)
    gone, left = (a, b) if dead == "a" else (b, a)
    await gone.close()
    refused = events.PeerRefused(gone.name, gone.incarnation)
    await until(lambda: refused in left.last_heard())
    assert left.last_heard() == [
        events.PeerUp(gone.name, gone.incarnation),
        events.PeerDown(gone.name),
        refused,
    ]


async def test_a_listener_that_closes_after_the_link_is_tried_again(sides: Any) -> None:
    a, b = await joined(sides)
    await a.peers.close()
    await until(lambda: b.last_heard()[-1] == events.PeerDown("a"))
    await asyncio.sleep(PROBE_DELAYS[1])  # the first connection was accepted
    assert not b.logic.of(events.PeerRefused)
    a.close_listener()
    await until(lambda: b.last_heard()[-1] == events.PeerRefused("a", 1))


async def test_a_peer_that_lives_is_not_reported(sides: Any) -> None:
    """A link that is reset stands again before, or the peer accepts the connection without a link."""
    a, b = await joined(sides)
    a.peers._links["b"].transport.abort()
    await until(lambda: len(a.last_heard()) == 3 and len(b.last_heard()) == 3)
    await a.peers.close()
    await until(lambda: b.last_heard()[-1] == events.PeerDown("a"))
    await until(lambda: not b.peers._probing)
    assert not b.logic.of(events.PeerRefused)
    assert not a.logic.of(events.PeerRefused)


async def test_an_address_that_is_none_is_no_evidence(sides: Any, log: Any) -> None:
    a, b = await joined(sides)
    b.peers._wanted["a"] = (1, "127.0.0.1:no-port")
    await a.close()
    await until(lambda: bool(b.peers._probing))
    await until(lambda: not b.peers._probing)
    assert not b.logic.of(events.PeerRefused)
    assert "peer_unreachable" in log.events()


async def test_messages_for_an_old_link_never_leave_on_a_new_one(sides: Any) -> None:
    a, b = await joined(sides)
    old = a.peers._links["b"]
    # a logic that has not been told yet of the break sends on, while the new link stands already
    a.pump._call_soon = lambda call: None
    a.pump._scheduled = True
    old.transport.abort()
    await until(lambda: a.peers._links.get("b") not in (None, old))
    a.peers.send(events.SendPeer("b", numbered(1)))
    a.pump._turn()
    assert a.last_heard()[-2:] == [events.PeerDown("b"), events.PeerUp("b", 4)]
    a.peers.send(events.SendPeer("b", numbered(2)))
    a.peers.flush()
    await until(b.received)
    assert b.received() == [2]


async def test_a_second_link_of_a_peer_replaces_the_first(sides: Any) -> None:
    b = sides("b")
    b.confirm("a", 5)
    first, writer = await asyncio.open_connection(*b.port)
    writer.write(framed(PeerHello(PEER_VERSION, "quotes", "a", 5, 8)) + framed(numbered(1)))
    await until(lambda: b.received() == [1])
    b.peers._confirmed["a"] = 6
    _, again = await asyncio.open_connection(*b.port)
    again.write(framed(PeerHello(PEER_VERSION, "quotes", "a", 6, 8)) + framed(numbered(2)))
    await until(lambda: b.received() == [1, 2])
    assert [type(event).__name__ for event in b.last_heard()] == [
        "PeerUp",
        "PeerReceived",
        "PeerDown",
        "PeerUp",
        "PeerReceived",
    ]
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(first.readexactly(10_000), 5)
    writer.close()
    again.close()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (framed(PeerHello(PEER_VERSION + 1, "quotes", "a", 1, 8)), "peer protocol"),
        (framed(PeerHello(PEER_VERSION, "other", "a", 1, 8)), "cluster 'other'; this broker belongs to"),
        (framed(PeerHello(PEER_VERSION, "quotes", "a", 1, 9)), "9 topic groups"),
        (framed(PeerHello(PEER_VERSION, "quotes", "z", 1, 8)), "not another broker of this cluster"),
        (framed(PeerHello(PEER_VERSION, "quotes", "b", 1, 8)), "not another broker of this cluster"),
        (framed(PeerHello(PEER_VERSION, "quotes", "c", 1, 8)), "smaller name dials"),
        (framed(numbered(1)), "begins with Hello"),
        (b"\x00\x00\x00\x03abc", "not a message"),
        (b"\xff\xff\xff\xff", "4294967295 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "bytes is announced"),
        (framed(PeerHello(PEER_VERSION, "quotes", "a", 1, 8)) * 2, "second Hello"),
    ],
)
async def test_malformed_input_ends_its_own_link_only(sides: Any, log: Any, data: bytes, reason: str) -> None:
    a, b = await joined(sides)
    reader, writer = await asyncio.open_connection(*b.port)
    writer.write(data)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(10_000), 5)
    writer.close()
    refusals = [line for line in log.lines if line["event"] == "peer_refused"]
    assert len(refusals) == 1
    assert reason in refusals[0]["reason"]
    if b"quotes" not in data or not data.endswith(framed(PeerHello(PEER_VERSION, "quotes", "a", 1, 8))):
        a.send("b", numbered(9))
        await until(lambda: b.received() == [9])
        assert len(b.last_heard()) == 2


async def test_an_older_incarnation_of_a_broker_is_refused(sides: Any, log: Any) -> None:
    b = sides("b")
    b.peers.connect(events.ConnectPeers({"a": (7, "127.0.0.1:1")}))
    reader, writer = await asyncio.open_connection(*b.port)
    writer.write(framed(PeerHello(PEER_VERSION, "quotes", "a", 6, 8)))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    writer.close()
    assert "incarnation 6 is outdated" in log.lines[-1]["reason"]
    assert b.last_heard() == []


async def test_an_incarnation_that_zookeeper_does_not_confirm_is_refused(sides: Any, log: Any) -> None:
    """A connection that names an incarnation of a broker that ZooKeeper does not confirm waits, and is then closed,
    logged and counted. The link of the real broker stays up meanwhile."""
    a, b = await joined(sides)
    for incarnation in (2, 2**62):
        reader, writer = await asyncio.open_connection(*b.port)
        writer.write(framed(PeerHello(PEER_VERSION, "quotes", "a", incarnation, 8)))
        await until(lambda: any(link.hello for link in b.peers._unidentified))
        b.peers.tick(time.monotonic() + 10)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()
    assert b.peers.refusals == {"incarnation": 2}
    refusal = next(line for line in log.lines if line["event"] == "peer_refused")
    assert (refusal["kind"], refusal["reason"]) == (
        "incarnation",
        "incarnation 2 of 'a' is not confirmed by ZooKeeper",
    )
    a.send("b", numbered(3))
    await until(lambda: b.received() == [3])
    assert b.last_heard()[0] == events.PeerUp("a", 1)


async def test_a_hello_waits_for_zookeepers_news_of_its_broker(sides: Any) -> None:
    a, b = sides("a"), sides("b")
    a.want(b)
    await until(lambda: any(link.hello for link in b.peers._unidentified))
    assert b.last_heard() == []
    b.want(a)
    await until(lambda: b.last_heard() == [events.PeerUp("a", 1)] and a.last_heard() == [events.PeerUp("b", 1)])
    assert not b.peers.refusals


async def test_the_broker_that_dials_waits_for_zookeeper_as_well(sides: Any) -> None:
    a, b = sides("a"), sides("b", incarnation=5)
    b.want(a)
    a.peers.connect(events.ConnectPeers({"b": (4, b.address)}))
    await until(lambda: any(link.hello for link in a.peers._dialled))
    a.want(b)
    await until(lambda: a.last_heard() == [events.PeerUp("b", 5)])


async def test_a_message_before_the_answer_to_hello_ends_the_link(sides: Any, log: Any) -> None:
    b = sides("b")
    reader, writer = await asyncio.open_connection(*b.port)
    writer.write(framed(PeerHello(PEER_VERSION, "quotes", "a", 1, 8)) + framed(numbered(1)))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    writer.close()
    assert b.peers.refusals == {"hello": 1}
    assert "before the answer" in log.lines[-1]["reason"]


async def test_a_message_that_the_logic_refuses_ends_the_link(sides: Any, log: Any) -> None:
    a, b = await joined(sides)
    b.pump.call(b.peers.refuse_peer, events.RefusePeer("a", "epoch", "Prepare: EPOCH-BOUND"))
    b.pump.call(b.peers.refuse_peer, events.RefusePeer("c", "epoch", "no such link"))
    await until(lambda: a.last_heard()[-1] == events.PeerUp("b", 4) and len(a.last_heard()) == 3)
    assert b.peers.refusals == {"epoch": 1}
    refusal = next(line for line in log.lines if line["event"] == "peer_refused")
    assert (refusal["peer"], refusal["kind"], refusal["reason"]) == ("a", "epoch", "Prepare: EPOCH-BOUND")


async def test_a_link_to_an_older_incarnation_is_broken_when_a_newer_one_is_known(sides: Any) -> None:
    a, b = await joined(sides)
    a.peers.connect(events.ConnectPeers({"b": (5, b.address)}))
    await until(lambda: events.PeerDown("b") in a.last_heard())


async def test_a_link_to_an_unwanted_peer_is_closed(sides: Any) -> None:
    a, b = await joined(sides)
    a.want()
    await until(lambda: events.PeerDown("b") in a.last_heard())
    assert not a.peers._dialling
    a.send("b", numbered(1))
    await until(lambda: b.last_heard()[-1] == events.PeerDown("a"))
    assert b.received() == []


async def test_dialling_continues_until_the_peer_answers(sides: Any) -> None:
    a = sides("a")
    free = bind("127.0.0.1", 0, "peers")
    a.peers.connect(events.ConnectPeers({"b": (1, address_of(free))}))
    await until(lambda: a.log.events().count("peer_unreachable") >= 2)
    b = sides("b")
    b.want(a)
    a.want(b)
    await until(lambda: a.last_heard() == [events.PeerUp("b", 1)])
    free.close()


async def test_a_peer_that_does_not_read_breaks_the_link(sides: Any, log: Any) -> None:
    b = sides("b", max_buffer=1_000_000)
    b.confirm("a")
    _, writer = await asyncio.open_connection(*b.port)
    writer.write(framed(PeerHello(PEER_VERSION, "quotes", "a", 1, 8)))
    await until(b.last_heard)
    transport: Any = writer.transport
    transport.pause_reading()
    message = Accept(3, 1, 1, [TopicEntries("t", [Publication(1, 1, bytes(1_000_000))])], [], [])
    for _ in range(30):
        b.send("a", message)
    await until(lambda: events.PeerDown("a") in b.last_heard())
    assert "peer_too_slow" in log.events()
    writer.close()


async def test_a_message_over_the_limit_breaks_the_link_and_is_logged(
    sides: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: Any) -> bytes:
        raise BadPeerMessage("too large")

    a, _ = await joined(sides)
    monkeypatch.setattr(peers_module, "encode_peer", refuse)
    a.peers.send(events.SendPeer("b", ForwardReplies([])))
    await until(lambda: events.PeerDown("b") in a.last_heard())
    assert "peer_message_too_large" in log.events()


class Stopped:
    """A stand-in for a link's transport that records whether reading is paused or resumed."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


async def test_unprocessed_bytes_of_a_link_are_bounded(sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link whose unprocessed bytes reach the limit is paused, even between two turns, stays up, and is read again
    once they are processed; all messages arrive in order."""
    _, b = await joined(sides)
    link = b.peers._links["a"]
    stopped: Any = Stopped(link.transport)
    link.transport = stopped
    data = framed(numbered(0))
    monkeypatch.setattr(peers_module, "MAX_UNPROCESSED_BYTES", 3 * len(data))
    link.received_bytes = 0  # its Hello counted
    for number in range(5):  # no turn in between
        half = len(data) // 2
        link.data_received(framed(numbered(number))[:half])
        link.data_received(framed(numbered(number))[half:])
        assert stopped.calls == (["pause"] if number >= 3 else [])
    link.arrivals.excuse(0.0)
    b.peers.tick(time.monotonic())
    assert "a" in b.peers._links
    await until(lambda: b.received() == [0, 1, 2, 3, 4])
    assert (stopped.calls, link.unprocessed, link.paused) == (["pause", "resume"], 0, False)


async def test_silence_breaks_a_link_unless_the_broker_itself_stalled(sides: Any, log: Any) -> None:
    a, _ = await joined(sides)
    now = time.monotonic()
    a.peers.tick(now + 60)  # the first tick in a minute: this process stood still
    a.peers.tick(now + 60.1)
    assert "peer_silent" not in log.events()
    for tenth in range(1, 60):
        a.peers.tick(now + 60.1 + tenth / 10)
    await until(lambda: events.PeerDown("b") in a.last_heard())
    assert "peer_silent" in log.events()


async def test_a_connection_without_a_hello_is_dropped_in_time(sides: Any, log: Any) -> None:
    b = sides("b")
    reader, writer = await asyncio.open_connection(*b.port)
    await until(lambda: b.peers._unidentified)
    b.peers.tick(time.monotonic() + 10)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    assert "no Hello within" in log.lines[-1]["reason"]
    writer.close()


async def test_idle_connections_do_not_keep_a_broker_from_linking(sides: Any, idle: Any, log: Any) -> None:
    """With more idle connections than the limit of unidentified ones, links in both directions are made at once; the
    oldest idle connections are closed, and no more than necessary."""
    a, b, c = sides("a"), sides("b"), sides("c")
    readers = await idle(b.port, peers_module.MAX_UNIDENTIFIED + 5)
    await until(lambda: b.peers.refusals["hello"] == 5)
    a.want(b)
    b.want(a, c)
    c.want(b)
    await until(lambda: {"a", "c"} == {*b.peers.status()}, limit=2.0)  # before anybody is dropped for his silence
    # the longest there went, and no more than had to
    for reader in readers[: b.peers.refusals["hello"]]:
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert len(b.peers._unidentified) == len(readers) - b.peers.refusals["hello"]
    refused = next(line for line in log.lines if line["event"] == "peer_refused")
    assert "connections without a Hello" in refused["reason"]


async def test_unidentified_connections_never_evict_a_dialled_link(sides: Any, idle: Any) -> None:
    a = sides("a")
    silent = listen(bind("127.0.0.1", 0, "peers"), "peers")  # accepts nobody: the kernel connects all the same
    a.peers.connect(events.ConnectPeers({"b": (1, address_of(silent))}))
    await until(lambda: a.peers._dialled)
    await idle(a.port, peers_module.MAX_UNIDENTIFIED + 5)
    await until(lambda: a.peers.refusals["hello"] == 5)
    (calling,) = a.peers._dialled
    assert not calling.transport.is_closing()
    a.peers.tick(time.monotonic() + 10)  # in time it is dropped like any other
    await until(calling.transport.is_closing)
    silent.close()


# ---- TLS


def certificate(folder: Path, name: str, log: Any) -> Certificate:
    section = CertificateSection(
        cert=str(folder / "{broker}.crt"), key=str(folder / "{broker}.key"), ca=str(folder / "ca.crt")
    )
    return Certificate("peers", section, name, log)


async def test_links_with_tls(sides: Any, log: Any, tmp_path: Path) -> None:
    write_certificates(tmp_path, DevelopmentAuthority(), NAMES, "127.0.0.1")
    a, b = (sides(name, certificate=certificate(tmp_path, name, log)) for name in ("a", "b"))
    a.want(b)
    b.want(a)
    await until(lambda: a.last_heard() and b.last_heard())
    a.send("b", Accept(3, 1, 1, [TopicEntries("t", [Publication(1, 1, bytes(3_000_000))])], [], []))
    b.send("a", numbered(7))
    await until(lambda: b.received() == [3] and a.received() == [7])


async def test_idle_connections_before_tls_do_not_keep_a_broker_from_linking(
    sides: Any, idle: Any, log: Any, tmp_path: Path
) -> None:
    """With more unfinished TLS handshakes than their limit, links are made at once; the oldest idle connections are
    closed, and no more than necessary."""
    write_certificates(tmp_path, DevelopmentAuthority(), NAMES, "127.0.0.1")
    a, b = (sides(name, certificate=certificate(tmp_path, name, log)) for name in ("a", "b"))
    readers = await idle(b.port, peers_module.MAX_TLS_HANDSHAKES + 5)
    await until(lambda: b.peers._certificate.refused == 5)
    a.want(b)
    b.want(a)
    await until(lambda: "a" in b.peers.status(), limit=2.0)
    refused = b.peers._certificate.refused
    for reader in readers[:refused]:
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert 5 <= refused <= 6
    assert not any(reader.at_eof() for reader in readers[refused:])
    (line,) = (line for line in log.lines if line["event"] == "tls_refused")
    assert line["reason"] == f"more than {peers_module.MAX_TLS_HANDSHAKES} TLS handshakes at once"


async def test_strangers_without_a_certificate_get_no_link(sides: Any, log: Any, tmp_path: Path) -> None:
    """A connection without TLS, and one with TLS and no certificate, gets no answer to its Hello and no link. Both are
    counted, and logged."""
    write_certificates(tmp_path, DevelopmentAuthority(), NAMES, "127.0.0.1")
    b = sides("b", certificate=certificate(tmp_path, "b", log))
    b.confirm("a")
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.load_verify_locations(tmp_path / "ca.crt")
    for options in ({}, {"ssl": plain, "server_hostname": "b"}):
        reader, writer = await asyncio.open_connection(*b.port, **options)  # type: ignore[arg-type]
        writer.write(framed(PeerHello(PEER_VERSION, "quotes", "a", 1, 8)))
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1000), 5)
        writer.close()
    await until(lambda: b.peers._certificate.refused == 2)
    assert b.last_heard() == []
    assert "tls_refused" in log.events()


async def test_the_certificate_of_one_broker_is_none_of_another(sides: Any, log: Any, tmp_path: Path) -> None:
    """A broker with the certificate of c is refused when it sends a Hello as a, and when a dials its address as b."""
    write_certificates(tmp_path, DevelopmentAuthority(), NAMES, "127.0.0.1")
    b = sides("b", certificate=certificate(tmp_path, "b", log))
    b.confirm("a")
    thief = certificate(tmp_path, "c", log)
    reader, writer = await asyncio.open_connection(*b.port, ssl=thief.client, server_hostname="b")
    writer.write(framed(PeerHello(PEER_VERSION, "quotes", "a", 1, 8)))
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1000), 5)
    writer.close()
    assert b.peers.refusals == {"hello": 1}
    assert "not of 'a'" in log.lines[-1]["reason"]
    c = sides("c", certificate=thief)
    b.peers.connect(events.ConnectPeers({"a": (1, "127.0.0.1:1"), "c": (1, c.address)}))
    a = sides("a", certificate=certificate(tmp_path, "a", log))
    a.peers.connect(events.ConnectPeers({"b": (1, c.address)}))  # an address that was taken over
    await until(lambda: a.peers._certificate.refused > 0)
    assert a.last_heard() == []


async def test_a_peer_with_long_pauses_gets_more_time(sides: Any, log: Any) -> None:
    """Silence ends a link after twice the longest pause of the last minutes, also one between two links."""
    a, _ = await joined(sides)
    link = a.peers._links["b"]
    began = link.arrivals.last
    link.arrivals.note(began + 1.5)
    assert link.arrivals.limit == 3.0
    link.transport.abort()
    await until(lambda: a.last_heard()[-2:] == [events.PeerDown("b"), events.PeerUp("b", 4)])
    again = a.peers._links["b"]
    assert again is not link
    assert again.arrivals.limit == 3.0
    again.arrivals.note(again.arrivals.last + 9.0)
    assert again.arrivals.limit == LONGEST_SILENCE_LIMIT
    assert "peer_silent" not in log.events()


def test_a_long_pause_is_forgotten() -> None:
    arrivals = Arrivals(0.0)
    limits = {}
    for now in range(3, int(2 * PAUSE_WINDOW) + 3):
        arrivals.note(now)
        limits[now] = arrivals.limit
    assert limits == {now: LONGEST_SILENCE_LIMIT if now <= 2 * PAUSE_WINDOW + 1 else SILENCE_LIMIT for now in limits}
