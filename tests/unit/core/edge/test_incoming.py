"""What all clients together have sent and is not worked off: bounded, and whoever holds most goes."""

from __future__ import annotations

from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.logic.events import Attach
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Publish,
    Subscribe,
    TopicRequest,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, Reader


def half(reader: Reader, size: int) -> bytes:
    """A message that misses its last byte."""
    return reader.frame(Publish("x", bytes(size)))[:-1]


def test_half_sent_messages_of_all_clients_are_bounded_and_the_largest_go() -> None:
    bench = Bench(EdgeConfig(incoming_total=10_000, messages_per_turn=10))
    readers = [bench.client() for _ in range(4)]
    readers[0].raw(half(readers[0], 2000))
    readers[1].raw(half(readers[1], 5000))
    readers[2].raw(half(readers[2], 1500))
    incoming = bench.edge._connections.inbox.unprocessed
    assert 8500 < incoming.total < 9000
    readers[3].raw(half(readers[3], 1800))
    assert [reader.close_code for reader in readers] == [None, CloseCode.TRY_ANOTHER, None, None]
    assert 5300 < incoming.total < 5600
    assert bench.edge.closed["incoming"] == 1
    readers[1].raw(b"\x00" * 500)  # the rest of its message: nobody looks at that any more
    for reader in (readers[0], readers[2], readers[3]):
        reader.raw(b"\x00")
    assert incoming.total < 1000
    readers[0].lose()
    readers[1].lose()
    assert incoming.total == 0
    assert incoming._held == {}


def test_several_go_until_there_is_room_again() -> None:
    bench = Bench(EdgeConfig(incoming_total=10_000))
    readers = [bench.client() for _ in range(11)]
    for reader in readers:
        reader.raw(half(reader, 900))
    closed = [reader for reader in readers if reader.close_code is not None]
    assert {reader.close_code for reader in closed} == {CloseCode.TRY_ANOTHER}
    assert len(closed) == 2  # to seven eighths
    assert bench.edge._connections.inbox.unprocessed.total <= 8750


def test_what_waits_behind_a_request_counts_until_it_is_worked_off() -> None:
    bench = Bench(EdgeConfig(attaches_per_client=1, incoming_total=5000))
    reader = bench.client()
    reader.say(Subscribe(1, [TopicRequest("a"), TopicRequest("b")]))
    reader.raw(reader.frame(Publish("x", bytes(1000))))
    incoming = bench.edge._connections.inbox.unprocessed
    assert incoming.total > 1000
    for attach in bench.asked(Attach):
        bench.attached(attach, Position(1, 0))
    assert incoming.total == 0
    assert reader.close_code is None
    reader.say(Subscribe(2, [TopicRequest("c"), TopicRequest("d")]))
    reader.raw(reader.frame(Publish("x", bytes(6000))))
    assert reader.close_code == CloseCode.TRY_ANOTHER
    assert incoming.total == 0
    assert bench.held == set()
