"""The checker accepts a correct history, and names topic and position in the same history with one thing broken on
purpose."""

from __future__ import annotations

import pytest
from migratory_chaos.processes.checker import check
from migratory_chaos.processes.history import Delivered, Gap, Stream, TopicHistory, digest
from migratory_chaos.processes.recording_clients import Sample
from migratory_chaos.processes.runner import find_missing_lines
from migratory_testing.histories import CHANGE, COUNT, TOPIC, content, judge, only, perfect, position, sent, stream


def test_checker_accepts_a_correct_history() -> None:
    verdict = judge(perfect())
    assert verdict.clean
    assert (verdict.submitted, verdict.acknowledged, verdict.unknown) == (COUNT, COUNT, 0)
    assert verdict.owed == verdict.delivered == 3 * COUNT
    assert verdict.slowest_ms == 50
    assert verdict.findings == []


@pytest.mark.parametrize("sequence", [1, 5, CHANGE, COUNT])
def test_checker_names_a_missing_delivery(sequence: int) -> None:
    history = perfect()
    del stream(history)[sequence - 1]
    (finding,) = only(judge(history), "lost")
    assert (finding.position, finding.client) == (f"{position(sequence)[0]}:{sequence}", "s1")


@pytest.mark.parametrize("sequence", [1, 5, CHANGE, COUNT])
def test_checker_names_a_repeated_delivery(sequence: int) -> None:
    history = perfect()
    stream(history).insert(sequence, stream(history)[sequence - 1])
    (finding,) = only(judge(history), "duplicate")
    assert (finding.position, finding.client) == (f"{position(sequence)[0]}:{sequence}", "s1")


@pytest.mark.parametrize("sequence", [1, 5, CHANGE - 1, COUNT - 1])
def test_checker_names_a_swapped_delivery(sequence: int) -> None:
    history = perfect()
    events = stream(history)
    events[sequence - 1], events[sequence] = events[sequence], events[sequence - 1]
    verdict = judge(history)
    assert (verdict.reordered, verdict.duplicate, verdict.unexpected) == (1, 0, 0)
    (late,) = [finding for finding in verdict.findings if finding.kind == "reordered"]
    assert (late.topic, late.position, late.client) == (TOPIC, f"{position(sequence)[0]}:{sequence}", "s1")


def test_checker_names_a_content_altered_for_one_subscriber() -> None:
    history = perfect()
    stream(history)[4] = Delivered(position(5), digest(b"altered"))
    verdict = judge(history)
    assert not verdict.clean
    named = {(finding.kind, finding.position, finding.client) for finding in verdict.findings}
    assert ("unexpected", "1:5", "s1") in named
    assert ("unexpected", "1:5", "") in named  # two contents at one position
    assert ("lost", "1:5", "s1") in named


def test_checker_names_a_content_altered_for_all_subscribers() -> None:
    history = perfect()
    for subscriber in history.subscribers.values():
        subscriber.events[4] = Delivered(position(5), digest(b"altered"))
    verdict = judge(history)
    assert (verdict.lost, verdict.unexpected) == (3, 3 + 1)
    assert {finding.position for finding in verdict.findings} == {"1:5"}


def test_checker_counts_one_content_at_two_positions_as_duplicate() -> None:
    history = perfect()
    stream(history)[-1] = Delivered((3, COUNT), content(COUNT))
    (finding,) = only(judge(history), "duplicate")
    assert finding.position == f"3:{COUNT}"


def test_checker_names_positions_against_a_publishers_order() -> None:
    history = perfect()
    first, second = history.publishers["a"][1:3]
    first.position, second.position = second.position, first.position
    for subscriber in history.subscribers.values():
        low, high = subscriber.events[2], subscriber.events[4]
        assert isinstance(low, Delivered)
        assert isinstance(high, Delivered)
        subscriber.events[2], subscriber.events[4] = (
            Delivered(low.position, high.digest),
            Delivered(high.position, low.digest),
        )
    (finding,) = only(judge(history), "reordered")
    assert (finding.client, finding.position) == ("a", "1:3")


def test_checker_accepts_an_unanswered_publication_delivered_or_not() -> None:
    for delivered in (True, False):
        history = perfect()
        entry = sent(history, COUNT)
        entry.acknowledged, entry.position, entry.answered_ms = False, None, None
        if not delivered:
            for subscriber in history.subscribers.values():
                del subscriber.events[-1]
        verdict = judge(history)
        assert verdict.clean
        assert (verdict.unknown, verdict.unknown_delivered) == (1, int(delivered))
        assert verdict.acknowledged == COUNT - 1


