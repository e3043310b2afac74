"""Conflation: the latest publication of each interval names those that it replaces. QoS 1 publications are never left
out. Also the patterns by which rules choose topics."""

from __future__ import annotations

import sys
from typing import Literal

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.config import ConflationRule
from migratory_broker.core.logic.events import Gap
from migratory_protocol.messages import Message, Subscribe, Subscribed, TopicRequest, Unsubscribe
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_protocol.topics import TopicPattern
from migratory_testing.edges import Bench, Reader, publication, publications, receipts

RULES = (ConflationRule("ticks/**", 0.25), ConflationRule("slow/*", 1.0))


def acknowledged(sequence: int) -> Publication:
    return Publication(1, sequence, b"%d" % sequence, "p", sequence, 1000.0)


def live_reader(table: Bench, topic: str = "ticks/eur", wire: Literal["json", "msgpack"] = "msgpack") -> Reader:
    reader = table.client(wire=wire)
    reader.subscribe_live(topic)
    reader.received.clear()
    return reader


def got(reader: Reader) -> list[tuple[int, int]]:
    """Return the sequence number of each message, and of the first one that it replaces (0: none)."""
    return [(message.position.sequence, message.first) for message in reader.take(Message)]


@pytest.fixture
def table() -> Bench:
    return Bench(EdgeConfig(conflation=RULES))


@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_first_publication_is_sent_at_once_then_the_latest_of_each_interval(
    table: Bench, wire: Literal["json", "msgpack"]
) -> None:
    reader = live_reader(table, wire=wire)
    table.fanout("ticks/eur", publication(1))
    assert got(reader) == [(1, 0)]
    for sequence in (2, 3, 4):
        table.fanout("ticks/eur", publication(sequence))
    assert got(reader) == []
    table.wait(0.3, tick=0.05)
    assert got(reader) == [(4, 2)]
    table.fanout("ticks/eur", publication(5))
    assert got(reader) == []
    table.wait(0.25, tick=0.05)
    assert got(reader) == [(5, 0)]  # it replaces only itself
    table.wait(0.5, tick=0.05)
    table.fanout("ticks/eur", publication(6), publication(7))
    assert got(reader) == [(7, 6)]  # after a quiet interval: at once, the latest of the turn
    table.wait(1.0)
    assert got(reader) == []


def test_qos_1_is_sent_at_once_and_never_left_out(table: Bench) -> None:
    reader = live_reader(table)
    table.fanout("ticks/eur", publication(1))
    table.fanout("ticks/eur", publication(2), acknowledged(3), acknowledged(4), publication(5))
    assert got(reader) == [(1, 0), (3, 2), (4, 0)]
    table.wait(0.3)
    assert got(reader) == [(5, 0)]


def test_other_topics_are_not_conflated(table: Bench) -> None:
    reader = live_reader(table, "quotes/eur")
    for sequence in (1, 2, 3):
        table.fanout("quotes/eur", publication(sequence))
    assert got(reader) == [(1, 0), (2, 0), (3, 0)]


def test_each_rule_has_its_interval(table: Bench) -> None:
    quick, slow = live_reader(table), live_reader(table, "slow/eur")
    for topic in ("ticks/eur", "slow/eur"):
        table.fanout(topic, publication(1))
        table.fanout(topic, publication(2))
    table.wait(0.3)
    assert (got(quick), got(slow)) == ([(1, 0), (2, 0)], [(1, 0)])
    table.wait(0.8)
    assert got(slow) == [(2, 0)]


def test_new_subscriber_gets_nothing_covered_by_its_receipt(table: Bench) -> None:
    old = live_reader(table)
    table.fanout("ticks/eur", publication(1))
    table.fanout("ticks/eur", publication(2))
    new = table.client()
    attach = new.subscribe("ticks/eur")
    table.attached(attach, Position(1, 2))
    assert got(old) == [(1, 0), (2, 0)]  # it left before the other one joined
    assert got(new) == []
    table.fanout("ticks/eur", publication(3))
    table.wait(0.3)
    assert got(old) == got(new) == [(3, 0)]


def test_replay_has_everything_and_joins_live_without_gap(table: Bench) -> None:
    old = live_reader(table)
    table.fanout("ticks/eur", *publications(1, 3))
    table.fanout("ticks/eur", publication(4))
    new = table.client()
    attach = new.subscribe("ticks/eur", Position(1, 1))
    table.attached(attach, Position(1, 5), publications=publications(2, 5))  # ahead of the fan-outs
    table.fanout("ticks/eur", publication(5))
    table.fanout("ticks/eur", publication(6))
    table.wait(0.5)
    assert got(new) == [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0)]
    assert got(old) == [(3, 1), (5, 4), (6, 0)]


