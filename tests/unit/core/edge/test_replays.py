"""Replays in pages: the edge requests one page per connection at a time, in turn for its topics, and ignores late
answers."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.state import Replay
from migratory_broker.core.logic.events import Attach, NextPage
from migratory_protocol import frames
from migratory_protocol.messages import Subscribe, Subscribed, TopicRequest, Unsubscribe
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, Bench, publication, publications, receipts


class TestPace:
    def test_topics_are_replayed_one_after_another(self) -> None:
        bench = Bench()
        reader = bench.client()
        for topic in ("a", "b"):
            bench.attached(reader.subscribe(topic, (1, 0)), Position(1, 1), done=False)
            bench.page(bench.request_of(NextPage), publication(1))
        assert (reader.sequences("a"), reader.sequences("b")) == ([1], [1])

    def test_cancelling_many_replays_takes_linear_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Unsubscribing 200 topics with pending replays compares no two replays, so that its time is linear.
        Regression: with a search per replay, 50,000 of them blocked a broker for half a minute."""
        compared: list[object] = []

        def equals(replay: Replay, other: object) -> bool:
            compared.append(other)
            return replay is other

        monkeypatch.setattr(Replay, "__hash__", object.__hash__)
        monkeypatch.setattr(Replay, "__eq__", equals)
        bench = Bench()
        reader = bench.client()
        topics = [f"t{number}" for number in range(200)]
        reader.send(Subscribe(1, [TopicRequest(topic, Position(1, 0)) for topic in topics]))
        for attach in bench.requests_of(Attach):
            bench.attached(attach, Position(1, 2), done=False)
        reader.send(Unsubscribe(2, topics[::-1]))
        assert (bench.edge.subscriptions, len(compared)) == (0, 0)

    def test_one_page_is_pending_at_a_time_over_all_topics(self) -> None:
        bench = Bench(EdgeConfig(page=3000))
        reader = bench.client()
        reader.send(Subscribe(1, [TopicRequest(name, Position(1, 0)) for name in ("a", "b", "c")]))
        attaches = bench.requests_of(Attach)
        assert [attach.max_bytes for attach in attaches] == [1000, 1000, 1000]
        for attach in attaches:
            bench.attached(attach, Position(1, 2), done=False)
        order = []
        while pages := bench.requests_of(NextPage):
            (page,) = pages
            assert page.max_bytes == 3000
            order.append(page.topic)
            bench.page(page, publication(page.after.sequence + 1), done=page.after.sequence == 1)
        assert order == ["a", "b", "c", "a", "b", "c"]
        for name in ("a", "b", "c"):
            assert reader.sequences(name) == [1, 2]

    @pytest.mark.parametrize("snapshot", [False, True])
    def test_first_page_over_its_share_is_paged(self, snapshot: bool) -> None:
        bench = Bench(EdgeConfig(page=3000))
        reader = bench.client()
        after = None if snapshot else Position(1, 6)
        reader.send(Subscribe(1, [TopicRequest(name, after, snapshot) for name in ("a", "b", "c")]))
        big = publication(7, b"x" * 2000)
        for attach in bench.requests_of(Attach):
            bench.attached(attach, Position(1, 7), publications=(big,))
            assert reader.sequences(attach.topic) == []
        assert len(reader.take(Subscribed)) == 3
        for name in ("a", "b", "c"):
            page = bench.request_of(NextPage)
            assert (page.topic, page.after) == (name, Position(1, 6))
            bench.page(page, big)
            bench.fanout(name, publication(8))
            assert reader.sequences(name) == [7, 8]

    @pytest.mark.parametrize(("last", "reported"), [(7, []), (9, [(0, "truncated", 8, 9)])])
    def test_snapshot_evicted_before_its_turn_is_no_gap(self, last: int, reported: list[object]) -> None:
        """When a snapshot's publication is evicted before its page is read, only publications after it are reported
        as missing, because its receipt covers its position."""
        bench = Bench(EdgeConfig(page=1000))
        reader = bench.client()
        attach = reader.subscribe("t", snapshot=True)
        bench.attached(attach, Position(1, 7), publications=(publication(7, b"x" * 2000),))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0)]
        page = bench.request_of(NextPage)
        assert page.after == Position(1, 6)
        behind = publications(last + 1, 10)
        bench.page(page, *behind, receipt="truncated", position=Position(1, 10), first=7, last=last)
        assert reader.sequences("t") == list(range(last + 1, 11))
        assert receipts(reader.take(Subscribed)) == reported

    def test_new_history_before_a_snapshots_turn_is_reported(self) -> None:
        bench = Bench(EdgeConfig(page=1000))
        reader = bench.client()
        attach = reader.subscribe("t", snapshot=True)
        bench.attached(attach, Position(1, 7), publications=(publication(7, b"x" * 2000),))
        bench.page(bench.request_of(NextPage), receipt="reset", position=Position(8, 0))
        assert receipts(reader.take(Subscribed)) == [(1, "complete", 0, 0), (0, "reset", 0, 0)]

    def test_no_page_is_requested_while_paused(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (1, 0))
        reader.pause()
        bench.attached(attach, Position(1, 3), publications=publications(1, 1), done=False)
        assert bench.requests == []
        assert reader.received == []
        reader.resume()
        assert reader.sequences("t") == [1]
        bench.page(bench.request_of(NextPage), *publications(2, 3))
        assert reader.sequences("t") == [1, 2, 3]

    def test_page_is_queued_when_paused_meanwhile(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 3), publications=publications(1, 1), done=False)
        page = bench.request_of(NextPage)
        reader.pause()
        bench.page(page, publication(2), done=False)
        assert (bench.requests, reader.sequences("t")) == ([], [1])
        reader.resume()
        assert reader.sequences("t") == [1, 2]
        page = bench.request_of(NextPage)
        reader.pause()
        bench.page(page, publication(3))
        bench.fanout("t", publication(4))
        reader.resume()
        assert reader.sequences("t") == [1, 2, 3, 4]
        bench.fanout("t", publication(5))
        assert reader.sequences("t") == [1, 2, 3, 4, 5]


