"""Publishing by the client core: ids, marks and resends (the publisher's rules 1 and 2 of
docs/concepts/replication.md, "Normal case"), local refusals, limits and timeouts."""

from __future__ import annotations

from math import inf

import pytest
from migratory_client.core import events as ev
from migratory_client.core.publishing import RESEND_WINDOW
from migratory_client.core.settings import Settings
from migratory_client.errors import OutcomeUnknown, publish_error
from migratory_protocol import limits
from migratory_protocol import messages as wire
from migratory_protocol.codec import JSON
from migratory_protocol.positions import Position
from migratory_testing.clientcore import CoreDriver, welcome


def ids(driver: CoreDriver) -> list[tuple[int, int]]:
    """Return the (id, mark) of each publication that the client sent at the driver's last event or wait."""
    return [(item.id, item.mark) for item in driver.published()]


def submit(driver: CoreDriver, ticket: object, topic: str = "t", payload: bytes = b"x", qos: int = 1) -> None:
    driver.step(ev.Submit(ticket, topic, payload, qos, 5.0))


def ack(number: int, topic: str = "t", publisher: str = "p") -> wire.Ack:
    return wire.Ack(topic, publisher, number, Position(1, number))


def nack(number: int, code: str, retry_after: float | None = None, topic: str = "t") -> wire.Nack:
    return wire.Nack(topic, "p", number, code, "because", retry_after)


def test_ids_rise_per_topic_and_carry_the_lowest_pending_id_as_mark() -> None:
    driver = CoreDriver()
    driver.open()
    submit(driver, "a")
    assert driver.published() == [wire.Publish("t", b"x", 1, "p", 1, 1, 5.0)]
    submit(driver, "b")
    assert ids(driver) == [(2, 1)]
    submit(driver, "c", topic="other")
    assert ids(driver) == [(1, 1)]


@pytest.mark.parametrize("sent", [-1.0, 1.1e12, float("nan"), float("inf"), None])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_clock_that_the_protocol_does_not_allow_is_not_sent(sent: float | None, qos: int) -> None:
    """A publication is sent without `sent` when the clock's value is one that the protocol does not allow.
    Regression: with a wall clock before 1970 the broker refused every publication."""
    driver = CoreDriver()
    driver.open()
    driver.step(ev.Submit("a", "t", b"x", qos, sent))
    assert [message.sent for message in driver.published()] == [None]


def test_mark_is_computed_at_every_sending() -> None:
    driver = CoreDriver()
    link = driver.open()
    for ticket in "abc":
        submit(driver, ticket)
    assert ids(driver) == [(3, 1)]
    driver.receive(link, ack(1))
    assert driver.of(ev.Acknowledged) == [ev.Acknowledged("a", Position(1, 1))]
    driver.receive(link, nack(3, "gap"))
    assert ids(driver) == [(2, 2), (3, 2)]
    driver.receive(link, ack(2))
    submit(driver, "d")
    assert ids(driver) == [(4, 3)]


def test_answer_out_of_order_does_not_change_the_mark() -> None:
    driver = CoreDriver()
    link = driver.open()
    for ticket in "abc":
        submit(driver, ticket)
    driver.receive(link, ack(2))
    submit(driver, "d")
    assert ids(driver) == [(4, 1)]


def test_one_resend_serves_all_gaps_of_the_previous_sending() -> None:
    driver = CoreDriver()
    link = driver.open()
    for number in range(50):
        submit(driver, number)
    resends = 0
    for number in range(2, 51):
        driver.receive(link, nack(number, "gap"))
        resends += bool(driver.published())
    assert resends == 1
    driver.wait(0.3)
    assert ids(driver)[0] == (1, 1)  # but a gap that stays is served again


def test_answer_does_not_postpone_the_resend_for_a_gap() -> None:
    driver = CoreDriver()
    link = driver.open()
    for ticket in "abc":
        submit(driver, ticket)
    driver.receive(link, nack(2, "gap"))
    driver.receive(link, nack(3, "gap"), ack(1))
    driver.wait(0.25)
    assert ids(driver) == [(2, 2), (3, 2)]


