"""The subscriber's stream: in order, without duplicates, and without unreported gaps. Also snapshots, positions that
the client remembers, refused topics, and requests in batches."""

from __future__ import annotations

import pytest
from migratory_client import GapError
from migratory_client.core import events as ev
from migratory_client.core.settings import Settings
from migratory_protocol import messages as wire
from migratory_protocol.positions import Position
from migratory_testing.clientcore import CoreDriver, complete, message, welcome


def subscribed(topic: str = "t", epoch: int = 1, sequence: int = 0, **wish: object) -> tuple[CoreDriver, int]:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic(topic, **wish))  # type: ignore[arg-type]
    driver.answer(link, complete(topic, epoch, sequence))
    return driver, link


def reconnect(driver: CoreDriver, link: int) -> int:
    driver.step(ev.Disconnected(link))
    return driver.accept(driver.next_dial())


def truncated(first: int, last: int, position: Position, topic: str = "t") -> wire.TopicReceipt:
    return wire.TopicReceipt(topic, "truncated", position, first, last)


def test_messages_follow_the_receipt_in_order() -> None:
    driver, link = subscribed()
    assert driver.of(ev.Receipt) == [ev.Receipt("t", "complete", Position(1, 0), Position(1, 0))]
    driver.receive(link, message("t", 1, 1), message("t", 1, 2))
    assert driver.delivered() == [(1, 1), (1, 2)]


def test_duplicates_are_dropped_and_counted() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 1, 1), message("t", 1, 2), message("t", 1, 1))
    assert driver.delivered() == [(1, 1), (1, 2)]
    assert driver.core.subscriptions.dropped == 2


def test_sequence_numbers_continue_across_epochs() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 2, 2))
    assert driver.receipts() == [("complete", 0, 0)]
    assert driver.delivered() == [(1, 1), (2, 2)]


def test_unannounced_hole_is_reported() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 1, 5))
    assert driver.of(ev.Receipt) == [ev.Receipt("t", "hole", Position(1, 5), Position(1, 1), 2, 4, True)]
    assert driver.delivered() == [(1, 1), (1, 5)]


def test_sequence_numbers_going_back_are_reported_as_reset() -> None:
    driver, link = subscribed(sequence=7)
    driver.receive(link, message("t", 2, 3))
    (receipt,) = driver.of(ev.Receipt)
    assert receipt == ev.Receipt("t", "reset", Position(2, 3), Position(2, 2), resumed=True, before=Position(1, 7))
    assert not receipt.not_replayed
    assert str(GapError(receipt)) == "t: the earlier history is lost; the topic continues after 2:2; you were at 1:7"
    assert driver.delivered() == [(2, 3)]


@pytest.mark.parametrize(("first", "after"), [(1, 0), (2, 1), (3, 2), (0, 2)])
def test_unreported_reset_starts_before_all_that_its_message_stands_for(first: int, after: int) -> None:
    driver, link = subscribed(sequence=7)
    driver.receive(link, wire.Message("t", Position(2, 3), b"", first=first))
    assert driver.of(ev.Receipt)[0].after == Position(2, after)


def test_resume_requests_the_last_position_and_merges_the_replay() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 1, 2))
    link = reconnect(driver, link)
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 2))]
    driver.answer(link, complete("t", 1, 4))
    driver.receive(link, message("t", 1, 2), message("t", 1, 3), message("t", 1, 4), message("t", 1, 4))
    assert driver.delivered() == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_a_second_reconnect_does_not_replay_again() -> None:
    """Pitfall 13: after a replay, a second reconnect resumes at the last replayed position, so that nothing is
    replayed again."""
    driver, link = subscribed()
    link = reconnect(driver, link)
    driver.answer(link, complete("t", 1, 2))
    driver.receive(link, message("t", 1, 1), message("t", 1, 2))
    link = reconnect(driver, link)
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 2))]