def test_checker_counts_an_unanswered_publication_that_some_missed_as_lost() -> None:
    history = perfect()
    entry = sent(history, 5)
    entry.acknowledged, entry.position, entry.answered_ms = False, None, None
    del stream(history)[4]
    (finding,) = only(judge(history), "lost")
    assert (finding.position, finding.client) == ("1:6", "s1")
    assert "before this position" in finding.text


@pytest.mark.parametrize(
    ("code", "wrong"), [("timeout", 0), ("closed", 0), ("unauthenticated", 0), ("outcome_unknown", 0), ("bad_topic", 3)]
)
def test_checker_rejects_deliveries_of_refused_publications(code: str, wrong: int) -> None:
    history = perfect()
    entry = sent(history, 5)
    entry.acknowledged, entry.position, entry.failed = False, None, code
    verdict = judge(history)
    assert verdict.unexpected == wrong
    assert verdict.failed == (1 if wrong else 0)
    assert {finding.position for finding in verdict.findings} == ({"1:5"} if wrong else set())


def test_checker_requires_publications_acknowledged_without_a_position() -> None:
    history = perfect()
    sent(history, 5).position = None
    assert judge(history).clean
    for subscriber in history.subscribers.values():
        del subscriber.events[4:]
    verdict = judge(history)
    assert verdict.lost == 3 * (COUNT - 4)


def test_checker_counts_publications_in_flight() -> None:
    history = perfect()
    sent(history, COUNT).answered_ms = None
    # A publication is in flight from 100 n to 100 n + 50, the last one for ever.
    verdict, in_flight = check([history, perfect()], [0, 110, 150, 160, 520, 100 * COUNT + 60])
    assert in_flight == [0, 2, 0, 0, 2, 1]
    assert verdict.topics == 2


def test_checker_counts_exactly_beyond_the_named_findings() -> None:
    history = perfect()
    history.subscribers["s1"].events.clear()
    verdict = judge(history)
    assert verdict.lost == COUNT
    assert 0 < len(verdict.findings) < COUNT


def test_checker_names_deliveries_repeated_after_a_reconnect() -> None:
    history = perfect()
    events = stream(history)
    events.extend(events[-2:])
    findings = only(judge(history), "duplicate", 2)
    assert {finding.client for finding in findings} == {"s1"}


def test_checker_rejects_sequence_numbers_restarted_by_an_epoch() -> None:
    history = perfect()
    for entries in history.publishers.values():
        for entry in entries:
            if entry.position is not None and entry.position[0] == 2:
                entry.position = (2, entry.position[1] - 2)
    for subscriber in history.subscribers.values():
        for index, event in enumerate(subscriber.events):
            if isinstance(event, Delivered) and event.position[0] == 2:
                subscriber.events[index] = Delivered((2, event.position[1] - 2), event.digest)
    findings = only(judge(history), "reordered", 3 * 2)
    assert {finding.position for finding in findings} == {"2:6", "2:7"}


def test_checker_names_what_a_subscriber_missed_that_stopped_early() -> None:
    history = perfect()
    del stream(history)[CHANGE:]
    findings = only(judge(history), "lost", COUNT - CHANGE)
    assert {finding.client for finding in findings} == {"s1"}


def test_checker_fails_a_topic_without_deliveries() -> None:
    for silent in (True, False):
        history = perfect()
        for subscriber in history.subscribers.values():
            subscriber.events.clear()
        if silent:
            history.subscribers.clear()
        verdict = judge(history)
        assert verdict.unread == 1
        assert "no subscriber received anything of 1 of 1 topics" in verdict.problems()[-1]


def test_checker_fails_without_acknowledged_publications() -> None:
    for topics in ([], [TopicHistory(TOPIC)]):
        verdict, _ = check(topics)
        assert verdict.clean
        assert verdict.problems() == ["nothing was acknowledged"]


def test_histories_hold_as_many_events_as_the_clients_counted() -> None:
    verdict = judge(perfect())
    counted = Sample(submitted=COUNT, acknowledged=COUNT, delivered=3 * COUNT)
    assert find_missing_lines(verdict, counted) == []
    assert find_missing_lines(verdict, Sample()) == []
    counted.delivered += 1
    (problem,) = find_missing_lines(verdict, counted)
    assert problem == f"the histories hold {3 * COUNT} delivered, the clients counted {3 * COUNT + 1}"


