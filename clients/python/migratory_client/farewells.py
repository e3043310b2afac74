"""What the end of a connection, or none at all, means in words for a person; docs/protocol.md says what a client does
after each."""

from __future__ import annotations

from http import HTTPStatus

from migratory_protocol.errors import CloseCode

_SAID: dict[int, str] = {
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
"""Codes that come from a broker alone; the others this end may have given."""


def farewell(code: int) -> str:
    """What a broker means that closes with `code`; "" where no broker said anything (a broken connection, say)."""
    return _SAID.get(code, "")


def describe_end(code: int, reason: str) -> str:
    """One line about a link that served and is lost, from the fields of `LinkDown`."""
    said = farewell(code)
    if not said:
        return f"connection lost: {reason}"
    return f"closed by the broker: {said}" + (f" ({reason})" if reason not in ("", said) else "")


def refusal(status: int) -> str:
    """An answer of HTTP that is no WebSocket."""
    if status == HTTPStatus.NOT_FOUND:
        return "HTTP 404: no clients are served there (a broker's administration port, or a path other than /ws?)"
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "unknown"
    return f"HTTP {status} ({phrase.lower()}) in place of a WebSocket"
