"""What a benchmark publication carries: a mark that no server's framing contains, when it was due, and its number.

ASCII, so that every protocol carries it as it is, JSON too, and a receiver finds it without understanding the protocol
around it: `MARK`, 16 hexadecimal digits of nanoseconds on the monotonic clock (which all processes of a machine share),
8 of the number of the publication in its topic (from 1), filler.
"""

from __future__ import annotations

MARK = b"~Mg:~"
_DUE = len(MARK)
_NUMBER = _DUE + 16
HEAD = _NUMBER + 8
SMALLEST = HEAD


def build(size: int, due_ns: int, number: int) -> bytes:
    """`size` bytes. Raises ValueError when that is too small."""
    if size < SMALLEST:
        raise ValueError(f"a benchmark's publication has {SMALLEST} bytes or more, not {size}")
    return b"%s%016x%08x" % (MARK, due_ns, number) + b"x" * (size - HEAD)


def read(head: bytes) -> tuple[int, int]:
    """(when it was due, its number) of a head that begins with `MARK` and has `HEAD` bytes."""
    return int(head[_DUE:_NUMBER], 16), int(head[_NUMBER:HEAD], 16)


class Carry:
    """The beginning of a head at the end of what was read, for each connection where there is one: rare, as servers
    write whole messages."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}

    def keep(self, connection: int, data: bytes | bytearray, start: int, end: int) -> None:
        """`start`: behind the last whole head. Keeps what may be the first part of the next one."""
        found = data.find(MARK, start, end)
        if found < 0:
            for length in range(min(len(MARK) - 1, end - start), 0, -1):
                if data[end - length : end] == MARK[:length]:
                    found = end - length
                    break
        if found >= 0:
            self.held[connection] = bytes(data[found:end])
