"""The memory of an idle client is small, closed connections hold none, and a fan-out allocates nothing per
subscriber."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest
from migratory_broker.core.edge import Edge, EdgeConfig
from migratory_broker.core.edge.events import Lost, Multicast, Opened, Received
from migratory_broker.core.logic.events import Admission, Attach, Attached, Fanout, Tick
from migratory_protocol.codec import MSGPACK
from migratory_protocol.frames import binary_frame, pong_frame
from migratory_protocol.messages import Connect, Subscribe, TopicRequest
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, publication

IDLE = 600  # bytes per idle subscribed connection; 500 were measured with Python 3.11


def connect(edge: Edge, first: int, count: int, start: float = 1.0) -> None:
    for number in range(first, first + count):
        now = start + (number - first) / 1000
        edge.step(Opened(number, "msgpack", f"127.0.0.1:{10_000 + number}"), now)
        topic = f"quotes/{number % 20:03}"
        data = b"".join(
            binary_frame(MSGPACK.encode(message), MASK)
            for message in (Connect(client=f"client-{number}"), Subscribe(1, [TopicRequest(topic)]))
        )
        (attach,) = (effect for effect in edge.step(Received(number, data), now) if isinstance(effect, Attach))
        edge.step(Attached(0, attach.reference, topic, "complete", Position(1, 0)), now)


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def ready() -> Edge:
    edge = Edge(EdgeConfig())
    edge.step(Admission(True), 0.0)
    connect(edge, 0, 100)
    return edge


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.unmeasured
def test_idle_subscriber_takes_little_memory(traced: None) -> None:
    edge = ready()
    before = held()
    connect(edge, 100, 2000)
    for number in range(20):
        edge.step(Fanout(f"quotes/{number:03}", (publication(1),)), 6.0)
    assert (held() - before) / 2000 < IDLE


@pytest.mark.unmeasured
def test_closed_connections_hold_no_memory(traced: None) -> None:
    edge = ready()
    sizes = []
    for cycle in range(1, 5):
        start = 60.0 * cycle
        connect(edge, 1000 * cycle, 300, start)
        for number in range(1000 * cycle, 1000 * cycle + 300):
            edge.step(Lost(number), start + 1)
        for second in range(5, 60, 5):
            for number in range(100):
                edge.step(Received(number, pong_frame(b"", MASK)), start + second)
            edge.step(Tick(), start + second)
        sizes.append(held())
    assert max(sizes[1:]) - min(sizes[1:]) < 20_000
    assert (edge.clients, edge.status()["connections"]) == (100, 100)


@pytest.mark.unmeasured
def test_fanout_allocates_nothing_per_subscriber(traced: None) -> None:
    edge = ready()
    peaks: list[int] = []
    for count, first in ((200, 1000), (2000, 2000)):
        connect(edge, first, count)
        edge.step(Fanout("quotes/000", (publication(len(peaks) * 2 + 1),)), 10.0)
        gc.collect()
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        (effect,) = edge.step(Fanout("quotes/000", (publication(len(peaks) * 2 + 2),)), 10.0)
        peaks.append(tracemalloc.get_traced_memory()[1] - start)
        assert isinstance(effect, Multicast)
    assert peaks[1] - peaks[0] < 512
    assert peaks[1] < 8192
