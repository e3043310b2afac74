"""The frame parser against an independent one (websockets), and against itself on other cuts of the same bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from migratory_protocol import deflate
from migratory_protocol.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    CloseReceived,
    FrameEvent,
    FrameParser,
    MessageReceived,
    PingReceived,
    PongReceived,
    ProtocolError,
    encode_frame,
)
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Opcode
from websockets.protocol import SERVER, Protocol

LIMIT = 300
CANNOT_INFLATE = -1
Result = tuple[list[tuple[Any, ...]], int | None]

masks = st.binary(min_size=4, max_size=4)
payloads = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([124, 125, 126, 127, LIMIT, LIMIT + 1]).map(lambda size: b"p" * size),
)


@st.composite
def good_messages(draw: st.DrawFn, with_deflate: bool) -> bytes:
    """A message in fragments, with control frames between them."""
    text = draw(st.booleans())
    payload = draw(st.text(max_size=60)).encode() if text else draw(payloads)
    rsv1 = with_deflate and draw(st.booleans())
    body = deflate.compress(payload) if rsv1 else payload
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
    out = b""
    for index, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(body)], strict=True)):
        opcode = CONTINUATION if index else TEXT if text else BINARY
        if index and draw(st.booleans()):
            control = draw(st.sampled_from([PING, PONG]))
            out += encode_frame(control, draw(st.binary(max_size=125)), draw(masks))
        out += encode_frame(opcode, body[start:end], draw(masks), fin=index == len(cuts), rsv1=rsv1 and index == 0)
    return out


@st.composite
def any_frames(draw: st.DrawFn) -> bytes:
    """A frame that may break every rule, but has a header in its shortest form."""
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


def shown(event: FrameEvent) -> tuple[Any, ...]:
    match event:
        case MessageReceived(data, text):
            return ("text" if text else "binary", data)
        case PingReceived(data):
            return ("ping", data)
        case PongReceived(data):
            return ("pong", data)
    assert isinstance(event, CloseReceived)
    return ("close", event.code, event.reason)


def ours(chunks: list[bytes], with_deflate: bool) -> Result:
    parser = FrameParser("server", LIMIT, with_deflate)
    events: list[tuple[Any, ...]] = []
    for chunk in chunks:
        try:
            events += map(shown, parser.feed(chunk))
        except ProtocolError as error:
            return events + list(map(shown, error.events)), int(error.code)
    return events, None


def theirs(data: bytes, with_deflate: bool) -> Result:
    """What websockets makes of it, put together from its frames: it leaves fragments and UTF-8 to its callers."""
    protocol = Protocol(SERVER, max_size=LIMIT)
    if with_deflate:
        protocol.extensions = [
            PerMessageDeflate(
                remote_no_context_takeover=True,
                local_no_context_takeover=True,
                remote_max_window_bits=15,
                local_max_window_bits=15,
            )
        ]
    protocol.receive_data(data)
    events: list[tuple[Any, ...]] = []
    parts: list[bytes] = []
    kind = ""
    for frame in protocol.events_received():
        if frame.opcode is Opcode.PING:  # type: ignore[union-attr]
            events.append(("ping", bytes(frame.data)))  # type: ignore[union-attr]
        elif frame.opcode is Opcode.PONG:  # type: ignore[union-attr]
            events.append(("pong", bytes(frame.data)))  # type: ignore[union-attr]
        elif frame.opcode is Opcode.CLOSE:  # type: ignore[union-attr]
            received = protocol.close_rcvd
            assert received is not None
            events.append(("close", None if received.code == 1005 else int(received.code), received.reason))
        else:
            if frame.opcode is not Opcode.CONT:  # type: ignore[union-attr]
                kind = "text" if frame.opcode is Opcode.TEXT else "binary"  # type: ignore[union-attr]
                parts = []
            parts.append(bytes(frame.data))  # type: ignore[union-attr]
            if frame.fin:  # type: ignore[union-attr]
                message = b"".join(parts)
                if kind == "text":
                    try:
                        message.decode()
                    except UnicodeDecodeError:
                        return events, 1007
                events.append((kind, message))
    if protocol.parser_exc is None:
        return events, None
    if str(protocol.parser_exc).startswith("decompression failed"):
        return events, CANNOT_INFLATE
    sent = protocol.close_sent
    assert sent is not None
    return events, int(sent.code)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@given(st.booleans().flatmap(lambda on: st.tuples(st.just(on), st.lists(good_messages(on), max_size=4))))
def test_good_messages_are_read_like_by_an_independent_parser(case: tuple[bool, list[bytes]]) -> None:
    with_deflate, messages = case
    data = b"".join(messages)
    events, code = ours([data], with_deflate)
    expected, expected_code = theirs(data, with_deflate)
    if expected_code == 1009:  # there a ping counts as a part of the message around it
        assert events[: len(expected)] == expected
        assert code in (None, 1009)
    else:
        assert (events, code) == (expected, expected_code)


@given(st.lists(st.one_of(any_frames(), good_messages(False)), min_size=1, max_size=5), st.booleans())
@example([encode_frame(TEXT, b"\xff", b"abcd", fin=False), encode_frame(CONTINUATION, b"", b"abcd")], False)
def test_bad_frames_end_like_by_an_independent_parser(frames: list[bytes], with_deflate: bool) -> None:
    data = b"".join(frames)
    events, code = ours([data], with_deflate)
    expected, expected_code = theirs(data, with_deflate)
    if code == 1007 and with_deflate and events == expected[: len(events)] and expected_code != 1007:
        # what cannot be inflated is 1002 there, and what is behind the end of a deflate stream is ignored
        return
    if expected_code == 1009:
        # there the length is looked at before other mistakes, and a ping counts as a part of the message around it
        assert events[: len(expected)] == expected
        return
    assert events == expected
    if expected_code == CANNOT_INFLATE:
        assert code in (1002, None)  # another mistake in the same frame, or the message is not whole yet
    elif expected_code == 1007:
        assert code in (1002, expected_code)  # a frame with two mistakes: there its first byte is looked at last
    else:
        assert code == expected_code


@given(st.lists(st.one_of(any_frames(), good_messages(True)), max_size=4), st.lists(st.integers(0, 10**6), max_size=8))
def test_cuts_change_nothing(frames: list[bytes], places: list[int]) -> None:
    data = b"".join(frames)
    assert ours(cut(data, places), True) == ours([data], True)


@given(st.lists(st.one_of(any_frames(), good_messages(True)), max_size=3))
def test_byte_by_byte_changes_nothing(frames: list[bytes]) -> None:
    data = b"".join(frames)[:3000]
    assert ours([data[at : at + 1] for at in range(len(data))], True) == ours([data], True)


@given(st.binary(max_size=200), st.booleans())
def test_noise_ends_in_a_close_code_or_in_nothing(data: bytes, with_deflate: bool) -> None:
    _, code = ours([data], with_deflate)
    assert code in (None, 1002, 1007, 1009)
