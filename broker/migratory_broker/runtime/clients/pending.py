"""The order of the events and actions of each client connection: they are deferred until the connection's first bytes
were processed (handshake_queue.py), and go into the clients' queue of the pump afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migratory_broker.core.edge.events import Lost, Opened
from migratory_broker.runtime.clients.unhandled import ClientInput
from migratory_broker.runtime.pump import Pump

Action = Callable[[Any], None]


class PendingConnections:
    """The order of events and actions of each client connection: they run in the order in which they were posted. They
    are deferred until a connection's first bytes were processed, and then go into the clients' queue. A connection is
    *pending* until then, and `len()` is the number of pending ones."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._pending: dict[int, int] = {}  # connection -> its deferred actions

    def __len__(self) -> int:
        return len(self._pending)

    def is_pending(self, number: int) -> bool:
        """Return whether neither the first bytes of a connection nor its loss were processed yet."""
        return number in self._pending

    def add(self, opened: Opened) -> None:
        """Make a new connection pending, and post its `Opened`."""
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
        """Run a deferred action. If it was the last one of its connection, and handled input or the loss, the
        connection is not pending any more."""
        number, action, argument = entry
        action(argument)
        count = self._pending[number] = self._pending[number] - 1
        if not count and isinstance(argument, ClientInput | Lost):
            del self._pending[number]
            if not self._pending:
                self._pending = {}  # a dict never shrinks by itself