def test_retry_defers_the_topic_and_resends_from_the_lowest_id() -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    driver.receive(link, nack(1, "retry", 0.7))
    submit(driver, "b")
    assert ids(driver) == []
    driver.receive(link, ack(99))  # of nothing that waits
    driver.wait(0.69)
    assert ids(driver) == []
    driver.wait(0.02)
    assert ids(driver) == [(1, 1), (2, 1)]
    submit(driver, "c")
    assert ids(driver) == [(3, 1)]


@pytest.mark.parametrize(("named", "waited"), [(None, 0.1), (-5.0, 0.01), (0.0, 0.01), (1e9, 8.0)])
def test_retry_after_is_limited(named: float | None, waited: float) -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    driver.receive(link, nack(1, "retry", named))
    queue = driver.core.publisher.queues["t"]
    assert queue.resend_at == pytest.approx(driver.now + waited)


def test_answer_during_backoff_is_accepted_without_ending_it() -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    submit(driver, "b")
    driver.receive(link, nack(2, "retry", 0.5), ack(1))
    assert ids(driver) == []
    driver.wait(0.5)
    assert ids(driver) == [(2, 2)]


def test_silence_resends_all_with_growing_waits_until_timeout() -> None:
    driver = CoreDriver(settings=Settings(publish_timeout=30.0))
    link = driver.open(welcome(heartbeat=0.0))
    start = driver.now
    submit(driver, "a")
    times: list[float] = []
    while driver.core.publisher.waiting:
        driver.until(driver.core.deadline)
        if driver.published():
            times.append(driver.now - start)
    assert times == [2, 4, 8, 16, 24]
    assert driver.now - start == 30
    (failed,) = driver.of(ev.PublishFailed)
    assert (failed.ticket, failed.code) == ("a", "timeout")
    assert driver.core.publisher.deadline == inf
    assert driver.receive(link, ack(1)) == []  # giving up is final


def test_give_up_is_final_and_advances_the_mark() -> None:
    driver = CoreDriver()
    link = driver.open()
    tickets = [object() for _ in range(3)]
    for ticket in tickets:
        submit(driver, ticket)
    driver.step(ev.GiveUp(tickets[0]))
    assert ids(driver) == [(2, 2), (3, 2)]
    assert driver.of(ev.Acknowledged) == []
    driver.receive(link, ack(1))
    driver.receive(link, nack(1, "gap"))
    assert driver.effects == []
    driver.receive(link, ack(2))
    assert driver.of(ev.Acknowledged) == [ev.Acknowledged(tickets[1], Position(1, 2))]
    assert driver.step(ev.GiveUp("unknown")) == []
    driver.step(ev.GiveUp(tickets[2]))
    assert driver.core.publisher.waiting == 0
    submit(driver, "d")
    assert ids(driver) == [(4, 4)]  # never an id again


def test_timeout_of_the_lowest_id_resends_the_later_ones() -> None:
    driver = CoreDriver(settings=Settings(publish_timeout=10.0, ack_timeout=100.0))
    link = driver.open()
    submit(driver, "a")
    driver.wait(4)
    submit(driver, "b")
    driver.wait(6)
    assert [item.ticket for item in driver.of(ev.PublishFailed)] == ["a"]
    assert ids(driver) == [(2, 2)]
    driver.receive(link, ack(2))
    assert driver.core.publisher.queues == {}


def test_final_refusal_fails_one_and_resends_the_later_ones() -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    submit(driver, "b")
    driver.receive(link, nack(1, "id_reused"))
    assert driver.of(ev.PublishFailed) == [ev.PublishFailed("a", "id_reused", "because")]
    assert ids(driver) == [(2, 2)]


def test_answers_for_another_publisher_or_topic_are_ignored() -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    assert driver.receive(link, ack(1, publisher="q")) == []
    assert driver.receive(link, ack(1, topic="u")) == []
    assert driver.receive(link, wire.Nack("t", "q", 1, "gap")) == []
    assert driver.receive(link, nack(1, "gap", topic="u")) == []
    assert driver.core.publisher.waiting == 1


