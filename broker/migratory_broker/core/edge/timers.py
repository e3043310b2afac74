"""A timer wheel: when to look at which connection again, at a constant cost however many there are."""

from __future__ import annotations

from collections.abc import Iterator

from migratory_broker.core.edge.connection import Connection

GRAIN = 0.1  # seconds: a timer is late by this and one tick at most


class Wheel:
    """One timer a connection: setting it again replaces it, `slot` 0 means that it has none."""

    def __init__(self) -> None:
        self._slots: dict[int, list[Connection]] = {}
        self._turned = 0

    def set(self, connection: Connection, due: float) -> None:
        slot = max(int(due / GRAIN) + 1, self._turned + 1)
        if slot != connection.slot:  # a timer that was replaced stays where it is and is passed over
            connection.slot = slot
            self._slots.setdefault(slot, []).append(connection)

    def turn(self, now: float) -> Iterator[Connection]:
        """Those whose time has come: every one of them is due before `now`."""
        target = int(now / GRAIN)
        if len(self._slots) < target - self._turned:  # the first turn, or the process stood still
            passed = sorted(slot for slot in self._slots if slot <= target)
        else:
            passed = [slot for slot in range(self._turned + 1, target + 1) if slot in self._slots]
        self._turned = max(self._turned, target)
        for slot in passed:
            for connection in self._slots.pop(slot):
                if connection.slot == slot:
                    connection.slot = 0
                    yield connection
