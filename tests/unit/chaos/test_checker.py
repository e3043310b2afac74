"""The checker on histories that are right, and on the same ones broken on purpose: it must name topic and position."""

from __future__ import annotations

import pytest
from migratory_chaos.checker import check
from migratory_chaos.history import Delivered, TopicHistory, digest
from migratory_chaos.runner import missing_lines
from migratory_testing.histories import CHANGE, COUNT, TOPIC, content, judge, only, perfect, place, sent, stream


def test_a_right_history_is_clean_and_counted() -> None:
    verdict = judge(perfect())
    assert verdict.clean
    assert (verdict.submitted, verdict.acknowledged, verdict.unknown) == (COUNT, COUNT, 0)
    assert verdict.owed == verdict.delivered == 3 * COUNT
    assert verdict.slowest_ms == 50
    assert verdict.findings == []


@pytest.mark.parametrize("sequence", [1, 5, CHANGE, COUNT])
def test_a_delivery_that_is_missing(sequence: int) -> None:
    history = perfect()
    del stream(history)[sequence - 1]
    (finding,) = only(judge(history), "lost")
    assert (finding.place, finding.client) == (f"{place(sequence)[0]}:{sequence}", "s1")


@pytest.mark.parametrize("sequence", [1, 5, CHANGE, COUNT])
def test_a_delivery_that_comes_twice(sequence: int) -> None:
    history = perfect()
    stream(history).insert(sequence, stream(history)[sequence - 1])
    (finding,) = only(judge(history), "duplicate")
    assert (finding.place, finding.client) == (f"{place(sequence)[0]}:{sequence}", "s1")


@pytest.mark.parametrize("sequence", [1, 5, CHANGE - 1, COUNT - 1])
def test_two_deliveries_that_are_swapped(sequence: int) -> None:
    history = perfect()
    events = stream(history)
    events[sequence - 1], events[sequence] = events[sequence], events[sequence - 1]
    verdict = judge(history)
    assert (verdict.reordered, verdict.duplicate, verdict.unexpected) == (1, 0, 0)
    (late,) = [finding for finding in verdict.findings if finding.kind == "reordered"]
    assert (late.topic, late.place, late.client) == (TOPIC, f"{place(sequence)[0]}:{sequence}", "s1")


def test_a_content_that_was_altered_on_its_way_to_one() -> None:
    history = perfect()
    stream(history)[4] = Delivered(place(5), digest(b"altered"))
    verdict = judge(history)
    assert not verdict.clean
    named = {(finding.kind, finding.place, finding.client) for finding in verdict.findings}
    assert ("unexpected", "1:5", "s1") in named
    assert ("unexpected", "1:5", "") in named  # two contents at one position
    assert ("lost", "1:5", "s1") in named


def test_a_content_that_was_altered_for_all() -> None:
    history = perfect()
    for one in history.subscribers.values():
        one.events[4] = Delivered(place(5), digest(b"altered"))
    verdict = judge(history)
    assert (verdict.lost, verdict.unexpected) == (3, 3 + 1)
    assert {finding.place for finding in verdict.findings} == {"1:5"}


def test_one_publication_at_two_positions_is_a_duplicate_though_nobody_saw_both() -> None:
    history = perfect()
    stream(history)[-1] = Delivered((3, COUNT), content(COUNT))
    (finding,) = only(judge(history), "duplicate")
    assert finding.place == f"3:{COUNT}"


def test_a_publishers_order_turned_round() -> None:
    history = perfect()
    first, second = history.publishers["a"][1:3]
    first.place, second.place = second.place, first.place
    for one in history.subscribers.values():
        low, high = one.events[2], one.events[4]
        assert isinstance(low, Delivered)
        assert isinstance(high, Delivered)
        one.events[2], one.events[4] = Delivered(low.place, high.digest), Delivered(high.place, low.digest)
    (finding,) = only(judge(history), "reordered")
    assert (finding.client, finding.place) == ("a", "1:3")


def test_an_unanswered_publication_may_be_there_or_not() -> None:
    for delivered in (True, False):
        history = perfect()
        entry = sent(history, COUNT)
        entry.acknowledged, entry.place, entry.answered_ms = False, None, None
        if not delivered:
            for one in history.subscribers.values():
                del one.events[-1]
        verdict = judge(history)
        assert verdict.clean
        assert (verdict.unknown, verdict.unknown_delivered) == (1, int(delivered))
        assert verdict.acknowledged == COUNT - 1


