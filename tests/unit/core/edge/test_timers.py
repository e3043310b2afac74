"""The timer wheel: each timer fires once and in time; replaced and cancelled timers leave no memory in use."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from migratory_broker.core.edge import Edge, EdgeConfig
from migratory_broker.core.edge.events import Lost, Opened, Received
from migratory_broker.core.edge.http import Formats
from migratory_broker.core.edge.state import ClientConnection
from migratory_broker.core.edge.timers import GRAIN, TimerWheel
from migratory_broker.core.logic.events import Admission, Tick
from migratory_protocol.codec import JSON
from migratory_protocol.frames import close_frame, text_frame
from migratory_protocol.messages import Connect
from migratory_testing.edges import MASK


def connection(number: int = 1) -> ClientConnection:
    return ClientConnection(number, Formats(1).get("json", False), "127.0.0.1:1", 0.0)


def fired(wheel: TimerWheel, now: float) -> list[int]:
    return [client.number for client in wheel.expire(now)]


def test_timer_fires_once_after_its_time() -> None:
    wheel, client = TimerWheel(), connection()
    wheel.schedule(client, 5.0)
    assert fired(wheel, 5.0) == []
    assert fired(wheel, 5.0 + 2 * GRAIN) == [1]
    assert fired(wheel, 100.0) == []


@pytest.mark.parametrize("due", [2.0, 9.0])
def test_rescheduled_timer_replaces_the_former(due: float) -> None:
    wheel, client = TimerWheel(), connection()
    for moment in (5.0, due, due):
        wheel.schedule(client, moment)
    assert fired(wheel, due) == []
    assert fired(wheel, due + 2 * GRAIN) == [1]
    assert fired(wheel, 100.0) == []


def test_cancelled_timer_never_fires_and_can_be_scheduled_again() -> None:
    wheel, first, second = TimerWheel(), connection(1), connection(2)
    wheel.schedule(first, 5.0)
    wheel.schedule(second, 5.0)
    wheel.cancel(first)
    wheel.cancel(first)
    assert fired(wheel, 6.0) == [2]
    wheel.schedule(first, 7.0)
    assert fired(wheel, 8.0) == [1]


def test_expired_timer_may_reschedule_or_cancel_others() -> None:
    wheel = TimerWheel()
    first, moved, ended, later = (connection(number) for number in range(1, 5))
    for due, client in ((1.0, first), (1.0, moved), (1.0, ended), (2.0, later)):
        wheel.schedule(client, due)
    order = []
    for expired in wheel.expire(10.0):
        order.append(expired.number)
        wheel.schedule(moved, 11.0)
        wheel.cancel(ended)
        wheel.cancel(later)
    assert order == [1]
    assert fired(wheel, 12.0) == [2]


def ended_by_its_client(edge: Edge) -> None:
    edge.step(Received(1, close_frame(1000, "", MASK)), 2.0)


def lost(edge: Edge) -> None:
    edge.step(Lost(1), 2.0)


def dead(edge: Edge) -> None:
    for second in range(2, 7300):  # a longer step would count as a stopped process
        edge.step(Tick(), second)


def held(client: str) -> int:
    """Return the number of the client's connection objects in memory, without a garbage collection before."""
    return sum(isinstance(thing, ClientConnection) and thing.client == client for thing in gc.get_objects())


@pytest.mark.parametrize("end", [ended_by_its_client, lost, dead])
def test_timer_does_not_hold_a_closed_connection(end: Callable[[Edge], None]) -> None:
    """A closed connection is freed at once, although its two timers, the handshake limit and the heartbeat, are due
    far in the future."""
    client = f"reader-{end.__name__}"
    edge = Edge(EdgeConfig(handshake=100_000.0, heartbeat=3600.0))
    edge.step(Admission(True), 0.0)
    edge.step(Opened(1, "json", "127.0.0.1:5000"), 1.0)
    edge.step(Received(1, text_frame(JSON.encode(Connect(client=client)), MASK)), 1.0)
    assert held(client) == 1
    end(edge)
    assert edge.status()["connections"] == 0
    assert held(client) == 0
