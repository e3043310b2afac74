"""What a subscriber sees: one ordered stream, nothing twice, no gap without a receipt."""

from __future__ import annotations

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
    return driver.greet(driver.next_dial())


def truncated(first: int, last: int, position: Position, topic: str = "t") -> wire.TopicReceipt:
    return wire.TopicReceipt(topic, "truncated", position, first, last)


def test_messages_follow_the_receipt_in_order() -> None:
    driver, link = subscribed()
    assert driver.of(ev.Receipt) == [ev.Receipt("t", "complete", Position(1, 0), Position(1, 0))]
    driver.receive(link, message("t", 1, 1), message("t", 1, 2))
    assert driver.delivered() == [(1, 1), (1, 2)]


def test_what_comes_twice_is_dropped_and_counted() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 1, 1), message("t", 1, 2), message("t", 1, 1))
    assert driver.delivered() == [(1, 1), (1, 2)]
    assert driver.core.subscriptions.dropped == 2


def test_sequence_numbers_go_on_over_a_change_of_epoch() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 2, 2))
    assert driver.receipts() == [("complete", 0, 0)]
    assert driver.delivered() == [(1, 1), (2, 2)]


def test_a_hole_that_no_receipt_named_is_reported() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 1, 5))
    assert driver.of(ev.Receipt) == [ev.Receipt("t", "hole", Position(1, 5), Position(1, 1), 2, 4, True)]
    assert driver.delivered() == [(1, 1), (1, 5)]


def test_sequence_numbers_that_go_back_without_a_receipt_are_reported() -> None:
    driver, link = subscribed(sequence=7)
    driver.receive(link, message("t", 2, 3))
    assert driver.of(ev.Receipt) == [
        ev.Receipt("t", "reset", Position(2, 3), Position(1, 7), 0, 0, True, Position(1, 7))
    ]
    assert driver.delivered() == [(2, 3)]


def test_resume_asks_for_the_last_position_and_merges_the_replay() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), message("t", 1, 2))
    link = reconnect(driver, link)
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 2))]
    driver.answer(link, complete("t", 1, 4))
    driver.receive(link, message("t", 1, 2), message("t", 1, 3), message("t", 1, 4), message("t", 1, 4))
    assert driver.delivered() == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_a_second_reconnect_does_not_replay_again() -> None:
    """Pitfall 13: a replay moves the position."""
    driver, link = subscribed()
    link = reconnect(driver, link)
    driver.answer(link, complete("t", 1, 2))
    driver.receive(link, message("t", 1, 1), message("t", 1, 2))
    link = reconnect(driver, link)
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 2))]


def test_resume_when_nothing_was_missed_is_complete() -> None:
    """Pitfall 12."""
    driver, link = subscribed(sequence=17, epoch=4)
    link = reconnect(driver, link)
    driver.answer(link, complete("t", 4, 17))
    assert driver.of(ev.Receipt) == [
        ev.Receipt("t", "complete", Position(4, 17), Position(4, 17), resumed=True),
    ]
    assert driver.delivered() == []


def test_truncated_is_reported_and_the_stream_goes_on_behind_the_gap() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1))
    link = reconnect(driver, link)
    driver.answer(link, truncated(2, 9, Position(3, 12)))
    assert driver.receipts()[-1] == ("truncated", 2, 9)
    driver.receive(link, message("t", 2, 10))
    assert driver.receipts()[-1] == ("truncated", 2, 9)
    assert driver.delivered() == [(1, 1), (2, 10)]


def test_a_gap_is_reported_once_even_when_the_link_breaks_before_the_next_message() -> None:
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


def test_a_live_gap_is_reported_in_its_place() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1), wire.Subscribed(0, [truncated(2, 3, Position(1, 3))]), message("t", 1, 4))
    kinds = [type(item).__name__ for item in driver.effects]
    assert kinds == ["Deliver", "Receipt", "Deliver"]
    assert driver.receipts()[-1] == ("truncated", 2, 3)


def test_reset_begins_again_where_the_broker_says() -> None:
    driver, link = subscribed(sequence=9)
    driver.receive(link, wire.Subscribed(0, [wire.TopicReceipt("t", "reset", Position(7, 2))]), message("t", 7, 3))
    (receipt,) = driver.of(ev.Receipt)
    assert receipt == ev.Receipt("t", "reset", Position(7, 2), Position(7, 2), resumed=True, before=Position(1, 9))
    assert str(GapError(receipt)).endswith("the topic continues after it; you were at 1:9")
    assert driver.delivered() == [(7, 3)]
    assert driver.receipts()[-1][0] == "reset"


def test_a_receipt_without_position_takes_the_first_message_as_it_comes() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    driver.answer(link, wire.TopicReceipt("t", "reset", None))
    driver.receive(link, message("t", 3, 8))
    assert driver.delivered() == [(3, 8)]
    assert driver.receipts() == [("reset", 0, 0)]


def test_a_fresh_subscription_that_is_told_truncated_stands_at_the_position() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    driver.answer(link, truncated(1, 3, Position(1, 5)))
    driver.receive(link, message("t", 1, 6))
    assert driver.receipts() == [("complete", 0, 0)]
    assert driver.delivered() == [(1, 6)]


