"""A timer wheel: when to look at which connection again, at a constant cost however many there are."""

from __future__ import annotations

from collections.abc import Iterator

from migratory_broker.core.edge.connection import Connection

GRAIN = 0.1  # seconds: a timer is late by this and one tick at most


class Wheel:
    """One timer a connection: setting it again replaces it, `slot` 0 means that it has none.

    A timer that is replaced or removed is taken out at once. Left until its time came it would hold its connection for
    as long: with long limits, clients that come and go would pile up for minutes.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[Connection, None]] = {}
        self._turned = 0

    def set(self, connection: Connection, due: float) -> None:
        slot = max(int(due / GRAIN) + 1, self._turned + 1)
        if slot != connection.slot:
            self.remove(connection)
            waiting = self._slots.get(slot)
            if waiting is None:
                waiting = self._slots[slot] = {}
            else:
                slot = next(iter(waiting)).slot  # the same object, in place of an equal one for each connection
            connection.slot = slot
            waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """It has no timer any more."""
        waiting = self._slots.get(connection.slot)
        if waiting is not None:  # else it has none, or its slot is being turned
            del waiting[connection]
            if not waiting:
                del self._slots[connection.slot]
        connection.slot = 0

    def turn(self, now: float) -> Iterator[Connection]:
        """Those whose time has come: every one of them is due before `now`."""
        target = int(now / GRAIN)
        if len(self._slots) < target - self._turned:  # the first turn, or the process stood still
            passed = sorted(slot for slot in self._slots if slot <= target)
        else:
            passed = [slot for slot in range(self._turned + 1, target + 1) if slot in self._slots]
        self._turned = max(self._turned, target)
        for slot in passed:
            for connection in self._slots.pop(slot, ()):
                if connection.slot == slot:  # what was done for those before it may have moved or ended it
                    connection.slot = 0
                    yield connection
