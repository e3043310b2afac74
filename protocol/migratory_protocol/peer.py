"""The messages between brokers: version 1, MessagePack arrays that begin with the message's number.

A link carries them in order and loses none until it breaks. A broker opens a link with `Hello` and refuses another
cluster, version or number of groups. Fields may be added at the end with a default: an older peer ignores them.
A frame holds one message, or an array of several, none of which is `Hello`, for those who said that they take them.
`group` is a topic group's number; `history` its random name; `epoch` the sender's reign unless said otherwise.
docs/replication.md says when each is sent. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from migratory_protocol.diagnosis import DECODE_ERRORS
from migratory_protocol.positions import Position

PEER_VERSION = 1
MAX_PEER_MESSAGE = 1_073_741_824
"""Bytes. Snapshots are cut into parts far below it, but what a turn has published in a group goes in one message: with
the largest payload that is allowed, 64 MiB, some of those."""


class BadPeerMessage(ValueError):
    """What came over a peer link is not a peer message: the link is to be closed, `text` says why."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Publication(Struct, array_like=True, gc=False, frozen=True):
    """A message with its position: in the cache, between brokers and towards the edges alike.

    `publisher` is "" and `id` 0 for QoS 0. `time` is the coordinator's wall clock when it numbered the publication,
    `sent` the publisher's.
    """

    epoch: int
    sequence: int
    payload: bytes
    publisher: str = ""
    id: int = 0
    time: float = 0.0
    sent: float | None = None

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.sequence)


class Row(Struct, array_like=True, gc=False, frozen=True):
    """One line of a publisher table: the publisher's last message id in this topic and where it stands."""

    publisher: str
    id: int
    epoch: int
    sequence: int


class Digest(Struct, array_like=True, gc=False, frozen=True):
    """What a log holds of one topic: entries `base`+1..`last`, and the number of rows of its publisher table (of two
    logs that are prefixes of one log and equally long, the tables differ by removed rows only)."""

    topic: str
    base: int
    last: int
    last_epoch: int
    rows: int


class TopicPart(Struct, array_like=True, gc=False):
    """What one topic of a snapshot consists of, against what the receiver said it holds.

    The receiver keeps its entries up to `keep`, appends `entries` and takes `table`. `whole`: it keeps nothing and its
    log starts behind `base`. `older` ends where the receiver's cache begins. `gone`: there is no such topic. `more`:
    this part goes on with the topic of the part before, and only its `entries` count. `committed` is the sender's mark.
    """

    topic: str
    keep: int
    base: int
    base_epoch: int
    last: int
    committed: int
    whole: bool = False
    gone: bool = False
    more: bool = False
    entries: list[Publication] = []
    older: list[Publication] = []
    table: list[Row] = []


Broker = tuple[str, int]  # name, incarnation


class Hello(Struct, array_like=True, gc=False, frozen=True, tag=0):
    """`several`: the sender takes frames of several messages. A broker from before them does not say so."""

    version: int
    cluster: str
    broker: str
    incarnation: int
    groups: int
    several: bool = False


class Load(Struct, array_like=True, gc=False, frozen=True):
    """What the others balance clients by. `revision` is of the sender's program and configuration, "" if nobody says.
    `calls`: (broker, clients) that the sender has room for now and asks that broker to send; said once."""

    clients: int
    draining: bool
    revision: str = ""
    calls: list[tuple[str, int]] = []


class Heartbeat(Struct, array_like=True, gc=False, frozen=True, tag=1):
    """Every half second. `zookeeper_age`: since the sending of the last own read that was answered. `hears`: the
    brokers heard lately. `coordinates`: (group, epoch) of the sender's activated epochs. `lives`: the incarnations of
    those in `hears`, in their order, 0 for one whose link is gone. `load` is None, and `lives` empty, from a broker
    that is older than they are."""

    zookeeper_age: float
    hears: list[str]
    coordinates: list[tuple[int, int]]
    member: bool
    ready: bool
    load: Load | None = None
    lives: list[int] = []


class Forwarded(Struct, array_like=True, gc=False, frozen=True):
    topic: str
    payload: bytes
    qos: int
    publisher: str
    id: int
    mark: int
    sent: float | None = None


class Forward(Struct, array_like=True, gc=False, frozen=True, tag=2):
    """Publications from their contact to the coordinator."""

    group: int
    publications: list[Forwarded]


class Answer(Struct, array_like=True, gc=False, frozen=True):
    """`code` "" acknowledges a duplicate; a new publication is acknowledged by its commit at the contact."""

    topic: str
    publisher: str
    id: int
    code: str = ""
    position: Position | None = None
    text: str = ""
    retry_after: float = 0.0


class Answers(Struct, array_like=True, gc=False, frozen=True, tag=3):
    answers: list[Answer]


class Prepare(Struct, array_like=True, gc=False, frozen=True, tag=4):
    """A candidate asks a broker of the source list for its promise. `source` is the last activated epoch; `holds` what
    the candidate has of it (`useful`), else nothing."""

    group: int
    history: int
    epoch: int
    source: int
    useful: bool
    holds: list[Digest]


class Promise(Struct, array_like=True, gc=False, frozen=True, tag=5):
    """A promise of `epoch`, in one or several parts; it counts with the part that is `last`. `topics` carry what the
    candidate lacks, `holds` what the sender has, both only if its `synced` is not below the source epoch."""

    group: int
    history: int
    epoch: int
    synced: int
    last: bool
    holds: list[Digest]
    topics: list[TopicPart]


