"""WebSocket close codes that a broker sends, and what a client does after each; docs/protocol.md lists them."""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """1000 to 1013 as registered with IANA; 4000 to 4004 are this protocol's own (RFC 6455, 7.4.2)."""

    NORMAL = 1000
    DRAINING = 1001  # "going away": this broker leaves or its drain period is over
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003  # a binary frame in a JSON connection, a text frame in a MessagePack connection
    INVALID_TEXT = 1007  # text that is not UTF-8, or compressed data that cannot be inflated
    NOT_ALLOWED = 1008  # not allowed here, or over a limit
    TOO_LARGE = 1009
    INTERNAL_ERROR = 1011
    RESTARTING = 1012
    TRY_ANOTHER = 1013  # this broker takes no clients now
    BAD_MESSAGE = 4000
    UNAUTHENTICATED = 4001
    TOKEN_EXPIRED = 4002
    SLOW_CONSUMER = 4003
    FENCED = 4004  # cut off from the cluster: its clients go elsewhere


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
"""The client is at fault: trying again with the same input ends in the same way, here or at another broker."""

SAME_BROKER = frozenset({CloseCode.TOKEN_EXPIRED, CloseCode.SLOW_CONSUMER})
"""The broker is well: the client may come back to it at once. After every other code it tries another broker first."""


def may_be_sent(code: int) -> bool:
    """Whether a close frame may carry `code`: registered ones but for 1004 to 1006 and 1015, and 3000 to 4999."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
