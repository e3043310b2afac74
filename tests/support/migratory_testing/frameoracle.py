"""Comparison of the frame parser with an independent one, the sans-I/O protocol of `websockets`.

The same bytes must give the same events and close code, except for the differences that `assert_alike` lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast

from migratory_protocol.frames import (
    CloseReceived,
    FrameEvent,
    FrameParser,
    MessageReceived,
    PingReceived,
    PongReceived,
    ProtocolError,
)
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, SERVER, Protocol

LIMIT = 300
CODES = (1002, 1007, 1009)
CANNOT_INFLATE = -1

Role = Literal["server", "client"]
Event = tuple[Any, ...]


@dataclass(frozen=True)
class Read:
    """The result of parsing some bytes: the events, the close code (None: no error) with its reason, the parser's state
    afterwards, and whether the parser waits for the rest of a frame."""

    events: list[Event]
    code: int | None
    text: str = ""
    state: tuple[object, ...] = ()
    waits: bool = False


def shown(event: FrameEvent) -> Event:
    """Return a frame event of the product in the form that both parsers' results have: its kind, then its contents."""
    match event:
        case MessageReceived(data, text):
            return ("text" if text else "binary", data)
        case PingReceived(data):
            return ("ping", data)
        case PongReceived(data):
            return ("pong", data)
    assert isinstance(event, CloseReceived)
    return ("close", event.code, event.reason)


def ours(chunks: Sequence[bytes], deflate: bool, role: Role = "server") -> Read:
    """Return the result of parsing the chunks with the product's parser. Check that after an error it ignores all later
    chunks."""
    parser = FrameParser(role, LIMIT, deflate)
    events: list[Event] = []
    for index, chunk in enumerate(chunks):
        try:
            events += map(shown, parser.feed(chunk))
        except ProtocolError as error:
            events += map(shown, error.events)
            # it is closed and ignores all further bytes
            assert not any(parser.feed(later) for later in chunks[index + 1 :])
            return Read(events, int(error.code), error.text, _state(parser))
    return Read(events, None, "", _state(parser))


def _state(parser: FrameParser) -> tuple[object, ...]:
    """Return the parser's whole state, to compare two parsers."""
    long = parser._streamed
    held = [parser._buffer, parser._fragments, None if long is None else long.payload]
    return (
        parser.is_idle,
        parser.is_reusable,
        parser._closed,
        *(None if part is None else bytes(part) for part in held),
        parser._opcode if parser._fragments is not None else None,
        None if long is None else (long.first, long.remaining, bytes(long.mask)),
    )


def theirs(data: bytes, deflate: bool, role: Role = "server") -> Read:
    """Return the result of parsing `data` with `websockets`. This function joins fragments and checks UTF-8, because
    `websockets` leaves both to its callers."""
    protocol = Protocol(SERVER if role == "server" else CLIENT, max_size=LIMIT)
    if deflate:
        protocol.extensions = [
            PerMessageDeflate(
                remote_no_context_takeover=True,
                local_no_context_takeover=True,
                remote_max_window_bits=15,
                local_max_window_bits=15,
            )
        ]
    protocol.receive_data(data)
    events: list[Event] = []
    parts: list[bytes] = []
    kind = ""
    for frame in cast("list[Frame]", protocol.events_received()):
        match frame.opcode:
            case Opcode.PING:
                events.append(("ping", bytes(frame.data)))
            case Opcode.PONG:
                events.append(("pong", bytes(frame.data)))
            case Opcode.CLOSE:
                received = protocol.close_rcvd
                assert received is not None
                events.append(("close", None if received.code == 1005 else int(received.code), received.reason))
            case _:
                if frame.opcode is not Opcode.CONT:
                    kind = "text" if frame.opcode is Opcode.TEXT else "binary"
                    parts = []
                parts.append(bytes(frame.data))
                if frame.fin:
                    message = b"".join(parts)
                    if kind == "text" and message.decode(errors="ignore").encode() != message:
                        return Read(events, 1007)
                    events.append((kind, message))
    if protocol.parser_exc is None:
        protocol.receive_eof()
        return Read(events, None, waits="stream ends after" in str(protocol.parser_exc))
    if str(protocol.parser_exc).startswith("decompression failed"):
        return Read(events, CANNOT_INFLATE)
    sent = protocol.close_sent
    assert sent is not None
    return Read(events, int(sent.code), str(protocol.parser_exc))


def assert_alike(mine: Read, other: Read, deflate: bool) -> None:
    """Raise AssertionError when the two results differ in another way than the known ones.

    In this list "here" is the product's parser (`mine`), and "there" is `websockets` (`other`):

    - a length that is not in its shortest form, a control frame's as well, is 1002 here (RFC 6455, 5.2 and 5.5) and
      passes there;
    - data that cannot be inflated are 1007 here and 1002 there, and data behind the final deflate block are 1007 here
      and ignored there;
    - a close frame inside a fragmented message is valid here (RFC 6455, 5.4) and 1002 there;
    - there a length is checked before other errors, a ping counts as a part of the message around it, and the limit
      applies to the compressed bytes as well: after a 1009 there, only the events before it are compared;
    - each reports the first error that it checks in a frame with two; here the first byte is checked as soon as it
      arrives, before the frame is complete.
    """
    if mine.code == 1002 and mine.text.endswith(("in its shortest form", "at most 125 bytes")):
        assert mine.events == other.events[: len(mine.events)]
        return
    if mine.code == 1007 and deflate and mine.events == other.events[: len(mine.events)] and other.code != 1007:
        return
    if other.text == "incomplete fragmented message":
        assert mine.events[:-1] == other.events
        assert mine.events[-1][0] == "close"
        return
    if other.code == 1009:
        assert mine.events[: len(other.events)] == other.events
        return
    assert mine.events == other.events
    if other.code == CANNOT_INFLATE:
        # another error in the same frame, too many bytes by its header, or an incomplete message
        assert mine.code in (1002, 1009, None)
    elif other.code == 1007:
        assert mine.code in (1002, 1007)  # a frame with two errors: there its first byte is checked last
    elif mine.code == 1002 and other.code is None:
        assert other.waits  # for the rest of a frame whose first bytes are invalid
    else:
        assert mine.code == other.code


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Return `data` in pieces, cut at these offsets, each taken modulo `len(data) + 1`. Pieces may be empty."""
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]
