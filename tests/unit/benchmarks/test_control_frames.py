"""The receiver finds control frames wherever they are among publications, however the bytes are split."""

from __future__ import annotations

import pytest
from migratory_protocol.frames import binary_frame

from benchmarks.control_frames import CLOSE, PING, ControlFrames, close_reason
from benchmarks.payload import build


def frame(first: int, payload: bytes) -> bytes:
    return bytes([first, len(payload)]) + payload


STREAM = (
    binary_frame(b"short")
    + frame(0x89, b"")
    + binary_frame(build(140, 5, 1))
    + frame(0x89, b"\x89\x00")
    + binary_frame(b"\x89\x00" * 40_000)  # a length of eight bytes, and pings that are none
    + binary_frame(b"")
    + frame(0x88, (4001).to_bytes(2, "big") + b"silent")
)
FOUND = [(PING, b""), (PING, b"\x89\x00"), (CLOSE, b"\x0f\xa1silent")]


def found(chunks: list[bytes]) -> list[tuple[int, bytes]]:
    control = ControlFrames()
    frames = [
        frame for chunk in chunks if chunk for frame in control.find(3, bytearray(chunk + b"\x89\x00"), len(chunk))
    ]
    assert control.partial == {}
    return frames


def test_ping_read_with_a_publication_is_found() -> None:
    assert found([frame(0x89, b"") + binary_frame(build(140, 5, 1))]) == [(PING, b"")]
    assert found([binary_frame(build(140, 5, 1)) + frame(0x89, b"x")]) == [(PING, b"x")]
    assert found([STREAM]) == FOUND


def test_stream_can_be_split_anywhere() -> None:
    cuts = [*range(170), *range(len(STREAM) - 20, len(STREAM))]
    for first in cuts:
        for second in [cut for cut in cuts if cut >= first][::7]:
            assert found([STREAM[:first], STREAM[first:second], STREAM[second:]]) == FOUND
    assert found([STREAM[place : place + 1] for place in range(len(STREAM))]) == FOUND


def test_connections_are_independent_and_forgotten() -> None:
    control = ControlFrames()
    assert control.find(1, STREAM[:3], 3) == []
    assert control.find(2, frame(0x89, b""), 2) == [(PING, b"")]
    assert control.partial.keys() == {1}
    control.forget(1)
    assert control.find(1, STREAM, len(STREAM)) == FOUND


@pytest.mark.parametrize(
    ("close", "words"),
    [(b"", "without a code"), (b"\x0f\xa1", "code 4001"), (b"\x0f\xa1slow client", "code 4001, 'slow client'")],
)
def test_close_reason_is_described(close: bytes, words: str) -> None:
    assert close_reason(close) == words
