"""The peer link of two brokers. Byte 0 selects one message for the decoder or a stream for a link after its
`PeerHello`; byte 1 selects where the stream is cut.

Oracles: the result is a message, or a BadPeerMessage with a text. Decoded messages can be encoded and decoded again.
bytes, bytearray and memoryview read alike. A link passes on the same messages however the stream is cut, and nothing
after a mistake. A mistake closes the link and is logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from migratory_broker.core.logic.events import ConnectPeers, PeerReceived
from migratory_broker.runtime.peers.link import PeerLink
from migratory_broker.runtime.peers.links import PeerLinks
from migratory_protocol import peer as p
from migratory_protocol.positions import Position
from migratory_testing.frameoracle import cut
from msgspec import Struct

from migratory_fuzz.labels import seen, seen_error

SHAPE = "values"
SKIP = 2
MAX_LEN = 3000
TOKENS = (
    b"\x00\x00\x00\x01",
    b"\xa1\xff",
    b"\xca\x7f\xc0\x00\x00",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xc4\x01a",
)


HELLO = p.PeerHello(p.PEER_VERSION, "fuzz", "a", 1, 4)
_LOOP = asyncio.new_event_loop()


def run(data: bytes) -> None:
    how, place, body = (*data[:2], *(0, 0))[0], (*data[1:2], 0)[0], data[2:]
    if how & 1:
        whole = repr(_stream([body]))  # as text, so that a NaN is one
        assert repr(_stream(cut(body, [place, place * 3]))) == whole
        if len(body) <= 100:
            assert repr(_stream([body[at : at + 1] for at in range(len(body))])) == whole
        return
    message = _decoded(body)
    for other in (bytearray(body), memoryview(body)):
        assert repr(_decoded(other)) == repr(message)
    if isinstance(message, Struct):
        again = p.encode_peer(cast("p.PeerMessage", message))
        assert repr(p.decode_peer(again)) == repr(message)
        assert p.encode_peer(p.decode_peer(again)) == again
        if not isinstance(message, p.PeerHello):
            assert repr(p.decode_peers(p.join_peer([again, again]))) == repr([message, message])


def _decoded(data: bytes | bytearray | memoryview) -> object:
    try:
        message = p.decode_peer(data)
    except p.BadPeerMessage as error:
        return _check_text(error.text)
    seen(f"{type(message).__name__} {[min(3, len(v)) for v in _lists(message)]}")
    return message


def _check_text(text: str) -> str:
    assert text.startswith(("not a message of peer protocol 1: ", "the message has "))
    assert len(text) > 40
    seen_error(text)
    return text


def _lists(message: Struct) -> Iterator[list[Any]]:
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, list):
            yield value
            for item in value:
                if isinstance(item, Struct):
                    yield from _lists(item)


class _Transport:
    """A fake transport, with the methods that a link uses."""

    def __init__(self) -> None:
        self.aborted = False
        self.written = b""

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written += b"".join(parts)

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.1", 1)


def _stream(chunks: list[bytes]) -> tuple[list[object], bool, list[tuple[object, ...]]]:
    """Return what a link after its `PeerHello` makes of these chunks: messages, whether it is closed, and the
    reasons."""
    handed: list[PeerReceived] = []
    reasons: list[tuple[object, ...]] = []
    pump = SimpleNamespace(to_logic=handed.append, call=lambda action, argument: None, at_turn_end=lambda action: None)
    peers = PeerLinks(
        cluster="fuzz",
        name="b",
        brokers=("a", "b"),
        groups=4,
        pump=cast("Any", pump),
        log=cast("Any", lambda level, event, **fields: reasons.append((level, event, fields["reason"]))),
        clock=lambda: 0.0,
        max_buffer=1,
    )
    transport = _Transport()

    async def feed() -> None:
        peers.start(1)
        peers.connect(ConnectPeers({"a": (1, "192.0.2.1:1")}))
        link: PeerLink = peers.protocol()
        link.connection_made(cast("Any", transport))
        link.data_received(_framed(p.encode_peer(HELLO)))
        assert transport.written == _framed(p.encode_peer(p.PeerHello(p.PEER_VERSION, "fuzz", "b", 1, 4, True)))
        for chunk in chunks:
            link.data_received(chunk)

    _LOOP.run_until_complete(feed())
    assert bool(reasons) == transport.aborted
    assert all(event.peer == "a" and event.messages for event in handed)
    for reason in reasons:
        seen_error(str(reason[2]))
    return [message for event in handed for message in event.messages], transport.aborted, reasons


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data


def seeds() -> Iterator[bytes]:
    entry = p.Publication(7, 3, b"payload", "p", 2, 1.5, None)
    digest = p.LogDigest("t", 1, 3, 7, 1)
    part = p.TopicPart("t", 1, 0, 0, 3, 2, entries=[entry], older=[entry], table=[p.PublisherRow("p", 2, 7, 3)])
    messages: tuple[p.PeerMessage, ...] = (
        HELLO,
        p.Heartbeat(0.5, ["a", "b"], [(1, 7)], True, True, p.ClientLoad(300, False, "r1", [("b", 20)]), [3, 1]),
        p.Forward(1, [p.ForwardedPublication("t", b"x", 1, "p", 2, 1, 1.5)]),
        p.ForwardReplies([p.ForwardReply("t", "p", 1, "", Position(7, 3)), p.ForwardReply("t", "p", 2, "gap")]),
        p.Prepare(1, 5, 8, 7, True, [digest]),
        p.Promise(1, 5, 8, 7, True, [digest], [part]),
        p.EpochRefused(1, 7, 8),
        p.InventoryRequest(1, 5, 8),
        p.Inventory(1, 5, 8, 8, 7, [digest]),
        p.Sync(1, 5, 1, 8, 2, ("a", 1), [("a", 1), ("b", 1)], 2, True, False, True, [part], 1, 3),
        p.Synced(1, 5, 8, 2),
        p.Activated(1, 5, 8),
        p.Accept(1, 5, 8, [p.TopicEntries("t", [entry])], [("t", "p")], [("t", 2)]),
        p.Accepted(1, 5, 8, [("t", 3)]),
        p.HandOver(1, 5, 8),
        p.Survey(1, [0, 1]),
        p.SurveyReply(1, [(1, 7)]),
    )
    for message in messages:
        yield b"\x00\x00" + p.encode_peer(message)
    yield b"\x01\x09" + b"".join(_framed(p.encode_peer(message)) for message in messages[1:5])
    yield (
        b"\x01\x05"
        + _framed(p.encode_peer(messages[1]))
        + _framed(b"\x91\xa1\xff")
        + _framed(p.encode_peer(messages[2]))
    )
    yield b"\x01\x02" + (2**31).to_bytes(4) + b"x"
