"""The checker on what receipts say: what one names is told and not lost, and nothing hides behind one."""

from __future__ import annotations

from migratory_chaos.checker import check
from migratory_chaos.history import Delivered, Gap, Stream
from migratory_testing.histories import COUNT, content, judge, only, perfect, place, sent, stream


def test_what_a_receipt_names_is_told_and_not_lost() -> None:
    history = perfect()
    events = stream(history)
    events[2:5] = [Gap("truncated", place(5), 3, 5)]
    verdict = judge(history)
    assert verdict.clean
    assert verdict.told == 3


def test_a_receipt_that_names_too_little() -> None:
    history = perfect()
    events = stream(history)
    events[2:5] = [Gap("truncated", place(5), 3, 4)]
    (finding,) = only(judge(history), "lost")
    assert finding.place == "1:5"


def test_a_reset_tells_of_everything_before_it() -> None:
    history = perfect()
    events = stream(history)
    events[3:9] = [Gap("reset", (2, 9), 0, 0)]
    verdict = judge(history)
    assert verdict.clean
    assert verdict.told == 6


def test_what_a_reset_brings_again_is_duplicate_and_leaves_no_hole() -> None:
    history = perfect()
    events = stream(history)
    again = events[3:6]
    events[6:6] = [Gap("reset", place(3), 0, 0), *again]
    findings = only(judge(history), "duplicate", 3)
    assert [finding.place for finding in findings] == ["1:4", "1:5", "1:6"]


def test_a_hole_that_the_client_reports_is_lost() -> None:
    history = perfect()
    stream(history)[4] = Gap("hole", place(6), 5, 5)
    (finding,) = only(judge(history), "lost")
    assert finding.place == "1:5"


def test_what_was_before_the_subscription_is_not_owed() -> None:
    history = perfect()
    history.subscribers["s1"] = Stream(place(4), history.subscribers["s1"].events[4:])
    verdict = judge(history)
    assert verdict.clean
    assert verdict.owed == 3 * COUNT - 4
    history.subscribers["s1"].events.insert(0, Delivered(place(4), content(4)))
    (finding,) = only(judge(history), "reordered")
    assert finding.place == "1:4"


def test_a_subscription_without_any_receipt() -> None:
    history = perfect()
    history.subscribers["s1"] = Stream()
    (finding,) = only(judge(history), "lost")
    assert finding.client == "s1"


def test_a_reset_that_was_not_due_hides_nothing() -> None:
    """Acknowledged or not: what others got and it did not is told at best, and the receipt itself is counted."""
    history = perfect()
    entry = sent(history, 5)
    entry.acknowledged, entry.place, entry.answered_ms = False, None, None
    stream(history)[4:5] = [Gap("reset", place(5), 0, 0)]
    verdict = judge(history)
    assert (verdict.told, verdict.resets, verdict.lost) == (1, 1, 0)
    assert "1 missing and told" in verdict.problems()[0]


def test_a_reset_names_no_hole_that_was_there_before() -> None:
    history = perfect()
    events = stream(history)
    events[2:3] = []
    events.insert(6, Gap("reset", place(7), 0, 0))
    verdict = judge(history)
    assert verdict.lost == 1
    assert verdict.findings[0].place == "1:4"


def test_a_truncation_as_the_client_reports_it_leaves_no_hole() -> None:
    """It knows no epoch for what is gone, so the receipt names where the stream stood."""
    history = perfect()
    stream(history)[2:5] = [Gap("truncated", place(2), 3, 5)]
    verdict = judge(history)
    assert verdict.clean
    assert verdict.told == 3


def test_a_truncation_that_begins_too_late_leaves_one() -> None:
    history = perfect()
    entry = sent(history, 3)
    entry.acknowledged, entry.place, entry.answered_ms = False, None, None
    stream(history)[2:5] = [Gap("truncated", place(2), 4, 5)]
    verdict = judge(history)
    assert (verdict.lost, verdict.told) == (1, 2)


def test_a_subscription_that_began_too_late() -> None:
    """It subscribed before anything was published, and was told a position that nobody had."""
    history = perfect()
    history.subscribers["s1"] = Stream(place(4), history.subscribers["s1"].events[4:])
    assert judge(history).clean
    verdict, _ = check([history], from_start=True)
    assert verdict.lost == 1 + 4
    assert verdict.owed == 3 * COUNT
