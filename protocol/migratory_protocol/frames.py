"""WebSocket frames (RFC 6455) and permessage-deflate (RFC 7692) without I/O, for brokers, load generator and tests:
bytes in, events out.

A broker holds tens of thousands of connections. So a parser has few slots, holds no buffer while no frame is
incomplete, and reads complete frames directly from the bytes that it is fed. A long masked frame is unmasked as its
bytes arrive: unmasking the largest payload in one go would block the event loop for a second.

Every message is compressed on its own, without context takeover in either direction: an idle connection holds no
deflate window, and a publication is compressed once for all its subscribers.
"""

from __future__ import annotations

import zlib
from typing import Final, Literal

from migratory_protocol.errors import CloseCode, is_valid_close_code
from migratory_protocol.frame_events import CloseReceived as CloseReceived
from migratory_protocol.frame_events import DeflatedReceived as DeflatedReceived
from migratory_protocol.frame_events import FrameEvent as FrameEvent
from migratory_protocol.frame_events import MessageReceived as MessageReceived
from migratory_protocol.frame_events import PingReceived as PingReceived
from migratory_protocol.frame_events import PongReceived as PongReceived

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

STREAMED_BYTES = 65_536
"""Bytes of payload above which an incomplete masked frame is unmasked piece by piece, as its bytes arrive."""

_FIN = 0x80
_PLAIN_BINARY = _FIN | BINARY
_WHOLE = (_PLAIN_BINARY, _FIN | TEXT)  # first bytes of an uncompressed message in one frame
_RSV1 = 0x40
_RSV23 = 0x30
_MASKED = 0x80
_CONTROL_LIMIT = 125

_SYNC_TAIL = b"\x00\x00\xff\xff"  # ends a deflate block that is flushed; not sent (RFC 7692, 7.2.1)
_FINAL_TAILS = (b"", _SYNC_TAIL, b"\x00" + _SYNC_TAIL)


