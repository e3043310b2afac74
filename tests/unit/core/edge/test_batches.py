"""Batching: several publications in one write, without loss, and in the right order with other writes."""

from __future__ import annotations

from typing import Literal

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.config import ConflationRule
from migratory_broker.core.edge.events import Later, Multicast, Send
from migratory_broker.core.logic.events import Gap, Tick
from migratory_protocol.messages import Bye, Message, Ping, Pong, Subscribed, Unsubscribe, Unsubscribed
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, Reader, publication, publications


def bench(**limits: object) -> Bench:
    return Bench(EdgeConfig(batch_delay=0.1, **limits))  # type: ignore[arg-type]


def live_reader(
    bench: Bench, *topics: str, wire: Literal["json", "msgpack"] = "msgpack", deflate: bool = False
) -> Reader:
    reader = bench.client(wire=wire, deflate=deflate)
    for topic in topics:
        reader.subscribe_live(topic)
    reader.received.clear()
    reader.writes.clear()
    return reader


@pytest.mark.parametrize("wire", ["json", "msgpack"])
@pytest.mark.parametrize("deflate", [False, True])
def test_publications_within_the_delay_are_one_write(wire: Literal["json", "msgpack"], deflate: bool) -> None:
    table = bench()
    reader = live_reader(table, "t", "u", wire=wire, deflate=deflate)
    table.fanout("t", publication(1, b"x" * 300))
    table.fanout("u", publication(1), publication(2))
    table.fanout("t", publication(2))
    assert reader.writes == []
    assert table.edge.delivered == 0
    table.wait(0.1)
    assert len(reader.writes) == 1
    delivered = [(m.topic, m.position.sequence) for m in reader.take(Message)]
    assert delivered == [("t", 1), ("u", 1), ("u", 2), ("t", 2)]
    assert table.edge.delivered == 4
    assert table.edge.sent_bytes >= len(reader.writes[0])
    table.fanout("t", publication(3))
    table.wait(0.1)
    assert reader.sequences("t") == [3]


def test_clients_with_the_same_batch_share_one_effect() -> None:
    table = bench()
    readers = [live_reader(table, "t"), live_reader(table, "t"), live_reader(table, "t", "u")]
    table.fanout("t", publication(1))
    table.fanout("t", publication(2))
    table.fanout("u", publication(1))
    (later,) = table.later
    table.later.clear()
    table.now = later.at
    effects = table.step(later)
    assert [len(effect.recipients.connections) for effect in effects if isinstance(effect, Multicast)] == [2, 1]
    assert [len(reader.writes) for reader in readers] == [1, 1, 1]
    assert not table.later  # no batch remains, so no timer


def test_batch_is_written_early_at_its_size_limit() -> None:
    table = bench(batch_bytes=300)
    reader = live_reader(table, "t")
    table.fanout("t", publication(1, b"x" * 200))
    assert reader.writes == []
    table.fanout("t", publication(2, b"x" * 200))
    assert reader.sequences("t") == [1, 2]
    assert len(reader.writes) == 1


def test_batches_due_together_share_one_timer() -> None:
    """Batches that are due within a short time are written together; for later ones the edge sets another timer, one
    at a time."""
    table = bench()
    first, second, third = live_reader(table, "t"), live_reader(table, "u"), live_reader(table, "v")
    table.fanout("t", publication(1))
    table.now += 0.005
    table.fanout("u", publication(1))
    table.now += 0.05
    table.fanout("v", publication(1))
    assert [round(later.at, 3) for later in table.later] == [1000.1]
    table.now = table.later[0].at
    table.step(table.later.pop())
    assert (len(first.writes), len(second.writes), len(third.writes)) == (1, 1, 0)
    assert [round(later.at, 3) for later in table.later] == [1000.155]
    table.step(Later(1.0))  # an earlier timer comes late: nothing happens
    assert not third.writes
    table.wait(0.1)
    assert len(third.writes) == 1


