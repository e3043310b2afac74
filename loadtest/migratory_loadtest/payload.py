"""What a publication of the load generator carries: who sent it, its number, when it was due, and unique content.

Layout, big endian: publisher u32, topic u32, number u64 (from 1, per topic), scheduled send u64 (nanoseconds of the
machine's monotonic clock, which all its processes share), then bytes that follow from seed, topic and number.
"""

from __future__ import annotations

import struct
from hashlib import blake2b, shake_128
from typing import NamedTuple

HEAD = struct.Struct(">IIQQ")
SMALLEST = HEAD.size + 8


class Content(NamedTuple):
    publisher: int
    topic: int
    number: int
    due_ns: int


def build(size: int, seed: int, content: Content) -> bytes:
    """`size` bytes, at least SMALLEST."""
    filler = shake_128(b"%d/%d/%d" % (seed, content.topic, content.number)).digest(size - HEAD.size)
    return HEAD.pack(*content) + filler


def parse(payload: bytes) -> Content | None:
    """None for what this generator cannot have built."""
    if len(payload) < SMALLEST:
        return None
    return Content(*HEAD.unpack_from(payload))


def digest(payload: bytes) -> str:
    """Identity of a content, for logs and for the verifier."""
    return blake2b(payload, digest_size=8).hexdigest()
