"""Positions: where a publication stands in its topic.

A position is (epoch, sequence number); positions of one topic compare as tuples do. On the wire it is `[epoch, sequence]`
in MessagePack and the string `"epoch:sequence"` in JSON, so that no digit is lost above 2**53 (docs/protocol.md).
"""

from __future__ import annotations

from typing import NamedTuple

LARGEST = 2**63 - 1


class Position(NamedTuple):
    """`sequence` 0 stands before a topic's first publication; both are whole numbers in 0..2**63 - 1."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"


def parse_position(value: object) -> Position:
    """The position that a client sent, in either wire form.

    Raises ValueError, naming what is wrong, for everything that is not one.
    """
    if isinstance(value, str):
        parts: list[object] = []
        for part in value.split(":"):
            if not (part.isascii() and part.isdigit()) or len(part) > 19:
                raise ValueError(f'position {value[:60]!r} is not "epoch:sequence", two whole numbers')
            parts.append(int(part))
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        raise ValueError('a position is "epoch:sequence" in JSON and [epoch, sequence] in MessagePack')
    if len(parts) != 2:
        raise ValueError("a position has two parts, epoch and sequence")
    for part in parts:
        if type(part) is not int or not 0 <= part <= LARGEST:
            raise ValueError(f"epoch and sequence of a position are whole numbers from 0 to {LARGEST}")
    return Position(parts[0], parts[1])  # type: ignore[arg-type]
