"""The open loop, in which a stalled broker or generator cannot hide its delay (case A22), and the payload of
publications."""

from __future__ import annotations

import statistics

import pytest
from migratory_loadtest.histogram import Histogram, bucket_bounds, nearest_rank
from migratory_loadtest.workload import (
    PayloadHeader,
    ScheduledSend,
    SendSchedule,
    build_payload,
    is_generator_late,
    parse_header,
    payload_digest,
)

FROZEN, THAWED, SERVICE = 20.0, 30.0, 0.005


def answered_at(sent: float) -> float:
    """Return the time at which the broker of case A22 answers a publication: 5 ms after `sent`, or 5 ms after the end
    of the freeze for one that was sent during it."""
    return (THAWED if FROZEN <= sent < THAWED else sent) + SERVICE


def run(sender_stalls: bool) -> tuple[SendSchedule, list[float]]:
    """Send for 60 s at 10 publications per second on a fake clock, to a broker that freezes. Return the schedule and
    the latency of each publication from its due time. With `sender_stalls` the sender also stands still while the
    broker is frozen."""
    schedule = SendSchedule({0: 0.0}, rate=10.0, count=600)
    latencies = []
    while (at := schedule.next_due()) is not None:
        clock = THAWED if sender_stalls and FROZEN <= at < THAWED else at
        while (due := schedule.pop_due(clock)) is not None:
            latencies.append(answered_at(clock) - due.at)
    return schedule, latencies


@pytest.mark.parametrize("sender_stalls", [False, True])
def test_latency_counts_from_the_due_time(sender_stalls: bool) -> None:
    schedule, latencies = run(sender_stalls)
    assert (len(latencies), schedule.scheduled, schedule.sent) == (600, 600, 600)
    for fraction, right in ((0.5, 0.005), (0.9, 4.005), (0.95, 7.005), (0.99, 9.405), (1.0, 10.005)):
        assert nearest_rank(latencies, fraction) == pytest.approx(right, abs=1e-6)
    assert statistics.fmean(latencies) == pytest.approx(0.846667, abs=1e-6)
    histogram = Histogram(bucket_bounds())
    for latency in latencies:
        histogram.observe(latency)
    assert histogram.quantile(0.99) == pytest.approx(9.405, rel=0.05)
    assert histogram.mean() == pytest.approx(0.846667, abs=1e-6)


def test_late_sends_distinguish_a_late_generator_from_a_late_broker() -> None:
    broker, _ = run(sender_stalls=False)
    assert (broker.late, broker.max_delay) == (0, 0.0)
    assert not is_generator_late(broker.sent, broker.late)
    both, _ = run(sender_stalls=True)
    assert (both.late, both.max_delay) == (100, pytest.approx(10.0))
    assert is_generator_late(both.sent, both.late)


def test_topics_are_spread_over_the_period() -> None:
    schedule = SendSchedule({5: 0.25, 3: 0.0, 9: 0.75}, rate=1.0, count=2)
    assert schedule.pop_due(-1.0) is None
    sends = []
    while (due := schedule.pop_due(10.0)) is not None:
        sends.append(due)
    assert sends == [
        ScheduledSend(0.0, 3, 1),
        ScheduledSend(0.25, 5, 1),
        ScheduledSend(0.75, 9, 1),
        ScheduledSend(1.0, 3, 2),
        ScheduledSend(1.25, 5, 2),
        ScheduledSend(1.75, 9, 2),
    ]
    assert schedule.next_due() is None


def test_schedule_without_topics_is_empty() -> None:
    schedule = SendSchedule({}, rate=1.0, count=5)
    assert (schedule.scheduled, schedule.next_due(), schedule.pop_due(1e9)) == (0, None, None)


def test_nothing_is_due_after_stop() -> None:
    schedule = SendSchedule({0: 0.0, 1: 0.5}, rate=1.0, count=10)
    while schedule.pop_due(1.2) is not None:
        pass
    assert schedule.sent == 3
    schedule.stop()
    assert (schedule.next_due(), schedule.pop_due(9.0)) == (None, None)
    assert (schedule.scheduled, schedule.late, is_generator_late(schedule.sent, 0)) == (3, 3, False)


def test_payload_has_a_header_and_unique_content() -> None:
    header = PayloadHeader(publisher=3, topic=7, number=2**40, due_ns=2**63)
    payload = build_payload(140, 1, header)
    assert len(payload) == 140
    assert parse_header(payload) == header
    others = [
        build_payload(140, 1, header._replace(number=5)),
        build_payload(140, 2, header),
        build_payload(140, 1, header._replace(topic=8)),
    ]
    assert len({payload_digest(payload), *map(payload_digest, others)}) == 4
    assert parse_header(b"short") is None
