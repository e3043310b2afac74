"""What crosses between a broker's process and its I/O processes, besides the events of the two cores.

Everything crosses in batches, each a MessagePack list (`channel.py`). Both ends are of one release: one started the
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
    """The first message: which edge it is, of which life of the broker. `config` is the configuration as JSON,
    `process` the place among the broker's I/O processes, `fencing` how many seconds the broker may be silent."""

    edge: int
    process: int
    incarnation: int
    broker: str
    config: bytes
    level: str
    fencing: float


class Beat(EdgeMessage, frozen=True, gc=False):
    """The broker's process runs."""


# ---- from an I/O process ---------------------------------------------------------------------------------------


class IoHello(EdgeMessage, frozen=True, gc=False):
    """It runs and waits for `Begin`. `room`: connections that it can hold."""

    room: int


class SocketCounts(EdgeMessage, frozen=True, gc=False):
    """Accepted sockets that it was given so far, the connections that it holds now, and of these the ones that are
    behind their handshake."""

    given: int
    load: int
    connections: int


class EdgeReport(EdgeMessage, frozen=True):
    """Every half second, and with each tick after which something is different: batches that it has worked off so far,
    the edge's `status()`, and what the client server counts."""

    batches: int
    held: SocketCounts
    edge: dict[str, Any]
    server: dict[str, int]


ToIo = EdgeEffect | Begin | Beat
FromIo = LogicRequest | Detach | Observe | Note | IoHello | SocketCounts | EdgeReport

encode = msgspec.msgpack.Encoder(enc_hook=str).encode
"""One message. (What a log line holds besides plain data goes as its text, as logs write it.)"""


def decoder(union: Any) -> msgspec.msgpack.Decoder[list[Any]]:
    """Of batches of such messages."""
    return msgspec.msgpack.Decoder(list[Union[get_args(union)]])  # type: ignore[misc]  # noqa: UP007


Route = Literal["one", "topic", "all"]


def _route(kind: type[EdgeMessage]) -> Route:
    fields = get_type_hints(kind)
    return "one" if "edge" in fields else "topic" if "topic" in fields else "all"


ROUTES: Mapping[type, Route] = {kind: _route(kind) for kind in get_args(EdgeEffect)}
"""Which edges an effect of the logic goes to: the one that it names, those that want its topic, or all."""
