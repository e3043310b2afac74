"""The messages between clients and brokers, in both directions, defined once for both wire formats.

The classes are the MessagePack format: arrays of the fields in the order given here, in a message after the number in
`tag`. `Server`, `TopicRequest`, `Limits` and `TopicReceipt` are parts of messages and have no number. `jsonwire.py`
derives the JSON format from the same fields: objects whose `op` is the class's name in snake case.
docs/reference/protocol.md describes every field. Add new fields at the end and with a default, so that an older reader
ignores them and an older writer omits them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from migratory_protocol import limits
from migratory_protocol.positions import LARGEST, Position

VERSION = 1

Receipt = Literal["complete", "truncated", "reset"]

LARGEST_INTEGER = 2**53 - 1
Integer = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
"""The type of request ids, message ids and counts: whole numbers that every client's language represents exactly."""

RequestId = Annotated[int, Meta(ge=1, le=LARGEST_INTEGER)]

Qos = Annotated[int, Meta(ge=0, le=1)]

SequenceNumber = Annotated[int, Meta(ge=0, le=LARGEST)]
"""The type of a sequence number. In JSON it is a string of decimal digits, as in positions."""

LARGEST_SECONDS = 1e12
Seconds = Annotated[float, Meta(ge=0, le=LARGEST_SECONDS)]
"""The type of a duration, or of a wall clock time since 1970 in UTC. Finite, because JSON has no NaN."""

Text = Annotated[str, Meta(max_length=limits.TEXT)]
"""The type of a name, a token or an explanation."""

_AT_MOST = Meta(max_length=limits.TOPICS)


class Server(Struct, frozen=True, array_like=True):
    """An entry of the server list: a broker's WebSocket URL and its weight. Clients do not choose a broker with weight
    0."""

    url: Text
    weight: Integer = 100


# ---- from a client ---------------------------------------------------------------------------------------------


class Connect(Struct, array_like=True, tag_field="op", tag=1):
    """From a client: the first message of a connection, by which the client identifies itself.

    version  the version of the protocol that the client speaks
    client   the client's name in logs
    token    the client's credential; a later `connect` on the same connection replaces it, and what it allows
    moves    how often the client changed its broker recently; brokers move clients with the fewest moves first
    """

    version: Integer = 1
    client: Text = ""
    token: Text | None = None
    moves: Integer = 0


if TYPE_CHECKING:  # and for the compiler of the cores: the codec lets any value through
    After: TypeAlias = object
else:
    After = str | Position | None
"""The type of a position that a client sends, in one of its forms, or None. Not any object: MessagePack allows maps
with arrays as keys, which become a dict of tuples. Their hashes can be made to collide, so that decoding a megabyte of
them takes a minute."""


class TopicRequest(Struct, array_like=True):
    """A topic of a subscribe request, with the position to resume after (None: begin with new publications). `snapshot`
    asks for the latest publication first.

    The codec does not check `after`, which may be any value: `positions.parse_position` refuses a malformed position,
    so that one topic fails and not the whole request.
    """

    topic: Text
    after: After = None
    snapshot: bool = False


class Subscribe(Struct, array_like=True, tag_field="op", tag=2):
    """From a client: subscribe to the topics. `Subscribed` with the same `request` answers."""

    request: RequestId
    topics: Annotated[list[TopicRequest], _AT_MOST]


class Unsubscribe(Struct, array_like=True, tag_field="op", tag=3):
    """From a client: end the subscriptions to the topics. `Unsubscribed` with the same `request` answers."""

    request: RequestId
    topics: Annotated[list[Text], _AT_MOST]


class Publish(Struct, array_like=True, tag_field="op", tag=4):
    """From a client: a publication.

    With QoS 1 it has the publisher's id, the message id (from 1, rising by one per publisher and topic) and the mark:
    the lowest id of this publisher and topic that is neither answered nor given up at the time of sending. `sent` is
    the publisher's wall clock in seconds.
    """

    topic: Text
    payload: bytes
    qos: Qos = 0
    publisher: Text = ""
    id: Integer = 0
    mark: Integer = 0
    sent: Seconds | None = None


class Ping(Struct, array_like=True, tag_field="op", tag=5):
    """From a client: a question whether the broker is there. `Pong` answers it."""


class Bye(Struct, array_like=True, tag_field="op", tag=6):
    """From a client: close the connection, with close code 1000."""


# ---- from a broker ---------------------------------------------------------------------------------------------


class Limits(Struct, array_like=True):
    """The limits in force at a broker: bytes of the largest payload and of the longest topic name, subscriptions per
    client, bytes that are queued for one client."""

    payload: Integer
    topic: Integer
    subscriptions: Integer
    queue: Integer


