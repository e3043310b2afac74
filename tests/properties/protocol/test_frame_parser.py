"""The frame parser compared with an independent one (websockets), and with itself when the same bytes arrive cut in
other places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from migratory_protocol import frames
from migratory_protocol.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, apply_mask, encode_frame
from migratory_testing.frameoracle import CODES, LIMIT, Role, assert_alike, cut, ours, theirs

ROLES: tuple[Role, ...] = get_args(Role)


@pytest.fixture(autouse=True, scope="module")
def short_streaming_threshold() -> Iterator[None]:
    """Lower the parser's limit to the longest control frame, so that masked data frames above it are streamed too if
    they arrive in parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "STREAMED_BYTES", 125)
        yield


masks = st.binary(min_size=4, max_size=4)
payloads = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([124, 125, 126, 127, LIMIT, LIMIT + 1]).map(lambda size: b"p" * size),
)


@st.composite
def valid_messages(draw: st.DrawFn, with_deflate: bool) -> list[bytes]:
    """Draw the frames of one valid message in fragments, with control frames between them. Return them in order."""
    text = draw(st.booleans())
    payload = draw(st.text(max_size=60)).encode() if text else draw(payloads)
    rsv1 = with_deflate and draw(st.booleans())
    body = frames.compress(payload) if rsv1 else payload
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
    out: list[bytes] = []
    for index, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(body)], strict=True)):
        opcode = CONTINUATION if index else TEXT if text else BINARY
        if index and draw(st.booleans()):
            control = draw(st.sampled_from([PING, PONG]))
            out.append(encode_frame(control, draw(st.binary(max_size=125)), draw(masks)))
        out.append(encode_frame(opcode, body[start:end], draw(masks), fin=index == len(cuts), rsv1=rsv1 and index == 0))
    return out


@st.composite
def any_frames(draw: st.DrawFn) -> bytes:
    """Draw a frame that may break any rule, except that the header's length has its shortest form."""
    opcode = draw(st.one_of(st.sampled_from([CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG]), st.integers(0, 15)))
    payload = draw(payloads)
    if opcode == CLOSE and draw(st.booleans()):
        code = draw(st.one_of(st.sampled_from([999, 1000, 1004, 1005, 1006, 1011, 1014, 1015, 2999, 3000, 4999, 5000])))
        payload = code.to_bytes(2, "big") + draw(st.binary(max_size=4))
    mask = draw(st.one_of(masks, masks, masks, st.none()))
    frame = bytearray(encode_frame(opcode, payload, mask, fin=draw(st.booleans()), rsv1=draw(st.booleans())))
    if draw(st.integers(0, 9)) == 0:
        frame[0] |= draw(st.sampled_from([0x20, 0x10]))
    return bytes(frame)


def unmasked(frame: bytes) -> bytes:
    """Return the client's frame as a server sends it, without its mask. A frame without a mask gets the mask bit,
    which is an error to a client."""
    if not frame[1] & 0x80:
        return frame[:1] + bytes((frame[1] | 0x80,)) + frame[2:]
    wide = {126: 2, 127: 8}.get(frame[1] & 0x7F, 0)
    mask, payload = frame[2 + wide : 6 + wide], frame[6 + wide :]
    return frame[:1] + bytes((frame[1] & 0x7F,)) + frame[2 : 2 + wide] + apply_mask(payload, mask)


roles = st.sampled_from(ROLES)
places = st.lists(st.integers(0, 10**6), max_size=8)


def for_role(data: list[bytes], role: Role) -> bytes:
    """Return the frames, which were drawn for a server, joined for the role: for a client without their masks."""
    return b"".join(data) if role == "server" else b"".join(map(unmasked, data))


@given(
    st.booleans().flatmap(lambda on: st.tuples(st.just(on), st.lists(valid_messages(on), max_size=4))), roles, places
)
def test_valid_messages_are_read_as_by_an_independent_parser(
    case: tuple[bool, list[list[bytes]]], role: Role, at: list[int]
) -> None:
    with_deflate, messages = case
    data = for_role([frame for message in messages for frame in message], role)
    mine, other = ours(cut(data, at), with_deflate, role), theirs(data, with_deflate, role)
    if other.code == 1009:  # there a ping counts as a part of the message around it
        assert mine.events[: len(other.events)] == other.events
        assert mine.code in (None, 1009)
    else:
        assert (mine.events, mine.code) == (other.events, other.code)


@given(
    st.lists(st.one_of(any_frames().map(lambda frame: [frame]), valid_messages(False)), min_size=1, max_size=5),
    st.booleans(),
    roles,
    places,
)
@example(
    [[encode_frame(TEXT, b"\xff", b"abcd", fin=False), encode_frame(CONTINUATION, b"", b"abcd")]], False, "server", []
)
def test_invalid_frames_close_as_by_an_independent_parser(
    frames: list[list[bytes]], with_deflate: bool, role: Role, at: list[int]
) -> None:
    data = for_role([frame for message in frames for frame in message], role)
    assert_alike(ours(cut(data, at), with_deflate, role), theirs(data, with_deflate, role), with_deflate)


@given(st.lists(st.one_of(any_frames().map(lambda frame: [frame]), valid_messages(True)), max_size=4), places)
def test_events_do_not_depend_on_cuts(frames: list[list[bytes]], at: list[int]) -> None:
    data = for_role([frame for message in frames for frame in message], "server")
    assert ours(cut(data, at), True) == ours([data], True)


@given(st.lists(st.one_of(any_frames().map(lambda frame: [frame]), valid_messages(True)), max_size=3))
def test_events_are_the_same_byte_by_byte(frames: list[list[bytes]]) -> None:
    data = for_role([frame for message in frames for frame in message], "server")[:3000]
    assert ours([data[at : at + 1] for at in range(len(data))], True) == ours([data], True)


@given(st.binary(max_size=200), st.booleans(), roles)
def test_random_bytes_close_with_a_valid_code(data: bytes, with_deflate: bool, role: Role) -> None:
    mine = ours([data], with_deflate, role)
    assert mine.code in (None, *CODES)
    assert_alike(mine, theirs(data, with_deflate, role), with_deflate)
