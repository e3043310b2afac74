"""Clients that are asked to go elsewhere for balance, and what the logic is told of an edge's clients for that.

The logic decides how many; the edge chooses whom: those that changed their broker least lately, by their own word, and
of those the ones that have been here longest. Who was asked here comes last, whether he could not go or would not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from migratory_protocol.messages import Drain

from migratory_broker.core.edge.connection import Connection, State
from migratory_broker.core.edge.delivery import Delivery
from migratory_broker.core.logic.events import Clients, MoveClients

ASKED = 4
"""In place of the number of moves: asked already. Below it: never moved, once, twice, more often."""


class Moving:
    def __init__(self, number: int, delivery: Delivery) -> None:
        self._number = number
        self._delivery = delivery
        self._counts = [0] * (ASKED + 1)
        self._told = tuple(self._counts)

    def came(self, connection: Connection, moves: int) -> None:
        """A client said `connect`, and how often it moved."""
        connection.moves = min(moves, ASKED - 1)
        self._counts[connection.moves] += 1

    def left(self, connection: Connection) -> None:
        self._counts[connection.moves] -= 1

    def tell(self) -> None:
        """At a tick: what has changed since the last one."""
        counts = tuple(self._counts)
        if counts != self._told:
            self._told = counts
            self._delivery.aside(Clients(self._number, counts))

    def ask(self, connections: Iterable[Connection], event: MoveClients) -> None:
        """One pass over all of them for each number of moves that is needed, mostly the first."""
        chosen: list[Connection] = []
        for moves, there in enumerate(self._counts):
            wanted = min(there, event.count - len(chosen))
            if wanted > 0:
                fit = (one for one in connections if one.moves == moves and one.state is State.OPEN)
                chosen += islice(fit, wanted)
        for connection in chosen:
            self._counts[connection.moves] -= 1
            connection.moves = ASKED
        self._counts[ASKED] += len(chosen)
        self._delivery.broadcast(chosen, Drain(event.period, [event.server], closes=False))
