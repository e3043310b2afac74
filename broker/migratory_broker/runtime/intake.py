"""How many new connections one turn of the loop takes, so that the others hardly feel a storm of them.

A connection is work for the turns after its acceptance: a handshake, subscriptions, a receipt. What is published
meanwhile waits for the turn that it came in to end. So a turn takes as many connections as make the next ones longer by
no more than their share, and a few in any case: alone with them, the loop does nothing else, in short turns.
"""

from __future__ import annotations

from collections.abc import Callable

COST = 0.0002
"""Seconds of CPU for a connection until its subscriptions are carried out (docs/performance.md)."""
SHARE = 0.25
"""Of a turn. Where a connection costs twice as much, it is half, and turns still end."""
LEAST, MOST = 8, 64


class Intake:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None  # when a turn left some, that wait

    def most(self) -> int:
        """For this turn."""
        turn = 0.0 if self._at is None else self._clock() - self._at
        return max(LEAST, min(MOST, int(SHARE * turn / COST)))

    def left(self, some: bool) -> None:
        """At the end of it: whether some wait, who are for the next turn."""
        self._at = self._clock() if some else None
