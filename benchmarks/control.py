"""What a server says between publications: pings, which every client must answer, and why it closes. Pure.

A receiver does not parse what it reads, so this steps from frame to frame by their lengths. That tells a ping wherever
it stands, before a publication that was read with it too, and never takes a publication's bytes for one.
"""

from __future__ import annotations

PING, PONG, CLOSE = 0x9, 0xA, 0x8


class Control:
    """Of all connections of a receiver. `held`: of a connection in the middle of a frame, how many of its bytes are
    still to come, or the beginning of one whose length is not known yet."""

    def __init__(self) -> None:
        self.held: dict[int, int | bytes] = {}

    def find(self, connection: int, data: bytes | bytearray, end: int) -> list[tuple[int, bytes]]:
        """(operation, payload) of the control frames that became whole with `data[:end]`."""
        if connection not in self.held and end > 3 and not data[0] & 8:
            # a single publication, as nearly always
            length = data[1]
            if end == length + 2 if length < 126 else length == 126 and end == (data[2] << 8 | data[3]) + 4:
                return []
        return self._walk(connection, bytes(data[:end]))

    def forget(self, connection: int) -> None:
        self.held.pop(connection, None)

    def _walk(self, connection: int, data: bytes) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        held = self.held.pop(connection, 0)
        place = 0
        if isinstance(held, bytes):
            data = held + data
        else:
            place = held
        while place < len(data):
            start = _payload(data, place)
            if start is None:
                self.held[connection] = data[place:]
                return found
            behind = start + _length(data, place)
            operation = data[place] & 0xF
            if operation & 8:
                if behind > len(data):
                    self.held[connection] = data[place:]
                    return found
                found.append((operation, data[start:behind]))
            place = behind
        if place > len(data):
            self.held[connection] = place - len(data)
        return found


def _payload(data: bytes, place: int) -> int | None:
    """Where the payload of the frame at `place` begins; None when its length is not whole."""
    if place + 2 > len(data):
        return None
    start = place + {126: 4, 127: 10}.get(data[place + 1], 2)
    return start if start <= len(data) else None


def _length(data: bytes, place: int) -> int:
    length = data[place + 1]
    size = {126: 2, 127: 8}.get(length)
    return length if size is None else int.from_bytes(data[place + 2 : place + 2 + size], "big")


def reason(close: bytes) -> str:
    """A close frame's payload, as words."""
    if len(close) < 2:
        return "without a code"
    text = close[2:].decode(errors="replace")
    return f"code {int.from_bytes(close[:2], 'big')}" + (f", {text!r}" if text else "")