def test_other_writes_flush_the_batch_first() -> None:
    table = bench()
    reader = live_reader(table, "t")
    table.fanout("t", publication(1))
    effects = reader.send(Ping())
    assert [type(message) for message in reader.received] == [Message, Pong]
    assert [type(effect) for effect in effects] == [Send]
    reader.received.clear()
    table.fanout("t", publication(2))
    reader.send(Unsubscribe(5, ["t"]))
    assert [type(message) for message in reader.received] == [Message, Unsubscribed]
    table.wait(0.3)
    assert len(reader.received) == 2


def test_gap_receipt_keeps_its_place_among_publications() -> None:
    table = bench()
    reader = live_reader(table, "t")
    table.fanout("t", publication(1))
    table.step(Gap("t", "truncated", Position(1, 4), 2, 4))
    table.fanout("t", publication(5))
    table.wait(0.1)
    assert [type(message) for message in reader.received] == [Message, Subscribed, Message]


def test_close_flushes_the_batch() -> None:
    table = bench()
    leaving, closed, aborted = live_reader(table, "t"), live_reader(table, "t"), live_reader(table, "t")
    table.fanout("t", publication(1))
    leaving.send(Bye())
    assert (leaving.sequences("t"), leaving.close_code) == ([1], 1000)
    closed.send_bytes(b"\x88\x82\x00\x00\x00\x00\x03\xe8")
    assert (closed.sequences("t"), closed.close_code) == ([1], 1000)
    aborted.lose_socket()
    table.wait(0.3)
    assert aborted.writes == []


def test_dead_client_holds_no_batch() -> None:
    table = bench(heartbeat=1.0)
    reader = live_reader(table, "t")
    table.now += 2.0
    table.fanout("t", publication(1))
    table.wait(0.1, tick=0.05)
    assert reader.socket == "aborted"
    assert reader.writes == [] or reader.sequences("t") == [1]
    table.wait(1.0)


def test_pause_moves_the_batch_to_the_queue() -> None:
    table = bench()
    reader = live_reader(table, "t")
    table.fanout("t", publication(1))
    reader.pause()
    table.fanout("t", publication(2))
    table.wait(0.5)
    assert reader.writes == []
    assert table.edge.queue_bytes > 0
    reader.resume()
    table.fanout("t", publication(3))
    table.wait(0.1)
    assert reader.sequences("t") == [1, 2, 3]
    assert table.edge.queue_bytes == 0


def test_client_of_two_topics_gets_each_publication_once_and_in_time() -> None:
    """A client of two topics gets its batch when its own oldest publication is due, and each publication once, in
    order, also when the topics' other subscribers get theirs at another time."""
    table = bench()
    alone, both = live_reader(table, "t"), live_reader(table, "t", "u")
    table.fanout("u", publication(1))
    table.now += 0.05
    table.fanout("t", publication(1))
    table.wait(0.06, tick=0.01)
    assert [message.topic for message in both.take(Message)] == ["u", "t"]
    assert alone.received == []
    table.fanout("t", publication(2))
    table.wait(0.04, tick=0.01)
    assert alone.sequences("t") == [1, 2]
    assert both.received == []
    table.fanout("t", publication(3))
    table.fanout("u", publication(2))
    table.wait(0.2, tick=0.01)
    assert [(m.topic, m.position.sequence) for m in both.take(Message)] == [("t", 2), ("t", 3), ("u", 2)]
    assert alone.sequences("t") == [1, 2, 3]
    assert [len(reader.writes) for reader in (alone, both)] == [2, 2]


def test_new_subscriber_gets_no_earlier_batch() -> None:
    table = bench()
    first, second = live_reader(table, "t"), live_reader(table, "u")
    table.fanout("t", publication(1))
    table.fanout("u", publication(1))
    second.subscribe_live("t", Position(1, 1))
    assert [type(message) for message in second.received] == [Message, Subscribed]
    table.fanout("t", publication(2))
    second.send(Unsubscribe(5, ["t"]))
    table.fanout("t", publication(3))
    table.wait(0.1)
    assert [(m.topic, m.position.sequence) for m in second.take(Message)] == [("u", 1), ("t", 2)]
    assert first.sequences("t") == [1, 2, 3]