def test_an_unanswered_publication_that_only_some_saw_leaves_a_hole() -> None:
    history = perfect()
    entry = sent(history, 5)
    entry.acknowledged, entry.place, entry.answered_ms = False, None, None
    del stream(history)[4]
    (finding,) = only(judge(history), "lost")
    assert (finding.place, finding.client) == ("1:6", "s1")
    assert "before this position" in finding.text


@pytest.mark.parametrize(("code", "wrong"), [("timeout", 0), ("closed", 0), ("bad_topic", 3)])
def test_what_was_refused_for_good_must_not_appear(code: str, wrong: int) -> None:
    history = perfect()
    entry = sent(history, 5)
    entry.acknowledged, entry.place, entry.failed = False, None, code
    verdict = judge(history)
    assert verdict.unexpected == wrong
    assert verdict.failed == (1 if wrong else 0)
    assert {finding.place for finding in verdict.findings} == ({"1:5"} if wrong else set())


def test_an_acknowledgement_without_a_position_is_owed_as_well() -> None:
    history = perfect()
    sent(history, 5).place = None
    assert judge(history).clean
    for one in history.subscribers.values():
        del one.events[4:]
    verdict = judge(history)
    assert verdict.lost == 3 * (COUNT - 4)


def test_publications_under_way_at_a_moment() -> None:
    history = perfect()
    sent(history, COUNT).answered_ms = None
    # One is under way from 100 n to 100 n + 50, the last one for ever.
    verdict, under_way = check([history, perfect()], [0, 110, 150, 160, 520, 100 * COUNT + 60])
    assert under_way == [0, 2, 0, 0, 2, 1]
    assert verdict.topics == 2


def test_counts_are_exact_beyond_what_is_named() -> None:
    history = perfect()
    history.subscribers["s1"].events.clear()
    verdict = judge(history)
    assert verdict.lost == COUNT
    assert 0 < len(verdict.findings) < COUNT


def test_a_duplicate_across_a_reconnect() -> None:
    history = perfect()
    events = stream(history)
    events.extend(events[-2:])
    findings = only(judge(history), "duplicate", 2)
    assert {finding.client for finding in findings} == {"s1"}


def test_sequence_numbers_that_begin_anew_with_an_epoch_are_out_of_order() -> None:
    history = perfect()
    for entries in history.publishers.values():
        for entry in entries:
            if entry.place is not None and entry.place[0] == 2:
                entry.place = (2, entry.place[1] - 2)
    for one in history.subscribers.values():
        for index, event in enumerate(one.events):
            if isinstance(event, Delivered) and event.place[0] == 2:
                one.events[index] = Delivered((2, event.place[1] - 2), event.digest)
    findings = only(judge(history), "reordered", 3 * 2)
    assert {finding.place for finding in findings} == {"2:6", "2:7"}


def test_a_subscriber_that_stopped_before_the_end() -> None:
    history = perfect()
    del stream(history)[CHANGE:]
    findings = only(judge(history), "lost", COUNT - CHANGE)
    assert {finding.client for finding in findings} == {"s1"}


def test_a_topic_that_nobody_read_proves_nothing() -> None:
    for silent in (True, False):
        history = perfect()
        for one in history.subscribers.values():
            one.events.clear()
        if silent:
            history.subscribers.clear()
        verdict = judge(history)
        assert verdict.unread == 1
        assert "1 of 1 topics nobody got anything" in verdict.problems()[-1]


def test_no_operations_are_no_pass() -> None:
    for topics in ([], [TopicHistory(TOPIC)]):
        verdict, _ = check(topics)
        assert verdict.clean
        assert verdict.problems() == ["nothing was acknowledged"]


def test_what_the_clients_counted_must_be_in_the_histories() -> None:
    verdict = judge(perfect())
    counted = {"submitted": COUNT, "acknowledged": COUNT, "delivered": 3 * COUNT}
    assert missing_lines(verdict, counted) == []
    assert missing_lines(verdict, {}) == []
    counted["delivered"] += 1
    (problem,) = missing_lines(verdict, counted)
    assert problem == f"the histories hold {3 * COUNT} delivered, the clients counted {3 * COUNT + 1}"
