"""A real pump whose turns the test runs, over cores that record their events. The test does not replace the pump
itself, because compiled modules accept no stand-in for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migratory_broker.runtime.pump import TURN_SECONDS, Pump


class RecordedPump:
    """A real pump, `pump`, for which this object is both the logic and the edge. `events` has all events that the pump
    stepped it with. Its clock advances only within `turn`."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._calls: list[Callable[[], None]] = []
        self._now = 1.0
        self._most = 0
        self.pump = Pump(self, self._calls.append, lambda: self._now, _fail)
        self.pump.set_handlers({})
        self.pump.attach(self)

    def step(self, event: Any, now: float, /) -> list[Any]:
        """Record an event, as the core that the pump steps. At the last event that `turn` allows, advance the clock so
        far that the pump ends its turn."""
        self.events.append(event)
        self._most -= 1
        if self._most == 0:
            self._now += 2 * TURN_SECONDS
        return []

    def turn(self, most: int = 1000) -> list[Any]:
        """Run the pump until it has stepped `most` events, or nothing is queued. Return these events."""
        self._most = most
        before = len(self.events)
        while self._calls and self._most > 0:
            self._calls.pop(0)()
        return self.events[before:]


def _fail(error: Exception) -> None:
    raise error
