"""WebSocket frames (RFC 6455) without I/O, for both ends: bytes in, events out.

A broker holds one parser per connection, tens of thousands of them. So a parser has a few slots, keeps no buffer while
nothing is half received, and reads whole frames straight from the bytes that it is fed. A long masked frame is unmasked
as it comes: at its end, that of the largest payloads would keep a broker from all others for a second.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from migratory_protocol import deflate as compression
from migratory_protocol.closecodes import CloseCode, may_be_sent

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

_FIN = 0x80
_PLAIN_BINARY = _FIN | BINARY
_WHOLE = (_PLAIN_BINARY, _FIN | TEXT)  # first bytes of an uncompressed message in one frame
_RSV1 = 0x40
_RSV23 = 0x30
_MASKED = 0x80
_CONTROL_LIMIT = 125
LONG = 65_536  # bytes of a frame that is unmasked piece by piece


class MessageReceived(Struct, frozen=True, gc=False):
    """A whole message, unmasked, put together and inflated. Bytes of a `text` one are valid UTF-8."""

    data: bytes
    text: bool


class PingReceived(Struct, frozen=True, gc=False):
    """Answer it with a pong of the same data, before anything that answers later events."""

    data: bytes


class PongReceived(Struct, frozen=True, gc=False):
    data: bytes


class CloseReceived(Struct, frozen=True, gc=False):
    """The last event: what comes behind it is ignored. `code` is None when the frame had none. Answer with the same
    code unless a close frame was sent before."""

    code: int | None
    reason: str


FrameEvent = MessageReceived | PingReceived | PongReceived | CloseReceived


class ProtocolError(Exception):
    """The peer broke the protocol or a limit: close with `code`. `events` came whole before the mistake."""

    def __init__(self, code: CloseCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.events: list[FrameEvent] = []


class _Long:
    """A masked frame on its way: its first byte, how many bytes of it are still to come, the mask for the next of them,
    and what has come, unmasked."""

    __slots__ = ("first", "left", "mask", "payload")

    def __init__(self, first: int, length: int, mask: bytes | bytearray) -> None:
        self.first = first
        self.left = length
        self.mask = mask
        self.payload = bytearray()

    def take(self, data: bytes | bytearray) -> None:
        """Not more than is to come."""
        self.payload += apply_mask(data, self.mask)
        self.left -= len(data)
        turn = len(data) & 3
        self.mask = self.mask[turn:] + self.mask[:turn]


class FrameParser:
    """Feed it what the socket gave; it answers with what was received whole.

    role          which end this is: a server takes only masked frames, a client only unmasked ones (5.1)
    max_message   bytes of the largest message, after defragmentation and inflation; one more closes with 1009
    deflate       permessage-deflate was agreed on, without context takeover by the sender
    """

    __slots__ = ("_buffer", "_deflate", "_fragments", "_long", "_mask", "_opcode", "_over", "max_message")

    def __init__(self, role: Literal["server", "client"], max_message: int, deflate: bool = False) -> None:
        self.max_message = max_message
        self._mask = _MASKED if role == "server" else 0
        self._deflate = deflate
        self._over = False
        self._buffer: bytearray | None = None  # the begin of a frame,
        self._long: _Long | None = None  # or that of a long one
        self._fragments: bytearray | None = None  # the begin of a message
        self._opcode = 0  # and the first byte of its first frame

    @property
    def idle(self) -> bool:
        """Nothing is half received."""
        return self._buffer is None and self._long is None and self._fragments is None

    @property
    def as_new(self) -> bool:
        """Idle, and not finished: another connection may use it."""
        return self.idle and not self._over

    @property
    def held(self) -> int:
        """Bytes that are half received."""
        parts = (self._buffer, self._fragments, None if self._long is None else self._long.payload)
        return sum(len(part) for part in parts if part is not None)

    def feed(self, data: bytes | bytearray) -> list[FrameEvent]:
        """The events that `data` completes, in order.

        Raises ProtocolError; it and a close frame are final: everything after them is ignored.
        """
        events: list[FrameEvent] = []
        if self._over:
            return events
        buffer = self._buffer
        if buffer is not None:
            buffer += data
            data = buffer
        start = 0
        size = len(data)
        try:
            if self._long is not None:
                start = self._go_on(self._long, data, events)
            while start < size:
                end = self._frame(data, start, size, events)
                if end == 0:
                    break
                start = end
                if self._over:
                    self._buffer = None
                    return events
        except ProtocolError as error:
            self._over = True
            self._buffer = self._long = self._fragments = None
            error.events = events
            raise
        if start == size:
            self._buffer = None
        elif buffer is None:
            self._buffer = bytearray(data[start:] if start else data)
        elif start:
            del buffer[:start]
        return events

    def _frame(self, data: bytes | bytearray, start: int, size: int, events: list[FrameEvent]) -> int:
        """Takes the frame that begins at `start`. Returns where it ends, 0 when it is not all there."""
        first = data[start]
        # nearly every frame is a message of its own, not compressed: for those the checks below have nothing to say
        plain = first in _WHOLE and self._fragments is None
        if not plain:
            self._check_first(first)
        if size < start + 2:
            return 0
        length = data[start + 1] ^ self._mask
        if length > 127:
            expected = "must be masked" if self._mask else "must not be masked"
            raise ProtocolError(CloseCode.PROTOCOL_ERROR, f"a frame from this end {expected}")
        body = start + 2
        if length > 125:
            if first & 0x08:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a control frame has at most 125 bytes")
            shortest = 126 if length == 126 else 65536
            body += 2 if length == 126 else 8
            if size < body:
                return 0
            length = int.from_bytes(data[start + 2 : body])
            if length < shortest or length >> 63:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "the length of a frame is not in its shortest form")
        if length > self.max_message or not plain:
            self._check_size(first, length)
        if self._mask:
            body += 4
            end = body + length
            if size < end:
                if length <= LONG or size < body:
                    return 0
                self._long = _Long(first, length, bytes(data[body - 4 : body]))
                self._long.take(data[body:size])
                return size
            payload = apply_mask(data[body:end], data[body - 4 : body])
        else:
            end = body + length
            if size < end:
                return 0
            payload = bytes(data[body:end])
        if first == _PLAIN_BINARY and plain:
            events.append(MessageReceived(payload, False))
        elif plain:
            self._message(first, payload, events)
        elif first & 0x08:
            self._control(first & 0x0F, payload, events)
        else:
            self._part(first, payload, events)
        return end

    def _go_on(self, long: _Long, data: bytes | bytearray, events: list[FrameEvent]) -> int:
        """More of a long frame. Returns where what belongs to it ends."""
        end = min(long.left, len(data))
        long.take(data if end == len(data) else data[:end])
        if not long.left:
            self._long = None
            self._part(long.first, bytes(long.payload), events)
        return end

    def _part(self, first: int, payload: bytes, events: list[FrameEvent]) -> None:
        """Of a message: all of it, the end of it, or not the end."""
        if first & _FIN:
            self._last(first, payload, events)
        else:
            self._fragment(first, payload)

    def _check_first(self, first: int) -> None:
        """Everything that the first byte alone can be wrong in."""
        opcode = first & 0x0F
        if first & _RSV23:
            raise ProtocolError(CloseCode.PROTOCOL_ERROR, "RSV2 and RSV3 are reserved")
        if first & _RSV1 and not (self._deflate and opcode in (TEXT, BINARY)):
            raise ProtocolError(
                CloseCode.PROTOCOL_ERROR, "RSV1 is for the first frame of a message, and only with permessage-deflate"
            )
        if opcode in (TEXT, BINARY):
            if self._fragments is not None:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a new message inside of a fragmented one")
        elif opcode == CONTINUATION:
            if self._fragments is None:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a continuation of no message")
        elif opcode in (CLOSE, PING, PONG):
            if not first & _FIN:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a control frame must not be fragmented")
        else:
            raise ProtocolError(CloseCode.PROTOCOL_ERROR, f"opcode {opcode} is reserved")

    def _check_size(self, first: int, length: int) -> None:
        """By the header alone, so that a message over the limit is never stored."""
        if first & 0x08:
            return
        if self._fragments is not None:
            length += len(self._fragments)
            first = self._opcode
        limit = compression.compressed_limit(self.max_message) if first & _RSV1 else self.max_message
        if length > limit:
            raise ProtocolError(CloseCode.TOO_LARGE, f"the message is larger than {self.max_message} bytes")

    def _fragment(self, first: int, payload: bytes) -> None:
        if self._fragments is None:
            self._opcode = first
            self._fragments = bytearray(payload)
        else:
            self._fragments += payload

    def _last(self, first: int, payload: bytes, events: list[FrameEvent]) -> None:
        if self._fragments is not None:
            self._fragments += payload
            payload = bytes(self._fragments)
            self._fragments = None
            first = self._opcode
        if first & _RSV1:
            try:
                payload = compression.inflate(payload, self.max_message)
            except compression.TooLarge as error:
                raise ProtocolError(CloseCode.TOO_LARGE, str(error)) from None
            except ValueError as error:
                raise ProtocolError(CloseCode.INVALID_TEXT, str(error)) from None
        self._message(first, payload, events)

    def _message(self, first: int, payload: bytes, events: list[FrameEvent]) -> None:
        text = first & 0x0F == TEXT
        if text and not payload.isascii():
            _utf8(payload, "a text message")
        events.append(MessageReceived(payload, text))

    def _control(self, opcode: int, payload: bytes, events: list[FrameEvent]) -> None:
        if opcode == PING:
            events.append(PingReceived(payload))
        elif opcode == PONG:
            events.append(PongReceived(payload))
        else:
            events.append(_close(payload))
            self._over = True
            self._fragments = None


def _utf8(payload: bytes, what: str) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise ProtocolError(CloseCode.INVALID_TEXT, f"{what} is not UTF-8") from None


def _close(payload: bytes) -> CloseReceived:
    if not payload:
        return CloseReceived(None, "")
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not may_be_sent(code):
        raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a close frame with a code that may not be sent")
    return CloseReceived(code, _utf8(payload[2:], "the reason of a close frame"))


def apply_mask(payload: bytes | bytearray, mask: bytes | bytearray) -> bytes:
    """`payload` masked, or unmasked, with the 4 bytes of `mask` (5.3). One XOR of two long integers is the fastest way
    without native code of our own."""
    size = len(payload)
    pattern = (mask * ((size + 3) >> 2))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


def encode_frame(opcode: int, payload: bytes, mask: bytes | None = None, fin: bool = True, rsv1: bool = False) -> bytes:
    """One frame with the shortest header. A client gives 4 random bytes as `mask`, new ones for each frame."""
    first = opcode | _FIN if fin else opcode
    if rsv1:
        first |= _RSV1
    size = len(payload)
    masked = 0 if mask is None else _MASKED
    if size < 126:
        header = bytes((first, masked | size))
    elif size < 65536:
        header = bytes((first, masked | 126, size >> 8, size & 0xFF))
    else:
        header = bytes((first, masked | 127)) + size.to_bytes(8, "big")
    if mask is None:
        return header + payload
    return header + mask + apply_mask(payload, mask)


def text_frame(payload: bytes, mask: bytes | None = None) -> bytes:
    return encode_frame(TEXT, payload, mask)


def binary_frame(payload: bytes, mask: bytes | None = None) -> bytes:
    return encode_frame(BINARY, payload, mask)


def ping_frame(payload: bytes = b"", mask: bytes | None = None) -> bytes:
    return encode_frame(PING, payload, mask)


def pong_frame(payload: bytes = b"", mask: bytes | None = None) -> bytes:
    return encode_frame(PONG, payload, mask)


def close_frame(code: int | None = CloseCode.NORMAL, reason: str = "", mask: bytes | None = None) -> bytes:
    """A close frame; the reason is cut, between characters, to the 123 bytes that fit."""
    if code is None:
        return encode_frame(CLOSE, b"", mask)
    text = reason.encode("utf-8", "replace")[: _CONTROL_LIMIT - 2].decode("utf-8", "ignore")
    return encode_frame(CLOSE, code.to_bytes(2, "big") + text.encode(), mask)


def deflated_frame(opcode: int, payload: bytes, mask: bytes | None = None) -> bytes:
    """A message compressed on its own, once for all receivers that agreed on permessage-deflate."""
    return encode_frame(opcode, compression.compress(payload), mask, rsv1=True)