def test_resume_when_nothing_was_missed_is_complete() -> None:
    """Pitfall 12: a client that missed nothing while it was away gets the receipt `complete` with its own position,
    and no message."""
    driver, link = subscribed(sequence=17, epoch=4)
    link = reconnect(driver, link)
    driver.answer(link, complete("t", 4, 17))
    assert driver.of(ev.Receipt) == [
        ev.Receipt("t", "complete", Position(4, 17), Position(4, 17), resumed=True),
    ]
    assert driver.delivered() == []


def test_truncated_is_reported_and_the_stream_continues_after_the_gap() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1))
    link = reconnect(driver, link)
    driver.answer(link, truncated(2, 9, Position(3, 12)))
    assert driver.receipts()[-1] == ("truncated", 2, 9)
    driver.receive(link, message("t", 2, 10))
    assert driver.receipts()[-1] == ("truncated", 2, 9)
    assert driver.delivered() == [(1, 1), (2, 10)]


def test_gap_is_reported_once_across_a_lost_link() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1))
    link = reconnect(driver, link)
    driver.answer(link, truncated(2, 9, Position(3, 12)))
    link = reconnect(driver, link)
    assert driver.request(link).topics[0].after == Position(1, 1)  # no epoch is known for 9
    driver.answer(link, truncated(2, 11, Position(3, 12)))
    assert driver.receipts()[1:] == [("truncated", 2, 9), ("truncated", 10, 11)]
    link = reconnect(driver, link)
    driver.answer(link, truncated(2, 4, Position(3, 12)))  # this broker has more, too late
    assert driver.receipts()[-1] == ("complete", 0, 0)
    driver.receive(link, message("t", 1, 5), message("t", 1, 11), message("t", 3, 12))
    assert driver.delivered() == [(1, 1), (3, 12)]


def test_live_gap_is_reported_in_order() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), wire.Subscribed(0, [truncated(2, 3, Position(1, 3))]), message("t", 1, 4))
    kinds = [type(item).__name__ for item in driver.effects]
    assert kinds == ["Deliver", "Receipt", "Deliver"]
    assert driver.receipts()[-1] == ("truncated", 2, 3)


def test_reset_restarts_at_the_brokers_position() -> None:
    driver, link = subscribed(sequence=9)
    driver.receive(link, wire.Subscribed(0, [wire.TopicReceipt("t", "reset", Position(7, 2))]), message("t", 7, 3))
    (receipt,) = driver.of(ev.Receipt)
    assert receipt == ev.Receipt("t", "reset", Position(7, 2), Position(7, 2), resumed=True, before=Position(1, 9))
    assert not receipt.not_replayed
    assert str(GapError(receipt)).endswith("the topic continues after 7:2; you were at 1:9")
    assert driver.delivered() == [(7, 3)]
    assert driver.receipts()[-1][0] == "reset"


@pytest.mark.parametrize(("newest", "lost"), [(9, False), (12, False), (8, True)])
def test_reset_in_the_same_epoch_is_a_missing_right_unless_the_topic_is_shorter(newest: int, lost: bool) -> None:
    driver, link = subscribed(sequence=9)
    driver.receive(link, wire.Subscribed(0, [wire.TopicReceipt("t", "reset", Position(1, newest))]))
    (receipt,) = driver.of(ev.Receipt)
    assert receipt.not_replayed is not lost
    assert ("this client may not read the history" in str(GapError(receipt))) is not lost


def test_receipt_without_position_accepts_the_first_message() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    driver.answer(link, wire.TopicReceipt("t", "reset", None))
    driver.receive(link, message("t", 3, 8))
    assert driver.delivered() == [(3, 8)]
    (receipt,) = (item for item in driver.history if isinstance(item, ev.Receipt))
    assert (receipt.kind, receipt.after) == ("reset", None)
    assert str(GapError(receipt)) == "t: the earlier history is lost; the topic continues from now on"


