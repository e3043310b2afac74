"""The events and effects of an edge: the whole interface of `Edge.step(event, now) -> effects`, for the runtime's pump.

An edge exchanges few, large messages with the logic: the logic's `EdgeEffect`s are events here, and `LogicRequest`s,
which are events of the logic, are effects here. Where edges run in processes of their own, `Attach` and `Detach` also
say which topics an edge needs.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from migratory_broker.core.logic.events import (
    Attach,
    ClientCounts,
    EdgeEffect,
    EdgeMessage,
    NextPage,
    Note,
    Observe,
    PublishRequest,
    Tick,
)


class HttpRequest(Struct, frozen=True, gc=False):
    """An HTTP request that became a connection. What it asks for comes as the connection's first bytes, in frames.

    kind        what the response is: a stream of events, events up to the first publications, or the answers
    positions   a stream or poll of several topics, whose event ids name the positions of all: pairs of a topic and the
                position to resume from ("" for none), in the order of the ids; () for every other request
    answers     publish: the number of answers to wait for, 0 with QoS 0
    several     publish: whether the answers are a list
    publisher   publish: the name under which the edge numbers the publication, because the client gave none; "" if it
                gave one. Unique to the edge, and never shown to clients
    """

    kind: Literal["stream", "poll", "publish"]
    positions: tuple[tuple[str, str], ...] = ()
    answers: int = 0
    several: bool = False
    publisher: str = ""


class Opened(Struct, frozen=True, gc=False):
    """Event: the WebSocket handshake of a new connection is finished, or an HTTP request was read.

    connection   a number that is never reused in the life of an edge
    wire         the wire format of the negotiated subprotocol
    remote       the client's address as HOST:PORT
    deflate      whether permessage-deflate was negotiated
    opened       the time of the TCP accept, with TLS that of the end of the TLS handshake, None for now; `connect` must
                 come within the handshake limit from it
    token        the credential of the request, for a `connect` without one
    address      what the connection counts as for the rates of addresses, "" if it does not
    http         the request, None for a WebSocket
    """

    connection: int
    wire: Literal["json", "msgpack"]
    remote: str
    deflate: bool = False
    opened: float | None = None
    token: str | None = None
    address: str = ""
    http: HttpRequest | None = None


class Received(Struct, frozen=True, gc=False):
    """Event: bytes from the connection's socket. They are a piece of its WebSocket frames, which may begin and end
    within one. For an HTTP request they are the frames that the runtime made of it."""

    connection: int
    data: bytes


class Paused(Struct, frozen=True, gc=False):
    """Event: the connection's transport is above its high-water mark, so that it holds many unsent bytes. The edge
    queues what it writes to it until `Resumed`."""

    connection: int


class Resumed(Struct, frozen=True, gc=False):
    """Event: the connection's transport, which was above its high-water mark, accepts bytes again. The edge writes what
    it has queued."""

    connection: int


class Lost(Struct, frozen=True, gc=False):
    """Event: the connection's socket was closed or has failed."""

    connection: int


class More(Struct, frozen=True, gc=False):
    """Effect and event: a request to continue with a connection's input. The runtime steps this effect as an event,
    after the events that already wait. The edge handles input in parts, so that other connections have their turn in
    between."""

    connection: int


class Later(Struct, frozen=True, gc=False):
    """Effect and event: a timer. The runtime steps this effect as an event when the edge's clock has reached `at`, in
    seconds, or soon after."""

    at: float


class Credentials(EdgeMessage, frozen=True, gc=False):
    """Event: the present keys and revocations, which the runtime has checked, replace the former ones. `documents` has
    one document for each source of keys, b"" for one without keys yet, and `revoked` is the list of revocations, b""
    for none. `fetched`: the remote keys were just fetched."""

    documents: tuple[bytes, ...] = ()
    revoked: bytes = b""
    fetched: bool = False


class Rates(Struct, frozen=True, gc=False, array_like=True):
    """The amounts that may be used in a second: publications, bytes of their payloads, and topics of subscribe
    requests. 0: no limit."""

    publications: int = 0
    bytes: int = 0
    subscriptions: int = 0


class RateLimits(EdgeMessage, frozen=True):
    """Event: rates of each connection (`client`), of each identity and of each address (rates.py) replace the former
    ones. `addresses` has, by connection number, the address that an open connection counts for; one that is not in it
    counts for none."""

    client: Rates = Rates()
    identity: Rates = Rates()
    address: Rates = Rates()
    addresses: dict[int, str] = {}


NO_RATES = RateLimits()

Event = Opened | Received | Paused | Resumed | Lost | More | Later | Tick | Credentials | RateLimits | EdgeEffect


class Recipients(Struct, frozen=True, eq=False, weakref=True):
    """The numbers of the connections that a multicast goes to.

    While an audience of a topic does not change, an edge gives the same object for every fan-out to all of it, and
    after a change a new one. So the runtime can cache what it looked up for these numbers while the object lives.
    """

    connections: tuple[int, ...]


class Multicast(Struct, frozen=True, gc=False):
    """Effect: write the same bytes to every recipient, after the earlier writes to it."""

    data: bytes
    recipients: Recipients


class Send(Struct, frozen=True, gc=False):
    """Effect: write bytes to one connection."""

    connection: int
    data: bytes


class Close(Struct, frozen=True, gc=False):
    """Effect: write the bytes that the transport has buffered, then close the socket. The edge has written its last
    bytes, such as the close frame, before. `abort`: close at once and drop the buffered bytes."""

    connection: int
    abort: bool = False


class Hold(Struct, frozen=True, gc=False):
    """Effect: stop (`on` is True) or resume (False) reading from the connection's socket. Bytes that were already read
    are still given to the edge."""

    connection: int
    on: bool


class Detach(EdgeMessage, frozen=True, gc=False):
    """Effect: the topic has no subscribers on this edge any more. The edge needs none of its publications until its
    next `Attach` to it, and ignores any that come."""

    edge: int
    topic: str


class KeysNeeded(EdgeMessage, frozen=True, gc=False):
    """Effect: fetch the remote keys, because a token names a key that is not known. `Credentials` answers it, also when
    they could not be fetched (`fetched` is then False)."""


LogicRequest = PublishRequest | Attach | NextPage | ClientCounts
Effect = Multicast | Send | Close | Hold | More | Later | Detach | KeysNeeded | LogicRequest | Observe | Note
