"""The messages between brokers, for the broker's logic and peer links: version 1, MessagePack arrays that begin with
the message's number.

A peer link carries them in order and loses none until it breaks. A broker opens a link with `PeerHello` and refuses
another cluster, version or number of groups. Fields may be added at the end with a default: an older peer ignores them.
A frame holds one message, or, if the receiver has announced that it accepts this, an array of several, none of which is
`PeerHello`.

`group` is a topic group's number and `history` the random number of its history. `epoch` is the epoch to which the
message belongs. Times are in seconds unless a field's description says otherwise. docs/concepts/replication.md says
when each message is sent.

The fields' types give the ranges in which every broker can work with a value. Decoding refuses anything else, so that
no peer can send a number that this broker could not send on.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from migratory_protocol import limits
from migratory_protocol.diagnosis import DECODE_ERRORS
from migratory_protocol.messages import Integer, Seconds
from migratory_protocol.positions import Position

PEER_VERSION = 1

MAX_PEER_MESSAGE = 1_073_741_824
"""Bytes of the largest message. Snapshots are split into far smaller parts, but the publications of one turn and group
go in one message: with the largest allowed payload, 64 MiB, this is room for some of them."""


Number = Annotated[int, Meta(ge=0, le=2**62)]
"""The type of a count, an epoch, a sequence number or an incarnation. The next one fits into 64 bits as well."""

Group = Annotated[int, Meta(ge=0, le=2**31)]
History = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=limits.TEXT)]
"""The type of the name of a topic, a publisher or a broker, or of another text."""

Clients = Annotated[int, Meta(ge=0, le=2**31)]
Digest = Annotated[bytes, Meta(max_length=8)]

MAX_BROKERS = 10_000
"""The largest number of entries of a list that has one for each broker."""

_PER_BROKER = Meta(max_length=MAX_BROKERS)


class BadPeerMessage(ValueError):
    """The error for data on a peer link that are no acceptable peer message. `text` says what is wrong; the link must
    be closed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def payload_digest(payload: bytes) -> bytes:
    """Return a digest of 8 bytes by which the payload of a repeated message id is compared with that of its first use.

    BLAKE2b is the fastest hash of `hashlib` that has any length and is the same in every process. Another payload of
    the same digest would take 2^64 attempts.
    """
    return blake2b(payload, digest_size=8, usedforsecurity=False).digest()


class Publication(Struct, array_like=True, gc=False, frozen=True):
    """A publication with its position (`epoch`, `sequence`), as the cache holds it and as it is sent between brokers
    and to the edges.

    `publisher` is "" and `id` 0 for QoS 0. `time` is the coordinator's wall clock when it numbered the publication,
    `sent` the publisher's when it sent the publication, None if it did not say.
    """

    epoch: Number
    sequence: Number
    payload: bytes
    publisher: Name = ""
    id: Integer = 0
    time: Seconds = 0.0
    sent: Seconds | None = None

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.sequence)


class PublisherRow(Struct, array_like=True, gc=False, frozen=True):
    """One row of a topic's publisher table: the publisher's last message id in this topic, the position of that
    publication (`epoch`, `sequence`), and the digest of its payload, which is empty from a broker older than
    digests."""

    publisher: Name
    id: Integer
    epoch: Number
    sequence: Number
    digest: Digest = b""


class LogDigest(Struct, array_like=True, gc=False, frozen=True):
    """A summary of one topic's log: it has the entries with the sequence numbers `base` + 1 to `last`, `last_epoch` is
    the epoch of the last one, and its publisher table has `rows` rows.

    When two logs are prefixes of one log and equally long, their tables differ by removed rows only.
    """

    topic: Name
    base: Number
    last: Number
    last_epoch: Number
    rows: Number


class TopicPart(Struct, array_like=True, gc=False):
    """One topic of a snapshot, as the difference from the log that the receiver has described.

    The receiver keeps its entries up to `keep`, appends `entries` and installs `table`. With `whole` it keeps no
    entries, and its log begins after `base`. `older` are entries before the receiver's oldest one. `deleted`: the topic
    does not exist. `continued`: this part continues the topic of the part before, and only its `entries` count. `base`,
    `last` and `committed` are of the sender's log: the sequence number before its first entry, that of its last entry,
    and its committed mark. `base_epoch` is the epoch of the entry `base`, 0 if there was none.
    """

    topic: Name
    keep: Number
    base: Number
    base_epoch: Number
    last: Number
    committed: Number
    whole: bool = False
    deleted: bool = False
    continued: bool = False
    entries: list[Publication] = []
    older: list[Publication] = []
    table: list[PublisherRow] = []