def test_truncated_receipt_of_a_fresh_subscription_sets_the_position() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    driver.answer(link, truncated(1, 3, Position(1, 5)))
    driver.receive(link, message("t", 1, 6))
    assert driver.receipts() == [("complete", 0, 0)]
    assert driver.delivered() == [(1, 6)]


def test_snapshot_is_delivered_once() -> None:
    driver, link = subscribed(sequence=5, snapshot=True)
    driver.receive(link, message("t", 1, 5), message("t", 1, 5), message("t", 1, 6))
    assert driver.delivered() == [(1, 5), (1, 6)]


def test_snapshot_is_not_awaited_for_an_empty_topic_or_after_a_live_message() -> None:
    driver, link = subscribed(snapshot=True)
    assert not driver.core.subscriptions.active["t"].snapshot
    driver, link = subscribed(sequence=5, snapshot=True)
    driver.receive(link, message("t", 1, 4), message("t", 1, 6), message("t", 1, 5))
    assert driver.delivered() == [(1, 6)]


def test_awaited_snapshot_is_requested_again() -> None:
    driver, link = subscribed(sequence=5, snapshot=True)
    link = reconnect(driver, link)
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 5), True)]


def test_messages_of_unsubscribed_topics_are_dropped() -> None:
    driver, link = subscribed()
    driver.step(ev.UnsubscribeTopic("t"))
    assert driver.sent(link)[-1] == wire.Unsubscribe(2, ["t"])
    driver.receive(link, message("t", 1, 1), wire.Unsubscribed(2, ["t"]))
    assert driver.delivered() == []
    assert driver.step(ev.UnsubscribeTopic("t")) == []


def test_topic_resumes_where_it_was_left() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1))
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("t"))
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 1))]
    driver.receive(link, message("t", 1, 2))  # of the subscription before: its time is over
    driver.answer(link, complete("t", 1, 2))
    driver.receive(link, message("t", 1, 2))
    assert driver.delivered() == [(1, 1), (1, 2)]


def test_receipt_of_an_earlier_request_is_ignored() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    first = driver.request(link).request
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("t"))
    driver.receive(link, wire.Subscribed(first, [complete("t", 1, 3)]))
    assert driver.receipts() == []
    driver.receive(link, wire.Subscribed(0, [complete("u", 1, 3), complete("t", 1, 3)]))
    assert driver.receipts() == []
    driver.answer(link, complete("t", 1, 4))
    assert driver.receipts() == [("complete", 0, 0)]


def test_subscription_resumes_after_the_last_seen_position() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 1, 2), message("t", 1, 3))
    driver.step(ev.UnsubscribeTopic("t", seen=Position(1, 1)))
    driver.step(ev.SubscribeTopic("t"))
    assert driver.request(link).topics[0].after == Position(1, 1)
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.UnsubscribeTopic("t", seen=Position(1, 0)))  # noted later, while it was left
    driver.step(ev.UnsubscribeTopic("t", seen=Position(1, 0)))
    driver.step(ev.UnsubscribeTopic("u", seen=Position(1, 0)))
    driver.step(ev.SubscribeTopic("t"))
    assert driver.request(link).topics[0].after == Position(1, 0)


def test_fresh_and_after_override_the_remembered_position() -> None:
    driver, link = subscribed(sequence=5)
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("t", fresh=True))
    assert driver.request(link).topics[0].after is None
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("t", after=Position(1, 2), snapshot=True))
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 2), False)]


def test_reported_gap_is_remembered_with_the_position() -> None:
    driver, link = subscribed()
    driver.receive(link, wire.Subscribed(0, [truncated(1, 4, Position(1, 6))]))
    driver.step(ev.UnsubscribeTopic("t", seen=Position(1, 0)))
    driver.step(ev.SubscribeTopic("t", after=Position(1, 0)))
    driver.answer(link, truncated(1, 4, Position(1, 6)))
    assert driver.receipts()[1:] == [("truncated", 1, 4), ("complete", 0, 0)]


