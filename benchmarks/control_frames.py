"""Control frames in a received byte stream: pings, which every client must answer, and the reason of a close. Pure.

A receiver does not parse the frames that it reads. This module steps from frame to frame by their lengths instead. So
it finds a ping wherever it is, such as in front of a publication of the same read, and never mistakes a publication's
bytes for one.
"""

from __future__ import annotations

PING, PONG, CLOSE = 0x9, 0xA, 0x8


class ControlFrames:
    """The frame boundaries of all connections of a receiver. `partial`: for a connection in the middle of a frame the
    number of its bytes that are still to come, or the start of a frame whose length is not known yet."""

    def __init__(self) -> None:
        self.partial: dict[int, int | bytes] = {}

    def find(self, connection: int, data: bytes | bytearray, end: int) -> list[tuple[int, bytes]]:
        """Return (opcode, payload) of the control frames that `data[:end]` completes."""
        if connection not in self.partial and end > 3 and not data[0] & 8:
            # Fast path: a single publication, which nearly all reads are.
            length = data[1]
            if end == length + 2 if length < 126 else length == 126 and end == (data[2] << 8 | data[3]) + 4:
                return []
        return self._walk(connection, bytes(data[:end]))

    def forget(self, connection: int) -> None:
        """Forget a connection that has ended."""
        self.partial.pop(connection, None)

    def _walk(self, connection: int, data: bytes) -> list[tuple[int, bytes]]:
        frames: list[tuple[int, bytes]] = []
        partial = self.partial.pop(connection, 0)
        offset = 0
        if isinstance(partial, bytes):
            data = partial + data
        else:
            offset = partial
        while offset < len(data):
            start = _payload_start(data, offset)
            if start is None:
                self.partial[connection] = data[offset:]
                return frames
            end = start + _payload_length(data, offset)
            opcode = data[offset] & 0xF
            if opcode & 8:
                if end > len(data):
                    self.partial[connection] = data[offset:]
                    return frames
                frames.append((opcode, data[start:end]))
            offset = end
        if offset > len(data):
            self.partial[connection] = offset - len(data)
        return frames


def _payload_start(data: bytes, offset: int) -> int | None:
    """Return where the payload of the frame at `offset` starts, or None when its length is incomplete."""
    if offset + 2 > len(data):
        return None
    start = offset + {126: 4, 127: 10}.get(data[offset + 1], 2)
    return start if start <= len(data) else None


def _payload_length(data: bytes, offset: int) -> int:
    length = data[offset + 1]
    size = {126: 2, 127: 8}.get(length)
    return length if size is None else int.from_bytes(data[offset + 2 : offset + 2 + size], "big")


def close_reason(payload: bytes) -> str:
    """Return the code and text of a close frame's payload as words."""
    if len(payload) < 2:
        return "without a code"
    text = payload[2:].decode(errors="replace")
    return f"code {int.from_bytes(payload[:2], 'big')}" + (f", {text!r}" if text else "")
