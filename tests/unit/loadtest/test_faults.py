"""Marks: who was on the broker, who lost the link, how long resumes and silences took."""

from __future__ import annotations

import pytest
from migratory_loadtest.control import Mark
from migratory_loadtest.faults import Faults, publish_gap

S = 1_000_000_000


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([1, 2, 7, 8], 5.0),  # silent from 2 to 7 around the mark at 3
        ([1, 2, 3.1, 8, 9], 4.9),  # one was under way at the mark: the silence behind it counts
        ([4, 5], 1.0),
        ([1, 2], None),  # none behind the mark
        ([9], None),  # none before
        ([], None),
    ],
)
def test_the_publish_gap_is_the_longest_silence_that_ends_behind_the_mark(
    times: list[float], gap: float | None
) -> None:
    found = publish_gap([round(time * S) for time in times], 3 * S)
    assert found == (None if gap is None else pytest.approx(gap))


def test_a_later_mark_ends_the_search() -> None:
    times = [round(time * S) for time in (1, 4, 5, 6, 20, 21)]
    assert publish_gap(times, 3 * S, until=6 * S) == pytest.approx(3.0)
    assert publish_gap(times, 3 * S) == pytest.approx(14.0)


def test_a_silence_that_the_next_fault_made_is_not_the_one_befores() -> None:
    times = [round(time * S) for time in (1.0, 2.0, 3.5, 4.0, 5.9, 10.0, 11.0)]
    assert publish_gap(times, 3 * S, until=6 * S) == pytest.approx(1.9)
    assert publish_gap(times, 6 * S) == pytest.approx(4.1)
    assert publish_gap([1 * S, 20 * S], 3 * S, until=6 * S) == pytest.approx(5.0), "it was silent from before its mark"


def test_a_lost_link_counts_for_the_last_mark_and_the_slowest_resume_counts() -> None:
    faults = Faults()
    faults.lost("early")  # before any mark: nobody's
    faults.begin(Mark(0, 3 * S, "kill", "b-1"), ["a", "b", "c"])
    for client, seconds in (("a", 1.0), ("b", 2.0), ("b", 0.5), ("stranger", 9.0)):
        faults.lost(client)
        faults.resumed(client, seconds)
    faults.lost("c")
    (summary,) = faults.summaries([[1 * S, 5 * S], [1 * S, 2 * S]])
    assert (summary.clients, summary.disconnected, summary.others_disconnected) == (3, 3, 1)
    assert sorted(summary.resumes) == [1.0, 2.0]
    assert summary.gaps == [4.0]
    assert summary.open_gaps == 1


def test_each_mark_tells_how_often_clients_changed_their_broker_behind_it() -> None:
    faults = Faults()
    faults.changed("early")
    faults.begin(Mark(0, 3 * S, "up"), [])
    for client in ("a", "b", "a"):
        faults.changed(client)
    faults.begin(Mark(1, 6 * S, "down"), [])
    faults.changed("a")
    assert [summary.changes for summary in faults.summaries([])] == [{1: 1, 2: 1}, {1: 1}]
