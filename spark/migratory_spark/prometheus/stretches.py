"""A window of time cut into partitions. Pure; milliseconds, half open."""

from __future__ import annotations

_MINUTE = 60_000
LENGTHS = tuple(_MINUTE * minutes for minutes in (120, 60, 30, 15, 10, 5))
"""Lengths to choose from by oneself: two hours, which is what a block of Prometheus's has, and what divides them."""

_WANTED = 8


def usual_length(start_ms: int, end_ms: int) -> int:
    """The longest of LENGTHS that gives at least eight partitions, else the shortest: enough of them to keep some
    cores busy, few enough that chunks (120 samples or more) are seldom read for two partitions."""
    return next((length for length in LENGTHS if (end_ms - start_ms) >= _WANTED * length), LENGTHS[-1])


def length_of(window_ms: int, samples: int, most: int) -> int:
    """The longest of LENGTHS that has at most so many of the window's samples, as far as they are spread evenly."""
    return next((length for length in LENGTHS if samples * length <= most * window_ms), LENGTHS[-1])


def cut(start_ms: int, end_ms: int, length_ms: int | None = None) -> list[tuple[int, int]]:
    """[start, end) in pieces that meet at multiples of their length since 1970, where a server's blocks meet too."""
    length = length_ms or usual_length(start_ms, end_ms)
    edges = range(start_ms - start_ms % length + length, end_ms, length)
    starts = [start_ms, *edges]
    return list(zip(starts, [*edges, end_ms], strict=True)) if start_ms < end_ms else []
