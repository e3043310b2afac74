"""The transcript that subscribers of a topic share: one comparison for what everybody gets, exactness for all else."""

from __future__ import annotations

from migratory_loadtest.histogram import bounds
from migratory_loadtest.meter import AFTER, BEFORE, DURING, WARMUP, Meter
from migratory_loadtest.payload import Content, build, digest
from migratory_loadtest.subscriber import Transcript
from migratory_protocol.messages import Message
from migratory_protocol.positions import Position

S = 1_000_000_000


def message(sequence: int, number: int | None = None) -> Message:
    content = Content(0, 0, number if number is not None else sequence, sequence * S)
    return Message("t", Position(1, sequence), build(64, 1, content))


def test_the_second_subscriber_finds_what_the_first_one_left() -> None:
    transcript, meter = Transcript("t"), Meter(bounds(), 1.0)
    assert [transcript.place(place, message(place + 1), meter) for place in range(3)] == [0, 1, 2]
    assert [transcript.place(place, message(place + 1), meter) for place in range(3)] == [0, 1, 2]
    assert [entry.digest for entry in transcript.entries()] == [digest(message(place).payload) for place in (1, 2, 3)]


def test_a_miss_a_repeat_and_another_content_have_places_of_their_own() -> None:
    transcript, meter = Transcript("t"), Meter(bounds(), 1.0)
    for place in range(3):
        transcript.place(place, message(place + 1), meter)
    assert transcript.place(1, message(3), meter) == 2  # 2 was missed
    assert transcript.place(3, message(2), meter) == 1  # 2 came again, late
    assert transcript.place(1, message(2, number=77), meter) == 3  # another content at position 2
    assert transcript.place(0, message(9), meter) == 4  # seen by nobody before


def test_a_publication_belongs_to_the_window_in_which_it_was_due() -> None:
    meter = Meter(bounds(), settle=2.0)
    assert meter.window(5 * S) == WARMUP
    meter.measure(10 * S, 30 * S)
    assert [meter.window(at * S) for at in (9, 10, 29, 30)] == [WARMUP, BEFORE, BEFORE, WARMUP]
    meter.mark(20 * S)
    meter.mark(25 * S)  # only the first one splits
    assert [meter.window(at * S) for at in (19, 20, 21, 22, 29)] == [BEFORE, DURING, DURING, AFTER, AFTER]
