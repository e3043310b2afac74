"""The checker on histories that are right, and on the same ones broken on purpose: it must name topic and position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from migratory_chaos.checker import Finding, Verdict, check
from migratory_chaos.history import (
    BadHistory,
    Delivered,
    Gap,
    Place,
    PublisherFile,
    Sent,
    Stream,
    SubscriberFile,
    TopicHistory,
    digest,
    read,
)
from migratory_chaos.runner import missing_lines

TOPIC = "topic-1"
COUNT = 12
CHANGE = 8
"""The sequence number with which another epoch begins, behind a takeover."""


def place(sequence: int) -> Place:
    return (1 if sequence < CHANGE else 2, sequence)


def content(sequence: int) -> str:
    return digest(f"{TOPIC} {sequence}".encode())


def perfect(subscribers: int = 3) -> TopicHistory:
    """Two publishers in turn; everything acknowledged, everything delivered to everybody."""
    history = TopicHistory(TOPIC, {"a": [], "b": []})
    for sequence in range(1, COUNT + 1):
        entries = history.publishers["a" if sequence % 2 else "b"]
        now = 100 * sequence
        entries.append(Sent(len(entries) + 1, content(sequence), now, True, place(sequence), "", now + 50))
    for number in range(subscribers):
        events: list[Delivered | Gap] = [Delivered(place(n), content(n)) for n in range(1, COUNT + 1)]
        history.subscribers[f"s{number}"] = Stream((1, 0), events)
    return history


def judge(history: TopicHistory) -> Verdict:
    return check([history])[0]


def only(verdict: Verdict, kind: str, count: int = 1) -> list[Finding]:
    """The findings; nothing else than `kind` was found, so many times."""
    counts = {name: getattr(verdict, name) for name in ("lost", "duplicate", "reordered", "unexpected")}
    assert counts == dict.fromkeys(counts, 0) | {kind: count}
    assert not verdict.clean
    assert {finding.topic for finding in verdict.findings} == {TOPIC}
    assert {finding.kind for finding in verdict.findings} == {kind}
    return verdict.findings


def stream(history: TopicHistory) -> list[Delivered | Gap]:
    """Of the subscriber that things happen to; the others stay right."""
    return history.subscribers["s1"].events


def sent(history: TopicHistory, sequence: int) -> Sent:
    return next(entry for entries in history.publishers.values() for entry in entries if entry.place == place(sequence))


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


# ---- wrong in quiet ways ------------------------------------------------------------------------------------------


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


def test_a_subscription_that_began_too_late() -> None:
    """It subscribed before anything was published, and was told a position that nobody had."""
    history = perfect()
    history.subscribers["s1"] = Stream(place(4), history.subscribers["s1"].events[4:])
    assert judge(history).clean
    verdict, _ = check([history], from_start=True)
    assert verdict.lost == 1 + 4
    assert verdict.owed == 3 * COUNT


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


# ---- files -------------------------------------------------------------------------------------------------------


def write(folder: Path) -> None:
    publisher, subscriber = PublisherFile(folder, TOPIC, "p"), SubscriberFile(folder, TOPIC, "s")
    subscriber.began((1, 0))
    publisher.submitted(1, content(1), 10)
    publisher.acknowledged(1, (1, 1), 12)
    publisher.submitted(2, content(2), 13)
    publisher.acknowledged(2, None, 14)
    publisher.submitted(3, content(3), 15)
    publisher.failed(3, "timeout", 16)
    publisher.submitted(4, content(4), 17)
    subscriber.delivered((1, 1), content(1))
    subscriber.gap("truncated", (1, 2), 2, 2)
    publisher.close()
    subscriber.close()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    (history,) = read(tmp_path)
    assert history.topic == TOPIC
    assert history.publishers["p"] == [
        Sent(1, content(1), 10, True, (1, 1), "", 12),
        Sent(2, content(2), 13, True, None, "", 14),
        Sent(3, content(3), 15, False, None, "timeout", 16),
        Sent(4, content(4), 17),
    ]
    assert history.subscribers["s"] == Stream((1, 0), [Delivered((1, 1), content(1)), Gap("truncated", (1, 2), 2, 2)])


def break_line(path: Path, number: int, change: Callable[[str], str]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = change(lines[number - 1])
    path.write_text("".join(lines))


@pytest.mark.parametrize(
    ("file", "number", "line"),
    [
        ("p-p", 2, "a 9 1 1 12\n"),
        ("p-p", 2, "a 1 x 1 12\n"),
        ("p-p", 3, "s 1 00 13\n"),
        ("p-p", 4, "a 1 1 1 14\n"),
        ("p-p", 1, "s 1\n"),
        ("s-s", 1, "d 1\n"),
        ("s-s", 2, "b 1 0\n"),
        ("s-s", 2, "x\n"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, file: str, number: int, line: str) -> None:
    write(tmp_path)
    break_line(tmp_path / TOPIC / file, number, lambda _: line)
    with pytest.raises(BadHistory, match=f"{file}, line {number}"):
        list(read(tmp_path))


@pytest.mark.parametrize("file", ["p-p", "s-s"])
def test_a_file_that_was_cut_off_or_lacks_a_line_is_no_history(tmp_path: Path, file: str) -> None:
    write(tmp_path)
    path = tmp_path / TOPIC / file
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    for left in range(len(lines)):
        path.write_text("".join(lines[:left]))
        with pytest.raises(BadHistory, match=f"{file}: cut off"):
            list(read(tmp_path))
    path.write_text(whole[:-1])  # not even its last line is whole
    with pytest.raises(BadHistory, match=file):
        list(read(tmp_path))
    path.write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(BadHistory, match=f"behind {len(lines) - 2} lines"):
        list(read(tmp_path))
    path.write_text(whole + lines[0])
    with pytest.raises(BadHistory, match="behind the end"):
        list(read(tmp_path))


def test_a_clock_that_went_back_is_no_history(tmp_path: Path) -> None:
    write(tmp_path)
    break_line(tmp_path / TOPIC / "p-p", 4, lambda line: line.replace(" 14", " 11"))
    with pytest.raises(BadHistory, match=r"p-p, line 4: .* the clock went back, from 13"):
        list(read(tmp_path))


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadHistory, match="no histories"):
        list(read(tmp_path / "none"))
    (tmp_path / TOPIC).mkdir()
    (tmp_path / TOPIC / "strange").write_text("")
    with pytest.raises(BadHistory, match="strange"):
        list(read(tmp_path))
