"""When each publication is due. The generator is an open loop: what is due is sent, whatever became of those before,
and latency counts from the moment it was due. A broker that stalls, or a generator that does, can't hide that way
(no coordinated omission).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LATE = 0.05  # seconds behind its time from which a send counts as late
LATE_SHARE = 0.01  # of all sends: above it the generator itself was too slow


class Due(NamedTuple):
    """`at` is in seconds since the start of the run; `number` counts a topic's publications from 1."""

    at: float
    topic: int
    number: int


class Schedule:
    """The publications of some topics: `count` for each, `rate` a second, each topic at its offset in the period."""

    def __init__(self, offsets: Mapping[int, float], rate: float, count: int) -> None:
        self._order = sorted((offset, topic) for topic, offset in offsets.items())
        self._period = 1.0 / rate
        self._count = count if self._order else 0
        self._round = 0
        self._place = 0
        self.scheduled = len(self._order) * count
        self.sent = 0
        self.late = 0
        self.latest = 0.0  # seconds

    def peek(self) -> float | None:
        """When the next one is due, in seconds since the start; None behind the last."""
        if self._round >= self._count:
            return None
        return self._round * self._period + self._order[self._place][0]

    def cease(self) -> None:
        """Nothing more is due."""
        self._count = self._round
        self.scheduled = self.sent

    def pop(self, elapsed: float) -> Due | None:
        """The next publication if it is due by now; call again until None, then at `peek()`. Whoever takes it sends it
        now: lateness is counted here."""
        at = self.peek()
        if at is None or at > elapsed:
            return None
        due = Due(at, self._order[self._place][1], self._round + 1)
        self._place += 1
        if self._place == len(self._order):
            self._place = 0
            self._round += 1
        self.sent += 1
        behind = elapsed - at
        self.latest = max(self.latest, behind)
        self.late += behind > LATE
        return due


def generator_late(sent: int, late: int) -> bool:
    """Whether the load generator itself spoiled the run."""
    return late > LATE_SHARE * sent
