"""Errors of reading samples. Every text says what was wrong and what to do."""

from __future__ import annotations


class NoSamples(Exception):
    """There is nothing to read. The text names the folder or the servers."""


class BadSamples(ValueError):
    """A table or file does not have the columns of samples, or cannot be read. The text names it and what is
    expected."""


class SourceError(Exception):
    """Reading from Prometheus servers failed. The text names the server and what to do."""


class OptionError(SourceError, ValueError):
    """An option of the data source is missing, unknown or invalid."""


class ServerError(SourceError):
    """A server did not answer, or its answer cannot be used. `server` is its URL."""

    def __init__(self, server: str, text: str) -> None:
        super().__init__(f"{server}: {text}")
        self.server = server
        self.text = text

    def __reduce__(self) -> tuple[type[ServerError], tuple[str, str]]:
        # Errors travel from Spark's workers to the driver.
        return type(self), (self.server, self.text)


class InterfaceUnsupported(ServerError):
    """The server does not have the interface (404, 405, 501). Another interface may work."""


class QueryTooLarge(ServerError):
    """The server refuses the size of a query (400, 413, 422 or 503 about a limit). A shorter time may work."""


class BrokenResponse(ServerError):
    """A response ended early or violates the protocol. A retry may work."""


class NoSamplesFound(SourceError, NoSamples):
    """The servers have no sample that matches. The text gives the reason as far as it is known."""
