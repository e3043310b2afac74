"""Frames of several messages: how the client makes them, and their limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_client.core.links import MAX_FRAME_BYTES, MAX_FRAME_MESSAGES, frame_contents
from migratory_protocol.codec import CODECS, JSON, MSGPACK, Codec
from migratory_protocol.limits import ENVELOPE
from migratory_protocol.messages import ClientMessage, Ping, Publish


def publication(number: int, size: int = 140) -> Publish:
    return Publish("quotes/eur", b"x" * size, 1, "p-1", number, 1, 1.5)


@pytest.mark.parametrize("codec", CODECS)
@given(sizes=st.lists(st.sampled_from([0, 140, 3000, MAX_FRAME_BYTES - 60, MAX_FRAME_BYTES, 100_000]), max_size=40))
def test_frames_keep_all_messages_in_order(codec: Codec, sizes: list[int]) -> None:
    sent = [publication(number, size) for number, size in enumerate(sizes, 1)]
    frames = list(frame_contents(codec, [codec.encode(message) for message in sent]))
    taken = [codec.decode_client(frame) for frame in frames]
    assert [message for frame in taken for message in frame] == sent
    for frame, messages in zip(frames, taken, strict=True):
        # a list costs a few bytes, and in JSON one for each message
        assert len(messages) == 1 or len(frame) <= MAX_FRAME_BYTES + 5 + len(messages)


@pytest.mark.parametrize("codec", CODECS)
def test_single_message_is_unchanged(codec: Codec) -> None:
    for message in (Ping(), publication(1), publication(1, 100_000)):
        encoded = codec.encode(message)
        assert list(frame_contents(codec, [encoded])) == [encoded]
    assert list(frame_contents(codec, [])) == []


@pytest.mark.parametrize("codec", CODECS)
def test_frame_holds_a_thousand_small_messages(codec: Codec) -> None:
    pings: list[ClientMessage] = [Ping()] * (2 * MAX_FRAME_MESSAGES + 1)
    frames = frame_contents(codec, [codec.encode(ping) for ping in pings])
    assert [len(codec.decode_client(frame)) for frame in frames] == [MAX_FRAME_MESSAGES, MAX_FRAME_MESSAGES, 1]


def test_frames_are_filled_up_to_the_limit() -> None:
    encoded = [JSON.encode(publication(number)) for number in range(100, 999)]
    size = len(encoded[0])
    counts = [len(JSON.decode_client(frame)) for frame in frame_contents(JSON, encoded)]
    assert counts[:-1] == [MAX_FRAME_BYTES // size] * (len(counts) - 1)


def test_long_message_has_its_own_frame() -> None:
    sent = [publication(1), publication(2), publication(3, MAX_FRAME_BYTES), publication(4)]
    frames = frame_contents(MSGPACK, [MSGPACK.encode(message) for message in sent])
    assert [[message.id for message in MSGPACK.decode_client(frame)] for frame in frames] == [[1, 2], [3], [4]]  # type: ignore[union-attr]


def test_largest_frame_of_several_fits_every_broker_limit() -> None:
    """The largest frame that the client makes of several messages is not larger than the envelope that every broker
    allows beyond its payload limit."""
    assert MAX_FRAME_BYTES + 5 + MAX_FRAME_MESSAGES <= ENVELOPE