def test_gap_comes_behind_the_pending_publication(table: Bench) -> None:
    reader = live_reader(table)
    table.fanout("ticks/eur", publication(1))
    table.fanout("ticks/eur", publication(2))
    table.step(Gap("ticks/eur", "truncated", Position(1, 5), 3, 5))
    assert [type(message) for message in reader.received] == [Message, Message, Subscribed]
    assert receipts(reader.take(Subscribed)) == [(0, "truncated", 3, 5)]
    table.fanout("ticks/eur", publication(6))
    table.step(Gap("ticks/eur", "reset", Position(9, 0)))
    assert [type(message) for message in reader.received] == [Message, Subscribed]
    table.wait(0.3)
    assert len(reader.received) == 2


def test_repeated_subscribe_flushes_the_pending_publication(table: Bench) -> None:
    reader = live_reader(table)
    table.fanout("ticks/eur", publication(1))
    table.fanout("ticks/eur", publication(2))
    reader.send(Subscribe(2, [TopicRequest("ticks/eur")]))
    assert [type(message) for message in reader.received] == [Message, Message, Subscribed]


def test_topic_without_subscribers_is_forgotten(table: Bench) -> None:
    reader = live_reader(table)
    table.fanout("ticks/eur", publication(1))
    table.fanout("ticks/eur", publication(2))
    reader.send(Unsubscribe(2, ["ticks/eur"]))
    reader.received.clear()
    table.wait(0.5)
    assert reader.received == []
    reader.subscribe_live("ticks/eur", Position(1, 2))
    reader.received.clear()
    table.fanout("ticks/eur", publication(3))
    assert got(reader) == [(3, 0)]


@pytest.mark.parametrize("batch_delay", [0.0, 0.1])
def test_topic_without_subscribers_holds_no_memory(batch_delay: float) -> None:
    """A conflated topic whose last subscriber leaves drops the publication that waits for its interval, so that its
    memory is free at once."""
    table = Bench(EdgeConfig(conflation=RULES, batch_delay=batch_delay))
    reader, other = live_reader(table, "slow/eur"), live_reader(table, "slow/usd")
    payload = bytes(1000)
    table.fanout("slow/usd", publication(1))
    table.fanout("slow/eur", publication(1))
    for topic in ("slow/eur", "slow/usd"):
        table.fanout(topic, publication(2, payload))
    reader.send(Unsubscribe(2, ["slow/eur"]))
    assert sys.getrefcount(payload) == 3  # the local name, the argument, and the other subscriber's
    table.wait(1.2)
    assert got(other) == [(1, 0), (2, 0)]
    assert sys.getrefcount(payload) == 2


def test_latest_of_an_interval_waits_for_its_batch() -> None:
    table = Bench(EdgeConfig(conflation=RULES, batch_delay=0.1))
    reader = live_reader(table)
    for sequence in range(1, 4):
        table.fanout("ticks/eur", publication(sequence))
    table.wait(0.4, tick=0.05)
    assert got(reader) == [(1, 0), (3, 2)]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("ticks/**", ["ticks/", "ticks/eur", "ticks/eur/spot", "ticks/\n"], ["ticks", "xticks/eur"]),
        ("ticks/*", ["ticks/", "ticks/eur"], ["ticks/eur/spot"]),
        ("*/spot", ["eur/spot", "/spot"], ["a/eur/spot", "eur/spotted"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)", "a.bb(c)"]),
        ("**", ["", "anything/at all"], []),
        ("*a*a/b", ["aa/b", "a-a-a/b"], ["a/b", "aa/", "a/a/b"]),
        ("**a*b", ["ab", "a/ab", "ab/a-b"], ["a/b", "b"]),
        ("orders/*-*-*", ["orders/1-2-3", "orders/--"], ["orders/1-2", "orders/1-2-3/4"]),
    ],
)
def test_topic_pattern_matches(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = TopicPattern(pattern)
    assert [topic for topic in yes + no if compiled.matches(topic)] == yes


@pytest.mark.timeout(10)
def test_topic_pattern_matches_hostile_name_quickly() -> None:
    """Topic patterns with many wildcards reject a hostile topic name within the test's 10 s. Clients choose the
    names, and backtracking would block the broker for hours."""
    assert not TopicPattern("orders/*-*-*-*-*-*-*-*").matches("orders/" + "-" * 240 + "/")
    assert not TopicPattern("*a" * 127).matches("a" * 254 + "/")
    assert not TopicPattern("**a" * 85 + "/").matches("a" * 255)


def test_invalid_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        ConflationRule("ticks/**", 0.0)