class TestStale:
    def test_page_after_unsubscribe_is_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t", (1, 0))
        reader.send(Unsubscribe(2, ["t"]))
        reader.received.clear()
        bench.attached(attach, Position(1, 3), publications=publications(1, 3))
        bench.fanout("t", publication(4))
        assert reader.received == []
        assert bench.edge.topics == 0

    def test_next_topic_is_replayed_after_unsubscribe(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(Subscribe(1, [TopicRequest(name, Position(1, 0)) for name in ("a", "b", "c")]))
        for attach in bench.requests_of(Attach):
            bench.attached(attach, Position(1, 1), done=False)
        stale = bench.request_of(NextPage)
        assert stale.topic == "a"
        reader.send(Unsubscribe(2, ["b", "a"]))
        page = bench.request_of(NextPage)
        assert page.topic == "c"
        bench.page(stale, publication(1))
        bench.page(page, publication(1))
        assert reader.sequences("a") == []
        assert reader.sequences("c") == [1]
        assert bench.requests == []

    def test_page_of_an_earlier_subscription_is_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        old = reader.subscribe("t", (1, 0))
        reader.send(Unsubscribe(2, ["t"]))
        new = reader.subscribe("t", (1, 5), request=3)
        bench.attached(old, Position(1, 6), publications=publications(1, 6))
        bench.attached(new, Position(1, 6), publications=publications(6, 6))
        assert reader.sequences("t") == [6]
        assert receipts(reader.take(Subscribed)) == [(3, "complete", 0, 0)]

    def test_page_after_close_is_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(Subscribe(1, [TopicRequest("a", Position(1, 0)), TopicRequest("b", Position(1, 0))]))
        first, second = bench.requests_of(Attach)
        bench.attached(first, Position(1, 1), done=False)
        page = bench.request_of(NextPage)
        reader.send_bytes(frames.close_frame(1000, "", MASK))
        bench.attached(second, Position(1, 1))
        bench.page(page, publication(1))
        assert bench.requests == []
        assert bench.edge.status()["replays"] == 0
