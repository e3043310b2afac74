"""The messages between brokers: each is read as it was written. Fields of later versions are ignored, missing ones of
older brokers have defaults, and anything else, or too long a message, is refused."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest
from migratory_protocol import peer
from migratory_protocol.peer import (
    Accept,
    Accepted,
    Activated,
    BadPeerMessage,
    ClientLoad,
    EpochRefused,
    Forward,
    ForwardedPublication,
    ForwardReplies,
    ForwardReply,
    HandOver,
    Heartbeat,
    Inventory,
    InventoryRequest,
    LogDigest,
    PeerHello,
    PeerMessage,
    Prepare,
    Promise,
    Publication,
    PublisherRow,
    Survey,
    SurveyReply,
    Sync,
    Synced,
    TopicEntries,
    TopicPart,
    decode_peer,
    decode_peers,
    encode_peer,
    join_peer,
)
from migratory_protocol.positions import Position
from migratory_resources.cluster.spec import LimitsSpec
from migratory_resources.quantities import parse_size

PUBLICATION = Publication(2**62, 2**53 + 1, b"\x00\xff", "p", 7, 1.5, 0.25)
PART = TopicPart("t", 1, 0, 0, 2, 1, entries=[PUBLICATION], older=[PUBLICATION], table=[PublisherRow("p", 7, 1, 2)])
MESSAGES: list[PeerMessage] = [
    PeerHello(1, "quotes", "quotes-0", 3, 100),
    Heartbeat(-1.0, ["a"], [(0, 5)], True, False),
    Heartbeat(-1.0, ["a"], [(0, 5)], True, False, ClientLoad(300, False, "quotes-7d9", [("b", 20)]), [3]),
    Forward(3, [ForwardedPublication("t", b"x", 1, "p", 7, 6, 0.5)]),
    ForwardReplies(
        [ForwardReply("t", "p", 7, position=Position(1, 2)), ForwardReply("t", "p", 8, "retry", None, "why", 0.2)]
    ),
    Prepare(1, 2, 3, 2, True, [LogDigest("t", 0, 2, 1, 1)]),
    Promise(1, 2, 3, 2, True, [LogDigest("t", 0, 2, 1, 1)], [PART]),
    EpochRefused(1, 2, 3),
    InventoryRequest(1, 2, 3),
    Inventory(1, 2, 3, 3, 2, []),
    Sync(1, 2, 1, 3, 9, ("a", 1), [("a", 1), ("b", 2)], 2, False, True, True, [PART], 1, 2),
    Synced(1, 2, 3, 9),
    Activated(1, 2, 3),
    Accept(1, 2, 3, [TopicEntries("t", [PUBLICATION])], [("t", "q")], [("t", 1)]),
    Accepted(1, 2, 3, [("t", 2)]),
    HandOver(1, 2, 3),
    Survey(4, [1, 2]),
    SurveyReply(4, [(1, 9)]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_encoded_message_decodes_to_the_same_message(message: PeerMessage) -> None:
    assert decode_peer(encode_peer(message)) == message


def test_round_trip_covers_every_message_class() -> None:
    assert {type(message) for message in MESSAGES} == set(peer.PeerMessage.__args__)


def test_publication_has_its_position() -> None:
    assert PUBLICATION.position == Position(2**62, 2**53 + 1)


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    data = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_peer(InventoryRequest(1, 2, 3))), "later"])
    assert decode_peer(data) == InventoryRequest(1, 2, 3)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "truncated"),
        (b"\x05", "expected `array`"),
        (msgspec.msgpack.encode([77, 1]), "invalid value 77"),
        (msgspec.msgpack.encode([7, 1]), "at least"),
        (msgspec.msgpack.encode([7, "x", 2, 3]), "expected `int`"),
        (encode_peer(InventoryRequest(1, 2, 3)) + b"\x00", "trailing"),
        (b"\x96\x00\x01\xa1\xff\xa1b\x01\x04", "utf-8"),
        (b"\x95\x07\x01\x02\x03" + b"\x91" * 100_000, "recursion"),
    ],
)
def test_decode_names_what_is_wrong_with_a_bad_message(data: bytes, text: str) -> None:
    with pytest.raises(BadPeerMessage, match="peer protocol 1") as caught:
        decode_peer(data)
    assert text in caught.value.text.lower()


def test_message_limit_fits_the_largest_allowed_publications() -> None:
    """The limit of messages between brokers is at least eight times the largest payload that a cluster file allows:
    a message over the limit would break the link, and again each time it is sent."""
    (size,) = (part for part in get_type_hints(LimitsSpec, include_extras=True)["max_payload"].__metadata__)
    payload = bytes(parse_size(size.maximum))
    assert len(encode_peer(Forward(0, [ForwardedPublication("t", payload, 1, "p", 1, 1)]))) > len(payload)
    assert 8 * len(payload) <= peer.MAX_PEER_MESSAGE


def test_message_over_the_limit_is_refused_at_encoding_and_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "MAX_PEER_MESSAGE", 10)
    with pytest.raises(BadPeerMessage, match=r"Accept has .* the limit is 10"):
        encode_peer(Accept(1, 2, 3, [TopicEntries("t", [PUBLICATION])], [], []))
    with pytest.raises(BadPeerMessage, match="11 bytes, the limit is 10"):
        decode_peer(b"x" * 11)


def test_heartbeat_of_an_older_broker_has_no_load_and_no_incarnations() -> None:
    """A heartbeat of an older broker, which lacks the last fields, is read with their defaults; additional fields of
    a newer broker are ignored."""
    old = msgspec.msgpack.encode([1, 0.5, ["a"], [[0, 5]], True, True])
    assert decode_peer(old) == Heartbeat(0.5, ["a"], [(0, 5)], True, True, None, [])
    load = [300, False, "r", [["b", 20]], "later"]
    newer = msgspec.msgpack.encode([1, 0.5, ["a"], [[0, 5]], True, True, load, [7], {"later": 1}])
    load_and_lives = (ClientLoad(300, False, "r", [("b", 20)]), [7])
    assert decode_peer(newer) == Heartbeat(0.5, ["a"], [(0, 5)], True, True, *load_and_lives)


def test_joined_messages_decode_in_order() -> None:
    sent = [message for message in MESSAGES if not isinstance(message, PeerHello)]
    encoded = [encode_peer(message) for message in sent]
    assert decode_peers(join_peer(encoded)) == sent
    assert [decode_peers(data) for data in encoded] == [[message] for message in sent]


def test_hello_of_an_older_broker_does_not_accept_joined_frames() -> None:
    assert decode_peer(msgspec.msgpack.encode([0, 1, "c", "a", 1, 8])) == PeerHello(1, "c", "a", 1, 8, batches=False)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a message of peer protocol 1"),
        (b"\xdd\x00\x00\x00\x00", "the frame has no message, it must have one or more"),
        (
            join_peer([encode_peer(InventoryRequest(1, 2, 3)), encode_peer(PeerHello(1, "c", "a", 1, 8))]),
            "Invalid value 0",
        ),
        (join_peer([encode_peer(InventoryRequest(1, 2, 3)), b"\x93\x07"]), "at least length 4"),
        (join_peer([encode_peer(InventoryRequest(1, 2, 3))] * 2) + b"\x00", "trailing"),
    ],
)
def test_decode_names_what_is_wrong_with_a_bad_frame(data: bytes, text: str) -> None:
    with pytest.raises(BadPeerMessage, match=text):
        decode_peers(data)
