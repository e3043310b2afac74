"""WebSocket frames beyond the conformance vectors: limits, memory, compression, writing."""

from __future__ import annotations

import random
import sys
import tracemalloc
import zlib

import pytest
from migratory_protocol import frames
from migratory_protocol.codec import MSGPACK
from migratory_protocol.errors import CloseCode
from migratory_protocol.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    CloseReceived,
    FrameEvent,
    FrameParser,
    MessageReceived,
    PingReceived,
    PongReceived,
    ProtocolError,
    binary_frame,
    close_frame,
    deflated_frame,
    encode_frame,
    ping_frame,
    pong_frame,
    text_frame,
)
from migratory_protocol.messages import Message, Publish
from migratory_protocol.positions import Position

M = 1_048_576
KEY = bytes.fromhex("37fa213d")


def server(limit: int = M, deflate: bool = False) -> FrameParser:
    return FrameParser("server", limit, deflate)


def error_of(parser: FrameParser, data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parser.feed(data)
    return caught.value


# A1: control frames between compressed fragments --------------------------------------------------------------------

TWO_FRAGMENTS = bytes.fromhex("418737fa213d9daceb12674873" + "898137fa213d5c" + "808837fa213d1d32ed766050243d")
EXPECTED: list[FrameEvent] = [PingReceived(b"k"), MessageReceived(b'{"op":"ping"}', True)]


def test_pong_before_compressed_text() -> None:
    parser = server(deflate=True)
    assert parser.feed(bytes.fromhex("8a8037fa213d")) == [PongReceived(b"")]
    assert parser.feed(bytes.fromhex("c18f37fa213d9daceb1267487317ff366a6a9dff21")) == [EXPECTED[1]]


@pytest.mark.parametrize("step", [1, 5, len(TWO_FRAGMENTS)])
def test_ping_between_compressed_fragments(step: int) -> None:
    parser = server(deflate=True)
    events = [
        event
        for start in range(0, len(TWO_FRAGMENTS), step)
        for event in parser.feed(TWO_FRAGMENTS[start : start + step])
    ]
    assert events == EXPECTED
    assert pong_frame(b"k") == bytes.fromhex("8a016b")


def test_continuation_with_rsv1_is_refused() -> None:
    error = error_of(server(deflate=True), TWO_FRAGMENTS.replace(b"\x80\x88", b"\xc0\x88"))
    assert error.code == 1002
    assert error.events == EXPECTED[:1]


def test_compressed_and_plain_messages_alternate() -> None:
    parser = server(deflate=True)
    texts = [b"a" * 500, b"b", b"", "\u20ac".encode() * 40]
    for text in texts:
        for data in (deflated_frame(TEXT, text, KEY), text_frame(text, KEY), deflated_frame(BINARY, text, KEY)):
            expected = MessageReceived(text, data[0] & 0x0F == TEXT)
            assert parser.feed(data) == [expected]


# A2: lengths --------------------------------------------------------------------------------------------------------


def fragments(payload: bytes, count: int, opcode: int = BINARY) -> bytes:
    size = -(-len(payload) // count)
    parts = [payload[start : start + size] for start in range(0, len(payload), size)]
    return b"".join(
        encode_frame(CONTINUATION if index else opcode, part, KEY, fin=index == len(parts) - 1)
        for index, part in enumerate(parts)
    )


@pytest.mark.parametrize("size", [125, 126, 127, 65535, 65536, 65537])
def test_publication_of_every_length_form_is_read(size: int) -> None:
    """A publication whose frame has a payload of `size` bytes, envelope included, is read unchanged, from a client
    and by a subscriber."""
    for message in (Publish("t", b"", 1, "p", 1, 1), Message("t", Position(1, 1), b"")):
        room = size - len(MSGPACK.encode(message))
        message.payload = b"x" * room
        message.payload = b"x" * (room - (len(MSGPACK.encode(message)) - size))
        encoded = MSGPACK.encode(message)
        assert len(encoded) == size
        client = isinstance(message, Publish)
        frame = binary_frame(encoded, KEY if client else None)
        parser = FrameParser("server" if client else "client", M)
        assert parser.feed(frame) == [MessageReceived(encoded, False)]
        decode = MSGPACK.decode_client if client else MSGPACK.decode_broker
        assert decode(encoded) == [message]


@pytest.mark.parametrize("count", [1, 3])
def test_message_is_refused_one_byte_over_the_limit(count: int) -> None:
    payload = b"y" * M
    assert server().feed(fragments(payload, count)) == [MessageReceived(payload, False)]
    assert error_of(server(), fragments(payload + b"y", count)).code == CloseCode.TOO_LARGE


@pytest.mark.parametrize("payload", [b"z" * M, bytes(range(256)) * (M // 256), zlib.compress(b"q" * 10)])
def test_compressed_message_is_refused_one_byte_over_the_limit(payload: bytes) -> None:
    for data in (payload, bytes(reversed(payload))):
        frame = encode_frame(BINARY, frames.compress(data), KEY, rsv1=True)
        assert server(len(data), deflate=True).feed(frame) == [MessageReceived(data, False)]
        assert error_of(server(len(data) - 1, deflate=True), frame).code == CloseCode.TOO_LARGE


def test_incompressible_message_of_the_limit_is_read() -> None:
    payload = b"s" * M
    compressed = frames.compress(payload, level=0)
    assert len(compressed) > M
    frame = encode_frame(BINARY, compressed, KEY, rsv1=True)
    assert server(deflate=True).feed(frame) == [MessageReceived(payload, False)]


@pytest.mark.unmeasured
def test_decompression_bomb_is_not_inflated() -> None:
    bomb = encode_frame(BINARY, frames.compress(b"\0" * (200 * M)), KEY, rsv1=True)
    assert len(bomb) < M
    tracemalloc.start()
    assert error_of(server(deflate=True), bomb).code == CloseCode.TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * M


def test_oversized_frame_is_refused_by_its_header() -> None:
    for header in ("82ff000000000010000137fa213d", "82ff7fffffffffffffff", "c2ff0000010000000000"):
        parser = server(deflate=True)
        assert error_of(parser, bytes.fromhex(header)).code == CloseCode.TOO_LARGE
        assert parser.is_idle
        assert parser.feed(b"\x81\x80....") == []


def test_empty_fragments_need_no_memory() -> None:
    parser = server()
    parser.feed(encode_frame(TEXT, b"", KEY, fin=False))
    chunk = encode_frame(CONTINUATION, b"", KEY, fin=False) * 1000
    tracemalloc.start()
    for _ in range(10):
        assert parser.feed(chunk) == []
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10_000  # one byte per fragment
    assert parser.feed(encode_frame(CONTINUATION, b"end", KEY)) == [MessageReceived(b"end", True)]


def test_inflate_accepts_a_final_block_only_at_the_end() -> None:
    final = zlib.compressobj(9, zlib.DEFLATED, -15)
    ended = final.compress(b"Hello") + final.flush(zlib.Z_FINISH)
    assert frames.inflate(ended, 5) == frames.inflate(ended + b"\0", 5) == b"Hello"
    with pytest.raises(ValueError, match="continues behind its final block"):
        frames.inflate(ended + b"more", 5)
    with pytest.raises(frames.InflatedTooLarge):
        frames.inflate(ended, 4)


# memory per connection ----------------------------------------------------------------------------------------------


def test_idle_parser_is_small_and_holds_nothing() -> None:
    parsers = [server() for _ in range(100)]
    for parser in parsers:
        parser.feed(text_frame(b"x" * 1000, KEY)[:-1])
        assert not parser.is_idle
        assert parser.feed(text_frame(b"x" * 1000, KEY)[-1:]) == [MessageReceived(b"x" * 1000, True)]
        assert parser.is_idle
    assert not hasattr(parsers[0], "__dict__")
    assert sys.getsizeof(parsers[0]) <= 128


def test_parser_reads_frames_cut_anywhere() -> None:
    first, second = text_frame(b"one", KEY), text_frame(b"two", KEY)
    parser = server()
    assert parser.feed(first + second[:3]) == [MessageReceived(b"one", True)]
    assert parser.feed(second[3:] + first[:1]) == [MessageReceived(b"two", True)]
    assert parser.feed(first[1:2]) == []
    assert parser.feed(first[2:] + second + first[:4]) == [MessageReceived(b"one", True), MessageReceived(b"two", True)]
    assert parser.feed(bytearray(first[4:])) == [MessageReceived(b"one", True)]
    assert parser.is_idle


def test_parser_does_not_keep_the_fed_buffer() -> None:
    buffer = bytearray(text_frame(b"one", KEY) + text_frame(b"two", KEY)[:5])
    parser = server()
    events = parser.feed(buffer)
    buffer[:] = b"\xff" * len(buffer)
    assert events + parser.feed(text_frame(b"two", KEY)[5:]) == [
        MessageReceived(b"one", True),
        MessageReceived(b"two", True),
    ]


def test_parser_ignores_bytes_after_close() -> None:
    parser = server()
    half = encode_frame(TEXT, b"half", KEY, fin=False)
    assert parser.feed(half + close_frame(1000, "", KEY) + b"rest") == [CloseReceived(1000, "")]
    assert parser.is_idle
    assert parser.feed(text_frame(b"more", KEY)) == []


def test_protocol_error_keeps_earlier_events() -> None:
    error = error_of(server(), text_frame(b"good", KEY) + b"\x83\x80")
    assert error.events == [MessageReceived(b"good", True)]
    assert (error.code, str(error)) == (CloseCode.PROTOCOL_ERROR, "opcode 3 is reserved")


# writing ------------------------------------------------------------------------------------------------------------


def test_encode_writes_frames_of_every_kind() -> None:
    assert text_frame(b"Hello") == bytes.fromhex("810548656c6c6f")
    assert text_frame(b"Hello", KEY) == bytes.fromhex("818537fa213d7f9f4d5158")
    assert binary_frame(b"") == bytes.fromhex("8200")
    assert ping_frame() == bytes.fromhex("8900")
    assert ping_frame(b"Hello") == encode_frame(PING, b"Hello") == bytes.fromhex("890548656c6c6f")
    assert pong_frame(b"Hello", KEY) == bytes.fromhex("8a8537fa213d7f9f4d5158")
    assert encode_frame(TEXT, b"Hel", fin=False) == bytes.fromhex("010348656c")
    assert close_frame() == bytes.fromhex("880203e8")
    assert close_frame(None) == bytes.fromhex("8800")
    assert close_frame(CloseCode.FENCED, "go", KEY)[0] == 0x80 | CLOSE


@pytest.mark.parametrize("reason", ["x" * 200, "\u20ac" * 100, "x" + "\u20ac" * 100, "\U0001f389" * 40, "\ud800" * 200])
def test_close_reason_is_cut_between_characters(reason: str) -> None:
    (event,) = FrameParser("client", M).feed(close_frame(4000, reason))
    assert isinstance(event, CloseReceived)
    assert event.code == 4000
    assert 120 <= len(event.reason.encode()) <= 123
    assert reason.encode("utf-8", "replace").decode().startswith(event.reason)


class TestLongFrames:
    """Long frames are read in pieces: unmasking 64 MiB in one go would block a broker for 0.7 s."""

    PIECE = 10_001

    def read(self, data: bytes, parser: FrameParser) -> list[FrameEvent]:
        events: list[FrameEvent] = []
        for start in range(0, len(data), self.PIECE):
            assert events == []
            events += parser.feed(data[start : start + self.PIECE])
        return events

    @pytest.mark.interpreted
    def test_long_frame_is_unmasked_as_it_arrives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        unmask = frames.apply_mask

        def counted(payload: bytes, mask: bytes) -> bytes:
            sizes.append(len(payload))
            return unmask(payload, mask)

        payload = bytes(range(256)) * 1000
        data = binary_frame(payload, KEY) + ping_frame(b"k", KEY)
        monkeypatch.setattr(frames, "apply_mask", counted)
        parser = FrameParser("server", M)
        assert self.read(data, parser) == [MessageReceived(payload, False), PingReceived(b"k")]
        assert (sum(sizes), max(sizes) <= self.PIECE, parser.is_reusable, parser.buffered_bytes) == (
            len(payload) + 1,
            True,
            True,
            0,
        )

    def test_parser_with_long_frame_is_not_reusable(self) -> None:
        parser = FrameParser("server", M)
        header = len(binary_frame(bytes(100_000), KEY)) - 100_000
        parser.feed(binary_frame(bytes(100_000), KEY)[: header + 500])
        assert (parser.buffered_bytes, parser.is_idle, parser.is_reusable) == (500, False, False)

    def test_long_frame_may_be_text_fragment_or_compressed(self) -> None:
        text = "grün" * 30_000
        noise = random.Random(1).randbytes(200_000)
        half = len(noise) // 2
        parser = FrameParser("server", M, deflate=True)
        assert self.read(text_frame(text.encode(), KEY), parser) == [MessageReceived(text.encode(), True)]
        parts = encode_frame(BINARY, noise[:half], KEY, fin=False) + encode_frame(CONTINUATION, noise[half:], KEY)
        assert self.read(parts, parser) == [MessageReceived(noise, False)]
        assert self.read(deflated_frame(BINARY, noise, KEY), parser) == [MessageReceived(noise, False)]

    def test_error_at_the_end_of_a_long_frame_is_final(self) -> None:
        parser = FrameParser("server", M)
        with pytest.raises(ProtocolError, match="not UTF-8") as caught:
            self.read(text_frame(b"x" * 100_000 + b"\xff", KEY), parser)
        assert (caught.value.events, parser.buffered_bytes, parser.feed(ping_frame(b"", KEY))) == ([], 0, [])
