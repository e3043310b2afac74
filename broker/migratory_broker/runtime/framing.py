"""Messages on a stream of bytes: each behind its length in four bytes."""

from __future__ import annotations

from collections.abc import Callable

HEADER = 4


class TooLong(ValueError):
    """A message of `size` bytes is announced: more than may come."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} bytes is announced")


def length(data: bytes) -> bytes:
    """What goes before a message."""
    return len(data).to_bytes(HEADER)


class Deframer:
    """From what a socket gives to whole messages, in their order. `most`: bytes of the longest; may change."""

    __slots__ = ("_buffer", "most")

    def __init__(self, most: int) -> None:
        self._buffer = bytearray()
        self.most = most

    def feed(self, data: bytes, take: Callable[[memoryview], None]) -> None:
        """Gives `take` each message that is whole now; it must not keep it. Raises TooLong, and what `take` raises:
        nothing more must be fed then."""
        buffer = self._buffer
        if not buffer and len(data) >= HEADER and len(data) == HEADER + (size := int.from_bytes(data[:HEADER])):
            if size > self.most:
                raise TooLong(size)
            take(memoryview(data)[HEADER:])  # as mostly: one message, whole, and nothing else
            return
        buffer += data
        start = 0
        try:
            while len(buffer) >= start + HEADER:
                size = int.from_bytes(buffer[start : start + HEADER])
                if size > self.most:
                    raise TooLong(size)
                end = start + HEADER + size
                if len(buffer) < end:
                    break
                with memoryview(buffer) as view, view[start + HEADER : end] as part:
                    start = end
                    take(part)
        except BaseException:
            self._buffer = bytearray()
            raise
        del buffer[:start]
