"""The messages between a client and a broker, as the rest of the product sees them.

One class a message; `codec.py` writes and reads them in both wire formats: MessagePack arrays that begin with the
number in `tag`, JSON objects whose `op` is the class's name in lower case. docs/protocol.md describes every field.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from migratory_protocol.positions import Position

VERSION = 1

Receipt = Literal["complete", "truncated", "reset"]


class Server(Struct, frozen=True, array_like=False):
    """One entry of the server list. Weight 0 takes no new clients."""

    url: str
    weight: int = 100


# ---- from a client ---------------------------------------------------------------------------------------------


class Connect(Struct):
    """The first message of a connection."""

    version: int = VERSION
    client: str = ""
    token: str | None = None


class TopicRequest(Struct):
    """`after` is kept as it came, so that a malformed position harms this topic only (`positions.parse_position`)."""

    topic: str
    after: object = None
    snapshot: bool = False


class Subscribe(Struct):
    request: int
    topics: list[TopicRequest]


class Unsubscribe(Struct):
    request: int
    topics: list[str]


class Publish(Struct):
    """QoS 1 carries the publisher's id, the message id (from 1, rising by one per publisher and topic) and the mark:
    the lowest id of this publisher and topic that is neither answered nor given up, at this sending."""

    topic: str
    payload: bytes
    qos: int = 0
    publisher: str = ""
    id: int = 0
    mark: int = 0
    sent: float | None = None


class Ping(Struct):
    pass


class Bye(Struct):
    pass


# ---- from a broker ---------------------------------------------------------------------------------------------


class Limits(Struct):
    """Bytes and counts in force at this broker."""

    payload: int
    topic: int
    subscriptions: int
    queue: int


class Welcome(Struct):
    version: int
    cluster: str
    broker: str
    incarnation: int
    servers: list[Server]
    heartbeat: float
    limits: Limits


class TopicReceipt(Struct):
    """`receipt` is None when the topic was refused: then `code` and `text` say why. `first`..`last` are the missing
    sequence numbers of `truncated`. `position` is where the topic stands."""

    topic: str
    receipt: Receipt | None
    position: Position | None = None
    first: int = 0
    last: int = 0
    code: str = ""
    text: str = ""


class Subscribed(Struct):
    """Answers a part of a subscribe request, or all of it. `request` 0: a receipt nobody asked for, because a live
    subscription lost something."""

    request: int
    topics: list[TopicReceipt]


class Unsubscribed(Struct):
    request: int
    topics: list[str]


class Message(Struct):
    """`sent` is the publisher's wall clock, `time` the coordinator's when it numbered the publication, in seconds."""

    topic: str
    position: Position
    payload: bytes
    sent: float | None = None
    time: float | None = None
    replayed: bool = False


class Ack(Struct):
    """`position` is None for a duplicate whose publication is no longer cached."""

    topic: str
    publisher: str
    id: int
    position: Position | None


class Nack(Struct):
    """`gap`: send all waiting ids again from the lowest. `retry`: again after `retry_after` seconds. Any other code
    is final."""

    topic: str
    publisher: str
    id: int
    code: str
    text: str = ""
    retry_after: float | None = None


class Servers(Struct):
    servers: list[Server]


class Drain(Struct):
    """Leave within `period` seconds, at a random moment, for one of `servers`."""

    period: float
    servers: list[Server]


class Error(Struct):
    """`request` or `topic` name what was refused, where one can be named. `closes`: the connection ends."""

    code: str
    text: str
    request: int | None = None
    topic: str | None = None
    closes: bool = False


class Pong(Struct):
    pass


ClientMessage = Connect | Subscribe | Unsubscribe | Publish | Ping | Bye
BrokerMessage = (
    Welcome | Subscribed | Unsubscribed | Message | Ack | Nack | Servers | Drain | Error | Pong
)
