"""The events of `frames.FrameParser`: messages, pings, pongs and close frames. They have a module of their own because
mypyc does not compile classes of msgspec."""

from __future__ import annotations

from msgspec import Struct


class MessageReceived(Struct, frozen=True, gc=False):
    """Event: a complete message, unmasked, defragmented and inflated. The data of a `text` message are valid UTF-8."""

    data: bytes
    text: bool


class DeflatedReceived(Struct, frozen=True, gc=False):
    """Event: a complete message that is still compressed, from a parser with `inflate=False`. `inflate_message`
    inflates it."""

    data: bytes
    text: bool


class PingReceived(Struct, frozen=True, gc=False):
    """Event: a ping frame. Answer it with a pong of the same data before anything that answers later events."""

    data: bytes


class PongReceived(Struct, frozen=True, gc=False):
    data: bytes


class CloseReceived(Struct, frozen=True, gc=False):
    """Event: a close frame, the last event of a connection: later bytes are ignored. `code` is None when the frame has
    none. Answer it with the same code, unless a close frame was sent before."""

    code: int | None
    reason: str


FrameEvent = MessageReceived | DeflatedReceived | PingReceived | PongReceived | CloseReceived
