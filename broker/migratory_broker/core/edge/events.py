"""What the edge is told and what it answers: the whole surface of `Edge.step(event, now) -> effects`.

An edge owns what belongs to connections. It talks to the logic in few, large messages: the logic's `EdgeEffect`s are
events here, and `LogicRequest`s, which the logic takes as events, are effects here. An edge in a process of its own
says besides what it wants to hear of (`Attach`, `Detach`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from migratory_broker.core.logic.events import (
    Attach,
    Clients,
    Crossing,
    EdgeEffect,
    NextPage,
    Note,
    Observe,
    PublishRequest,
    Tick,
)


class Opened(Struct, frozen=True, gc=False):
    """A WebSocket handshake was finished (subprotocol `wire`); the connection has until the handshake limit to send
    `connect`. `connection` is never used twice in the life of an edge. `opened` is when TCP accepted it."""

    connection: int
    wire: Literal["json", "msgpack"]
    remote: str
    deflate: bool = False
    opened: float | None = None


class Received(Struct, frozen=True, gc=False):
    """Raw bytes from the connection's socket: WebSocket frames, cut anywhere."""

    connection: int
    data: bytes


class Paused(Struct, frozen=True, gc=False):
    """The transport holds more than its high-water mark: queue here until `Resumed`."""

    connection: int


class Resumed(Struct, frozen=True, gc=False):
    connection: int


class Lost(Struct, frozen=True, gc=False):
    connection: int


class More(Struct, frozen=True, gc=False):
    """Effect and event: give it back behind what waits already. What a connection sent is worked off in pieces, so
    that the others have their turn in between."""

    connection: int


class Later(Struct, frozen=True, gc=False):
    """Effect and event: give it back when `now` has come to `at`, or soon after it: something waits for that time."""

    at: float


Event = Opened | Received | Paused | Resumed | Lost | More | Later | Tick | EdgeEffect


class Recipients(Struct, frozen=True, eq=False, weakref=True):
    """The numbers of the connections that a multicast goes to.

    An edge gives the same object for every fan-out to the same subscribers of a topic and a new one after a change, so
    that the runtime can keep what it looked up for these numbers for as long as the object lives.
    """

    connections: tuple[int, ...]


class Multicast(Struct, frozen=True, gc=False):
    """Write the same bytes to every recipient."""

    data: bytes
    recipients: Recipients


class Send(Struct, frozen=True, gc=False):
    connection: int
    data: bytes


class Close(Struct, frozen=True, gc=False):
    """Write what is pending, then close the socket (the close frame was sent before). `abort`: drop pending bytes."""

    connection: int
    abort: bool = False


class Hold(Struct, frozen=True, gc=False):
    """`on`: read no more from the socket, until `on` is false. What was read already is given in all the same."""

    connection: int
    on: bool


class Detach(Crossing, frozen=True, gc=False):
    """Nobody here is subscribed to `topic` any more: what is published there need not come, until it is asked for again
    by an `Attach`. (It may come all the same.)"""

    edge: int
    topic: str


LogicRequest = PublishRequest | Attach | NextPage | Clients
Effect = Multicast | Send | Close | Hold | More | Later | Detach | LogicRequest | Observe | Note
