"""Messages between a broker's process and its I/O processes, besides the events and effects of the two cores, and how
all of them are encoded. `ROUTES` says to which edges each effect of the logic, and `Credentials`, is sent; the
messages defined here are not in it.

They are sent in batches, each a MessagePack list (channel.py). Both ends are of one release, because one started the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_type_hints

import msgspec

from migratory_broker.core.edge.events import Credentials, Detach, KeysNeeded, LogicRequest
from migratory_broker.core.logic.events import EdgeEffect, EdgeMessage, Note, Observe

# ---- to an I/O process -----------------------------------------------------------------------------------------


class Begin(EdgeMessage, frozen=True, gc=False):
    """The first message to an I/O process, after which it serves clients.

    edge          the number of the edge in the I/O process
    process       the place of the I/O process among the broker's
    incarnation   the number of the broker's incarnation
    broker        the broker's name
    config        the configuration, as JSON
    level         the level of the I/O process's log
    fencing       seconds without a message from the broker's process after which the I/O process must close its clients
    """

    edge: int
    process: int
    incarnation: int
    broker: str
    config: bytes
    level: str
    fencing: float


class LimitsChanged(EdgeMessage, frozen=True, gc=False):
    """Limits of clients changed: new ones are in force. `config` is the whole configuration, as JSON."""

    config: bytes


class Beat(EdgeMessage, frozen=True, gc=False):
    """A sign of life from the broker's process, without content."""


class ConsoleStatus(EdgeMessage, frozen=True, gc=False):
    """The answer to `ConsoleStatusNeeded`: what the console shows of the broker, as JSON."""

    status: bytes


# ---- from an I/O process ---------------------------------------------------------------------------------------


class IoHello(EdgeMessage, frozen=True, gc=False):
    """The first message of an I/O process: it runs. `room` is the number of connections that it can hold."""

    room: int


class ConsoleStatusNeeded(EdgeMessage, frozen=True, gc=False):
    """A question for what the console shows of the broker, because a page of the console asked. `ConsoleStatus` answers
    it."""


class SocketCounts(EdgeMessage, frozen=True, gc=False):
    """The connections of an I/O process: sockets received so far (`given`), connections held now, those in their
    handshake included (`load`), and those whose handshake is done (`connections`)."""

    given: int
    load: int
    connections: int


class ReleasedAddresses(EdgeMessage, frozen=True, gc=False):
    """The keys of the addresses whose connections have ended, a key once for each of its connections."""

    keys: tuple[str, ...]


class EdgeReport(EdgeMessage, frozen=True):
    """The state of an I/O process: batches processed so far, connections that it can hold (`room`), its `SocketCounts`
    (`held`), the edge's `status()` (`edge`), and the handshake counters (`server`). It is sent every half second, and
    at each tick after a change."""

    batches: int
    room: int
    held: SocketCounts
    edge: dict[str, Any]
    server: dict[str, int]


ToIo = EdgeEffect | Credentials | Begin | LimitsChanged | Beat | ConsoleStatus
FromIo = (
    LogicRequest
    | Detach
    | KeysNeeded
    | Observe
    | Note
    | IoHello
    | SocketCounts
    | ReleasedAddresses
    | EdgeReport
    | ConsoleStatusNeeded
)

encode = msgspec.msgpack.Encoder(enc_hook=str).encode
"""Return one message, encoded. Values of log lines that are not plain data are sent as their text, as logs write
them."""


def decoder(union: Any) -> msgspec.msgpack.Decoder[list[Any]]:
    """Return a decoder of batches: MessagePack lists of messages of the classes in `union`."""
    return msgspec.msgpack.Decoder(list[Union[get_args(union)]])  # type: ignore[misc]  # noqa: UP007


Route = Literal["one", "topic", "all"]


def _route(kind: type[EdgeMessage]) -> Route:
    """Return the edges to which messages of a class are sent, as `ROUTES` says, by the fields of the class."""
    fields = get_type_hints(kind)
    return "one" if "edge" in fields else "topic" if "topic" in fields else "all"


ROUTES: Mapping[type, Route] = {kind: _route(kind) for kind in (*get_args(EdgeEffect), Credentials)}
"""The edges to which a message is sent, by its class: "one", the edge that the message names; "topic", the edges with a
subscriber of its topic; "all"."""
