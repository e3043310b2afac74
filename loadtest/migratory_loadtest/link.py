"""One WebSocket connection ("link") of a simulated client, as an asyncio protocol.

It uses the product's handshake and frame parser. One process holds thousands of links, so a link has few attributes, no
task and no queue.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, cast

from migratory_client.core.links import describe_refusal, frame_contents
from migratory_protocol.codec import BadMessage, Codec
from migratory_protocol.frames import (
    BINARY,
    TEXT,
    CloseReceived,
    FrameParser,
    MessageReceived,
    PingReceived,
    ProtocolError,
    close_frame,
    encode_frame,
    pong_frame,
)
from migratory_protocol.handshake import HandshakeError, build_request, parse_response
from migratory_protocol.messages import BrokerMessage, ClientMessage

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Bytes of the largest WebSocket message that is read. A frame of a replay may hold many publications."""


class LinkOwner(Protocol):
    """The receiver of a link's callbacks, which is a LoadClient. Each callback has the link's number."""

    def link_up(self, number: int) -> None: ...

    def link_received(self, number: int, messages: list[BrokerMessage], size: int) -> None: ...

    def link_down(self, number: int, code: int, reason: str) -> None: ...


class LinkProtocol(asyncio.Protocol):
    """A client's link. It calls its owner's `link_up` after the handshake, `link_received` with the messages of
    received data and its size in bytes, and `link_down` once, when the connection ends. Data that is only a part of a
    frame, or only control frames, is received without messages. Pings are answered here."""

    __slots__ = (
        "_code",
        "_codec",
        "_head",
        "_host",
        "_nonce",
        "_number",
        "_owner",
        "_parser",
        "_path",
        "_reason",
        "_waiting",
        "transport",
    )

    def __init__(self, owner: LinkOwner, number: int, codec: Codec, host: str, path: str) -> None:
        """`number` identifies the link to its owner. `host` is the "name:port" of the URL, for the Host header. `path`
        is the path of the URL with its query."""
        self._owner = owner
        self._number = number
        self._codec = codec
        self._host = host
        self._path = path
        self._nonce = os.urandom(16)
        self._head: bytes | None = b""  # of the response while it is incomplete, then None
        self._parser = FrameParser("client", MAX_MESSAGE_BYTES)
        self._code = 1006
        self._reason = ""
        self._waiting: list[bytes] | None = None  # messages to send at the end of this turn of the event loop
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(build_request(self._host, self._path, self._nonce, (self._codec.subprotocol,)))

    def data_received(self, data: bytes) -> None:
        """Complete the handshake, then pass the messages of complete frames to the owner. Close the connection when the
        handshake is refused, the broker breaks the protocol or closes, or a message is invalid."""
        size = len(data)
        if self._head is not None:
            try:
                response = parse_response(self._head + data, self._nonce, (self._codec.subprotocol,))
            except HandshakeError as error:
                self._fail(1006, error.text if error.status in (0, 101) else describe_refusal(error.status))
                return
            if response is None:
                self._head += data
                return
            self._head = None
            self._owner.link_up(self._number)
            data = response.rest
            if not data:
                return
        try:
            events = self._parser.feed(data)
        except ProtocolError as error:
            events = error.events
            self._fail(error.code, f"the broker violated the protocol: {error.text}")
        messages: list[BrokerMessage] = []
        for event in events:
            if type(event) is MessageReceived:
                try:
                    messages += self._codec.decode_broker(event.data)
                except BadMessage as error:
                    self._fail(1007, f"the broker sent an invalid message: {error.text}")
                    break
            elif type(event) is PingReceived:
                self._write(pong_frame(event.data, os.urandom(4)))
            elif type(event) is CloseReceived:
                self._fail(event.code or 1005, event.reason)
        self._owner.link_received(self._number, messages, size)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._owner.link_down(self._number, self._code, self._reason or (str(exc) if exc else ""))

    def send(self, messages: list[ClientMessage]) -> None:
        """Send messages at the end of this turn of the event loop, together with all others of the turn."""
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = []
            asyncio.get_running_loop().call_soon(self._flush)
        waiting += [self._codec.encode(message) for message in messages]

    def _flush(self) -> None:
        """Write the waiting messages in as few frames as the limits allow."""
        waiting, self._waiting = self._waiting, None
        if waiting:
            opcode = BINARY if self._codec.binary else TEXT
            frames = [encode_frame(opcode, content, os.urandom(4)) for content in frame_contents(self._codec, waiting)]
            self._write(b"".join(frames))

    def disconnect(self, abort: bool) -> None:
        """Close the connection: at once with `abort`, else after the waiting messages and a close frame. Nothing
        happens before the TCP connection is made, when the owner cancels the dial, or after it has ended.

        `link_down` follows, although the client core has already forgotten the link.
        """
        if self.transport is None:
            return
        if abort:
            self.transport.abort()
        else:
            self._flush()
            self._write(close_frame(mask=os.urandom(4)))
            self.transport.close()

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def _fail(self, code: int, reason: str) -> None:
        """Close the connection with a close frame. `code` and `reason` are those that `link_down` will report; the
        close frame has 1000 in place of most codes."""
        self._code, self._reason = code, reason
        if self.transport is not None and not self.transport.is_closing():
            self._write(close_frame(code if code in (1002, 1007, 1009) else 1000, mask=os.urandom(4)))
            self.transport.close()
