"""Messages between a broker's process and its I/O processes, besides the events of the two cores.

They travel in batches, each a MessagePack list (channel.py). Both ends are of one release, because one started the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_type_hints

import msgspec

from migratory_broker.core.edge.events import Detach, LogicRequest
from migratory_broker.core.logic.events import EdgeEffect, EdgeMessage, Note, Observe

# ---- to an I/O process -----------------------------------------------------------------------------------------


class Begin(EdgeMessage, frozen=True, gc=False):
    """The first message to an I/O process: its edge's number, its place among the processes, the broker's incarnation,
    the configuration as JSON, and after how many seconds of silence it must close its clients (`fencing`)."""

    edge: int
    process: int
    incarnation: int
    broker: str
    config: bytes
    level: str
    fencing: float


class Beat(EdgeMessage, frozen=True, gc=False):
    """A sign of life from the broker's process."""


# ---- from an I/O process ---------------------------------------------------------------------------------------


class IoHello(EdgeMessage, frozen=True, gc=False):
    """The first message of an I/O process. `room`: connections that it can hold."""

    room: int


class SocketCounts(EdgeMessage, frozen=True, gc=False):
    """Sockets received so far, connections held now, and those of them whose handshake is done."""

    given: int
    load: int
    connections: int


class EdgeReport(EdgeMessage, frozen=True):
    """The state of an I/O process: the batches processed so far, the connections that it can hold (`room`), the edge's
    `status()`, and the handshake counters. It is sent every half second, and with each tick that changed it."""

    batches: int
    room: int
    held: SocketCounts
    edge: dict[str, Any]
    server: dict[str, int]


ToIo = EdgeEffect | Begin | Beat
FromIo = LogicRequest | Detach | Observe | Note | IoHello | SocketCounts | EdgeReport

encode = msgspec.msgpack.Encoder(enc_hook=str).encode
"""Encode one message. Values of log lines that are not plain data are sent as their text, as logs write it."""


def decoder(union: Any) -> msgspec.msgpack.Decoder[list[Any]]:
    """Return a decoder of batches of the union's messages."""
    return msgspec.msgpack.Decoder(list[Union[get_args(union)]])  # type: ignore[misc]  # noqa: UP007


Route = Literal["one", "topic", "all"]


def _route(kind: type[EdgeMessage]) -> Route:
    fields = get_type_hints(kind)
    return "one" if "edge" in fields else "topic" if "topic" in fields else "all"


ROUTES: Mapping[type, Route] = {kind: _route(kind) for kind in get_args(EdgeEffect)}
"""By class of the logic's effects, the edges that it is sent to: the edge that it names, the edges with a subscriber
of its topic, or all."""
