"""The virtual clock: callbacks at moments in seconds, run in the order of moment, then of scheduling."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Scheduler:
    """A priority queue of callbacks. `now` moves only in `run_until`; a callback scheduled in the past runs at once,
    after those already due."""

    __slots__ = ("_heap", "_order", "events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._order = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, when: float, action: Callable[..., object], *arguments: Any) -> None:
        """Schedule `action(*arguments)` at the moment `when`, in virtual seconds."""
        self._order += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._order, action, arguments))

    def after(self, delay: float, action: Callable[..., object], *arguments: Any) -> None:
        """Schedule `action(*arguments)` after `delay` virtual seconds."""
        self.at(self.now + delay, action, *arguments)

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Run callbacks up to the moment `end`, or until `done()` is true between two moments. Return whether it was.
        Otherwise `now` is `end` afterwards."""
        heap = self._heap
        pop = heapq.heappop
        while heap and heap[0][0] <= end:
            moment, _, action, arguments = pop(heap)
            if moment > self.now:
                if done is not None and done():
                    heapq.heappush(heap, (moment, 0, action, arguments))
                    return True
                self.now = moment
            self.events += 1
            action(*arguments)
        if done is not None and done():
            return True
        self.now = max(self.now, end)
        return False
