"""Error codes and close codes (docs/reference/protocol.md), for brokers and clients, and `BadMessage`, which reports a
bad message."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# ---- error codes: in `error`, `nack` and topic receipts ---------------------------------------------------------

BAD_MESSAGE: Final = "bad_message"
UNKNOWN_OP: Final = "unknown_op"
BAD_TOPIC: Final = "bad_topic"
BAD_POSITION: Final = "bad_position"
TOO_LARGE: Final = "too_large"
TOO_MANY_TOPICS: Final = "too_many_topics"
TOO_MANY_SUBSCRIPTIONS: Final = "too_many_subscriptions"
OVERLOADED: Final = "overloaded"
NOT_CONNECTED: Final = "not_connected"
UNSUPPORTED_VERSION: Final = "unsupported_version"
UNAUTHENTICATED: Final = "unauthenticated"
TOKEN_EXPIRED: Final = "token_expired"
NOT_ALLOWED: Final = "not_allowed"
ID_REUSED: Final = "id_reused"
ID_TOO_HIGH: Final = "id_too_high"
OUTCOME_UNKNOWN: Final = "outcome_unknown"
RATE_LIMITED: Final = "rate_limited"
GAP: Final = "gap"
RETRY: Final = "retry"

MAX_ERROR_TEXT: Final = 300
"""Characters of the longest error text. A hostile message must not make its answer longer than itself."""


class BadMessage(ValueError):
    """The error for a message from the other end that is not acceptable, with the content of the error to send back.

    code         the error code
    text         for the sender: names the field and what is allowed; cut to `MAX_ERROR_TEXT` well-formed characters
    request      the number of the request that is refused, None when the message does not name one
    topic        the topic that is refused, None when the message does not name one
    publication  topic, publisher and message id of a refused QoS 1 publication, None when they are not readable
    closes       whether the connection ends, with close code 4000, because the whole frame is unreadable
    frame        all messages of the same frame in order, each bad one replaced by its error; this error alone if
                 the messages were not examined one by one
    """

    def __init__(
        self,
        code: str,
        text: str,
        request: int | None = None,
        topic: str | None = None,
        publication: tuple[str, str, int] | None = None,
        *,
        closes: bool = False,
    ) -> None:
        text = text.encode("utf-8", "backslashreplace").decode()
        self.text = text if len(text) <= MAX_ERROR_TEXT else text[: MAX_ERROR_TEXT - 3] + "..."
        super().__init__(self.text)
        self.code = code
        self.request = request
        self.topic = topic
        self.publication = publication
        self.closes = closes
        self.frame: tuple[object, ...] = (self,)


# ---- close codes ------------------------------------------------------------------------------------------------


class CloseCode(IntEnum):
    """The WebSocket close codes that a broker sends. Those from 1000 to 1013 are registered with IANA; 4000 to 4004 are
    this protocol's own (RFC 6455, 7.4.2)."""

    NORMAL = 1000
    DRAINING = 1001  # "going away": the broker shuts down, or its drain period has ended
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003  # a binary frame on a JSON connection, or a text frame on a MessagePack connection
    INVALID_TEXT = 1007  # text that is not UTF-8, or compressed data that cannot be inflated
    NOT_ALLOWED = 1008  # forbidden, or over a limit
    TOO_LARGE = 1009
    INTERNAL_ERROR = 1011
    RESTARTING = 1012
    TRY_ANOTHER = 1013  # the broker accepts no clients at present
    BAD_MESSAGE = 4000
    UNAUTHENTICATED = 4001
    TOKEN_EXPIRED = 4002
    SLOW_CONSUMER = 4003
    FENCED = 4004  # the broker is cut off from the cluster


FATAL = frozenset(
    {
        CloseCode.PROTOCOL_ERROR,
        CloseCode.UNSUPPORTED_DATA,
        CloseCode.INVALID_TEXT,
        CloseCode.NOT_ALLOWED,
        CloseCode.TOO_LARGE,
        CloseCode.BAD_MESSAGE,
        CloseCode.UNAUTHENTICATED,
    }
)
"""Close codes for faults of the client: a retry with the same input fails in the same way at every broker."""

SAME_BROKER = frozenset({CloseCode.TOKEN_EXPIRED, CloseCode.SLOW_CONSUMER})
"""Close codes after which the client may reconnect to the same broker at once: the broker is healthy. After other codes
the client tries another broker first."""


def is_valid_close_code(code: int) -> bool:
    """Return whether a close frame may carry `code`: the registered codes but 1004 to 1006 and 1015, and 3000 to 4999
    (RFC 6455, 7.4)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
