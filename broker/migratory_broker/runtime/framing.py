"""Framing of messages on a byte stream, for peer links and channels: each message follows its length in four bytes,
big-endian."""

from __future__ import annotations

from collections.abc import Callable

HEADER = 4


class FrameTooLong(ValueError):
    """The error for a message whose length prefix announces `size` bytes, more than the limit."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} bytes is announced, more than allowed")


def length_prefix(data: bytes) -> bytes:
    """Return the four bytes to send before the message `data`. Raises OverflowError for a message of 4 GiB or more."""
    return len(data).to_bytes(HEADER)


class Deframer:
    """A parser of received bytes into messages. `limit` is the bytes of the longest allowed message, and may be changed
    later."""

    __slots__ = ("_buffer", "_needed", "limit")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()  # the beginning of a message
        self._needed = HEADER  # bytes that must be buffered before it is parsed again
        self.limit = limit

    def feed(self, data: bytes | bytearray, on_message: Callable[[memoryview], None]) -> None:
        """Add received bytes, and call `on_message` with each message that is complete now. The message is a view that
        is valid only during the call.

        Raises FrameTooLong for a message over the limit, and what `on_message` raises. After an error it must not be
        called again.
        """
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed:
                return
            data, self._buffer = buffer, bytearray()
        elif len(data) >= HEADER and len(data) - HEADER == int.from_bytes(data[:HEADER]) <= self.limit:
            on_message(memoryview(data)[HEADER:])  # the usual case: exactly one whole message
            return
        start, size = 0, len(data)
        view = memoryview(data)  # never of the buffer, which grows
        while (body := start + HEADER) <= size:
            end = body + int.from_bytes(view[start:body])
            if end - body > self.limit:
                raise FrameTooLong(end - body)
            if end > size:
                self._needed = end - start
                break
            start = end
            on_message(view[body:end])
        else:
            self._needed = HEADER
        if start < size:
            self._buffer += view[start:]
