"""The events and effects of an edge: the whole interface of `Edge.step(event, now) -> effects`.

An edge owns the client connections. It exchanges few, large messages with the logic: the logic's `EdgeEffect`s are
events here, and `LogicRequest`s, which are events of the logic, are effects here. An edge in a process of its own also
says which topics it needs (`Attach`, `Detach`).
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


class Opened(Struct, frozen=True, gc=False):
    """A finished WebSocket handshake.

    connection   a number that is never reused in the life of an edge
    wire         the negotiated subprotocol
    opened       the time of the TCP accept, None for now; `connect` must come within the handshake limit from it
    """

    connection: int
    wire: Literal["json", "msgpack"]
    remote: str
    deflate: bool = False
    opened: float | None = None


class Received(Struct, frozen=True, gc=False):
    """Bytes from the connection's socket: WebSocket frames, cut anywhere."""

    connection: int
    data: bytes


class Paused(Struct, frozen=True, gc=False):
    """The connection's transport is above its high-water mark: queue until `Resumed`."""

    connection: int


class Resumed(Struct, frozen=True, gc=False):
    """The connection's transport accepts bytes again."""

    connection: int


class Lost(Struct, frozen=True, gc=False):
    """The connection's socket was closed or has failed."""

    connection: int


class More(Struct, frozen=True, gc=False):
    """Effect and event: a request to continue with a connection's input. Step this effect as an event, behind the
    events that are waiting already. The edge handles input in parts, so that other connections have their turn in
    between."""

    connection: int


class Later(Struct, frozen=True, gc=False):
    """Effect and event: a timer. Step this effect as an event when `now` has reached `at`, or soon after."""

    at: float


Event = Opened | Received | Paused | Resumed | Lost | More | Later | Tick | EdgeEffect


class Recipients(Struct, frozen=True, eq=False, weakref=True):
    """The numbers of the connections that a multicast goes to.

    An edge gives the same object for every fan-out to the same subscribers of a topic and a new one after a change, so
    that the runtime can cache what it looked up for these numbers while the object lives.
    """

    connections: tuple[int, ...]


class Multicast(Struct, frozen=True, gc=False):
    """Write the same bytes to every recipient."""

    data: bytes
    recipients: Recipients


class Send(Struct, frozen=True, gc=False):
    """Write bytes to one connection."""

    connection: int
    data: bytes


class Close(Struct, frozen=True, gc=False):
    """Write pending bytes, then close the socket; the close frame was sent before. `abort`: drop pending bytes."""

    connection: int
    abort: bool = False


class Hold(Struct, frozen=True, gc=False):
    """Stop (`on`) or resume reading from the socket. Bytes that were read before are still given to the edge."""

    connection: int
    on: bool


class Detach(EdgeMessage, frozen=True, gc=False):
    """The topic has no subscribers on this edge any more: its publications need not come until the next `Attach`.
    (They may still come.)"""

    edge: int
    topic: str


LogicRequest = PublishRequest | Attach | NextPage | ClientCounts
Effect = Multicast | Send | Close | Hold | More | Later | Detach | LogicRequest | Observe | Note
