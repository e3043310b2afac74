"""The splice of replay and live stream: the receipt comes first, and there is no gap and no repetition."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Multicast, Send
from migratory_broker.core.logic.events import Attach, Attached, NextPage, Page
from migratory_protocol.messages import Message, Subscribed, TopicReceipt
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, publication, publications, receipts


def test_receipt_precedes_replay_and_replay_precedes_live() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t", (1, 2), request=9)
    assert attach == Attach(0, attach.reference, "t", Position(1, 2), False, 8192)
    bench.attached(attach, Position(1, 4), publications=publications(3, 4))
    bench.fanout("t", publication(5))
    receipt = Subscribed(9, [TopicReceipt("t", "complete", Position(1, 4))])
    replayed = [Message("t", Position(1, n), b"%d" % n, None, 1000.0, True) for n in (3, 4)]
    live = Message("t", Position(1, 5), b"5", None, 1000.0)
    assert reader.received == [receipt, *replayed, live]


def test_live_publications_during_a_replay_come_in_its_pages() -> None:
    bench = Bench()
    reader, other = bench.client(), bench.client()
    other.subscribe_live("t", Position(1, 4))
    attach = reader.subscribe("t", (1, 0))
    bench.attached(attach, Position(1, 4), publications=publications(1, 2), done=False)
    first = bench.request_of(NextPage)
    assert first.after == Position(1, 2)
    bench.fanout("t", publication(5))
    assert reader.sequences("t") == [1, 2]
    bench.page(first, *publications(3, 4), done=False)
    second = bench.request_of(NextPage)
    assert second.after == Position(1, 4)
    bench.page(second, publication(5))
    bench.fanout("t", publication(6))
    assert reader.sequences("t") == [1, 2, 3, 4, 5, 6]
    assert other.sequences("t") == [5, 6]
    assert bench.edge.status()["replays"] == 0


def test_empty_last_page_ends_a_replay() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 1), publications=publications(1, 1), done=False)
    bench.page(bench.request_of(NextPage))
    bench.fanout("t", publication(2))
    assert reader.sequences("t") == [1, 2]


def test_truncated_and_reset_continue_behind_the_gap() -> None:
    bench = Bench()
    cut, reset = bench.client(), bench.client()
    attach = cut.subscribe("t", (1, 2))
    bench.attached(attach, Position(1, 9), receipt="truncated", first=3, last=6, done=False)
    page = bench.request_of(NextPage)
    assert page.after == Position(1, 6)
    bench.page(page, *publications(7, 9))
    bench.attached(reset.subscribe("t", (7, 99)), Position(1, 9), receipt="reset")
    bench.fanout("t", publication(10))
    assert cut.sequences("t") == [7, 8, 9, 10]
    assert receipts(cut.take(Subscribed)) == [(1, "truncated", 3, 6)]
    assert reset.sequences("t") == [10]
    assert receipts(reset.take(Subscribed)) == [(1, "reset", 0, 0)]


def test_eviction_during_a_replay_is_reported() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
    page = bench.request_of(NextPage)
    bench.page(page, *publications(6, 9), receipt="truncated", position=Position(1, 9), first=3, last=5)
    assert [type(m) for m in reader.received] == [Subscribed, Message, Message, Subscribed] + [Message] * 4
    assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "truncated", 3, 5)]


def test_eviction_of_all_before_the_first_page_is_reported_from_the_first_position() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), done=False)
    page = bench.request_of(NextPage)
    bench.page(page, *publications(6, 9), receipt="truncated", position=Position(1, 9), first=1, last=5)
    assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "truncated", 1, 5)]


def test_eviction_during_a_replay_may_end_it() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
    bench.page(bench.request_of(NextPage), receipt="truncated", position=Position(1, 9), first=3, last=9)
    bench.fanout("t", publication(10))
    assert reader.sequences("t") == [1, 2, 10]


def test_new_history_during_a_replay_is_reported() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
    bench.page(bench.request_of(NextPage), receipt="reset", position=Position(8, 0))
    bench.fanout("t", publication(1, epoch=8))
    assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "reset", 0, 0)]
    assert reader.received == []


def test_new_history_is_replayed_from_its_beginning() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 5)), Position(8, 2), receipt="reset", done=False)
    page = bench.request_of(NextPage)
    assert page.after == Position(8, 2)
    bench.page(page)
    bench.fanout("t", publication(3, epoch=8))
    assert reader.sequences("t") == [3]


def test_snapshot_is_the_latest_publication_then_live() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t", snapshot=True)
    assert (attach.snapshot, attach.after) == (True, None)
    bench.attached(attach, Position(1, 7), publications=(publication(7),))
    bench.fanout("t", publication(8))
    assert reader.sequences("t") == [7, 8]
    assert [m.replayed for m in reader.take(Message)] == [True, False]


def test_fanout_before_the_first_receipt_is_not_sent() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t")
    bench.fanout("t", publication(1))
    bench.attached(attach, Position(1, 1))
    bench.fanout("t", publication(2))
    assert reader.sequences("t") == [2]


def test_answers_with_unknown_reference_are_ignored() -> None:
    bench = Bench()
    assert bench.step(Attached(0, 77, "t", "complete", Position(1, 0))) == []
    assert bench.step(Page(0, 78, "t", (), True)) == []


@pytest.mark.parametrize("cache", [150, 100_000])
def test_replayed_publications_are_encoded_once(cache: int) -> None:
    bench = Bench(EdgeConfig(replay_cache=cache))
    readers = [bench.client() for _ in range(3)]
    for reader in readers:
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 9))
        assert reader.sequences("t") == list(range(1, 10))
    assert readers[0].writes[-1] == readers[1].writes[-1] == readers[2].writes[-1]


def test_receipt_and_first_page_are_one_write() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t", (1, 0))
    effects = bench.step(Attached(0, attach.reference, "t", "complete", Position(1, 9), publications(1, 5), done=False))
    assert sorted(type(effect).__name__ for effect in effects) == ["NextPage", "Send"]
    assert not any(isinstance(effect, Multicast) for effect in effects)
    assert sum(isinstance(effect, Send) for effect in effects) == 1
