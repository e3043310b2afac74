"""Error codes of `error`, `nack` and topic receipts, and the exception that carries one out of the codec."""

from __future__ import annotations

from typing import Final

BAD_MESSAGE: Final = "bad_message"
UNKNOWN_OP: Final = "unknown_op"
BAD_TOPIC: Final = "bad_topic"
BAD_POSITION: Final = "bad_position"
TOO_LARGE: Final = "too_large"
TOO_MANY_TOPICS: Final = "too_many_topics"
TOO_MANY_SUBSCRIPTIONS: Final = "too_many_subscriptions"
NOT_CONNECTED: Final = "not_connected"
UNSUPPORTED_VERSION: Final = "unsupported_version"
UNAUTHENTICATED: Final = "unauthenticated"
NOT_ALLOWED: Final = "not_allowed"
ID_REUSED: Final = "id_reused"
GAP: Final = "gap"
RETRY: Final = "retry"


class BadMessage(ValueError):
    """A message that a peer sent and this side cannot take.

    `code` and `text` are meant for the sender: the text names the field and what is allowed, never holds a lone
    surrogate and has at most 300 characters. `request` and `topic` name what is refused, where the message still told.
    `closes`: nothing of the frame could be made out, so that the connection ends with 4000. Otherwise only this
    message is refused, and `frame` holds everything that came in the same frame, in order, this error included: the
    messages beside a bad one are good.
    """

    def __init__(
        self, code: str, text: str, request: int | None = None, topic: str | None = None, *, closes: bool = False
    ) -> None:
        text = text.encode("utf-8", "backslashreplace").decode()
        self.text = text if len(text) <= 300 else text[:297] + "..."
        super().__init__(self.text)
        self.code = code
        self.request = request
        self.topic = topic
        self.closes = closes
        self.frame: tuple[object, ...] = (self,)
