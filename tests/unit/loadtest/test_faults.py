"""Faults that a load run marks: affected clients, lost links, resume times and publish gaps."""

from __future__ import annotations

import pytest
from migratory_loadtest.faults import FaultTracker, publish_gap
from migratory_loadtest.worker_messages import MarkFault

S = 1_000_000_000


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([1, 2, 7, 8], 5.0),  # a gap from 2 to 7 around the mark at 3
        ([1, 2, 3.1, 8, 9], 4.9),  # an acknowledgement was on its way at the mark: the gap after it counts
        ([4, 5], 1.0),
        ([1, 2], None),  # none after the mark
        ([9], None),  # none before the mark
        ([], None),
    ],
)
def test_publish_gap_is_the_longest_gap_that_ends_after_the_mark(times: list[float], gap: float | None) -> None:
    result = publish_gap([round(time * S) for time in times], 3 * S)
    assert result == (None if gap is None else pytest.approx(gap))


def test_publish_gap_ends_at_the_next_mark() -> None:
    times = [round(time * S) for time in (1, 4, 5, 6, 20, 21)]
    assert publish_gap(times, 3 * S, until=6 * S) == pytest.approx(3.0)
    assert publish_gap(times, 3 * S) == pytest.approx(14.0)


def test_gap_of_the_next_fault_does_not_count_for_the_previous() -> None:
    times = [round(time * S) for time in (1.0, 2.0, 3.5, 4.0, 5.9, 10.0, 11.0)]
    assert publish_gap(times, 3 * S, until=6 * S) == pytest.approx(1.9)
    assert publish_gap(times, 6 * S) == pytest.approx(4.1)
    assert publish_gap([1 * S, 20 * S], 3 * S, until=6 * S) == pytest.approx(5.0), "the gap began before the mark"


def test_lost_link_counts_for_the_last_mark_and_the_slowest_resume_counts() -> None:
    faults = FaultTracker()
    faults.disconnected("early")  # before any mark: not counted
    faults.begin(MarkFault(0, 3 * S, "kill", "b-1"), ["a", "b", "c"])
    for client, seconds in (("a", 1.0), ("b", 2.0), ("b", 0.5), ("stranger", 9.0), ("stranger", 1.0)):
        faults.disconnected(client)
        faults.resumed(client, seconds)
    faults.disconnected("c")
    (summary,) = faults.summaries([[1 * S, 5 * S], [1 * S, 2 * S]])
    assert (summary.clients, summary.disconnected, summary.others_disconnected) == (3, 3, 1)
    assert sorted(summary.resumes) == [1.0, 2.0]
    assert summary.gaps == [4.0]
    assert summary.open_gaps == 1


def test_summary_counts_link_changes_after_each_mark() -> None:
    faults = FaultTracker()
    faults.link_changed("early")
    faults.begin(MarkFault(0, 3 * S, "up"), [])
    for client in ("a", "b", "a"):
        faults.link_changed(client)
    faults.begin(MarkFault(1, 6 * S, "down"), [])
    faults.link_changed("a")
    assert [summary.changes for summary in faults.summaries([])] == [{1: 1, 2: 1}, {1: 1}]
