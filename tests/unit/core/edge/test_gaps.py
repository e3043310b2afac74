"""Gaps, resets and repetitions: a subscriber gets one report with exactly the missing sequence numbers, or of the new
history, and no publication twice."""

from __future__ import annotations

from typing import Literal

import pytest
from migratory_broker.core.logic.events import Gap, NextPage
from migratory_protocol.messages import Message, Subscribed, TopicReceipt
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, publication, publications, receipts


class TestGap:
    def test_gap_is_reported_to_live_and_paused_subscribers(self) -> None:
        bench = Bench()
        reader, json, paused = bench.client(), bench.client(wire="json"), bench.client()
        for each in (reader, json, paused):
            each.subscribe_live("t", Position(1, 2))
            each.received.clear()
        paused.pause()
        bench.step(Gap("t", "truncated", Position(1, 9), 3, 8))
        bench.fanout("t", publication(9))
        paused.resume()
        for each in (reader, json, paused):
            assert [type(m) for m in each.received] == [Subscribed, Message]
            assert receipts(each.take(Subscribed)) == [(0, "truncated", 3, 8)]
        assert bench.notes == []

    def test_reset_is_reported_to_live_subscribers(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t", Position(1, 20))
        bench.step(Gap("t", "reset", Position(8, 0)))
        bench.fanout("t", publication(1, epoch=8))
        reported = reader.take(Subscribed)[-1]
        assert reported == Subscribed(0, [TopicReceipt("t", "reset", Position(8, 0))])

    def test_reset_ends_a_replay_and_makes_the_subscriber_live(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
        stale = bench.request_of(NextPage)
        reader.received.clear()
        bench.step(Gap("t", "reset", Position(8, 0)))
        bench.page(stale, *publications(3, 9))
        bench.fanout("t", publication(1, epoch=8))
        assert [type(m) for m in reader.received] == [Subscribed, Message]
        assert receipts(reader.take(Subscribed)) == [(0, "reset", 0, 0)]

    def test_reset_leaves_a_pending_subscription_to_its_receipt(self) -> None:
        bench = Bench()
        reader, late = bench.client(), bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
        attach = late.subscribe("t", (1, 5))
        bench.step(Gap("t", "reset", Position(8, 0)))
        assert receipts(reader.take(Subscribed))[-1] == (0, "reset", 0, 0)
        assert late.received == []
        bench.attached(attach, Position(8, 0), receipt="reset")
        bench.fanout("t", publication(1, epoch=8))
        assert late.sequences("t") == [1]

    def test_reset_before_the_receipt_is_not_reported(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (1, 5))
        bench.step(Gap("t", "reset", Position(8, 0)))
        assert reader.received == []
        bench.attached(attach, Position(8, 0), receipt="reset")
        bench.fanout("t", publication(1, epoch=8))
        assert reader.sequences("t") == [1]

    @pytest.mark.parametrize("receipt", ["truncated", "reset"])
    def test_effects_from_before_resubscribing_do_not_begin_the_live_stream(
        self, receipt: Literal["truncated", "reset"]
    ) -> None:
        """Fan-outs and gaps from before a topic was left and subscribed again do not begin its live stream: the
        subscriber gets the replay and then the live publications, once and in order."""
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (1, 2))
        bench.fanout("t", publication(3))
        bench.step(Gap("t", receipt, Position(1, 4), 4, 4))
        bench.attached(attach, Position(1, 6), publications=publications(3, 6))
        bench.fanout("t", publication(7))
        assert reader.sequences("t") == [3, 4, 5, 6, 7]
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0)]
        assert bench.notes == []

    def test_truncated_gap_is_left_to_the_pages_of_a_replay(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 2), publications=publications(1, 1), done=False)
        page = bench.request_of(NextPage)
        bench.step(Gap("t", "truncated", Position(1, 9), 3, 8))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0)]
        bench.fanout("t", publication(9))
        bench.page(page, publication(9), receipt="truncated", position=Position(1, 9), first=2, last=8)
        bench.fanout("t", publication(10))
        assert receipts(reader.take(Subscribed)) == [(0, "truncated", 2, 8)]
        assert bench.notes == []

    def test_gap_that_subscribers_have_is_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t", Position(1, 8))
        reader.received.clear()
        bench.step(Gap("t", "truncated", Position(1, 9), 3, 8))
        assert reader.received == []

    def test_gap_of_unknown_topic_is_ignored(self) -> None:
        bench = Bench()
        assert bench.step(Gap("t", "reset", Position(8, 0))) == []
        assert bench.fanout("t", publication(1)) == []