def test_replaying_subscriber_has_no_batch() -> None:
    table = bench()
    live_in_both, replaying = live_reader(table, "t", "u"), live_reader(table, "t")
    attach = replaying.subscribe("u", Position(1, 0))
    for topic in "tu":
        table.fanout(topic, publication(1))
    table.wait(0.1)
    assert [message.topic for message in live_in_both.take(Message)] == ["t", "u"]
    assert [message.topic for message in replaying.take(Message)] == ["t"]
    table.attached(attach, Position(1, 1), publications=publications(1, 1))
    table.wait(0.1)
    assert replaying.sequences("u") == [1]


def test_batches_are_written_early_at_the_queue_limit() -> None:
    table = bench(queue_per_client=500)
    readers = [live_reader(table, "t", "u", "v"), live_reader(table, "t"), live_reader(table, "w")]
    for topic in "tu":
        table.fanout(topic, publication(1, b"x" * 200))
    assert [reader.writes for reader in readers] == [[], [], []]
    table.fanout("v", publication(1, b"x" * 200))
    assert [len(reader.writes) for reader in readers] == [1, 1, 0]
    assert [message.topic for message in readers[0].take(Message)] == ["t", "u", "v"]
    table.wait(0.1)
    assert not table.later


def test_briefly_paused_client_gets_each_publication_once() -> None:
    table = bench()
    reader, other = live_reader(table, "t", wire="json"), live_reader(table, "t")
    table.fanout("t", publication(1))
    reader.pause()
    table.fanout("t", publication(2))
    reader.resume()
    table.fanout("t", publication(3))
    table.wait(0.1)
    assert reader.sequences("t") == other.sequences("t") == [1, 2, 3]
    assert table.edge.delivered == 6


def test_batch_of_topic_without_subscribers_is_dropped() -> None:
    table = bench()
    leaving, aborted = live_reader(table, "t"), live_reader(table, "t")
    table.fanout("t", publication(1))
    leaving.send(Unsubscribe(5, ["t"]))
    aborted.lose_socket()
    table.wait(0.1)
    assert leaving.sequences("t") == [1]
    assert not table.later
    leaving.subscribe_live("t", Position(1, 1))
    table.fanout("t", publication(2))
    table.wait(0.1)
    assert leaving.sequences("t") == [1, 2]


@pytest.mark.parametrize("reset", [False, True])
def test_new_subscriber_gets_no_pending_conflated_publication(reset: bool) -> None:
    table = bench(conflation=(ConflationRule("t", 1.0),))
    before, joining = live_reader(table, "t", "u"), live_reader(table, "u")
    table.fanout("t", publication(1))
    table.fanout("t", publication(2))
    attach = joining.subscribe("t", Position(1, 0))
    table.attached(attach, Position(1, 2), publications=publications(1, 2), done=not reset)
    if reset:
        table.step(Gap("t", "reset", Position(2, 0)))
    table.wait(0.1)
    assert before.sequences("t") == joining.sequences("t") == [1, 2]


def test_replay_comes_before_later_fanouts() -> None:
    table = bench()
    other = live_reader(table, "t")
    reader = table.client()
    attach = reader.subscribe("t", Position(1, 0))
    table.fanout("t", publication(1))
    table.attached(attach, Position(1, 1), publications=publications(1, 1))
    table.fanout("t", publication(2))
    table.wait(0.1)
    assert reader.sequences("t") == other.sequences("t") == [1, 2]


def test_invalid_batch_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_delay"):
        EdgeConfig(batch_delay=-1.0)
    with pytest.raises(ValueError, match="batch_bytes"):
        EdgeConfig(batch_bytes=0)


def test_pings_of_one_tick_are_one_effect_behind_batches() -> None:
    table = Bench(EdgeConfig(batch_delay=1.0, heartbeat=2.0))
    idle, busy, slow = live_reader(table), live_reader(table, "t"), live_reader(table)
    slow.pause()
    table.now += 1.95
    table.fanout("t", publication(1))
    table.now += 0.2
    effects = table.step(Tick())
    assert [len(effect.recipients.connections) for effect in effects if isinstance(effect, Multicast)] == [1]
    assert len(idle.controls) == 1
    assert busy.sequences("t") == [1]  # it was written before the ping
    assert len(busy.controls) == 1
    assert slow.controls == []
    slow.resume()
    assert len(slow.controls) == 1