BrokerId = tuple[Name, Number]
"""The type of one incarnation of a broker: its name, and the number of the incarnation."""


class PeerHello(Struct, array_like=True, gc=False, frozen=True, tag=0):
    """The first message on a link, in both directions, by which a broker identifies itself. `groups` is its number of
    topic groups. `batches`: the sender accepts frames of several messages (False from an older broker)."""

    version: Number
    cluster: Name
    broker: Name
    incarnation: Number
    groups: Group
    batches: bool = False


class ClientLoad(Struct, array_like=True, gc=False, frozen=True):
    """A broker's numbers of clients, by which brokers balance them.

    `clients` is the number of clients that are connected to the sender; `draining`: it drains. `revision` is of the
    sender's program and configuration, "" if unknown. `requests`: (broker, number) pairs, the clients that the sender
    has room for now and asks that broker to send; each request is sent once.
    """

    clients: Clients
    draining: bool
    revision: Name = ""
    requests: Annotated[list[tuple[Name, Clients]], _PER_BROKER] = []


class Heartbeat(Struct, array_like=True, gc=False, frozen=True, tag=1):
    """The state of a broker, sent every half second.

    zookeeper_age   seconds since the sending of its last own read that ZooKeeper answered, -1 before the first
    heard           the brokers that it heard within half its fencing time
    coordinated     (group, epoch) of each group that it coordinates
    member          whether it is a synced member of every group
    ready           whether it is such a member and not fenced
    load            its clients; None from a broker older than this field
    incarnations    those of `heard`, in the same order, 0 if the link is gone; empty from an older broker
    """

    zookeeper_age: Annotated[float, Meta(ge=-1, le=1e12)]
    heard: Annotated[list[Name], _PER_BROKER]
    coordinated: list[tuple[Group, Number]]
    member: bool
    ready: bool
    load: ClientLoad | None = None
    incarnations: Annotated[list[Number], _PER_BROKER] = []


class ForwardedPublication(Struct, array_like=True, gc=False, frozen=True):
    """A publication of a client, without a position. With QoS 0 it has no publisher, id or mark. Where clients have
    identities, `publisher` is the name that the client gave, joined with the client's subject."""

    topic: Name
    payload: bytes
    qos: Annotated[int, Meta(ge=0, le=1)]
    publisher: Name
    id: Integer
    mark: Integer
    sent: Seconds | None = None


class Forward(Struct, array_like=True, gc=False, frozen=True, tag=2):
    """Publications of one group that a contact broker sends to the group's coordinator, to be numbered."""

    group: Group
    publications: list[ForwardedPublication]


class ForwardReply(Struct, array_like=True, gc=False, frozen=True):
    """The coordinator's reply to one forwarded publication that gets no new position.

    `code` "" acknowledges a duplicate, at `position`; another `code` refuses the publication, and `text` gives the
    reason. A new publication has no reply: its commit at the contact broker acknowledges it. `digest` is of the payload
    that was replied to, empty from a broker older than digests.
    """

    topic: Name
    publisher: Name
    id: Integer
    code: Name = ""
    position: Position | None = None
    text: Name = ""
    retry_after: Seconds = 0.0
    digest: Digest = b""


class ForwardReplies(Struct, array_like=True, gc=False, frozen=True, tag=3):
    """Replies of a coordinator to publications that the receiver, a contact broker, has forwarded."""

    replies: list[ForwardReply]


class Prepare(Struct, array_like=True, gc=False, frozen=True, tag=4):
    """A candidate's request for a promise of `epoch`, to a broker on the source list.

    `source` is the source epoch. With `useful`, the candidate's logs are synced to that epoch or a later one, and
    `digests` describe them. Otherwise `digests` is empty.
    """

    group: Group
    history: History
    epoch: Number
    source: Number
    useful: bool
    digests: list[LogDigest]