class Welcome(Struct, array_like=True, tag_field="op", tag=32):
    """From a broker: the answer to `connect`. `heartbeat` is the interval between two pings in seconds.
    `duplicate_window` is the time in seconds for which the cluster recognises a repeated message id, 0 from an older
    broker that does not say."""

    version: Integer
    cluster: Text
    broker: Text
    incarnation: Integer
    servers: Annotated[list[Server], _AT_MOST]
    heartbeat: Seconds
    limits: Limits
    duplicate_window: Seconds = 0.0


class TopicReceipt(Struct, array_like=True):
    """The result of a subscription to one topic.

    receipt      "complete", "truncated" or "reset"; None when the topic was refused: `code` and `text` give the reason
    position     the topic's current position, None when the topic was refused
    first, last  with "truncated": the range of missing sequence numbers
    retry_after  with the code `overloaded`: the seconds after which the client may ask again
    """

    topic: Text
    receipt: Receipt | None
    position: Position | None = None
    first: SequenceNumber = 0
    last: SequenceNumber = 0
    code: Text = ""
    text: Text = ""
    retry_after: Seconds | None = None


class Subscribed(Struct, array_like=True, tag_field="op", tag=33):
    """From a broker: receipts of topics, as the answer to the subscribe request with the number `request` or to a part
    of it. `request` is 0 for a receipt that reports a gap in a live subscription."""

    request: Integer
    topics: Annotated[list[TopicReceipt], _AT_MOST]


class Unsubscribed(Struct, array_like=True, tag_field="op", tag=34):
    """From a broker: the answer to `Unsubscribe`. No publication of these topics follows it, unless the client
    subscribes to them again."""

    request: Integer
    topics: Annotated[list[Text], _AT_MOST]


class Message(Struct, array_like=True, tag_field="op", tag=35):
    """From a broker: a publication for a subscriber.

    `sent` is the publisher's wall clock and `time` the coordinator's at the assignment of the position, in seconds.
    `replayed`: the publication is part of a replay. `first` is not 0 when conflation left out QoS 0 publications: the
    message replaces all from that sequence number on.
    """

    topic: Text
    position: Position
    payload: bytes
    sent: Seconds | None = None
    time: Seconds | None = None
    replayed: bool = False
    first: SequenceNumber = 0


class Ack(Struct, array_like=True, tag_field="op", tag=36):
    """From a broker: the acknowledgement of a QoS 1 publication, with its position. Brokers older than
    `outcome_unknown` acknowledge a duplicate that is no longer cached with the position None."""

    topic: Text
    publisher: Text
    id: Integer
    position: Position | None


class Nack(Struct, array_like=True, tag_field="op", tag=37):
    """From a broker: the refusal of a QoS 1 publication.

    On `gap` the publisher sends all unanswered ids again from the lowest. On `retry` it sends this one again after
    `retry_after` seconds. Every other code is final.
    """

    topic: Text
    publisher: Text
    id: Integer
    code: Text
    text: Text = ""
    retry_after: Seconds | None = None


class Servers(Struct, array_like=True, tag_field="op", tag=38):
    """From a broker: the server list has changed. In JSON also the answer to `GET /v1/servers`."""

    servers: Annotated[list[Server], _AT_MOST]


class Drain(Struct, array_like=True, tag_field="op", tag=39):
    """From a broker: the request to move to one of `servers`, chosen by weight, at a random moment within `period`
    seconds.

    With `closes` the broker shuts down and closes the remaining connections after that time. Without it the broker
    rebalances its clients, and a client that cannot connect to any of `servers` stays.
    """

    period: Seconds
    servers: Annotated[list[Server], _AT_MOST]
    closes: bool = True


class Error(Struct, array_like=True, tag_field="op", tag=40):
    """From a broker: an error. `code` is the error code and `text` the reason. `request` or `topic` name what is
    refused, when it can be named. `closes`: the broker ends the connection. `retry_after`: with `rate_limited`, the
    seconds until the broker reads on."""

    code: Text
    text: Text
    request: Integer | None = None
    topic: Text | None = None
    closes: bool = False
    retry_after: Seconds | None = None


class Pong(Struct, array_like=True, tag_field="op", tag=41):
    """From a broker: the answer to `Ping`."""


class TokenExpiring(Struct, array_like=True, tag_field="op", tag=42):
    """From a broker: the client's token expires in `seconds`. The broker closes the connection then, unless a new
    `connect` with another token has come."""

    seconds: Seconds


ClientMessage = Connect | Subscribe | Unsubscribe | Publish | Ping | Bye
BrokerMessage = (
    Welcome | Subscribed | Unsubscribed | Message | Ack | Nack | Servers | Drain | Error | Pong | TokenExpiring
)
