"""Messages on a stream of bytes: each behind its length in four bytes."""

from __future__ import annotations

from collections.abc import Callable

HEADER = 4


class FrameTooLong(ValueError):
    """A message of `size` bytes is announced: more than may come."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} bytes is announced")


def length(data: bytes) -> bytes:
    """What goes before a message."""
    return len(data).to_bytes(HEADER)


class Deframer:
    """From what a socket gives to whole messages, in their order. `most`: bytes of the longest; may change."""

    __slots__ = ("_buffer", "_needed", "most")

    def __init__(self, most: int) -> None:
        self._buffer = bytearray()  # the begin of a message
        self._needed = HEADER  # bytes of it that must be there before it is worth looking at
        self.most = most

    def feed(self, data: bytes | bytearray, take: Callable[[memoryview], None]) -> None:
        """Gives `take` each message that is whole now; it must not keep it. Raises TooLong, and what `take` raises:
        nothing more must be fed then."""
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed:
                return
            data, self._buffer = buffer, bytearray()
        elif len(data) >= HEADER and len(data) - HEADER == int.from_bytes(data[:HEADER]) <= self.most:
            take(memoryview(data)[HEADER:])  # as mostly: one message, whole, and nothing else
            return
        start, size = 0, len(data)
        view = memoryview(data)  # never of the buffer that grows
        while (body := start + HEADER) <= size:
            end = body + int.from_bytes(view[start:body])
            if end - body > self.most:
                raise FrameTooLong(end - body)
            if end > size:
                self._needed = end - start
                break
            start = end
            take(view[body:end])
        else:
            self._needed = HEADER
        if start < size:
            self._buffer += view[start:]
