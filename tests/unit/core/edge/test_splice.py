"""From a resume position over the replay into the live stream: receipts first, no seam, nothing twice."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Multicast, Send
from migratory_broker.core.logic.events import Attach, Attached, Gap, NextPage, Page
from migratory_protocol import frames
from migratory_protocol.messages import Message, Subscribe, Subscribed, TopicReceipt, TopicRequest, Unsubscribe
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, Bench, publication, publications


def receipts(messages: list[Subscribed]) -> list[tuple[int, str | None, int, int]]:
    return [(m.request, r.receipt, r.first, r.last) for m in messages for r in m.topics]


def test_the_receipt_precedes_the_replay_and_the_replay_precedes_live() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t", (1, 2), request=9)
    assert attach == Attach(0, attach.reference, "t", Position(1, 2), False, 65536)
    bench.attached(attach, Position(1, 4), publications=publications(3, 4))
    bench.fan("t", publication(5))
    receipt = Subscribed(9, [TopicReceipt("t", "complete", Position(1, 4))])
    replayed = [Message("t", Position(1, n), b"%d" % n, None, 1000.0, True) for n in (3, 4)]
    live = Message("t", Position(1, 5), b"5", None, 1000.0)
    assert reader.received == [receipt, *replayed, live]


def test_live_publications_during_a_replay_come_in_its_pages() -> None:
    bench = Bench()
    reader, other = bench.client(), bench.client()
    other.live("t", Position(1, 4))
    attach = reader.subscribe("t", (1, 0))
    bench.attached(attach, Position(1, 4), publications=publications(1, 2), done=False)
    first = bench.ask(NextPage)
    assert first.after == Position(1, 2)
    bench.fan("t", publication(5))
    assert reader.sequences("t") == [1, 2]
    bench.page(first, *publications(3, 4), done=False)
    second = bench.ask(NextPage)
    assert second.after == Position(1, 4)
    bench.page(second, publication(5))
    bench.fan("t", publication(6))
    assert reader.sequences("t") == [1, 2, 3, 4, 5, 6]
    assert other.sequences("t") == [5, 6]
    assert bench.edge.status()["replays"] == 0


def test_an_empty_last_page_ends_a_replay() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 1), publications=publications(1, 1), done=False)
    bench.page(bench.ask(NextPage))
    bench.fan("t", publication(2))
    assert reader.sequences("t") == [1, 2]


def test_truncated_and_reset_go_on_behind_what_is_missing() -> None:
    bench = Bench()
    cut, reset = bench.client(), bench.client()
    attach = cut.subscribe("t", (1, 2))
    bench.attached(attach, Position(1, 9), receipt="truncated", first=3, last=6, done=False)
    page = bench.ask(NextPage)
    assert page.after == Position(1, 6)
    bench.page(page, *publications(7, 9))
    bench.attached(reset.subscribe("t", (7, 99)), Position(1, 9), receipt="reset")
    bench.fan("t", publication(10))
    assert cut.sequences("t") == [7, 8, 9, 10]
    assert receipts(cut.take(Subscribed)) == [(1, "truncated", 3, 6)]
    assert reset.sequences("t") == [10]
    assert receipts(reset.take(Subscribed)) == [(1, "reset", 0, 0)]


def test_a_replay_overtaken_by_eviction_says_so() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
    page = bench.ask(NextPage)
    bench.page(page, *publications(6, 9), receipt="truncated", position=Position(1, 9), first=3, last=5)
    assert [type(m) for m in reader.received] == [Subscribed, Message, Message, Subscribed] + [Message] * 4
    assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "truncated", 3, 5)]


def test_a_replay_overtaken_by_eviction_may_end_there() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
    bench.page(bench.ask(NextPage), receipt="truncated", position=Position(1, 9), first=3, last=9)
    bench.fan("t", publication(10))
    assert reader.sequences("t") == [1, 2, 10]


def test_a_replay_overtaken_by_a_new_history_says_so() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
    bench.page(bench.ask(NextPage), receipt="reset", position=Position(8, 0))
    bench.fan("t", publication(1, epoch=8))
    assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "reset", 0, 0)]
    assert reader.received == []


def test_a_new_history_may_be_replayed_from_its_begin() -> None:
    bench = Bench()
    reader = bench.client()
    bench.attached(reader.subscribe("t", (1, 5)), Position(8, 2), receipt="reset", done=False)
    page = bench.ask(NextPage)
    assert page.after == Position(8, 2)
    bench.page(page)
    bench.fan("t", publication(3, epoch=8))
    assert reader.sequences("t") == [3]


def test_a_snapshot_is_the_latest_publication_and_then_live() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t", snapshot=True)
    assert (attach.snapshot, attach.after) == (True, None)
    bench.attached(attach, Position(1, 7), publications=(publication(7),))
    bench.fan("t", publication(8))
    assert reader.sequences("t") == [7, 8]
    assert [m.replayed for m in reader.take(Message)] == [True, False]


class TestPace:
    def test_a_connection_may_replay_one_topic_after_another(self) -> None:
        bench = Bench()
        reader = bench.client()
        for topic in ("a", "b"):
            bench.attached(reader.subscribe(topic, (1, 0)), Position(1, 1), done=False)
            bench.page(bench.ask(NextPage), publication(1))
        assert (reader.sequences("a"), reader.sequences("b")) == ([1], [1])

    def test_one_page_at_a_time_over_all_topics_in_turn(self) -> None:
        bench = Bench(EdgeConfig(page=3000))
        reader = bench.client()
        reader.say(Subscribe(1, [TopicRequest(name, (1, 0)) for name in ("a", "b", "c")]))
        attaches = bench.asked(Attach)
        assert [attach.max_bytes for attach in attaches] == [1000, 1000, 1000]
        for attach in attaches:
            bench.attached(attach, Position(1, 2), done=False)
        order = []
        while pages := bench.asked(NextPage):
            (page,) = pages
            assert page.max_bytes == 3000
            order.append(page.topic)
            bench.page(page, publication(page.after.sequence + 1), done=page.after.sequence == 1)
        assert order == ["a", "b", "c", "a", "b", "c"]
        for name in ("a", "b", "c"):
            assert reader.sequences(name) == [1, 2]

    @pytest.mark.parametrize("snapshot", [False, True])
    def test_a_first_page_over_its_share_comes_in_its_turn(self, snapshot: bool) -> None:
        bench = Bench(EdgeConfig(page=3000))
        reader = bench.client()
        after = None if snapshot else Position(1, 6)
        reader.say(Subscribe(1, [TopicRequest(name, after, snapshot) for name in ("a", "b", "c")]))
        big = publication(7, b"x" * 2000)
        for attach in bench.asked(Attach):
            bench.attached(attach, Position(1, 7), publications=(big,))
            assert reader.sequences(attach.topic) == []
        assert len(reader.take(Subscribed)) == 3
        for name in ("a", "b", "c"):
            page = bench.ask(NextPage)
            assert (page.topic, page.after) == (name, Position(1, 6))
            bench.page(page, big)
            bench.fan(name, publication(8))
            assert reader.sequences(name) == [7, 8]

    @pytest.mark.parametrize(("last", "told"), [(7, []), (9, [(0, "truncated", 8, 9)])])
    def test_a_snapshot_that_went_before_its_turn_is_no_gap(self, last: int, told: list[object]) -> None:
        """Its receipt named the position already: nothing up to there is missing, what was evicted behind it is."""
        bench = Bench(EdgeConfig(page=1000))
        reader = bench.client()
        attach = reader.subscribe("t", snapshot=True)
        bench.attached(attach, Position(1, 7), publications=(publication(7, b"x" * 2000),))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0)]
        page = bench.ask(NextPage)
        assert page.after == Position(1, 6)
        behind = publications(last + 1, 10)
        bench.page(page, *behind, receipt="truncated", position=Position(1, 10), first=7, last=last)
        assert reader.sequences("t") == list(range(last + 1, 11))
        assert receipts(reader.take(Subscribed)) == told

    def test_a_history_that_ends_before_a_snapshot_s_turn_is_told(self) -> None:
        bench = Bench(EdgeConfig(page=1000))
        reader = bench.client()
        attach = reader.subscribe("t", snapshot=True)
        bench.attached(attach, Position(1, 7), publications=(publication(7, b"x" * 2000),))
        bench.page(bench.ask(NextPage), receipt="reset", position=Position(8, 0))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "reset", 0, 0)]

    def test_none_while_the_transport_is_full(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (1, 0))
        reader.pause()
        bench.attached(attach, Position(1, 3), publications=publications(1, 1), done=False)
        assert bench.requests == []
        assert reader.received == []
        reader.resume()
        assert reader.sequences("t") == [1]
        bench.page(bench.ask(NextPage), *publications(2, 3))
        assert reader.sequences("t") == [1, 2, 3]

    def test_a_page_that_meets_a_full_transport_waits_and_no_other_is_asked_for(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 3), publications=publications(1, 1), done=False)
        page = bench.ask(NextPage)
        reader.pause()
        bench.page(page, publication(2), done=False)
        assert (bench.requests, reader.sequences("t")) == ([], [1])
        reader.resume()
        assert reader.sequences("t") == [1, 2]
        page = bench.ask(NextPage)
        reader.pause()
        bench.page(page, publication(3))
        bench.fan("t", publication(4))
        reader.resume()
        assert reader.sequences("t") == [1, 2, 3, 4]
        bench.fan("t", publication(5))
        assert reader.sequences("t") == [1, 2, 3, 4, 5]


class TestStale:
    def test_after_unsubscribe(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (1, 0))
        reader.say(Unsubscribe(2, ["t"]))
        reader.received.clear()
        bench.attached(attach, Position(1, 3), publications=publications(1, 3))
        bench.fan("t", publication(4))
        assert reader.received == []
        assert bench.edge.topics == 0

    def test_a_page_after_unsubscribe_lets_the_next_topic_go_on(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.say(Subscribe(1, [TopicRequest("a", (1, 0)), TopicRequest("b", (1, 0)), TopicRequest("c", (1, 0))]))
        for attach in bench.asked(Attach):
            bench.attached(attach, Position(1, 1), done=False)
        stale = bench.ask(NextPage)
        assert stale.topic == "a"
        reader.say(Unsubscribe(2, ["b", "a"]))
        page = bench.ask(NextPage)
        assert page.topic == "c"
        bench.page(stale, publication(1))
        bench.page(page, publication(1))
        assert reader.sequences("a") == []
        assert reader.sequences("c") == [1]
        assert bench.requests == []

    def test_after_a_new_subscription_to_the_same_topic(self) -> None:
        bench = Bench()
        reader = bench.client()
        old = reader.subscribe("t", (1, 0))
        reader.say(Unsubscribe(2, ["t"]))
        new = reader.subscribe("t", (1, 5), request=3)
        bench.attached(old, Position(1, 6), publications=publications(1, 6))
        bench.attached(new, Position(1, 6), publications=publications(6, 6))
        assert reader.sequences("t") == [6]
        assert receipts(reader.take(Subscribed)) == [(3, "complete", 0, 0)]

    def test_after_close(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.say(Subscribe(1, [TopicRequest("a", (1, 0)), TopicRequest("b", (1, 0))]))
        first, second = bench.asked(Attach)
        bench.attached(first, Position(1, 1), done=False)
        page = bench.ask(NextPage)
        reader.raw(frames.close_frame(1000, "", MASK))
        bench.attached(second, Position(1, 1))
        bench.page(page, publication(1))
        assert bench.requests == []
        assert bench.edge.status()["replays"] == 0


class TestGap:
    def test_live_and_waiting_subscribers_are_told_at_once(self) -> None:
        bench = Bench()
        reader, json, paused = bench.client(), bench.client(wire="json"), bench.client()
        for each in (reader, json, paused):
            each.live("t", Position(1, 2))
            each.received.clear()
        paused.pause()
        bench.step(Gap("t", "truncated", Position(1, 9), 3, 8))
        bench.fan("t", publication(9))
        paused.resume()
        for each in (reader, json, paused):
            assert [type(m) for m in each.received] == [Subscribed, Message]
            assert receipts(each.take(Subscribed)) == [(0, "truncated", 3, 8)]
        assert bench.notes == []

    def test_reset(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.live("t", Position(1, 20))
        bench.step(Gap("t", "reset", Position(8, 0)))
        bench.fan("t", publication(1, epoch=8))
        told = reader.take(Subscribed)[-1]
        assert told == Subscribed(0, [TopicReceipt("t", "reset", Position(8, 0))])

    def test_reset_ends_a_replay_and_makes_it_live(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 2), done=False)
        stale = bench.ask(NextPage)
        reader.received.clear()
        bench.step(Gap("t", "reset", Position(8, 0)))
        bench.page(stale, *publications(3, 9))
        bench.fan("t", publication(1, epoch=8))
        assert [type(m) for m in reader.received] == [Subscribed, Message]
        assert receipts(reader.take(Subscribed)) == [(0, "reset", 0, 0)]

    def test_one_that_waits_for_its_receipt_learns_all_from_it(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (1, 5))
        bench.step(Gap("t", "reset", Position(8, 0)))
        assert reader.received == []
        bench.attached(attach, Position(8, 0), receipt="reset")
        bench.fan("t", publication(1, epoch=8))
        assert reader.sequences("t") == [1]

    def test_truncated_leaves_a_replay_to_its_pages(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 2), publications=publications(1, 1), done=False)
        page = bench.ask(NextPage)
        bench.step(Gap("t", "truncated", Position(1, 9), 3, 8))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0)]
        bench.fan("t", publication(9))
        bench.page(page, publication(9), receipt="truncated", position=Position(1, 9), first=2, last=8)
        bench.fan("t", publication(10))
        assert receipts(reader.take(Subscribed)) == [(0, "truncated", 2, 8)]
        assert bench.notes == []

    def test_what_they_have_is_no_gap(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.live("t", Position(1, 8))
        reader.received.clear()
        bench.step(Gap("t", "truncated", Position(1, 9), 3, 8))
        assert reader.received == []

    def test_a_topic_that_nobody_follows(self) -> None:
        bench = Bench()
        assert bench.step(Gap("t", "reset", Position(8, 0))) == []
        assert bench.fan("t", publication(1)) == []


class TestAhead:
    """The logic may answer an `Attach` with publications whose `Fanout` to the others is still to come."""

    def start(self) -> tuple[Bench, object, object]:
        bench = Bench()
        other, ahead = bench.client(), bench.client()
        other.live("t", Position(1, 2))
        bench.attached(ahead.subscribe("t", (1, 0)), Position(1, 4), publications=publications(1, 4))
        assert ahead.sequences("t") == [1, 2, 3, 4]
        return bench, other, ahead

    @pytest.mark.parametrize("batches", [[(3, 4), (5, 5)], [(3, 3), (4, 4), (5, 5)], [(3, 5)], [(3, 3), (4, 5)]])
    def test_nothing_comes_twice(self, batches: list[tuple[int, int]]) -> None:
        bench, other, ahead = self.start()
        for first, last in batches:
            bench.fan("t", *publications(first, last))
        bench.fan("t", publication(6))
        assert other.sequences("t") == [3, 4, 5, 6]  # type: ignore[attr-defined]
        assert ahead.sequences("t") == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("last", "told"), [(3, []), (4, []), (6, [(0, "truncated", 5, 6)])])
    def test_a_gap_says_only_what_is_missing(self, last: int, told: list[object]) -> None:
        bench, other, ahead = self.start()
        bench.step(Gap("t", "truncated", Position(1, last), 3, last))
        bench.fan("t", *publications(last + 1, 7))
        assert receipts(other.take(Subscribed))[1:] == [(0, "truncated", 3, last)]  # type: ignore[attr-defined]
        assert ahead.sequences("t") == [1, 2, 3, 4, *range(max(5, last + 1), 8)]  # type: ignore[attr-defined]
        assert receipts(ahead.take(Subscribed))[1:] == told  # type: ignore[attr-defined]

    def test_a_reset_makes_it_live(self) -> None:
        bench, _, ahead = self.start()
        bench.step(Gap("t", "reset", Position(8, 0)))
        bench.fan("t", publication(1, epoch=8))
        assert ahead.sequences("t") == [1, 2, 3, 4, 1]  # type: ignore[attr-defined]


class TestFaultsOfTheLogic:
    """A hole or a repetition that breaks the contract between the cores never passes silently."""

    def test_repetitions_are_dropped(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.live("t")
        bench.fan("t", *publications(1, 3))
        assert bench.fan("t", *publications(2, 3)) == []
        bench.fan("t", *publications(2, 4))
        assert reader.sequences("t") == [1, 2, 3, 4]

    def test_a_page_repeats_nothing(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 2)), Position(1, 4), publications=publications(1, 3), done=False)
        bench.page(bench.ask(NextPage), *publications(2, 4))
        assert reader.sequences("t") == [3, 4]

    def test_an_unreported_hole(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.live("t", Position(1, 2))
        bench.fan("t", publication(6))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "truncated", 3, 5)]
        (note,) = bench.notes
        assert (note.level, note.event) == ("error", "unreported_hole")
        assert note.fields == {"edge": 0, "topic": "t", "last": "1:2", "next": "1:6"}

    def test_an_unreported_new_history(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.live("t", Position(1, 20))
        bench.fan("t", publication(1, epoch=8))
        assert receipts(reader.take(Subscribed))[-1] == (0, "reset", 0, 0)
        assert bench.notes[0].event == "unreported_reset"

    def test_attached_before_there_was_a_history(self) -> None:
        bench = Bench()
        early, first = bench.client(), bench.client()
        bench.attached(early.subscribe("t"), Position(0, 0), receipt="reset")
        bench.attached(first.subscribe("u"), Position(0, 0), receipt="reset")
        bench.fan("t", publication(941))
        bench.fan("u", publication(1))
        assert early.take(Subscribed)[1:] == [Subscribed(0, [TopicReceipt("t", "reset", Position(1, 940))])]
        assert len(first.take(Subscribed)) == 1
        assert bench.notes == []

    def test_a_replay_that_ends_short_of_the_live_stream(self) -> None:
        bench = Bench()
        bench.client().live("t", Position(1, 9))
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 3), publications=publications(1, 3))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "truncated", 4, 9)]
        assert bench.notes[0].event == "unreported_hole"


def test_what_is_fanned_out_before_the_first_receipt_is_not_for_this_subscriber() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t")
    bench.fan("t", publication(1))
    bench.attached(attach, Position(1, 1))
    bench.fan("t", publication(2))
    assert reader.sequences("t") == [2]


def test_answers_to_nobody() -> None:
    bench = Bench()
    assert bench.step(Attached(0, 77, "t", "complete", Position(1, 0))) == []
    assert bench.step(Page(0, 78, "t", (), True)) == []


@pytest.mark.parametrize("kept", [150, 100_000])
def test_replayed_publications_are_encoded_once_for_all(kept: int) -> None:
    bench = Bench(EdgeConfig(encodings=kept))
    readers = [bench.client() for _ in range(3)]
    for reader in readers:
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 9), publications=publications(1, 9))
        assert reader.sequences("t") == list(range(1, 10))
    assert readers[0].writes[-1] == readers[1].writes[-1] == readers[2].writes[-1]


def test_the_first_page_and_its_receipt_leave_in_one_write() -> None:
    bench = Bench()
    reader = bench.client()
    attach = reader.subscribe("t", (1, 0))
    effects = bench.step(Attached(0, attach.reference, "t", "complete", Position(1, 9), publications(1, 5), done=False))
    assert sorted(type(effect).__name__ for effect in effects) == ["NextPage", "Send"]
    assert not any(isinstance(effect, Multicast) for effect in effects)
    assert sum(isinstance(effect, Send) for effect in effects) == 1
