"""The messages between a client and a broker: the one table that both wire formats are made from.

Written as they stand, the classes are the MessagePack format: arrays that begin with the number in `tag`, fields in
the order given here. `jsonwire.py` derives the JSON format from the same fields: objects whose `op` is the class's name
in lower case. docs/protocol.md describes every field. New fields go to the end and have a default, so that an older
reader ignores them and an older writer may leave them out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from migratory_protocol.positions import LARGEST, Position

VERSION = 1

Receipt = Literal["complete", "truncated", "reset"]

LARGEST_INTEGER = 2**53 - 1
Integer = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
"""Request and message ids and counts: whole numbers that every client's language holds exactly."""

RequestId = Annotated[int, Meta(ge=1, le=LARGEST_INTEGER)]

Qos = Annotated[int, Meta(ge=0, le=1)]

SequenceNumber = Annotated[int, Meta(ge=0, le=LARGEST)]
"""Text of decimal digits in JSON, as in positions."""

Seconds = Annotated[float, Meta(ge=0, le=1e12)]
"""A duration, or a wall clock time since 1970 in UTC. Finite: a NaN could not be said in JSON."""


class Server(Struct, frozen=True, array_like=True):
    """One entry of the server list. Weight 0 takes no new clients."""

    url: str
    weight: Integer = 100


# ---- from a client ---------------------------------------------------------------------------------------------


class Connect(Struct, array_like=True, tag_field="op", tag=1):
    """The first message of a connection. `client` names the client in logs; `token` says who it is; `moves` is how
    often it changed its broker lately: those that did so least are asked first to move."""

    version: Integer = 1
    client: str = ""
    token: str | None = None
    moves: Integer = 0


After = str | Position | None
"""A position in one of its forms, or none. Not just any object: a map with arrays for keys, which MessagePack allows,
becomes a dict of tuples, whose hashes anybody can make collide: decoding a megabyte of it would take a minute."""


class TopicRequest(Struct, array_like=True):
    """`after` is not looked into further, and may be something else altogether where the codec found it malformed: so
    that this harms this topic only (`positions.parse_position`)."""

    topic: str
    after: After = None
    snapshot: bool = False


class Subscribe(Struct, array_like=True, tag_field="op", tag=2):
    request: RequestId
    topics: list[TopicRequest]


class Unsubscribe(Struct, array_like=True, tag_field="op", tag=3):
    request: RequestId
    topics: list[str]


class Publish(Struct, array_like=True, tag_field="op", tag=4):
    """QoS 1 carries the publisher's id, the message id (from 1, rising by one per publisher and topic) and the mark:
    the lowest id of this publisher and topic that is neither answered nor given up, at this sending. `sent` is the
    publisher's wall clock in seconds."""

    topic: str
    payload: bytes
    qos: Qos = 0
    publisher: str = ""
    id: Integer = 0
    mark: Integer = 0
    sent: Seconds | None = None


class Ping(Struct, array_like=True, tag_field="op", tag=5):
    pass


class Bye(Struct, array_like=True, tag_field="op", tag=6):
    pass


# ---- from a broker ---------------------------------------------------------------------------------------------


class Limits(Struct, array_like=True):
    """Limits in force at this broker: largest payload and longest topic name in bytes, subscriptions per client, bytes
    that may wait for one client."""

    payload: Integer
    topic: Integer
    subscriptions: Integer
    queue: Integer


class Welcome(Struct, array_like=True, tag_field="op", tag=32):
    """Answers `connect`. `heartbeat` is the interval in seconds."""

    version: Integer
    cluster: str
    broker: str
    incarnation: Integer
    servers: list[Server]
    heartbeat: Seconds
    limits: Limits


class TopicReceipt(Struct, array_like=True):
    """`receipt` is None when the topic was refused: then `code` and `text` say why. `first`..`last` are the missing
    sequence numbers of `truncated`. `position` is where the topic stands."""

    topic: str
    receipt: Receipt | None
    position: Position | None = None
    first: SequenceNumber = 0
    last: SequenceNumber = 0
    code: str = ""
    text: str = ""


class Subscribed(Struct, array_like=True, tag_field="op", tag=33):
    """Answers a part of a subscribe request, or all of it. `request` 0: a receipt nobody asked for, because a live
    subscription lost something."""

    request: Integer
    topics: list[TopicReceipt]


class Unsubscribed(Struct, array_like=True, tag_field="op", tag=34):
    request: Integer
    topics: list[str]


class Message(Struct, array_like=True, tag_field="op", tag=35):
    """`sent` is the publisher's wall clock, `time` the coordinator's when it numbered the publication, in seconds.
    `first` is not 0 where the topic is conflated and QoS 0 publications were left out: the message stands for all from
    that sequence number on."""

    topic: str
    position: Position
    payload: bytes
    sent: Seconds | None = None
    time: Seconds | None = None
    replayed: bool = False
    first: SequenceNumber = 0


class Ack(Struct, array_like=True, tag_field="op", tag=36):
    """`position` is None for a duplicate whose publication is no longer cached."""

    topic: str
    publisher: str
    id: Integer
    position: Position | None


class Nack(Struct, array_like=True, tag_field="op", tag=37):
    """`gap`: send all waiting ids again from the lowest. `retry`: again after `retry_after` seconds. Any other code
    is final."""

    topic: str
    publisher: str
    id: Integer
    code: str
    text: str = ""
    retry_after: Seconds | None = None


class Servers(Struct, array_like=True, tag_field="op", tag=38):
    """The server list has changed. In JSON also the answer to `GET /v1/servers`."""

    servers: list[Server]


class Drain(Struct, array_like=True, tag_field="op", tag=39):
    """Go to one of `servers`, picked by weight, at a random moment within `period` seconds. `closes`: this broker
    leaves, and closes what is still here then. Otherwise it stays, and asks for the sake of balance: a client that
    can't get to any of them goes on where it is."""

    period: Seconds
    servers: list[Server]
    closes: bool = True


class Error(Struct, array_like=True, tag_field="op", tag=40):
    """`request` or `topic` name what was refused, where one can be named. `closes`: the connection ends."""

    code: str
    text: str
    request: Integer | None = None
    topic: str | None = None
    closes: bool = False


class Pong(Struct, array_like=True, tag_field="op", tag=41):
    pass


ClientMessage = Connect | Subscribe | Unsubscribe | Publish | Ping | Bye
BrokerMessage = Welcome | Subscribed | Unsubscribed | Message | Ack | Nack | Servers | Drain | Error | Pong