def test_publications_keep_their_ids_across_reconnects() -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    driver.step(ev.Disconnected(link))
    submit(driver, "b")
    assert ids(driver) == []
    driver.accept(driver.next_dial())
    assert ids(driver) == [(1, 1), (2, 1)]


def test_publications_before_the_first_link_are_sent_on_it() -> None:
    driver = CoreDriver()
    driver.step(ev.Open())
    dial = driver.next_dial()
    submit(driver, "a")
    driver.accept(dial)
    assert ids(driver) == [(1, 1)]


def test_publications_without_a_link_time_out_unsent() -> None:
    driver = CoreDriver(settings=Settings(publish_timeout=3.0))
    driver.open()
    driver.step(ev.Disconnected(1))
    submit(driver, "a")
    while driver.core.publisher.waiting:
        driver.until(driver.core.deadline)
        assert ids(driver) == []
        for dial in driver.of(ev.Dial):
            driver.step(ev.Disconnected(dial.link))
    assert [item.code for item in driver.history if isinstance(item, ev.PublishFailed)] == ["timeout"]


def test_pending_publications_are_limited() -> None:
    driver = CoreDriver(settings=Settings(max_waiting=2))
    link = driver.open()
    for ticket in "abc":
        submit(driver, ticket)
    assert [(item.ticket, item.code) for item in driver.of(ev.PublishFailed)] == [("c", "too_many_waiting")]
    driver.receive(link, ack(1))
    submit(driver, "d")
    assert ids(driver) == [(3, 2)]  # the refused one had no id


def test_qos_0_is_sent_at_once_or_fails() -> None:
    driver = CoreDriver()
    submit(driver, "a", qos=0)
    assert [item.code for item in driver.of(ev.PublishFailed)] == ["closed"]
    driver.step(ev.Open())
    dial = driver.next_dial()
    submit(driver, "b", qos=0)
    assert [item.code for item in driver.of(ev.PublishFailed)] == ["not_connected"]
    driver.accept(dial)
    submit(driver, "c", qos=0)
    assert driver.published() == [wire.Publish("t", b"x", sent=5.0)]
    assert driver.of(ev.Acknowledged) == [ev.Acknowledged("c", None)]


def test_payload_above_the_limit_fails_locally() -> None:
    driver = CoreDriver()
    driver.step(ev.Open())
    submit(driver, "big", payload=bytes(1001))
    driver.accept(driver.of(ev.Dial)[0] if driver.of(ev.Dial) else ev.Dial(1, ""))
    assert [(item.ticket, item.code) for item in driver.of(ev.PublishFailed)] == [("big", "too_large")]
    submit(driver, "bigger", payload=bytes(1001))
    assert [(item.ticket, item.code) for item in driver.of(ev.PublishFailed)] == [("bigger", "too_large")]
    submit(driver, "fits", payload=bytes(1000))
    assert ids(driver) == [(2, 2)]


def test_publication_too_long_in_json_fails_locally() -> None:
    """A publication whose JSON would exceed the broker's limit fails with `too_large` before it is sent: the broker
    would close the link, and again each next link on which it is repeated."""
    limit = 600_000
    driver = CoreDriver(codec=JSON, settings=Settings(max_payload=limit))
    driver.step(ev.Open())
    for ticket, payload in (("binary", b"\xff" * 500_000), ("escapes", b"\x01" * 200_000), ("text", b"x" * 600_000)):
        submit(driver, ticket, payload=payload)
        failed = driver.of(ev.PublishFailed)
        assert [item.ticket for item in failed] == ([] if ticket == "text" else [ticket])
        if failed:
            assert (failed[0].code, "bytes in JSON" in failed[0].text) == ("too_large", True)
            assert len(JSON.encode(wire.Publish("t", payload))) > limit + limits.ENVELOPE
    submit(driver, "nearly", payload=b"\xff" * 400_000)
    submit(driver, "fits", payload=b"\xff" * 300_000)
    driver.accept(driver.next_dial(), welcome(limits=wire.Limits(400_000, 255, 1000, 400_000)))
    assert [item.ticket for item in driver.of(ev.PublishFailed)] == ["text", "nearly"]
    assert [item.payload[:1] for item in driver.published()] == [b"\xff"]


