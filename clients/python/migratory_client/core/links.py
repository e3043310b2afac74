"""Functions that all drivers of the client core share: filling frames, and describing in words how a connection
ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus

from migratory_protocol.codec import Codec
from migratory_protocol.errors import CloseCode

# ---- frames ------------------------------------------------------------------------------------------------------
# A driver sends the messages of one turn of its event loop in as few frames as possible, because a broker handles one
# frame of many publications with up to a third less work. No message waits for others: a single one has its own frame.

MAX_FRAME_BYTES = 32_768
"""Bytes of messages in a frame that holds several: half of what the frame limit allows in addition to a payload, so it
holds for any payload limit."""

MAX_FRAME_MESSAGES = 1000
"""The largest number of messages in a frame. Brokers accept up to 4,096."""


def frame_contents(codec: Codec, encoded: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the contents of frames for these encoded messages, in order, as many messages in each as `MAX_FRAME_BYTES`
    and `MAX_FRAME_MESSAGES` allow. A message over `MAX_FRAME_BYTES` has its own frame."""
    start = size = 0
    for index, message in enumerate(encoded):
        if index > start and (size + len(message) > MAX_FRAME_BYTES or index - start == MAX_FRAME_MESSAGES):
            yield _join(codec, encoded[start:index])
            start, size = index, 0
        size += len(message)
    if start < len(encoded):
        yield _join(codec, encoded[start:])


def _join(codec: Codec, encoded: Sequence[bytes]) -> bytes:
    return encoded[0] if len(encoded) == 1 else codec.join(encoded)


# ---- close reasons -----------------------------------------------------------------------------------------------

_CLOSE_REASONS: dict[int, str] = {
    CloseCode.NORMAL: "the broker closed it",
    CloseCode.DRAINING: "it is being drained",
    CloseCode.NOT_ALLOWED: "not allowed, or over a limit",
    CloseCode.INTERNAL_ERROR: "an internal error",
    CloseCode.RESTARTING: "it restarts",
    CloseCode.BAD_MESSAGE: "a message that it could not read",
    CloseCode.UNAUTHENTICATED: "the token is not accepted",
    CloseCode.TOKEN_EXPIRED: "the token has expired",
    CloseCode.SLOW_CONSUMER: "too slow",
    CloseCode.FENCED: "it is cut off from its cluster",
}
"""The meaning of each close code that only brokers send. Any other code may come from the client itself."""


def close_reason(code: int) -> str:
    """Return what a broker means by this close code, or "" for a code that others than brokers give too, such as
    1006."""
    return _CLOSE_REASONS.get(code, "")


def describe_close(code: int, reason: str) -> str:
    """Return one line about a link that was up and is lost. The arguments are the fields of `LinkDown`."""
    meaning = close_reason(code)
    if not meaning:
        return f"connection lost: {reason}"
    return f"closed by the broker: {meaning}" + (f" ({reason})" if reason not in ("", meaning) else "")


def describe_refusal(status: int) -> str:
    """Return one line about an HTTP response with this status that refused the WebSocket handshake."""
    if status == HTTPStatus.NOT_FOUND:
        return "HTTP 404: no clients are served there (a broker's administration port, or a path other than /ws?)"
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "unknown"
    return f"HTTP {status} ({phrase.lower()}) in place of a WebSocket"