class Promise(Struct, array_like=True, gc=False, frozen=True, tag=5):
    """The answer to `Prepare`: the sender promises `epoch`. In one or several parts; it counts when the `last` part has
    come.

    `synced` is the epoch to which the sender's logs are synced. `topics` carry what the candidate lacks and `digests`
    describe the sender's logs, both only if `synced` is not below the source epoch; `digests` come in the last part.
    `floor` is the group's floor, (0, 0) from a broker older than floors.
    """

    group: Group
    history: History
    epoch: Number
    synced: Number
    last: bool
    digests: list[LogDigest]
    topics: list[TopicPart]
    floor: Position = Position(0, 0)


class EpochRefused(Struct, array_like=True, gc=False, frozen=True, tag=6):
    """The refusal of a message of `epoch`: the sender of this refusal has promised the higher epoch `promised`, or is
    of another history."""

    group: Group
    epoch: Number
    promised: Number


class InventoryRequest(Struct, array_like=True, gc=False, frozen=True, tag=7):
    """A request for the receiver's inventory, from the owner of `epoch`, which then sends the receiver what it
    lacks."""

    group: Group
    history: History
    epoch: Number


class Inventory(Struct, array_like=True, gc=False, frozen=True, tag=8):
    """A description of the sender's logs: a digest of each, the epoch to which they are `synced`, and the highest epoch
    that the sender has `promised`. It answers `InventoryRequest`, or asks the coordinator for a missing entry of
    `epoch`."""

    group: Group
    history: History
    epoch: Number
    promised: Number
    synced: Number
    digests: list[LogDigest]


class Sync(Struct, array_like=True, gc=False, frozen=True, tag=9):
    """The logs and publisher tables of `epoch`, sent to a follower in one or several parts and installed as a whole
    when the `last` part has come.

    `whole`: topics that are not named do not exist; otherwise the receiver keeps them unchanged. After the installation
    the number of topics must be `topics_total`, and the sum of their last sequence numbers, modulo 2^62, `lasts_total`.
    `serial` identifies the snapshot. `owner`, `members`, `copies` (its `minCopies`) and `activated` are those of the
    epoch's record, and `first` is the first epoch of the history. `floor` is the group's floor, (0, 0) from a broker
    older than floors. The topics `removed` are deleted when the epoch is activated.
    """

    group: Group
    history: History
    first: Number
    epoch: Number
    serial: Number
    owner: BrokerId
    members: list[BrokerId]
    copies: Number
    activated: bool
    whole: bool
    last: bool
    topics: list[TopicPart]
    topics_total: Number
    lasts_total: Number
    floor: Position = Position(0, 0)
    removed: list[Name] = []


class Synced(Struct, array_like=True, gc=False, frozen=True, tag=10):
    """The answer to `Sync`: the sender has installed the snapshot `serial` of `epoch`."""

    group: Group
    history: History
    epoch: Number
    serial: Number


class Activated(Struct, array_like=True, gc=False, frozen=True, tag=11):
    """A coordinator's notice to its followers that `epoch` is activated."""

    group: Group
    history: History
    epoch: Number


class TopicEntries(Struct, array_like=True, gc=False, frozen=True):
    """Consecutive entries of one topic, as a part of `Accept`."""

    topic: Name
    publications: list[Publication]


class Accept(Struct, array_like=True, gc=False, frozen=True, tag=12):
    """Entries of `epoch` that a coordinator sends to its followers, to be stored in order.

    The rows `forget` (topic, publisher) are removed from the publisher tables before the entries are stored. `marks`
    are (topic, committed sequence number).
    """

    group: Group
    history: History
    epoch: Number
    entries: list[TopicEntries]
    forget: list[tuple[Name, Name]]
    marks: list[tuple[Name, Number]]


class Accepted(Struct, array_like=True, gc=False, frozen=True, tag=13):
    """A vote: the sender, a member of the list of `epoch`, holds each topic up to a sequence number. `lasts` are
    (topic, sequence number) pairs."""

    group: Group
    history: History
    epoch: Number
    lasts: list[tuple[Name, Number]]