def test_invalid_topic_fails_locally() -> None:
    driver = CoreDriver()
    driver.open()
    submit(driver, "a", topic="a\0b")
    assert [item.code for item in driver.of(ev.PublishFailed)] == ["bad_topic"]


def test_lost_acknowledgement_is_answered_after_the_resend() -> None:
    """Pitfall 16: a publication without an answer is sent again with the same id on the next link, and the answer
    there counts, even without a position."""
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    driver.step(ev.Disconnected(link))
    again = driver.accept(driver.next_dial())
    assert ids(driver) == [(1, 1)]
    driver.receive(again, wire.Ack("t", "p", 1, None))
    assert driver.of(ev.Acknowledged) == [ev.Acknowledged("a", None)]


def test_close_fails_pending_publications_and_ids_continue() -> None:
    driver = CoreDriver()
    driver.open()
    submit(driver, "a")
    driver.step(ev.Close())
    assert [(item.ticket, item.code) for item in driver.of(ev.PublishFailed)] == [("a", "closed")]
    submit(driver, "b")
    assert [item.code for item in driver.of(ev.PublishFailed)] == ["closed"]
    driver.open()
    submit(driver, "c")
    assert ids(driver) == [(2, 2)]


# ---- very many that wait ---------------------------------------------------------------------------------------------


MANY = 1000


def many_waiting() -> tuple[CoreDriver, int]:
    driver = CoreDriver(settings=Settings(max_waiting=5 * MANY))
    link = driver.open()
    for number in range(MANY):
        submit(driver, number)
    return driver, link


def test_resend_sends_a_window_and_each_answer_two_more() -> None:
    driver, link = many_waiting()
    driver.receive(link, nack(500, "retry", 0.2))
    driver.wait(0.21)
    assert ids(driver) == [(number, 1) for number in range(1, RESEND_WINDOW + 1)]
    driver.receive(link, ack(1))
    assert ids(driver) == [(RESEND_WINDOW + 1, 2), (RESEND_WINDOW + 2, 2)]
    driver.receive(link, ack(RESEND_WINDOW + 4))  # from the first sending: it need not go again
    assert ids(driver) == [(RESEND_WINDOW + 3, 2), (RESEND_WINDOW + 5, 2)]
    driver.receive(link, ack(2))
    assert ids(driver) == [(RESEND_WINDOW + 6, 3), (RESEND_WINDOW + 7, 3)]


def test_new_publications_are_sent_after_deferred_ones() -> None:
    driver, link = many_waiting()
    driver.receive(link, nack(1, "gap"))
    assert len(ids(driver)) == RESEND_WINDOW
    submit(driver, "new")
    assert ids(driver) == []
    sent = list(range(1, RESEND_WINDOW + 1))
    for number in range(1, MANY + 1):
        driver.receive(link, ack(number))
        sent += [identity for identity, _ in ids(driver)]
    assert sent == list(range(1, MANY + 2))
    submit(driver, "newer")
    assert ids(driver) == [(MANY + 2, MANY + 1)]


def test_many_refusals_cause_few_resends() -> None:
    """When every resend is refused, the client sends `RESEND_WINDOW` publications after each wait, and not all that
    are unanswered."""
    driver, link = many_waiting()
    sent = 0
    for _ in range(20):
        driver.receive(link, nack(1, "retry", 0.2))
        driver.wait(0.21)
        sent += len(ids(driver))
    assert sent == 20 * RESEND_WINDOW


def test_resend_without_answers_repeats_the_first_window() -> None:
    driver, link = many_waiting()
    driver.receive(link, nack(1, "gap"))
    assert len(ids(driver)) == RESEND_WINDOW
    driver.wait(2.1)
    assert ids(driver) == [(number, 1) for number in range(1, RESEND_WINDOW + 1)]


def test_answer_without_a_link_sends_nothing() -> None:
    driver, link = many_waiting()
    driver.receive(link, nack(1, "gap"))
    driver.step(ev.Disconnected(link))
    driver.accept(driver.next_dial())
    assert [identity for identity, _ in ids(driver)] == list(range(1, RESEND_WINDOW + 1))


