"""A timer wheel, for the connections of an edge: one timer each, at a constant cost however many there are."""

from __future__ import annotations

from collections.abc import Iterator

from migratory_broker.core.edge.state import ClientConnection

GRAIN = 0.1
"""Seconds of one slot. A timer expires late by at most this and the time between two calls of `expire`."""


class TimerWheel:
    """The timers of all connections, in slots of `GRAIN` seconds. A connection whose `slot` is 0 has no timer.

    A timer that is replaced or cancelled is removed at once. If it stayed until its time, it would keep its connection
    in memory: with long limits, connections that come and go would pile up for minutes.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[ClientConnection, None]] = {}
        self._expired_slot = 0

    def schedule(self, connection: ClientConnection, due: float) -> None:
        """Set the connection's only timer to the time `due`, in seconds of the edge's clock. An earlier timer of the
        connection is replaced."""
        slot = max(int(due / GRAIN) + 1, self._expired_slot + 1)
        if slot != connection.slot:
            self.cancel(connection)
            waiting = self._slots.get(slot)
            if waiting is None:
                waiting = self._slots[slot] = {}
            else:
                slot = next(iter(waiting)).slot  # share one int object instead of an equal one per connection
            connection.slot = slot
            waiting[connection] = None

    def cancel(self, connection: ClientConnection) -> None:
        """Remove the connection's timer, if it has one."""
        waiting = self._slots.get(connection.slot)
        if waiting is not None:  # else it has none, or its slot is expiring
            del waiting[connection]
            if not waiting:
                del self._slots[connection.slot]
        connection.slot = 0

    def expire(self, now: float) -> Iterator[ClientConnection]:
        """Remove all timers that are due at `now`, one after the other, and yield their connections. A timer that the
        handling of an earlier one has cancelled or replaced does not expire."""
        target = int(now / GRAIN)
        if len(self._slots) < target - self._expired_slot:  # the first call, or the process was stopped
            expired = sorted(slot for slot in self._slots if slot <= target)
        else:
            expired = [slot for slot in range(self._expired_slot + 1, target + 1) if slot in self._slots]
        self._expired_slot = max(self._expired_slot, target)
        for slot in expired:
            for connection in self._slots.pop(slot, ()):
                if connection.slot == slot:  # handling an earlier one may have rescheduled or cancelled this one
                    connection.slot = 0
                    yield connection
