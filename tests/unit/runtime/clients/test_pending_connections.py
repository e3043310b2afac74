"""Pending connections: their actions are deferred in order, and join the common queue once the connections are not
pending any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from migratory_broker.core.edge.events import Lost, Opened, Paused
from migratory_broker.runtime.clients.pending import PendingConnections
from migratory_broker.runtime.clients.unhandled import ClientInput

pytestmark = pytest.mark.interpreted  # compiled connections take no stand-in for the pump


class Pump:
    """A stand-in for the pump: its two queues, and the edge's events."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.line: list[tuple[Callable[[Any], None], Any]] = []
        self.late: list[tuple[Callable[[Any], None], Any]] = []

    def step_edge(self, event: Any) -> None:
        self.told.append(event)

    def call_for_client(self, action: Callable[[Any], None], argument: Any) -> None:
        self.line.append((action, argument))

    def defer(self, action: Callable[[Any], None], argument: Any) -> None:
        self.late.append((action, argument))

    def work(self, line: list[tuple[Callable[[Any], None], Any]], most: int = 1000) -> list[Any]:
        """Run up to `most` actions of a queue, and return the events that the edge received from them."""
        self.told.clear()
        for _ in range(min(most, len(line))):
            action, argument = line.pop(0)
            action(argument)
        return list(self.told)


def opened(number: int) -> Opened:
    return Opened(number, "json", "10.0.0.1:1")


def site() -> tuple[Pump, PendingConnections]:
    pump = Pump()
    return pump, PendingConnections(pump)  # type: ignore[arg-type]


def test_established_connections_do_not_wait_for_pending_ones() -> None:
    pump, pending = site()
    pending.add(opened(1))
    pending.post(1, pump.step_edge, ClientInput(1))
    pump.work(pump.late)
    for number in range(2, 100):
        pending.add(opened(number))
        pending.post(number, pump.step_edge, ClientInput(number))
    publish = ClientInput(1)
    pending.post(1, pump.step_edge, publish)
    assert pump.work(pump.line) == [publish]
    assert len(pending) == 98
    assert [pending.is_pending(number) for number in (1, 2)] == [False, True]
    assert len(pump.work(pump.late)) == 2 * 98
    assert len(pending) == 0


def test_actions_of_one_connection_keep_their_order() -> None:
    """The events of one connection reach the edge in order: they stay in the late queue until it has no action of
    the connection left, and only then use the common queue."""
    pump, pending = site()
    read = ClientInput(1)  # the same object for each read
    events: list[Any] = [opened(1), read, read, Paused(1), read]
    pending.add(events[0])
    for event in events[1:4]:
        pending.post(1, pump.step_edge, event)
    assert pump.work(pump.late, 2) == events[:2]
    pending.post(1, pump.step_edge, events[4])
    assert pump.line == []
    assert pump.work(pump.late) == events[2:]
    pending.post(1, pump.step_edge, read)
    assert pump.work(pump.line) == [read]


def test_a_pending_connection_lost_without_data_is_forgotten() -> None:
    pump, pending = site()
    pending.add(opened(1))
    assert pump.work(pump.late) == [opened(1)]
    assert len(pending) == 1
    pending.post(1, pump.step_edge, Lost(1))
    assert pump.work(pump.late) == [Lost(1)]
    assert len(pending) == 0
