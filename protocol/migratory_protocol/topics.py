"""Topic names, for clients and brokers: which are valid, which a pattern matches, and which topic group a name belongs
to.

Names are compared byte for byte and never normalised. Composed and decomposed accents are two topics, and a byte order
mark is part of the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar
from zlib import crc32

from migratory_protocol import limits

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class BadTopic(ValueError):
    """The error for an invalid topic name. `code` is the error code for the client."""

    code: ClassVar = "bad_topic"


def check_topic(name: str, limit: int = limits.TOPIC) -> str:
    """Return `name` if it is a valid topic name: 1 to `limit` bytes of UTF-8, no control characters (C0, DEL, C1), no
    lone surrogates.

    Raises BadTopic otherwise. Its text says what is wrong and shows the name as ASCII, cut to 40 characters.
    """
    if name.isprintable():  # fast path: a printable name has neither control characters nor surrogates
        pass
    elif match := _FORBIDDEN.search(name):
        kind = "a lone surrogate" if ord(match[0]) >= 0xD800 else "the control character"
        raise BadTopic(
            f"topic {name[:40]!a:.60} holds {kind} U+{ord(match[0]):04X} at character {match.start()}; "
            "names are well-formed text without control characters"
        )
    size = len(name) if name.isascii() else len(name.encode())
    if size > limit:
        raise BadTopic(f"topic {name[:40]!a:.60}... has {size} bytes in UTF-8; a name has 1 to {limit}")
    if not name:
        raise BadTopic(f"the topic name is empty; a name has 1 to {limit} bytes in UTF-8")
    return name


class TopicPattern:
    """A pattern for topic names in the configuration. `*` matches any characters but "/", `**` any characters at all,
    everything else itself. Clients cannot subscribe by pattern.

    Clients choose the names that are matched, so the time must be bounded: a regular expression with a few stars
    backtracks for hours on a hostile name. Here each part of the pattern passes over the name once.
    """

    __slots__ = ("_parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = re.split(r"(\*\*|\*)", text)

    def matches(self, topic: str) -> bool:
        """Return whether the pattern matches the whole name."""
        ends = [0]
        for part in self._parts:
            ends = list(_match_ends(part, topic, ends))
        return len(topic) in ends


def _match_ends(part: str, topic: str, starts: list[int]) -> Iterator[int]:
    """Yield the indexes in `topic` at which a match of `part` that begins at one of `starts` can end. Both are in
    ascending order."""
    reached = -1
    for start in starts:
        if part not in ("*", "**"):
            if topic.startswith(part, start):
                yield start + len(part)
        elif start > reached:
            slash = topic.find("/", start) if part == "*" else -1
            reached = slash if slash >= 0 else len(topic)
            yield from range(start, reached + 1)


def topic_group(topic: str, groups: int) -> int:
    """Return the number of the topic's group, 0 to `groups` - 1: CRC-32 (zlib's, polynomial 0xEDB88320) of the name's
    UTF-8 bytes, modulo `groups`.

    The hash never changes and is the same in every language, because it decides which broker coordinates the topic.
    """
    return crc32(topic.encode()) % groups
