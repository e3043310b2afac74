"""What the client core keeps of one connection, and of how often and why its broker changed."""

from __future__ import annotations

from math import inf

from migratory_client.events import Cause

_KEPT = 16  # changes whose moments are remembered: more than that often lately says nothing new


class Link:
    """One connection: attempt, then stream."""

    __slots__ = ("asked", "heard", "interval", "number", "opened", "ping_at", "problem", "until", "url")

    def __init__(self, number: int, url: str, until: float) -> None:
        self.number = number
        self.url = url
        self.until = until  # welcome must have come by then
        self.heard = 0.0
        self.interval = inf  # of the heartbeat
        self.ping_at = inf
        self.opened = 0.0  # when welcome came
        self.problem = ""  # the broker's last words
        self.asked: Cause | None = None  # the broker asked for a move: "drained", it leaves; "moved", it stays

    def silent(self, now: float) -> bool:
        """Nothing was heard for two intervals: the peer is dead."""
        return self.heard + 2 * self.interval <= now


class Changes:
    """Changes of broker so far, by cause."""

    __slots__ = ("_moments", "broken", "drained", "moved")

    def __init__(self) -> None:
        self.broken = self.drained = self.moved = 0
        self._moments: tuple[float, ...] = ()

    def note(self, cause: Cause, now: float) -> None:
        setattr(self, cause, getattr(self, cause) + 1)
        self._moments = (*self._moments[1 - _KEPT :], now)

    def since(self, moment: float) -> int:
        """At most `_KEPT`."""
        return sum(at >= moment for at in self._moments)

    @property
    def total(self) -> int:
        return self.broken + self.drained + self.moved

    def by_cause(self) -> dict[Cause, int]:
        return {"broken": self.broken, "drained": self.drained, "moved": self.moved}
