"""The order of what happens to a client connection, while its first bytes are deferred (handshake_queue.py) and
after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migratory_broker.core.edge.events import Lost, Opened
from migratory_broker.runtime.clients.unhandled import ClientInput
from migratory_broker.runtime.pump import Pump

Action = Callable[[Any], None]


class PendingConnections:
    """The order of events and actions of each client connection: they run in the order in which they were posted. They
    are deferred until a connection's first bytes were processed, and then go into the common queue."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._pending: dict[int, int] = {}  # connection -> its deferred actions

    def __len__(self) -> int:
        return len(self._pending)

    def is_pending(self, number: int) -> bool:
        """Return whether the first bytes of a connection have not been processed."""
        return number in self._pending

    def add(self, opened: Opened) -> None:
        self._pending[opened.connection] = 0
        self.post(opened.connection, self._pump.step_edge, opened)

    def post(self, number: int, action: Action, argument: Any) -> None:
        """Run `action(argument)` later, after everything that was posted before for connection `number`."""
        count = self._pending.get(number)
        if count is None:
            self._pump.call_for_client(action, argument)
        else:
            self._pending[number] = count + 1
            self._pump.defer(self._run, (number, action, argument))

    def _run(self, entry: tuple[int, Action, Any]) -> None:
        number, action, argument = entry
        action(argument)
        count = self._pending[number] = self._pending[number] - 1
        if not count and isinstance(argument, ClientInput | Lost):
            del self._pending[number]
            if not self._pending:
                self._pending = {}  # a dict never shrinks by itself