# ---- the cluster's duplicate window


def windowed(window: float, **settings: float) -> tuple[CoreDriver, int]:
    """Return a client whose broker announces this duplicate window in seconds, and the number of its link."""
    driver = CoreDriver(settings=Settings(**settings))  # type: ignore[arg-type]
    reply = welcome()
    reply.duplicate_window = window
    return driver, driver.open(reply)


def test_nothing_is_sent_again_after_the_duplicate_window() -> None:
    """After the duplicate window, a publication without an answer fails with `timeout` and is not sent again,
    because a repeat could be stored a second time."""
    driver, link = windowed(30.0, publish_timeout=600.0)
    submit(driver, "a")
    driver.now += 31.0  # asleep
    driver.receive(link, nack(1, "retry", 0.0))
    (failed,) = driver.of(ev.PublishFailed)
    assert (failed.ticket, failed.code) == ("a", "timeout")
    assert failed.text.startswith("no answer within 30 s; the publication may still appear")
    assert driver.published() == []


def test_what_was_never_sent_may_wait_for_longer() -> None:
    driver, link = windowed(30.0, publish_timeout=600.0)
    driver.step(ev.Disconnected(link))
    submit(driver, "a")
    driver.now += 100.0
    driver.open()
    assert ids(driver) == [(1, 1)]
    assert not driver.of(ev.PublishFailed)


def test_expired_ones_among_the_deferred_are_not_sent() -> None:
    driver, link = windowed(30.0, publish_timeout=600.0)
    for number in range(RESEND_WINDOW + 3):
        submit(driver, number)
    driver.receive(link, nack(1, "gap"))
    assert len(ids(driver)) == RESEND_WINDOW
    driver.now += 31.0
    driver.receive(link, ack(1))
    assert driver.published() == []


def test_outcome_unknown_is_an_exception_of_its_own() -> None:
    error = publish_error(ev.PublishFailed("a", "outcome_unknown", "x"))
    assert (type(error), error.code) == (OutcomeUnknown, "outcome_unknown")


def limited(seconds: float | None) -> wire.Error:
    return wire.Error("rate_limited", "limit of publications of one client reached (10 a second)", retry_after=seconds)


def test_nothing_is_sent_until_the_broker_reads_on_and_nothing_twice() -> None:
    """At a rate the broker keeps what it has and reads on later. Nothing is sent again meanwhile, and what the
    application publishes meanwhile follows in order."""
    driver = CoreDriver()
    link = driver.open()
    for ticket in "ab":
        submit(driver, ticket)
    submit(driver, "other", topic="u")
    driver.receive(link, limited(5.0))
    assert [each.code for each in driver.of(ev.Problem)] == ["rate_limited"]
    submit(driver, "c")
    submit(driver, "d")
    driver.receive(link, ack(1))
    submit(driver, "new", topic="v")
    driver.wait(4.9)
    assert ids(driver) == []
    driver.wait(0.2)
    assert [(item.topic, item.id) for item in driver.published()] == [("t", 3), ("t", 4), ("v", 1)]
    submit(driver, "e")
    assert ids(driver) == [(5, 2)]
    driver.wait(1.5)
    assert ids(driver) == []  # the time for an answer began when the broker read on
    driver.wait(0.5)
    assert [(item.topic, item.id) for item in driver.published()] == [
        *[("t", number) for number in (2, 3, 4, 5)], ("u", 1), ("v", 1),
    ]  # fmt: skip


def test_pause_of_a_topic_that_backs_off_ends_with_its_resend() -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    driver.receive(link, nack(1, "retry", 0.5), limited(2.0))
    submit(driver, "b")
    driver.wait(1.9)
    assert ids(driver) == []
    driver.wait(2.2)
    assert ids(driver) == [(1, 1), (2, 1)]


def test_new_link_ends_a_pause() -> None:
    driver = CoreDriver()
    link = driver.open()
    submit(driver, "a")
    driver.receive(link, limited(None))
    driver.receive(link, limited(8.0))
    driver.step(ev.Disconnected(link))
    driver.accept(driver.next_dial())
    assert ids(driver) == [(1, 1)]
