"""What an application hands to a client, checked when it is given: later nobody could say whose mistake it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from migratory_protocol.messages import Server
from migratory_protocol.positions import Position, parse_position

from migratory_client.servers import parse_servers

Payload = bytes | bytearray | memoryview | str
Place = Position | str | Sequence[int]
"""A position in any of its forms: `Position`, its text "epoch:sequence", the pair that JSON makes of it."""


def as_servers(servers: Iterable[str | Server]) -> tuple[tuple[Server, ...], tuple[str, ...]]:
    """The usable servers, and one line for each that is malformed.

    Raises TypeError, and ValueError when none is left. A single str would be a list of its characters."""
    if isinstance(servers, str | bytes | Server):
        raise TypeError(f"servers is a list of URLs, not one {type(servers).__name__}: write [{servers!r}]")
    given = list(servers)
    for entry in given:
        if not isinstance(entry, str | Server):
            raise TypeError(f"a server is a URL as str, not {type(entry).__name__}: {entry!r}")
    usable, malformed = parse_servers(given)
    if not usable and malformed:
        more = f", and {len(malformed) - 3} more" if len(malformed) > 3 else ""
        raise ValueError(f"no usable server: {'; '.join(malformed[:3])}{more}")
    return usable, malformed


def as_bytes(topic: object, payload: object) -> bytes:
    """What to send of `payload`. Checked, because `bytes(5)` would publish five zeros."""
    if not isinstance(topic, str):
        raise TypeError(f"the topic is a str, not {type(topic).__name__}")
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"the payload is bytes, bytearray, memoryview or str, not {type(payload).__name__}")


def as_after(after: object, topics: tuple[str, ...]) -> dict[str, Position]:
    """Where to go on: a place for the one topic, or a mapping from topics to places. Such a mapping may hold other
    topics as well: it was stored, say, when more were read.

    Raises ValueError for what is no position, TypeError for another kind."""
    if after is None:
        return {}
    if isinstance(after, Mapping):
        return {topic: as_position(after[topic], f"after[{topic!r}]") for topic in topics if topic in after}
    place = as_position(after, "after")
    if len(set(topics)) != 1:
        raise ValueError("one position for several topics: give a mapping from topic to position")
    return {topics[0]: place}


def as_position(place: object, name: str) -> Position:
    """`name` is what the application calls it."""
    if not isinstance(place, str | list | tuple):
        raise TypeError(f'{name} is a Position, "epoch:sequence" or [epoch, sequence], not {type(place).__name__}')
    try:
        return parse_position(place)
    except ValueError as error:
        raise ValueError(f"{name} is {str(place)[:60]!r}: {error}") from None