class Refused(Struct, array_like=True, gc=False, frozen=True, tag=6):
    """`epoch` is not acted upon, because `promised` is higher (or the sender does not stand where it must)."""

    group: int
    epoch: int
    promised: int


class Ask(Struct, array_like=True, gc=False, frozen=True, tag=7):
    """The coordinator (or candidate) of `epoch` wants to know what the receiver holds, to send what is missing."""

    group: int
    history: int
    epoch: int


class Standing(Struct, array_like=True, gc=False, frozen=True, tag=8):
    """What the sender holds; answers `Ask`, and asks for repair when an entry was missing."""

    group: int
    history: int
    epoch: int
    promised: int
    synced: int
    holds: list[Digest]


class Sync(Struct, array_like=True, gc=False, frozen=True, tag=9):
    """The log of `epoch`, in one or several parts; taken as a whole with the part that is `last`.

    `whole`: topics that are not named do not exist; else the receiver keeps those as they are. `topics_total` and
    `lasts_total` (the sum of the last sequence numbers) must be right afterwards. `serial` names the snapshot.
    """

    group: int
    history: int
    first: int
    epoch: int
    serial: int
    owner: Broker
    members: list[Broker]
    copies: int
    activated: bool
    whole: bool
    last: bool
    topics: list[TopicPart]
    topics_total: int
    lasts_total: int


class Synced(Struct, array_like=True, gc=False, frozen=True, tag=10):
    """The snapshot `serial` of `epoch` was taken."""

    group: int
    history: int
    epoch: int
    serial: int


class Activated(Struct, array_like=True, gc=False, frozen=True, tag=11):
    group: int
    history: int
    epoch: int


class Entries(Struct, array_like=True, gc=False, frozen=True):
    topic: str
    publications: list[Publication]


class Accept(Struct, array_like=True, gc=False, frozen=True, tag=12):
    """Entries of `epoch` to store, in order. `forget` (topic, publisher) leave the tables before the entries are
    taken; `marks` are (topic, committed sequence number)."""

    group: int
    history: int
    epoch: int
    entries: list[Entries]
    forget: list[tuple[str, str]]
    marks: list[tuple[str, int]]


class Accepted(Struct, array_like=True, gc=False, frozen=True, tag=13):
    """The sender, listed in `epoch`, holds each topic up to this sequence number."""

    group: int
    history: int
    epoch: int
    lasts: list[tuple[str, int]]


class HandOver(Struct, array_like=True, gc=False, frozen=True, tag=14):
    """The coordinator of `epoch` names the receiver its successor."""

    group: int
    history: int
    epoch: int


class Survey(Struct, array_like=True, gc=False, frozen=True, tag=15):
    """Before the first record of these groups: who holds anything of them?"""

    serial: int
    groups: list[int]


class Held(Struct, array_like=True, gc=False, frozen=True, tag=16):
    """Answers `Survey`: (group, highest epoch known) where the sender holds a promise or entries."""

    serial: int
    groups: list[tuple[int, int]]


Said = (
    Heartbeat
    | Forward
    | Answers
    | Prepare
    | Promise
    | Refused
    | Ask
    | Standing
    | Sync
    | Synced
    | Activated
    | Accept
    | Accepted
    | HandOver
    | Survey
    | Held
)
PeerMessage = Hello | Said

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)
_several: msgspec.msgpack.Decoder[list[Said]] = msgspec.msgpack.Decoder(list[Said])
_MANY = 0xDD  # how an array of several begins; a message has few fields, and another begin


def encode_peer(message: PeerMessage) -> bytes:
    """One message, without a frame. Raises BadPeerMessage when it is over `MAX_PEER_MESSAGE` bytes."""
    data = _encoder.encode(message)
    if len(data) > MAX_PEER_MESSAGE:
        raise BadPeerMessage(f"{type(message).__name__} has {len(data)} bytes, the limit is {MAX_PEER_MESSAGE}")
    return data


def decode_peer(data: bytes | bytearray | memoryview) -> PeerMessage:
    """The message in `data`. Raises BadPeerMessage, naming what is wrong, for everything that is not one."""
    if len(data) > MAX_PEER_MESSAGE:
        raise BadPeerMessage(f"a peer message of {len(data)} bytes, the limit is {MAX_PEER_MESSAGE}")
    try:
        return _decoder.decode(data)
    except DECODE_ERRORS as error:
        raise BadPeerMessage(f"not a message of peer protocol {PEER_VERSION}: {error}") from None


def join_peer(encoded: Sequence[bytes]) -> bytes:
    """Several encoded messages, none of them a `Hello`, as the content of one frame."""
    return b"".join((bytes((_MANY,)), len(encoded).to_bytes(4), *encoded))


def decode_peers(data: bytes | bytearray | memoryview) -> Sequence[PeerMessage]:
    """The messages of one frame, at least one. Raises BadPeerMessage as `decode_peer` does."""
    if not data or data[0] != _MANY:
        return [decode_peer(data)]
    try:
        found = _several.decode(data)
    except DECODE_ERRORS as error:
        raise BadPeerMessage(f"not messages of peer protocol {PEER_VERSION}: {error}") from None
    if not found:
        raise BadPeerMessage("a frame without a message")
    return found
