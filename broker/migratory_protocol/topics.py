"""Topic names, and the topic group that a name falls into.

A name is what it is, byte for byte: nothing is normalised. Two spellings of an accented letter make two topics, and a
name that begins with a byte order mark is not the one without.
"""

from __future__ import annotations

import re
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
    itself. Rules are the configuration's; clients subscribe to whole names."""

    __slots__ = ("_match", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        kinds = {"**": ".*", "*": "[^/]*"}
        parts = [kinds.get(part) or re.escape(part) for part in re.split(r"(\*\*|\*)", text)]
        self._match = re.compile("".join(parts), re.DOTALL).fullmatch

    def matches(self, topic: str) -> bool:
        return self._match(topic) is not None


def topic_group(topic: str, groups: int) -> int:
    """The group, 0 to `groups` - 1, of a topic: CRC-32 (the one of zlib, polynomial 0xEDB88320) of its UTF-8 bytes,
    modulo the number of groups. The same for ever and in every language: it decides who numbers the topic."""
    return crc32(topic.encode()) % groups
