"""The open loop: what is due when, and that neither a stalled broker nor a stalled generator can hide (case A22)."""

from __future__ import annotations

import statistics

import pytest
from migratory_loadtest.histogram import Histogram, bounds, nearest_rank
from migratory_loadtest.schedule import Due, Schedule, generator_late

FROZEN, THAWED, SERVICE = 20.0, 30.0, 0.005


def answered(sent: float) -> float:
    """When the broker of case A22 answers what reaches it at `sent`: 5 ms later, but not while it is frozen."""
    return (THAWED if FROZEN <= sent < THAWED else sent) + SERVICE


def run(sender_stalls: bool) -> tuple[Schedule, list[float]]:
    """60 s at 10/s on a fake clock; with `sender_stalls` the sender is held up, too, while the broker is frozen."""
    schedule = Schedule({0: 0.0}, rate=10.0, count=600)
    latencies = []
    while (at := schedule.peek()) is not None:
        clock = THAWED if sender_stalls and FROZEN <= at < THAWED else at
        while (due := schedule.pop(clock)) is not None:
            latencies.append(answered(clock) - due.at)
    return schedule, latencies


@pytest.mark.parametrize("sender_stalls", [False, True])
def test_latency_counts_from_the_scheduled_send(sender_stalls: bool) -> None:
    schedule, latencies = run(sender_stalls)
    assert (len(latencies), schedule.scheduled, schedule.sent) == (600, 600, 600)
    for fraction, right in ((0.5, 0.005), (0.9, 4.005), (0.95, 7.005), (0.99, 9.405), (1.0, 10.005)):
        assert nearest_rank(latencies, fraction) == pytest.approx(right, abs=1e-6)
    assert statistics.fmean(latencies) == pytest.approx(0.846667, abs=1e-6)
    histogram = Histogram(bounds())
    for latency in latencies:
        histogram.observe(latency)
    assert histogram.quantile(0.99) == pytest.approx(9.405, rel=0.05)
    assert histogram.mean() == pytest.approx(0.846667, abs=1e-6)


def test_the_summary_tells_a_late_generator_from_a_late_broker() -> None:
    broker, _ = run(sender_stalls=False)
    assert (broker.late, broker.latest) == (0, 0.0)
    assert not generator_late(broker.sent, broker.late)
    both, _ = run(sender_stalls=True)
    assert (both.late, both.latest) == (100, pytest.approx(10.0))
    assert generator_late(both.sent, both.late)


def test_topics_are_staggered_over_the_period() -> None:
    schedule = Schedule({5: 0.25, 3: 0.0, 9: 0.75}, rate=1.0, count=2)
    assert schedule.pop(-1.0) is None
    found = []
    while (due := schedule.pop(10.0)) is not None:
        found.append(due)
    assert found == [
        Due(0.0, 3, 1),
        Due(0.25, 5, 1),
        Due(0.75, 9, 1),
        Due(1.0, 3, 2),
        Due(1.25, 5, 2),
        Due(1.75, 9, 2),
    ]
    assert schedule.peek() is None


def test_without_topics_nothing_is_due() -> None:
    schedule = Schedule({}, rate=1.0, count=5)
    assert (schedule.scheduled, schedule.peek(), schedule.pop(1e9)) == (0, None, None)


def test_behind_the_end_nothing_is_due() -> None:
    schedule = Schedule({0: 0.0, 1: 0.5}, rate=1.0, count=10)
    while schedule.pop(1.2) is not None:
        pass
    assert schedule.sent == 3
    schedule.cease()
    assert (schedule.peek(), schedule.pop(9.0)) == (None, None)
    assert (schedule.scheduled, schedule.late, generator_late(schedule.sent, 0)) == (3, 3, False)
