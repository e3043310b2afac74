"""Deferred requests of an I/O process: when they wait and in which order they are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from migratory_broker.runtime.io_processes.handle import DeferredRequests


class Channel:
    """A stand-in for a channel that has room for some answers, with a queue of calls."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.answered: list[Any] = []
        self.held = DeferredRequests(lambda *call: self.calls.append(call), lambda: not self.room, self._answer)

    def _answer(self, request: Any) -> None:
        self.room -= 1
        self.answered.append(request)

    def turn(self) -> None:
        action, argument = self.calls.popleft()
        action(argument)


def test_deferred_requests_are_answered_one_at_a_time_in_order() -> None:
    channel = Channel(10)
    for request in "abc":
        channel.held.put(request)
    channel.held.resume()
    for answered in ("a", "ab", "abc"):
        assert len(channel.calls) == 1, "what comes meanwhile gets its turn in between"
        channel.turn()
        assert "".join(channel.answered) == answered
    assert not channel.calls
    assert len(channel.held) == 0


def test_deferred_requests_wait_for_room_in_the_channel() -> None:
    channel = Channel(2)
    for request in "abc":
        channel.held.put(request)
    channel.turn()
    channel.room = 0  # something else took it
    channel.turn()
    assert channel.answered == ["a"]
    assert not channel.calls
    channel.held.put("d")
    assert not channel.calls
    assert len(channel.held) == 3
    channel.room = 3
    channel.held.resume()
    while channel.calls:
        channel.turn()
    assert "".join(channel.answered) == "abcd"


def test_cleared_requests_are_not_answered() -> None:
    channel = Channel(2)
    channel.held.put("a")
    channel.held.clear()
    channel.turn()
    assert channel.answered == []
    assert not channel.calls