def test_a_snapshot_is_the_publication_at_the_position_itself_and_comes_once() -> None:
    driver, link = subscribed(sequence=5, snapshot=True)
    driver.receive(link, message("t", 1, 5), message("t", 1, 5), message("t", 1, 6))
    assert driver.delivered() == [(1, 5), (1, 6)]


def test_no_snapshot_is_awaited_of_an_empty_topic_or_behind_a_live_message() -> None:
    driver, link = subscribed(snapshot=True)
    assert not driver.core.subscriptions.active["t"].snapshot
    driver, link = subscribed(sequence=5, snapshot=True)
    driver.receive(link, message("t", 1, 4), message("t", 1, 6), message("t", 1, 5))
    assert driver.delivered() == [(1, 6)]


def test_a_snapshot_that_is_still_awaited_is_asked_for_again() -> None:
    driver, link = subscribed(sequence=5, snapshot=True)
    link = reconnect(driver, link)
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 5), True)]


def test_messages_for_topics_that_were_left_are_dropped() -> None:
    driver, link = subscribed()
    driver.step(ev.UnsubscribeTopic("t"))
    assert driver.sent(link)[-1] == wire.Unsubscribe(2, ["t"])
    driver.receive(link, message("t", 1, 1), wire.Unsubscribed(2, ["t"]))
    assert driver.delivered() == []
    assert driver.step(ev.UnsubscribeTopic("t")) == []


def test_a_topic_goes_on_where_it_was_left() -> None:
    driver, link = subscribed()
    driver.receive(link, message("t", 1, 1))
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("t"))
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 1))]
    driver.receive(link, message("t", 1, 2))  # of the subscription before: its time is over
    driver.answer(link, complete("t", 1, 2))
    driver.receive(link, message("t", 1, 2))
    assert driver.delivered() == [(1, 1), (1, 2)]


def test_the_receipt_of_an_earlier_request_does_not_count() -> None:
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


def test_going_back_to_what_the_application_has_seen() -> None:
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


def test_fresh_forgets_and_after_overrides_what_was_left() -> None:
    driver, link = subscribed(sequence=5)
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("t", fresh=True))
    assert driver.request(link).topics[0].after is None
    driver.step(ev.UnsubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("t", after=Position(1, 2), snapshot=True))
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 2), False)]


def test_a_reported_gap_is_remembered_with_the_position() -> None:
    driver, link = subscribed()
    driver.receive(link, wire.Subscribed(0, [truncated(1, 4, Position(1, 6))]))
    driver.step(ev.UnsubscribeTopic("t", seen=Position(1, 0)))
    driver.step(ev.SubscribeTopic("t", after=Position(1, 0)))
    driver.answer(link, truncated(1, 4, Position(1, 6)))
    assert driver.receipts()[1:] == [("truncated", 1, 4), ("complete", 0, 0)]


def test_positions_of_left_topics_are_bounded() -> None:
    driver = CoreDriver(settings=Settings(remembered_positions=2))
    link = driver.open()
    for topic in ("a", "b", "c"):
        driver.step(ev.SubscribeTopic(topic))
        driver.answer(link, complete(topic, 1, 5))
        driver.step(ev.UnsubscribeTopic(topic))
    for topic in ("a", "b", "c"):
        driver.step(ev.SubscribeTopic(topic))
    asked = [item.topics[0].after for item in driver.sent(link) if isinstance(item, wire.Subscribe)][3:]
    assert asked == [None, Position(1, 5), Position(1, 5)]


def test_a_topic_wanted_twice_is_asked_for_once() -> None:
    driver, _link = subscribed()
    assert driver.step(ev.SubscribeTopic("t")) == []


def test_a_refused_topic_harms_no_other() -> None:
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("secret"))
    link = driver.open()
    driver.answer(link, wire.TopicReceipt("secret", None, code="not_allowed", text="no"), complete("t", 1, 0))
    assert driver.of(ev.SubscribeRefused) == [ev.SubscribeRefused("secret", "not_allowed", "no")]
    assert driver.of(ev.Ready) == [ev.Ready(link, None)]
    driver.receive(link, message("t", 1, 1), message("secret", 1, 1))
    assert driver.delivered() == [(1, 1)]


def test_a_refused_request_refuses_all_its_topics() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    request = driver.request(link).request
    driver.receive(link, wire.Error("too_many_subscriptions", "1001", request=request))
    assert driver.of(ev.SubscribeRefused) == [ev.SubscribeRefused("t", "too_many_subscriptions", "1001")]
    assert driver.core.subscriptions.active == {}
    driver.step(ev.SubscribeTopic("a\0"))
    assert [item.code for item in driver.of(ev.SubscribeRefused)] == ["bad_topic"]


def test_many_topics_are_asked_for_in_bounded_requests() -> None:
    driver = CoreDriver(settings=Settings(subscribe_batch=4))
    for number in range(10):
        driver.step(ev.SubscribeTopic(f"t{number}"))
    link = driver.open(welcome())
    sizes = [len(item.topics) for item in driver.sent(link) if isinstance(item, wire.Subscribe)]
    assert sizes == [4, 4, 2]
