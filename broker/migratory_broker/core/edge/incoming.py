"""What all clients together have sent that nobody could look at yet: the begins of frames and of messages, and what
waits behind requests or for its turn.

Each client alone may hold one message of the largest size and a backlog: thousands of them, none of which ends its
message, would be gigabytes. Over `EdgeConfig.incoming_total` those that hold most go, until an eighth is free again, so
that the search for them is not made for every read.
"""

from __future__ import annotations

from migratory_broker.core.edge.connection import Connection


class Incoming:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[Connection, int] = {}
        self.total = 0

    def note(self, connection: Connection) -> None:
        """After every change of what the connection holds."""
        parser, backlog = connection.parser, connection.backlog
        if parser is None and backlog is None:
            if connection in self._held:
                self.total -= self._held.pop(connection)
            return
        held = (parser.buffered_bytes if parser is not None else 0) + (backlog.size if backlog is not None else 0)
        self.total += held - self._held.get(connection, 0)
        self._held[connection] = held

    def largest(self) -> list[Connection]:
        """When the total is over the limit: those that have to go, the largest first."""
        left = self.total
        found = []
        for connection in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if left <= self._limit - self._limit // 8:
                break
            left -= self._held[connection]
            found.append(connection)
        return found
