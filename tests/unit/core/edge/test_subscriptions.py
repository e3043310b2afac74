"""Subscriptions: the limit applies to whole requests, refusals to single topics; repeated requests change nothing.

Topic interest: which edges get a topic's publications, and when an edge detaches from a topic.
"""

from __future__ import annotations

from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Detach
from migratory_broker.core.edge.subscriptions import TopicInterest
from migratory_broker.core.logic.events import Attach, NextPage
from migratory_protocol.messages import (
    Error,
    Message,
    Subscribe,
    Subscribed,
    TopicReceipt,
    TopicRequest,
    Unsubscribe,
    Unsubscribed,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, publication, publications


def names(*topics: str) -> list[TopicRequest]:
    return [TopicRequest(topic) for topic in topics]


def test_request_over_the_limit_is_refused_as_a_whole() -> None:
    bench = Bench(EdgeConfig(subscriptions_per_client=3))
    reader = bench.client()
    reader.send(Subscribe(1, names("a", "b")))
    assert len(bench.requests_of(Attach)) == 2
    reader.send(Subscribe(2, names("c", "d")))
    (error,) = reader.take(Error)
    assert (error.code, error.request, error.closes) == ("too_many_subscriptions", 2, False)
    assert bench.requests == []
    assert (bench.edge.subscriptions, bench.edge.topics) == (2, 2)
    reader.send(Subscribe(3, names("a", "b", "c", "c")))
    assert [attach.topic for attach in bench.requests_of(Attach)] == ["c"]
    assert bench.edge.subscriptions == 3


def test_refused_topics_do_not_count_for_the_limit() -> None:
    bench = Bench(EdgeConfig(subscriptions_per_client=1))
    reader = bench.client()
    reader.send(
        Subscribe(1, [TopicRequest("a\x00b"), TopicRequest("good"), TopicRequest("t", "1:x"), TopicRequest("")])
    )
    assert [attach.topic for attach in bench.requests_of(Attach)] == ["good"]
    (subscribed,) = reader.take(Subscribed)
    assert [(r.topic, r.receipt, r.code) for r in subscribed.topics] == [
        ("a\x00b", None, "bad_topic"),
        ("t", None, "bad_position"),
        ("", None, "bad_topic"),
    ]
    assert all(receipt.text for receipt in subscribed.topics)


def test_empty_request_is_answered() -> None:
    bench = Bench()
    reader = bench.client()
    reader.send(Subscribe(5, []), Unsubscribe(6, []))
    assert reader.received == [Subscribed(5, []), Unsubscribed(6, [])]


class TestRepeatedSubscribe:
    def test_live_topic_is_answered_with_its_position(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe_live("t")
        bench.fanout("t", *publications(1, 3))
        reader.received.clear()
        reader.send(Subscribe(2, [TopicRequest("t", Position(1, 0))]))
        assert reader.received == [Subscribed(2, [TopicReceipt("t", "complete", Position(1, 3))])]
        assert bench.requests_of(Attach) == []
        bench.fanout("t", publication(4))
        assert reader.sequences("t") == [4]
        assert bench.edge.subscriptions == 1

    def test_pending_topic_shares_the_receipt(self) -> None:
        bench = Bench(EdgeConfig(requests_per_topic=3))
        reader = bench.client()
        attach = reader.subscribe("t", request=1)
        for request in (2, 3, 4):
            reader.send(Subscribe(request, names("t")))
        assert bench.requests_of(Attach) == []
        (busy,) = reader.take(Subscribed)
        assert (busy.request, busy.topics[0].receipt, busy.topics[0].code) == (4, None, "retry")
        bench.attached(attach, Position(1, 0))
        assert [m.request for m in reader.take(Subscribed)] == [1, 2, 3]
        bench.fanout("t", publication(1))
        assert len(reader.take(Message)) == 1

    def test_replaying_topic_is_answered_with_its_cursor(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t", (1, 0)), Position(1, 5), publications=publications(1, 2), done=False)
        reader.received.clear()
        reader.send(Subscribe(2, names("t")))
        assert reader.take(Subscribed) == [Subscribed(2, [TopicReceipt("t", "complete", Position(1, 2))])]
        bench.page(bench.request_of(NextPage), *publications(3, 5))
        assert reader.sequences("t") == [3, 4, 5]


class TestRefusedByTheLogic:
    """The logic may refuse a topic that the edge has accepted; the client gets an error for this topic."""

    def test_receipt_has_the_reason_and_the_subscription_ends(self) -> None:
        bench = Bench()
        reader, other = bench.client(), bench.client()
        other.subscribe_live("t")
        attach = reader.subscribe("t")
        reader.send(Subscribe(2, names("t")))
        bench.attached(attach, Position(0, 0), receipt="reset", code="not_allowed", text="no")
        refused = TopicReceipt("t", None, code="not_allowed", text="no")
        assert reader.take(Subscribed) == [Subscribed(1, [refused]), Subscribed(2, [refused])]
        assert (bench.edge.subscriptions, bench.edge.topics, bench.edge.status()["replays"]) == (1, 1, 0)
        bench.fanout("t", publication(1))
        assert (reader.sequences("t"), other.sequences("t")) == ([], [1])

    def test_other_topics_of_the_request_continue(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(Subscribe(1, names("a", "b", "c")))
        a, b, c = bench.requests_of(Attach)
        bench.attached(a, Position(1, 0))
        bench.attached(b, Position(0, 0), receipt="reset", code="not_allowed", text="no")
        bench.attached(c, Position(1, 0))
        assert [(m.topics[0].topic, m.topics[0].receipt) for m in reader.take(Subscribed)] == [
            ("a", "complete"),
            ("b", None),
            ("c", "complete"),
        ]
        for topic in ("a", "b", "c"):
            bench.fanout(topic, publication(1))
        assert [m.topic for m in reader.take(Message)] == ["a", "c"]
        assert (bench.edge.subscriptions, bench.edge.topics) == (2, 2)

    def test_refused_topic_may_be_requested_again(self) -> None:
        bench = Bench()
        reader = bench.client()
        bench.attached(reader.subscribe("t"), Position(0, 0), receipt="reset", code="not_allowed", text="no")
        reader.subscribe_live("t")
        bench.fanout("t", publication(1))
        assert reader.sequences("t") == [1]

    def test_refusal_after_unsubscribe_is_ignored(self) -> None:
        bench = Bench()
        reader = bench.client()
        attach = reader.subscribe("t")
        reader.send(Unsubscribe(2, ["t"]))
        reader.received.clear()
        bench.attached(attach, Position(0, 0), receipt="reset", code="not_allowed", text="no")
        assert reader.received == []


class TestUnsubscribe:
    def test_unsubscribe_from_some_of_many_topics(self) -> None:
        bench = Bench()
        reader = bench.client()
        for topic in ("a", "b", "c"):
            reader.subscribe_live(topic)
        reader.received.clear()
        reader.send(Unsubscribe(7, ["b", "never", "b"]))
        assert reader.take(Unsubscribed) == [Unsubscribed(7, ["b", "never", "b"])]
        for topic in ("a", "b", "c"):
            bench.fanout(topic, publication(1))
        assert [m.topic for m in reader.take(Message)] == ["a", "c"]
        assert (bench.edge.subscriptions, bench.edge.topics) == (2, 2)
        reader.send(Unsubscribe(8, ["a", "c"]))
        assert (bench.edge.subscriptions, bench.edge.topics) == (0, 0)
        reader.subscribe_live("b", Position(1, 1))
        bench.fanout("b", publication(2))
        assert reader.sequences("b") == [2]

    def test_unsubscribe_from_the_only_topic(self) -> None:
        bench = Bench()
        reader, other = bench.client(), bench.client()
        reader.subscribe_live("t")
        other.subscribe_live("t")
        reader.send(Unsubscribe(2, ["t"]))
        bench.fanout("t", publication(1))
        assert (reader.sequences("t"), other.sequences("t")) == ([], [1])
        assert bench.edge.topics == 1

    def test_unsubscribe_while_paused(self) -> None:
        bench = Bench()
        reader, other = bench.client(), bench.client()
        reader.subscribe_live("t")
        other.subscribe_live("t")
        reader.pause()
        other.pause()
        reader.send(Unsubscribe(2, ["t"]))
        bench.fanout("t", publication(1))
        reader.resume()
        other.resume()
        assert (reader.sequences("t"), other.sequences("t")) == ([], [1])


class TestTopicInterest:
    def test_unknown_topic_has_no_edges(self) -> None:
        interest = TopicInterest()
        assert interest.edges_of("t") == ()
        interest.remove(1, "t")
        interest.remove_edge(1)
        assert len(interest) == 0

    def test_repeated_add_changes_nothing(self) -> None:
        interest = TopicInterest()
        for _ in range(3):
            interest.add(1, "t")
        assert interest.edges_of("t") == (1,)
        interest.remove(1, "t")
        assert interest.edges_of("t") == ()

    def test_remove_affects_one_edge(self) -> None:
        interest = TopicInterest()
        for edge in (1, 2, 3):
            interest.add(edge, "t")
        interest.remove(2, "t")
        interest.remove(4, "t")
        assert interest.edges_of("t") == (1, 3)
        assert len(interest) == 1

    def test_remove_edge_removes_it_from_all_topics(self) -> None:
        interest = TopicInterest()
        for topic in ("a", "b"):
            interest.add(1, topic)
        interest.add(2, "b")
        interest.remove_edge(1)
        assert (interest.edges_of("a"), interest.edges_of("b")) == ((), (2,))
        assert len(interest) == 1


class TestDetach:
    def test_detach_is_sent_when_the_last_subscriber_leaves(self) -> None:
        bench = Bench()
        first, second = bench.client(), bench.client()
        for reader in (first, second):
            reader.subscribe("t")
        first.send(Unsubscribe(2, ["t"]))
        assert bench.detached == []
        second.lose_socket()
        assert bench.detached == [Detach(0, "t")]

    def test_new_subscription_attaches_behind_a_detach(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe("t")
        reader.send(Unsubscribe(2, ["t"]))
        assert bench.detached == [Detach(0, "t")]
        assert reader.subscribe("t", request=3).topic == "t"
        assert bench.detached == [Detach(0, "t")]
