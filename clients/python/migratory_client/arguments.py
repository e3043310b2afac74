"""Checks and conversions of the arguments that an application passes to `Client` and `SyncClient`. They run in the call
itself, so that a mistake is reported where it was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from migratory_protocol.messages import Server
from migratory_protocol.positions import Position, parse_position

from migratory_client.core.servers import parse_servers

Payload = bytes | bytearray | memoryview | str

PositionLike = Position | str | Sequence[int]
"""A position as an application may give it: a `Position`, its text "epoch:sequence", or the pair [epoch, sequence] that
JSON makes of it."""


def as_servers(servers: Iterable[str | Server]) -> tuple[tuple[Server, ...], tuple[str, ...]]:
    """Return the valid servers, each once with its URL in canonical form, and one line of text for each malformed one.
    A URL alone has the weight 100. No servers at all give two empty tuples.

    Raise TypeError for an argument that is not a list of URLs or Servers, such as a single str, whose characters would
    be taken for URLs. Raise ValueError when all servers are malformed.
    """
    if isinstance(servers, str | bytes | Server):
        raise TypeError(f"servers is a list of URLs, not one {type(servers).__name__}: write [{servers!r}]")
    entries = list(servers)
    for entry in entries:
        if not isinstance(entry, str | Server):
            raise TypeError(f"a server is a URL as str, not {type(entry).__name__}: {entry!r}")
    usable, malformed = parse_servers(entries)
    if not usable and malformed:
        more = f", and {len(malformed) - 3} more" if len(malformed) > 3 else ""
        raise ValueError(f"no usable server: {'; '.join(malformed[:3])}{more}")
    return usable, malformed


def as_bytes(topic: object, payload: object) -> bytes:
    """Return the payload as bytes, a str encoded as UTF-8. Raise TypeError when `topic` is no str, and for a payload of
    another type than `Payload`: `bytes(5)`, for example, would publish five zeros."""
    if not isinstance(topic, str):
        raise TypeError(f"the topic is a str, not {type(topic).__name__}")
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"the payload is bytes, bytearray, memoryview or str, not {type(payload).__name__}")


def as_positions(after: object, topics: tuple[str, ...]) -> dict[str, Position]:
    """Return the position to resume after, for each of `topics` that has one.

    `after` is a position for a single topic, or a mapping from topics to positions; None gives {}. The mapping may
    contain other topics, which are ignored: it may have been stored when more were subscribed. Raise ValueError for a
    malformed position, and for one position with several different topics. Raise TypeError for another kind of
    argument.
    """
    if after is None:
        return {}
    if isinstance(after, Mapping):
        return {topic: as_position(after[topic], f"after[{topic!r}]") for topic in topics if topic in after}
    position = as_position(after, "after")
    if len(set(topics)) != 1:
        raise ValueError("one position for several topics: give a mapping from topic to position")
    return {topics[0]: position}


def as_position(value: object, name: str) -> Position:
    """Return `value` as a Position. `name` is the argument's name in the text of an error.

    Raise ValueError for a malformed position, TypeError for another kind of argument.
    """
    if not isinstance(value, str | list | tuple):
        raise TypeError(f'{name} is a Position, "epoch:sequence" or [epoch, sequence], not {type(value).__name__}')
    try:
        return parse_position(value)
    except ValueError as error:
        raise ValueError(f"{name} is {str(value)[:60]!r}: {error}") from None
