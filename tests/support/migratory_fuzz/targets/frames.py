"""WebSocket frames. Byte 0 selects the role, permessage-deflate, and raw bytes or a script of frames; bytes 1 and 2
select where the input is cut.

Oracles: an independent parser reads the same. Cuts change neither events nor code nor the parser's state. Received
messages can be sent and are received again. An error closes with one of three codes and gives a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from migratory_protocol import frames
from migratory_testing.frameoracle import CODES, LIMIT, Event, Read, Role, assert_alike, cut, ours, theirs

from migratory_fuzz.labels import seen
from migratory_fuzz.reader import Reader

SHAPE = "bytes"
SKIP = 3
MAX_LEN = 2000
TOKENS = (b"\x81\x80", b"\x82\xfe\x00\x7e", b"\x88\x82", b"\xc1\x80", b"\x00\x00\xff\xff", b"\x89\x00", b"\x03\xe8")

_CLIENT, _DEFLATE, _SCRIPT = 1, 2, 4
_MASK = b"abcd"


def run(data: bytes) -> None:
    source = Reader(data)
    flags = source.byte()
    role: Role = "client" if flags & _CLIENT else "server"
    with_deflate = bool(flags & _DEFLATE)
    places = [source.byte() * 7, source.byte()]
    stream = _script(source, role) if flags & _SCRIPT else source.rest()

    whole = ours([stream], with_deflate, role)
    assert ours(cut(stream, places), with_deflate, role) == whole
    if len(stream) <= 150:
        assert ours([stream[at : at + 1] for at in range(len(stream))], with_deflate, role) == whole
    assert_alike(whole, theirs(stream, with_deflate, role), with_deflate)
    assert whole.code in (None, *CODES)
    assert bool(whole.text) == (whole.code is not None)
    _received_again(whole, role)
    seen(f"{whole.text} {len(whole.events)} {whole.state[:3]}")


def _received_again(whole: Read, role: Role) -> None:
    mask = _MASK if role == "server" else None
    again = b"".join(_sent(event, mask) for event in whole.events)
    read = ours([again], True, role)
    assert read.code is None
    assert read.events == whole.events
    for kind, data, *_ in whole.events:
        assert kind == "close" or len(data) <= (LIMIT if kind in ("text", "binary") else 125)


def _sent(event: Event, mask: bytes | None) -> bytes:
    kind, data, *rest = event
    if kind == "close":
        return frames.close_frame(data, rest[0], mask)
    if kind in ("ping", "pong"):
        return (frames.ping_frame if kind == "ping" else frames.pong_frame)(data, mask)
    if len(data) % 2:
        return frames.deflated_frame(frames.TEXT if kind == "text" else frames.BINARY, data, mask)
    return (frames.text_frame if kind == "text" else frames.binary_frame)(data, mask)


def _script(source: Reader, role: Role) -> bytes:
    """Return frames that are nearly right, with an occasional mistake."""
    mask = _MASK if role == "server" else None
    return b"".join(_scripted(source, mask))


def _scripted(source: Reader, mask: bytes | None) -> Iterator[bytes]:
    for _ in range(12):
        if not source.left:
            return
        how = source.byte()
        opcode = (frames.TEXT, frames.BINARY, 0, 0, frames.PING, frames.PONG, frames.CLOSE, how >> 4)[how & 7]
        payload = source.take(source.number(60))
        if how & 0x40:
            payload += b"p" * source.choose((0, 65, 124, 125, 126, LIMIT - 1, LIMIT, LIMIT + 1))
        rsv1 = bool(how & 0x80) and opcode in (frames.TEXT, frames.BINARY)
        if rsv1:
            payload = frames.compress(payload, 1)
        frame = frames.encode_frame(opcode, payload, mask, fin=not how & 0x20, rsv1=rsv1)
        if source.chance(16):
            at = source.number(len(frame) - 1)
            frame = frame[:at] + bytes((frame[at] ^ (1 << source.number(7)),)) + frame[at + 1 :]
        if source.chance(32):
            frame = frame[: source.number(len(frame))]
        yield frame


def seeds() -> Iterator[bytes]:
    parts = (
        frames.text_frame(b"hello", _MASK),
        frames.binary_frame(b"\x00\xff" * 70, _MASK),
        frames.encode_frame(frames.TEXT, b"\xc3", _MASK, fin=False)
        + frames.ping_frame(b"p", _MASK)
        + frames.encode_frame(frames.CONTINUATION, b"\xa9", _MASK),
        frames.close_frame(1000, "bye", _MASK),
        frames.deflated_frame(frames.TEXT, b"abc" * 50, _MASK),
        frames.encode_frame(frames.BINARY, b"x" * (LIMIT + 1), _MASK),
    )
    for part in parts:
        yield bytes((_DEFLATE, 1, 3)) + part
    yield bytes((0, 9, 9)) + b"".join(parts[:4])
    yield bytes((_CLIENT, 2, 40)) + frames.text_frame(b"to a client") + frames.pong_frame(b"x")
    yield bytes((_CLIENT | _DEFLATE, 2, 40)) + frames.deflated_frame(frames.BINARY, b"z" * LIMIT)
    yield bytes((_SCRIPT | _DEFLATE, 5, 5)) + bytes(range(256))
    yield bytes((_SCRIPT, 200, 100)) + bytes((0x20, 3)) + b"abc\x00\x00" + bytes((0x02, 2)) + b"de\x00\x00"
