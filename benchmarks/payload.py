"""The payload of a benchmark publication: a mark that no server's framing contains, the due time, and a number.

The payload is ASCII, so that every protocol carries it unchanged, JSON included, and a receiver finds it without
parsing the protocol around it. It consists of

    MARK         5 bytes
    due time     16 hexadecimal digits: nanoseconds of the monotonic clock, which all processes of a machine share
    number       8 hexadecimal digits: the number of the publication in its topic, from 1
    filler
"""

from __future__ import annotations

MARK = b"~Mg:~"
_DUE = len(MARK)
_NUMBER = _DUE + 16

HEAD = _NUMBER + 8
"""Bytes before the filler, which are the smallest payload."""


def build(size: int, due_ns: int, number: int) -> bytes:
    """Return a payload of `size` bytes. Raise ValueError when that is below `HEAD`."""
    if size < HEAD:
        raise ValueError(f"a benchmark's publication has {HEAD} bytes or more, not {size}")
    return b"%s%016x%08x" % (MARK, due_ns, number) + b"x" * (size - HEAD)


def read(head: bytes) -> tuple[int, int]:
    """Return (due time, number) of a head, which starts with `MARK` and has `HEAD` bytes."""
    return int(head[_DUE:_NUMBER], 16), int(head[_NUMBER:HEAD], 16)


class PartialHeads:
    """For each connection, what may be the start of a payload's head (from `MARK`) at the end of a read, to be joined
    with the next read. Rare, because servers write whole messages."""

    def __init__(self) -> None:
        self.by_connection: dict[int, bytes] = {}

    def keep(self, connection: int, data: bytes | bytearray, start: int, end: int) -> None:
        """Store what may be the first part of the next head in `data[start:end]`. `start` is after the last whole
        head."""
        offset = data.find(MARK, start, end)
        if offset < 0:
            for length in range(min(len(MARK) - 1, end - start), 0, -1):
                if data[end - length : end] == MARK[:length]:
                    offset = end - length
                    break
        if offset >= 0:
            self.by_connection[connection] = bytes(data[offset:end])