class HandOver(Struct, array_like=True, gc=False, frozen=True, tag=14):
    """The request of the coordinator of `epoch` that the receiver succeeds it as coordinator."""

    group: Group
    history: History
    epoch: Number


class Survey(Struct, array_like=True, gc=False, frozen=True, tag=15):
    """A question about groups that have no ZooKeeper record: does the receiver hold a promise or entries of any of
    them? `serial` identifies the question."""

    serial: Number
    groups: list[Group]


class HeldCopy(Struct, array_like=True, gc=False, frozen=True):
    """A broker's copy of a group, synced to the epoch `synced`, and the record of that epoch as the broker knows it:
    `owner`, `members`, `copies` (its `minCopies`) and `activated`. `first` is the first epoch of the history.

    `leads`: the broker coordinates that epoch and does not drain.
    """

    group: Group
    history: History
    first: Number
    synced: Number
    owner: BrokerId
    members: list[BrokerId]
    copies: Annotated[int, Meta(ge=1, le=1000)]
    activated: bool
    leads: bool


class SurveyReply(Struct, array_like=True, gc=False, frozen=True, tag=16):
    """The answer to `Survey`: (group, highest epoch known) of each asked group of which the sender has a promise or
    entries.

    `copies` has the sender's copy of each of these groups that was synced to an epoch. `clock` is the sender's wall
    clock in milliseconds. From a broker older than these fields they are empty and 0.
    """

    serial: Number
    groups: list[tuple[Group, Number]]
    copies: list[HeldCopy] = []
    clock: Number = 0


LinkMessage = (
    Heartbeat
    | Forward
    | ForwardReplies
    | Prepare
    | Promise
    | EpochRefused
    | InventoryRequest
    | Inventory
    | Sync
    | Synced
    | Activated
    | Accept
    | Accepted
    | HandOver
    | Survey
    | SurveyReply
)
PeerMessage = PeerHello | LinkMessage

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)
_batch_decoder: msgspec.msgpack.Decoder[list[LinkMessage]] = msgspec.msgpack.Decoder(list[LinkMessage])
_BATCH = 0xDD
"""The first byte of a frame with several messages: a MessagePack array with a length of 32 bits. A single message has
few fields and begins with another byte."""


def encode_peer(message: PeerMessage) -> bytes:
    """Return one encoded message, without the length that precedes it on the link. Raises BadPeerMessage if it is
    larger than `MAX_PEER_MESSAGE`."""
    data = _encoder.encode(message)
    if len(data) > MAX_PEER_MESSAGE:
        raise BadPeerMessage(f"{type(message).__name__} has {len(data)} bytes, the limit is {MAX_PEER_MESSAGE}")
    return data


def decode_peer(data: bytes | bytearray | memoryview) -> PeerMessage:
    """Return the message in `data`. Raises BadPeerMessage, with the reason, if `data` is not exactly one message or is
    longer than `MAX_PEER_MESSAGE`."""
    if len(data) > MAX_PEER_MESSAGE:
        raise BadPeerMessage(f"the message has {len(data)} bytes, the limit is {MAX_PEER_MESSAGE}")
    try:
        return _decoder.decode(data)
    except DECODE_ERRORS as error:
        raise BadPeerMessage(f"not a message of peer protocol {PEER_VERSION}: {error}") from None


def join_peer(encoded: Sequence[bytes]) -> bytes:
    """Return the content of one frame that holds these encoded messages, at least one, none of which may be a
    `PeerHello`. The receiver must have announced `batches`."""
    return b"".join((bytes((_BATCH,)), len(encoded).to_bytes(4), *encoded))


def decode_peers(data: bytes | bytearray | memoryview) -> Sequence[PeerMessage]:
    """Return the messages in the content of one frame, at least one. Raises BadPeerMessage, with the reason, for data
    that are neither one message nor an array of messages."""
    if not data or data[0] != _BATCH:
        return [decode_peer(data)]
    try:
        messages = _batch_decoder.decode(data)
    except DECODE_ERRORS as error:
        raise BadPeerMessage(f"not messages of peer protocol {PEER_VERSION}: {error}") from None
    if not messages:
        raise BadPeerMessage("the frame has no message, it must have one or more")
    return messages
