"""Positions, for clients and brokers: the place of a publication in its topic.

A position is (epoch, sequence number). Positions of one topic compare as tuples do. On the wire a position is `[epoch,
sequence]` in MessagePack and the string `"epoch:sequence"` in JSON, because JavaScript's numbers lose digits above
2**53 (docs/decisions/0001-positions-on-the-wire.md).
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

LARGEST = 2**63 - 1
"""The largest epoch and sequence number: they fit into a signed 64-bit integer."""

_Part = Annotated[int, Meta(ge=0, le=LARGEST)]
_TEXT = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")


class Position(NamedTuple):
    """The epoch and the sequence number of a publication, each from 0 to 2**63 - 1. With sequence number 0, the place
    before the first publication. As text it is "epoch:sequence"."""

    epoch: _Part
    sequence: _Part

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"


def parse_position(value: object) -> Position:
    """Return the Position for a value that a client sent, in the form of either wire format: "epoch:sequence" or
    [epoch, sequence]. Raises ValueError for anything else; its text names what is wrong."""
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise ValueError(
                f'position {value[:60]!a:.80} is not "epoch:sequence", two whole numbers of up to 19 digits'
            )
        parts: list[object] = [int(match[1]), int(match[2])]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        raise ValueError('a position must be "epoch:sequence" in JSON, [epoch, sequence] in MessagePack')
    if len(parts) != 2:
        raise ValueError(f"a position must have two parts, epoch and sequence; this one has {len(parts)}")
    epoch, sequence = parts
    for part in parts:
        # `type`, not `isinstance`: true is an int in Python and not a number on the wire
        if type(part) is not int or not 0 <= part <= LARGEST:
            raise ValueError(f"epoch and sequence of a position must be whole numbers from 0 to {LARGEST}")
    assert isinstance(epoch, int)
    assert isinstance(sequence, int)
    return Position(epoch, sequence)