# ---- receipts --------------------------------------------------------------------------------------------------------


def test_receipt_truncated_reports_instead_of_losing() -> None:
    history = perfect()
    events = stream(history)
    events[2:5] = [Gap("truncated", position(5), 3, 5)]
    verdict = judge(history)
    assert verdict.clean
    assert verdict.reported == 3


def test_receipt_truncated_does_not_cover_later_positions() -> None:
    history = perfect()
    events = stream(history)
    events[2:5] = [Gap("truncated", position(5), 3, 4)]
    (finding,) = only(judge(history), "lost")
    assert finding.position == "1:5"


def test_receipt_reset_reports_everything_before_it() -> None:
    history = perfect()
    events = stream(history)
    events[3:9] = [Gap("reset", (2, 9), 0, 0)]
    verdict = judge(history)
    assert verdict.clean
    assert verdict.reported == 6


def test_deliveries_repeated_after_a_reset_are_duplicates_without_a_hole() -> None:
    history = perfect()
    events = stream(history)
    again = events[3:6]
    events[6:6] = [Gap("reset", position(3), 0, 0), *again]
    findings = only(judge(history), "duplicate", 3)
    assert [finding.position for finding in findings] == ["1:4", "1:5", "1:6"]


def test_receipt_hole_counts_as_lost() -> None:
    history = perfect()
    stream(history)[4] = Gap("hole", position(6), 5, 5)
    (finding,) = only(judge(history), "lost")
    assert finding.position == "1:5"


def test_subscription_is_not_owed_earlier_publications() -> None:
    history = perfect()
    history.subscribers["s1"] = Stream(position(4), history.subscribers["s1"].events[4:])
    verdict = judge(history)
    assert verdict.clean
    assert verdict.owed == 3 * COUNT - 4
    history.subscribers["s1"].events.insert(0, Delivered(position(4), content(4)))
    (finding,) = only(judge(history), "reordered")
    assert finding.position == "1:4"


def test_subscription_without_a_receipt_is_lost() -> None:
    history = perfect()
    history.subscribers["s1"] = Stream()
    (finding,) = only(judge(history), "lost")
    assert finding.client == "s1"


def test_receipt_reset_that_was_not_due_is_counted() -> None:
    """A reset that loses only a publication that was never acknowledged to its publisher is counted as a reset, and
    its publication as reported, not as lost."""
    history = perfect()
    entry = sent(history, 5)
    entry.acknowledged, entry.position, entry.answered_ms = False, None, None
    stream(history)[4:5] = [Gap("reset", position(5), 0, 0)]
    verdict = judge(history)
    assert (verdict.reported, verdict.resets, verdict.lost) == (1, 1, 0)
    assert "1 missing and reported" in verdict.problems()[0]


def test_receipt_reset_does_not_cover_an_earlier_hole() -> None:
    history = perfect()
    events = stream(history)
    events[2:3] = []
    events.insert(6, Gap("reset", position(7), 0, 0))
    verdict = judge(history)
    assert verdict.lost == 1
    assert verdict.findings[0].position == "1:4"


def test_receipt_truncated_with_the_position_before_leaves_no_hole() -> None:
    """A `truncated` receipt that names the position before the gap makes the history clean, with the gap's three
    publications reported. The client knows no epoch of the gap."""
    history = perfect()
    stream(history)[2:5] = [Gap("truncated", position(2), 3, 5)]
    verdict = judge(history)
    assert verdict.clean
    assert verdict.reported == 3


def test_receipt_truncated_that_begins_too_late_leaves_a_hole() -> None:
    history = perfect()
    entry = sent(history, 3)
    entry.acknowledged, entry.position, entry.answered_ms = False, None, None
    stream(history)[2:5] = [Gap("truncated", position(2), 4, 5)]
    verdict = judge(history)
    assert (verdict.lost, verdict.reported) == (1, 2)


def test_subscription_that_began_too_late_is_lost() -> None:
    """A subscription whose receipt names a later position than it should is clean by itself; checked `from_start`,
    the publications before that position count as lost."""
    history = perfect()
    history.subscribers["s1"] = Stream(position(4), history.subscribers["s1"].events[4:])
    assert judge(history).clean
    verdict, _ = check([history], from_start=True)
    assert verdict.lost == 1 + 4
    assert verdict.owed == 3 * COUNT
