"""Pending connections: their actions are deferred in order, and join the common queue once the connections are not
pending any more."""

from __future__ import annotations

from typing import Any

from migratory_broker.core.edge.events import Lost, Opened, Paused
from migratory_broker.runtime.clients.pending import PendingConnections
from migratory_broker.runtime.clients.unhandled import ClientInput
from migratory_testing.pumps import RecordedPump


def opened(number: int) -> Opened:
    return Opened(number, "json", "10.0.0.1:1")


def build() -> tuple[RecordedPump, PendingConnections]:
    recorded = RecordedPump()
    return recorded, PendingConnections(recorded.pump)


def test_established_connections_do_not_wait_for_pending_ones() -> None:
    recorded, pending = build()
    step = recorded.pump.step_edge
    pending.add(opened(1))
    pending.post(1, step, ClientInput(1))
    recorded.turn()
    for number in range(2, 100):
        pending.add(opened(number))
        pending.post(number, step, ClientInput(number))
    publish = ClientInput(1)
    pending.post(1, step, publish)
    assert len(pending) == 98
    assert [pending.is_pending(number) for number in (1, 2)] == [False, True]
    handled = recorded.turn()
    assert handled[0] is publish
    assert len(handled) == 1 + 2 * 98
    assert len(pending) == 0


def test_actions_of_one_connection_keep_their_order() -> None:
    """The events of one connection reach the edge in order: they stay in the deferred queue until it has no action of
    the connection left, and only then use the common queue."""
    recorded, pending = build()
    step = recorded.pump.step_edge
    read = ClientInput(1)  # the same object for each read
    events: list[Any] = [opened(1), read, read, Paused(1), read]
    pending.add(events[0])
    for event in events[1:4]:
        pending.post(1, step, event)
    assert recorded.turn(2) == events[:2]
    pending.post(1, step, events[4])
    assert recorded.turn() == events[2:]
    pending.add(opened(2))
    pending.post(1, step, read)
    assert recorded.turn() == [read, opened(2)]


def test_a_pending_connection_lost_without_data_is_forgotten() -> None:
    recorded, pending = build()
    pending.add(opened(1))
    assert recorded.turn() == [opened(1)]
    assert len(pending) == 1
    pending.post(1, recorded.pump.step_edge, Lost(1))
    assert recorded.turn() == [Lost(1)]
    assert len(pending) == 0
