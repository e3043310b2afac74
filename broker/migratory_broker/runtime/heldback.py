"""What an I/O process asked for and gets later: one request after the other, in their order, while there is room for
the answers on the way to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class HeldBack:
    """`call(action, argument)` brings an action into a turn of the pump, `full()` tells whether there is no room now,
    `answer(request)` is called from within such a turn. Each request is an action of its own, behind what came
    meanwhile: so one process holds up neither what is live nor the others."""

    def __init__(
        self,
        call: Callable[[Callable[[Any], None], Any], None],
        full: Callable[[], bool],
        answer: Callable[[Any], None],
    ) -> None:
        self._call = call
        self._full = full
        self._answer = answer
        self._waiting: deque[Any] = deque()
        self._called = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Any) -> None:
        self._waiting.append(request)
        self.go_on()

    def go_on(self) -> None:
        """There may be room again."""
        if self._waiting and not self._called and not self._full():
            self._called = True
            self._call(self._next, None)

    def clear(self) -> None:
        self._waiting.clear()

    def _next(self, _: None) -> None:
        self._called = False
        if self._waiting and not self._full():
            self._answer(self._waiting.popleft())
        self.go_on()
