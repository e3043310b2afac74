"""Topic names, and the topic group that a name falls into.

A name is what it is, byte for byte: nothing is normalised. Two spellings of an accented letter make two topics, and a
name that begins with a byte order mark is not the one without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from zlib import crc32

from migratory_protocol import limits

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class BadTopic(ValueError):
    """A name that no topic can have; `code` is the error code that a client gets."""

    code = "bad_topic"


def check_topic(name: str, limit: int = limits.TOPIC) -> str:
    """`name`, when it is 1 to `limit` bytes of UTF-8 without control characters (C0, DEL, C1) or lone surrogates.

    Raises BadTopic, naming what is wrong, otherwise. The text holds the name as ASCII, cut to 40 characters.
    """
    if name.isprintable():  # neither controls nor surrogates are; a few harmless characters are not, either
        pass
    elif found := _FORBIDDEN.search(name):
        kind = "a lone surrogate" if found[0] >= "\ud800" else "the control character"
        raise BadTopic(
            f"topic {name[:40]!a} holds {kind} U+{ord(found[0]):04X} at character {found.start()}; "
            "names are well-formed text without control characters"
        )
    size = len(name) if name.isascii() else len(name.encode())
    if size > limit:
        raise BadTopic(f"topic {name[:40]!a}... has {size} bytes in UTF-8; a name has 1 to {limit}")
    if not name:
        raise BadTopic(f"the topic name is empty; a name has 1 to {limit} bytes in UTF-8")
    return name


class TopicPattern:
    """Which topics a rule is for: `*` stands for any characters but "/", `**` for any at all, everything else for
    itself. Rules are the configuration's; clients subscribe to whole names.

    Clients choose the names, and nobody may choose one that takes long: a regular expression with a few stars tries
    every way to divide a name between them, for hours. Here each part of the pattern goes through the name once.
    """

    __slots__ = ("_parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = re.split(r"(\*\*|\*)", text)

    def matches(self, topic: str) -> bool:
        ends = [0]  # where the parts so far may end
        for part in self._parts:
            ends = list(_ends(part, topic, ends))
        return len(topic) in ends


def _ends(part: str, topic: str, starts: list[int]) -> Iterator[int]:
    """Where a part of a pattern may end that begins at one of `starts`; these rise, and so do those."""
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
    """The group, 0 to `groups` - 1, of a topic: CRC-32 (the one of zlib, polynomial 0xEDB88320) of its UTF-8 bytes,
    modulo the number of groups. The same for ever and in every language: it decides who numbers the topic."""
    return crc32(topic.encode()) % groups
