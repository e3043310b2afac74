"""Connections of which nothing was worked off yet: what comes of them stands in the line of what may come late.

Thousands may come at once, when a broker has died, and each begins with `connect` and `subscribe`, which cost more than
what comes later. In the common line, whatever is published would wait until all of them were through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migratory_broker.core.edge.events import Lost, Opened, Received
from migratory_broker.runtime.pump import Pump

Action = Callable[[Any], None]


class Newcomers:
    """Everything about a connection goes through here, in its order: into the one line or into the other."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._waiting: dict[int, int] = {}  # of each newcomer: how much of it stands in the line

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opened: Opened) -> None:
        self._waiting[opened.connection] = 0
        self.post(opened.connection, self._pump.step_edge, opened)

    def post(self, number: int, action: Action, argument: Any) -> None:
        """Run `action(argument)`, which is about that connection."""
        waiting = self._waiting.get(number)
        if waiting is None:
            self._pump.call(action, argument)
        else:
            self._waiting[number] = waiting + 1
            self._pump.call_late(self._work, (number, action, argument))

    def _work(self, entry: tuple[int, Action, Any]) -> None:
        number, action, argument = entry
        action(argument)
        waiting = self._waiting[number] = self._waiting[number] - 1
        if not waiting and isinstance(argument, Received | Lost):
            del self._waiting[number]
            if not self._waiting:
                self._waiting = {}  # a dict keeps the room of the most that it ever held
