"""The record of deliveries that the subscribers of a topic share, and the measurement windows."""

from __future__ import annotations

from migratory_loadtest.histogram import bucket_bounds
from migratory_loadtest.meter import AFTER, BEFORE, DURING, WARMUP, Meter
from migratory_loadtest.subscriber import Transcript
from migratory_loadtest.workload import PayloadHeader, build_payload, payload_digest
from migratory_protocol.messages import Message
from migratory_protocol.positions import Position

S = 1_000_000_000


def message(sequence: int, number: int | None = None) -> Message:
    header = PayloadHeader(0, 0, number if number is not None else sequence, sequence * S)
    return Message("t", Position(1, sequence), build_payload(64, 1, header))


def test_second_subscriber_reuses_the_transcript() -> None:
    transcript, meter = Transcript("t"), Meter(bucket_bounds(), 1.0)
    assert [transcript.index_of(index, message(index + 1), meter) for index in range(3)] == [0, 1, 2]
    assert [transcript.index_of(index, message(index + 1), meter) for index in range(3)] == [0, 1, 2]
    assert [entry.digest for entry in transcript.deliveries()] == [
        payload_digest(message(sequence).payload) for sequence in (1, 2, 3)
    ]


def test_missing_repeated_and_different_deliveries_have_their_own_index() -> None:
    transcript, meter = Transcript("t"), Meter(bucket_bounds(), 1.0)
    for index in range(3):
        transcript.index_of(index, message(index + 1), meter)
    assert transcript.index_of(1, message(3), meter) == 2  # 2 is missing
    assert transcript.index_of(3, message(2), meter) == 1  # 2 is repeated
    assert transcript.index_of(1, message(2, number=77), meter) == 3  # another content at position 2
    assert transcript.index_of(0, message(9), meter) == 4  # new


def test_window_follows_from_the_due_time() -> None:
    meter = Meter(bucket_bounds(), settle=2.0)
    assert meter.window(5 * S) == WARMUP
    meter.measure(10 * S, 30 * S)
    assert [meter.window(at * S) for at in (9, 10, 29, 30)] == [WARMUP, BEFORE, BEFORE, WARMUP]
    meter.mark(20 * S)
    meter.mark(25 * S)  # only the first mark splits
    assert [meter.window(at * S) for at in (19, 20, 21, 22, 29)] == [BEFORE, DURING, DURING, AFTER, AFTER]