class ProtocolError(Exception):
    """The error for a violation of the protocol or of a limit by the other end. The connection must be closed with
    `code`. `events` are those that were complete before the violation."""

    def __init__(self, code: CloseCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.events: list[FrameEvent] = []


class _StreamedFrame:
    """A long masked frame that is still incomplete.

    first       its first byte
    remaining   bytes of payload still to come
    mask        the four bytes of the mask, rotated so that they begin at the next byte of payload
    payload     the unmasked payload so far
    """

    __slots__ = ("first", "mask", "payload", "remaining")

    def __init__(self, first: int, length: int, mask: bytes | bytearray) -> None:
        self.first = first
        self.remaining = length
        self.mask = mask
        self.payload = bytearray()

    def append(self, data: bytes | bytearray) -> None:
        """Unmask and store the next bytes of payload, at most `remaining`."""
        self.payload += apply_mask(data, self.mask)
        self.remaining -= len(data)
        turn = len(data) & 3
        self.mask = self.mask[turn:] + self.mask[:turn]


class FrameParser:
    """An incremental parser for one direction of a connection. `feed` gets the socket's bytes and returns complete
    events.

    role          this end: a server accepts only masked frames, a client only unmasked ones (RFC 6455, 5.1)
    max_message   bytes of the largest message, after defragmentation and inflation; a larger one closes with 1009
    deflate       whether permessage-deflate was negotiated, without context takeover by the sender
    inflate       whether to inflate messages at once. A compressed message may become a thousand times as long, so a
                  receiver that stores events before it handles them must inflate each later, from `DeflatedReceived`
    """

    __slots__ = (
        "_buffer",
        "_closed",
        "_deflate",
        "_fragments",
        "_inflate",
        "_mask",
        "_opcode",
        "_streamed",
        "max_message",
    )

    def __init__(
        self, role: Literal["server", "client"], max_message: int, deflate: bool = False, *, inflate: bool = True
    ) -> None:
        self.max_message = max_message
        self._inflate = inflate
        self._mask = _MASKED if role == "server" else 0
        self._deflate = deflate
        self._closed = False  # after a close frame or an error
        self._buffer: bytearray | None = None  # an incomplete frame,
        self._streamed: _StreamedFrame | None = None  # or a long one
        self._fragments: bytearray | None = None  # an incomplete message,
        self._opcode = 0  # and the first byte of its first frame

    @property
    def is_idle(self) -> bool:
        """True while no frame and no message is incomplete."""
        return self._buffer is None and self._streamed is None and self._fragments is None

    @property
    def is_reusable(self) -> bool:
        """True if the parser may be used for another connection: it is idle, and saw neither a close frame nor an
        error."""
        return self.is_idle and not self._closed

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes of incomplete frames and messages that the parser holds."""
        parts = (self._buffer, self._fragments, None if self._streamed is None else self._streamed.payload)
        return sum(len(part) for part in parts if part is not None)

    def feed(self, data: bytes | bytearray) -> list[FrameEvent]:
        """Consume `data` and return the events that it completes, in order.

        Raises ProtocolError for a violation by the other end; its `events` are those that `data` completed before.
        After an error or a close frame all further bytes are ignored and [] is returned.
        """
        events: list[FrameEvent] = []
        if self._closed:
            return events
        buffer = self._buffer
        if buffer is not None:
            buffer += data
            data = buffer
        start = 0
        size = len(data)
        try:
            if self._streamed is not None:
                start = self._continue_streamed(self._streamed, data, events)
            while start < size:
                end = self._parse_frame(data, start, size, events)
                if end == 0:
                    break
                start = end
                if self._closed:
                    self._buffer = None
                    return events
        except ProtocolError as error:
            self._closed = True
            self._buffer = self._streamed = self._fragments = None
            error.events = events
            raise
        if start == size:
            self._buffer = None
        elif buffer is None:
            self._buffer = bytearray(data[start:] if start else data)
        elif start:
            del buffer[:start]
        return events

    def _parse_frame(self, data: bytes | bytearray, start: int, size: int, events: list[FrameEvent]) -> int:
        """Parse the frame that begins at `start`, and append the event that it completes, if any. Return the index
        after the frame. For an incomplete frame return 0, or `size` once the header of a long masked one is complete:
        its bytes are consumed as they arrive."""
        first = data[start]
        # nearly every frame is an uncompressed message of its own, for which the checks below have nothing to find
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
                if length <= STREAMED_BYTES or size < body:
                    return 0
                self._streamed = _StreamedFrame(first, length, bytes(data[body - 4 : body]))
                self._streamed.append(data[body:size])
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
            self._add_message(first, payload, events)
        elif first & 0x08:
            self._add_control(first & 0x0F, payload, events)
        else:
            self._add_data(first, payload, events)
        return end

    def _continue_streamed(self, frame: _StreamedFrame, data: bytes | bytearray, events: list[FrameEvent]) -> int:
        """Append the bytes of `data` that belong to the frame, and finish the frame if it is complete. Return the index
        after these bytes."""
        end = min(frame.remaining, len(data))
        frame.append(data if end == len(data) else data[:end])
        if not frame.remaining:
            self._streamed = None
            self._add_data(frame.first, bytes(frame.payload), events)
        return end

    def _add_data(self, first: int, payload: bytes, events: list[FrameEvent]) -> None:
        """Handle a complete data frame: append the event of a message if this is its last frame, else store the
        fragment."""
        if first & _FIN:
            self._finish_message(first, payload, events)
        else:
            self._add_fragment(first, payload)

    def _check_first(self, first: int) -> None:
        """Raise ProtocolError if the first byte of a frame is invalid here: reserved bits, opcode, or the order of
        fragments."""
        opcode = first & 0x0F
        if first & _RSV23:
            raise ProtocolError(CloseCode.PROTOCOL_ERROR, "RSV2 and RSV3 are reserved")
        if first & _RSV1 and not (self._deflate and opcode in (TEXT, BINARY)):
            raise ProtocolError(
                CloseCode.PROTOCOL_ERROR, "RSV1 is for the first frame of a message, and only with permessage-deflate"
            )
        if opcode in (TEXT, BINARY):
            if self._fragments is not None:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a new message inside a fragmented one")
        elif opcode == CONTINUATION:
            if self._fragments is None:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a continuation frame without a message to continue")
        elif opcode in (CLOSE, PING, PONG):
            if not first & _FIN:
                raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a control frame must not be fragmented")
        else:
            raise ProtocolError(CloseCode.PROTOCOL_ERROR, f"opcode {opcode} is reserved")

    def _check_size(self, first: int, length: int) -> None:
        """Raise ProtocolError if the message would be over the limit with this frame's `length`. The header alone
        decides, so that such a message is never buffered."""
        if first & 0x08:
            return
        if self._fragments is not None:
            length += len(self._fragments)
            first = self._opcode
        limit = max_compressed_size(self.max_message) if first & _RSV1 else self.max_message
        if length > limit:
            raise ProtocolError(CloseCode.TOO_LARGE, f"the message is larger than {self.max_message} bytes")

    def _add_fragment(self, first: int, payload: bytes) -> None:
        """Store the payload of a frame that is not the last one of its message."""
        if self._fragments is None:
            self._opcode = first
            self._fragments = bytearray(payload)
        else:
            self._fragments += payload

    def _finish_message(self, first: int, payload: bytes, events: list[FrameEvent]) -> None:
        """Append the event of a message whose last frame is complete: inflated, or still compressed without `inflate`.
        Raises ProtocolError if the message cannot be inflated, is too large then, or is text that is not UTF-8."""
        if self._fragments is not None:
            self._fragments += payload
            payload = bytes(self._fragments)
            self._fragments = None
            first = self._opcode
        if first & _RSV1:
            deflated = DeflatedReceived(payload, first & 0x0F == TEXT)
            events.append(inflate_message(deflated, self.max_message) if self._inflate else deflated)
        else:
            self._add_message(first, payload, events)

    def _add_message(self, first: int, payload: bytes, events: list[FrameEvent]) -> None:
        """Append the event of an uncompressed message. Raises ProtocolError for text that is not UTF-8."""
        events.append(_message(payload, first & 0x0F == TEXT))

    def _add_control(self, opcode: int, payload: bytes, events: list[FrameEvent]) -> None:
        """Append the event of a complete control frame. After a close frame the parser ignores all further bytes.
        Raises ProtocolError for a malformed close frame."""
        if opcode == PING:
            events.append(PingReceived(payload))
        elif opcode == PONG:
            events.append(PongReceived(payload))
        else:
            events.append(_parse_close(payload))
            self._closed = True
            self._fragments = None


def inflate_message(event: DeflatedReceived, limit: int) -> MessageReceived:
    """Return the inflated message. Raises ProtocolError if it has more than `limit` bytes, cannot be inflated, or is
    text that is not UTF-8."""
    try:
        payload = inflate(event.data, limit)
    except InflatedTooLarge as too_large:
        raise ProtocolError(CloseCode.TOO_LARGE, str(too_large)) from None
    except ValueError as error:
        raise ProtocolError(CloseCode.INVALID_TEXT, str(error)) from None
    return _message(payload, event.text)


def _message(payload: bytes, text: bool) -> MessageReceived:
    """Return the event of a message. Raises ProtocolError for text that is not UTF-8."""
    if text and not payload.isascii():
        _decode_utf8(payload, "a text message")
    return MessageReceived(payload, text)


def _decode_utf8(payload: bytes, name: str) -> str:
    """Return the text in `payload`. Raises ProtocolError, which calls it `name`, if it is not UTF-8."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise ProtocolError(CloseCode.INVALID_TEXT, f"{name} is not UTF-8") from None


def _parse_close(payload: bytes) -> CloseReceived:
    """Return the event of a close frame. Raises ProtocolError for a code that may not be sent, and for a reason that is
    not UTF-8."""
    if not payload:
        return CloseReceived(None, "")
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not is_valid_close_code(code):
        raise ProtocolError(CloseCode.PROTOCOL_ERROR, "a close frame with a code that may not be sent")
    return CloseReceived(code, _decode_utf8(payload[2:], "the reason of a close frame"))


# ---- writing ----------------------------------------------------------------------------------------------------


def apply_mask(payload: bytes | bytearray, mask: bytes | bytearray) -> bytes:
    """Return `payload` XORed with the 4 bytes of `mask`, repeated: this masks plain bytes and unmasks masked ones
    (5.3).

    One XOR of two long integers is the fastest way without an extension module.
    """
    size = len(payload)
    pattern = (mask * ((size + 3) >> 2))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


def encode_frame(opcode: int, payload: bytes, mask: bytes | None = None, fin: bool = True, rsv1: bool = False) -> bytes:
    """Return one frame with the shortest header. A client must give 4 random bytes as `mask`, new ones for each frame;
    a server gives None. `fin`: the frame is the last one of its message. `rsv1`: the message is compressed, as
    `payload` must be already."""
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
    """Return a close frame, for `code` None an empty one. The reason is cut, between characters, to the 123 bytes that
    fit."""
    if code is None:
        return encode_frame(CLOSE, b"", mask)
    text = reason.encode("utf-8", "replace")[: _CONTROL_LIMIT - 2].decode("utf-8", "ignore")
    return encode_frame(CLOSE, code.to_bytes(2, "big") + text.encode(), mask)


def deflated_frame(opcode: int, payload: bytes, mask: bytes | None = None) -> bytes:
    """Compress the whole message `payload`, and return it as one frame, for every receiver that negotiated
    permessage-deflate."""
    return encode_frame(opcode, compress(payload), mask, rsv1=True)


# ---- permessage-deflate (RFC 7692) ------------------------------------------------------------------------------


class InflatedTooLarge(ValueError):
    """The error for a message that is over the limit after inflation."""


def max_compressed_size(limit: int) -> int:
    """Return an upper bound of the bytes that a message of `limit` bytes takes when it is compressed: incompressible
    data grow a little."""
    return limit + (limit >> 5) + 64


def compress(payload: bytes, level: int = 6) -> bytes:
    """Return the payload compressed, as the content of a frame with RSV1 set (7.2.1). `level` is zlib's, 1 to 9."""
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
    return (deflater.compress(payload) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


def inflate(payload: bytes, limit: int) -> bytes:
    """Return the message that was compressed into `payload` (7.2.2). At most one byte over `limit` is inflated.

    Raises InflatedTooLarge for a message of more than `limit` bytes, and ValueError for invalid deflate data.
    """
    inflater = zlib.decompressobj(-15)
    try:
        message = inflater.decompress(payload + _SYNC_TAIL, limit + 1)
    except zlib.error:
        raise ValueError("the compressed message cannot be inflated") from None
    if len(message) > limit:
        raise InflatedTooLarge(f"the inflated message is larger than {limit} bytes")
    # a sender may set BFINAL on its last block (7.2.3.5): then only the tail of the message may remain
    if inflater.eof and inflater.unused_data not in _FINAL_TAILS:
        raise ValueError("the compressed message continues behind its final block")
    return message