class TestAhead:
    """The logic may answer an `Attach` with publications whose `Fanout` follows later; the subscriber gets them
    once."""

    def start(self) -> tuple[Bench, object, object]:
        bench = Bench()
        other, ahead = bench.client(), bench.client()
        other.subscribe_live("t", Position(1, 2))
        bench.attached(ahead.subscribe("t", (1, 0)), Position(1, 4), publications=publications(1, 4))
        assert ahead.sequences("t") == [1, 2, 3, 4]
        return bench, other, ahead

    @pytest.mark.parametrize("batches", [[(3, 4), (5, 5)], [(3, 3), (4, 4), (5, 5)], [(3, 5)], [(3, 3), (4, 5)]])
    def test_late_fanouts_are_not_sent_twice(self, batches: list[tuple[int, int]]) -> None:
        bench, other, ahead = self.start()
        for first, last in batches:
            bench.fanout("t", *publications(first, last))
        bench.fanout("t", publication(6))
        assert other.sequences("t") == [3, 4, 5, 6]  # type: ignore[attr-defined]
        assert ahead.sequences("t") == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("last", "reported"), [(3, []), (4, []), (6, [(0, "truncated", 5, 6)])])
    def test_gap_reports_only_what_is_missing(self, last: int, reported: list[object]) -> None:
        bench, other, ahead = self.start()
        bench.step(Gap("t", "truncated", Position(1, last), 3, last))
        bench.fanout("t", *publications(last + 1, 7))
        assert receipts(other.take(Subscribed))[1:] == [(0, "truncated", 3, last)]  # type: ignore[attr-defined]
        assert ahead.sequences("t") == [1, 2, 3, 4, *range(max(5, last + 1), 8)]  # type: ignore[attr-defined]
        assert receipts(ahead.take(Subscribed))[1:] == reported  # type: ignore[attr-defined]

    def test_reset_makes_a_subscriber_ahead_live(self) -> None:
        bench, _, ahead = self.start()
        bench.step(Gap("t", "reset", Position(8, 0)))
        bench.fanout("t", publication(1, epoch=8))
        assert ahead.sequences("t") == [1, 2, 3, 4, 1]  # type: ignore[attr-defined]


class TestFaultsOfTheLogic:
    """When the logic breaks the contract between the cores, the edge drops repeated publications, and reports and
    logs missing ones."""

    def test_repeated_publications_are_dropped(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t")
        bench.fanout("t", *publications(1, 3))
        assert bench.fanout("t", *publications(2, 3)) == []
        bench.fanout("t", *publications(2, 4))
        assert reader.sequences("t") == [1, 2, 3, 4]

    def test_repeated_publications_of_a_page_are_dropped(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 2)), Position(1, 4), publications=publications(1, 3), done=False)
        bench.page(bench.request_of(NextPage), *publications(2, 4))
        assert reader.sequences("t") == [3, 4]

    def test_unreported_hole_is_reported_and_logged(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t", Position(1, 2))
        bench.fanout("t", publication(6))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "truncated", 3, 5)]
        (note,) = bench.notes
        assert (note.level, note.event) == ("error", "unreported_hole")
        assert note.fields == {"edge": 0, "topic": "t", "last": "1:2", "next": "1:6"}

    def test_unreported_new_history_is_reported_and_logged(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t", Position(1, 20))
        bench.fanout("t", publication(1, epoch=8))
        assert receipts(reader.take(Subscribed))[-1] == (0, "reset", 0, 0)
        assert bench.notes[0].event == "unreported_reset"

    def test_first_history_after_attach_is_reported_as_reset(self) -> None:
        bench = Bench()
        early, first = bench.client(), bench.client()
        bench.attached(early.subscribe("t"), Position(0, 0), receipt="reset")
        bench.attached(first.subscribe("u"), Position(0, 0), receipt="reset")
        bench.fanout("t", publication(941))
        bench.fanout("u", publication(1))
        assert early.take(Subscribed)[1:] == [Subscribed(0, [TopicReceipt("t", "reset", Position(1, 940))])]
        assert len(first.take(Subscribed)) == 1
        assert bench.notes == []

    def test_replay_that_ends_short_of_the_live_stream_is_reported(self) -> None:
        bench = Bench()
        bench.client().subscribe_live("t", Position(1, 9))
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 3), publications=publications(1, 3))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "truncated", 4, 9)]
        assert bench.notes[0].event == "unreported_hole"
