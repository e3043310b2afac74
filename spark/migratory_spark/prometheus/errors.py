"""Errors of reading Prometheus servers, and the safe quotation of foreign text in their messages. A message says what
was wrong and, where it is known, what to do."""

from __future__ import annotations

_MAX_EXCERPT = 300
"""Characters of foreign text that a message quotes."""


def excerpt(data: bytes) -> str:
    """Return the beginning of what a server sent as one line of at most 300 characters, for an error message. Return
    only the number of bytes if more than a tenth of the characters are unreadable, because damaged data must not reach
    a terminal, and "no text" if nothing is left."""
    text = data[: 4 * _MAX_EXCERPT].decode(errors="replace")
    if sum(map(_is_unreadable, text)) > len(text) // 10:
        return f"{len(data)} bytes that are no text"
    return one_line(text)[:_MAX_EXCERPT] or "no text"


def one_line(text: str) -> str:
    """Return the text as one line: each run of white space is one space, and characters that cannot be printed or could
    not be decoded are removed."""
    return "".join(character for character in " ".join(text.split()) if not _is_unreadable(character))


def _is_unreadable(character: str) -> bool:
    """Return whether the character stands for bytes that could not be decoded, or is neither printable nor white
    space."""
    return character == "\N{REPLACEMENT CHARACTER}" or not (character.isprintable() or character.isspace())


class SourceError(Exception):
    """Raised when reading from Prometheus servers failed. The message says what was wrong and what to do."""


class OptionError(SourceError, ValueError):
    """Raised when an option of the Prometheus data source is missing, unknown or invalid, or when its window would be
    cut into too many partitions. The message names the option."""


class ServerError(SourceError):
    """Raised when a server did not answer, or its answer cannot be used. `server` is its URL, `text` the message
    without the URL."""

    def __init__(self, server: str, text: str) -> None:
        super().__init__(f"{server}: {text}")
        self.server = server
        self.text = text

    def __reduce__(self) -> tuple[type[ServerError], tuple[str, str]]:
        """Return what pickle needs to build the error again, with its class."""
        # Errors travel from Spark's workers to the driver.
        return type(self), (self.server, self.text)


class InterfaceUnsupported(ServerError):
    """Raised when the server does not have the interface (HTTP status 404, 405 or 501), or answers a request of the
    HTTP API with something else than Prometheus does. Another interface may work."""


class QueryTooLarge(ServerError):
    """Raised when the server rejects the size of a query (HTTP status 413 or 422, or 400, 500 or 503 with a text about
    a limit). A query for a shorter time may work."""


class BrokenResponse(ServerError):
    """Raised when a response ended early, stalled, or violates the protocol. A retry may work."""


class NoSamplesFound(SourceError):
    """Raised when the window is empty, or the servers have no sample in it that matches. The message gives the reason
    as far as it is known."""
