"""Replays in pages: one at a time for each connection, over its topics in turn, and what comes too late for one."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.connection import Replay
from migratory_broker.core.logic.events import Attach, NextPage
from migratory_protocol import frames
from migratory_protocol.messages import Subscribe, Subscribed, TopicRequest, Unsubscribe
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, Bench, publication, publications, receipts


class TestPace:
    def test_a_connection_may_replay_one_topic_after_another(self) -> None:
        bench = Bench()
        reader = bench.client()
        for topic in ("a", "b"):
            bench.attached(reader.subscribe(topic, (1, 0)), Position(1, 1), done=False)
            bench.page(bench.ask(NextPage), publication(1))
        assert (reader.sequences("a"), reader.sequences("b")) == ([1], [1])

    def test_leaving_very_many_replays_looks_at_none_of_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Last one first, 50,000 of them, which a cluster may allow, kept a broker for half a minute."""
        compared: list[object] = []

        def equals(one: Replay, other: object) -> bool:
            compared.append(other)
            return one is other

        monkeypatch.setattr(Replay, "__hash__", object.__hash__)
        monkeypatch.setattr(Replay, "__eq__", equals)
        bench = Bench()
        reader = bench.client()
        topics = [f"t{number}" for number in range(200)]
        reader.say(Subscribe(1, [TopicRequest(topic, Position(1, 0)) for topic in topics]))
        for attach in bench.asked(Attach):
            bench.attached(attach, Position(1, 2), done=False)
        reader.say(Unsubscribe(2, topics[::-1]))
        assert (bench.edge.subscriptions, len(compared)) == (0, 0)

    def test_one_page_at_a_time_over_all_topics_in_turn(self) -> None:
        bench = Bench(EdgeConfig(page=3000))
        reader = bench.client()
        reader.say(Subscribe(1, [TopicRequest(name, Position(1, 0)) for name in ("a", "b", "c")]))
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
        reader.say(Subscribe(1, [TopicRequest(name, Position(1, 0)) for name in ("a", "b", "c")]))
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
        reader.say(Subscribe(1, [TopicRequest("a", Position(1, 0)), TopicRequest("b", Position(1, 0))]))
        first, second = bench.asked(Attach)
        bench.attached(first, Position(1, 1), done=False)
        page = bench.ask(NextPage)
        reader.raw(frames.close_frame(1000, "", MASK))
        bench.attached(second, Position(1, 1))
        bench.page(page, publication(1))
        assert bench.requests == []
        assert bench.edge.status()["replays"] == 0