def test_remembered_positions_are_limited() -> None:
    driver = CoreDriver(settings=Settings(remembered_positions=2))
    link = driver.open()
    for topic in ("a", "b", "c"):
        driver.step(ev.SubscribeTopic(topic))
        driver.answer(link, complete(topic, 1, 5))
        driver.step(ev.UnsubscribeTopic(topic))
    for topic in ("a", "b", "c"):
        driver.step(ev.SubscribeTopic(topic))
    resumed_after = [item.topics[0].after for item in driver.sent(link) if isinstance(item, wire.Subscribe)][3:]
    assert resumed_after == [None, Position(1, 5), Position(1, 5)]


def test_second_subscribe_of_a_topic_sends_no_request() -> None:
    driver, _link = subscribed()
    assert driver.step(ev.SubscribeTopic("t")) == []


def test_refused_topic_does_not_affect_others() -> None:
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("secret"))
    link = driver.open()
    driver.answer(link, wire.TopicReceipt("secret", None, code="not_allowed", text="no"), complete("t", 1, 0))
    assert driver.of(ev.SubscribeRefused) == [ev.SubscribeRefused("secret", "not_allowed", "no")]
    assert driver.of(ev.Ready) == [ev.Ready(link, None)]
    driver.receive(link, message("t", 1, 1), message("secret", 1, 1))
    assert driver.delivered() == [(1, 1)]


def test_overloaded_topic_is_requested_again_when_the_broker_says() -> None:
    driver, link = subscribed("other")
    driver.step(ev.SubscribeTopic("t"))
    full = wire.TopicReceipt("t", None, code="overloaded", text="all is used", retry_after=5.0)
    driver.answer(link, full)
    assert driver.of(ev.SubscribeRefused) == []
    assert driver.of(ev.Problem) == [ev.Problem("overloaded", "all is used")]
    first = driver.request(link)
    driver.wait(4.9)
    assert driver.request(link) is first
    driver.wait(0.2)
    assert driver.request(link).request == first.request + 1
    assert driver.request(link).topics == [wire.TopicRequest("t")]
    driver.answer(link, full)
    link = reconnect(driver, link)  # the next broker is asked for all topics at once
    assert [topic.topic for topic in driver.request(link).topics] == ["other", "t"]
    driver.answer(link, complete("other", 1, 0), complete("t", 1, 0))
    driver.receive(link, message("t", 1, 1))
    assert driver.delivered() == [(1, 1)]
    last = driver.request(link)
    driver.wait(5.1)
    assert driver.request(link) is last


def test_overloaded_topic_that_was_left_is_not_requested_again() -> None:
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    link = driver.open()
    driver.answer(link, wire.TopicReceipt("t", None, code="overloaded", text="all is used"))
    first = driver.request(link)
    driver.step(ev.UnsubscribeTopic("t"))
    driver.wait(29.0)
    assert driver.request(link) is first


def test_refused_request_refuses_all_its_topics() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    request = driver.request(link).request
    driver.receive(link, wire.Error("too_many_subscriptions", "1001", request=request))
    assert driver.of(ev.SubscribeRefused) == [ev.SubscribeRefused("t", "too_many_subscriptions", "1001")]
    assert driver.core.subscriptions.active == {}
    driver.step(ev.SubscribeTopic("a\0"))
    assert [item.code for item in driver.of(ev.SubscribeRefused)] == ["bad_topic"]


def test_many_topics_are_requested_in_batches() -> None:
    driver = CoreDriver(settings=Settings(subscribe_batch=4))
    for number in range(10):
        driver.step(ev.SubscribeTopic(f"t{number}"))
    link = driver.open(welcome())
    sizes = [len(item.topics) for item in driver.sent(link) if isinstance(item, wire.Subscribe)]
    assert sizes == [4, 4, 2]
