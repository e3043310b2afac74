"""Positions: where a publication stands in its topic.

A position is (epoch, sequence number); positions of one topic compare as tuples do. On the wire it is
`[epoch, sequence]` in MessagePack and the string `"epoch:sequence"` in JSON, so that no digit is lost above 2**53
(docs/decisions/0001-positions-on-the-wire.md).
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

LARGEST = 2**63 - 1
_Part = Annotated[int, Meta(ge=0, le=LARGEST)]
_TEXT = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")


class Position(NamedTuple):
    """`sequence` 0 stands before a topic's first publication; both are whole numbers in 0..2**63 - 1."""

    epoch: _Part
    sequence: _Part

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"


def parse_position(value: object) -> Position:
    """The position that a client sent, in either wire form.

    Raises ValueError, naming what is wrong, for everything that is not one.
    """
    if isinstance(value, str):
        found = _TEXT.fullmatch(value)
        if found is None:
            raise ValueError(f'position {value[:60]!a} is not "epoch:sequence", two whole numbers of up to 19 digits')
        parts: list[object] = [int(found[1]), int(found[2])]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        raise ValueError('a position is "epoch:sequence" in JSON and [epoch, sequence] in MessagePack')
    if len(parts) != 2:
        raise ValueError("a position has two parts, epoch and sequence")
    epoch, sequence = parts
    for part in parts:
        # `type`, not `isinstance`: true is an int in Python and not a number on the wire
        if type(part) is not int or not 0 <= part <= LARGEST:
            raise ValueError(f"epoch and sequence of a position are whole numbers from 0 to {LARGEST}")
    assert isinstance(epoch, int)
    assert isinstance(sequence, int)
    return Position(epoch, sequence)
