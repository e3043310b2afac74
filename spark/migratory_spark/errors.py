"""What can go wrong between here and a Prometheus server. Every text names the server and what to do."""

from __future__ import annotations


class NoSamples(Exception):
    """There is nothing to read; the text names the folder."""


class BadSamples(ValueError):
    """A table or file that does not have the columns of samples, or can't be read; the text names it and says what it
    should be."""


class SourceError(Exception):
    """Reading failed; the text says why and what to do."""


class OptionError(SourceError, ValueError):
    """An option of the data source is missing, unknown or wrong."""


class ServerError(SourceError):
    """A server did not answer, or answered what can't be used. `server` is its URL."""

    def __init__(self, server: str, text: str) -> None:
        super().__init__(f"{server}: {text}")
        self.server = server
        self.text = text

    def __reduce__(self) -> tuple[type[ServerError], tuple[str, str]]:
        # Errors travel from Spark's workers to the driver.
        return type(self), (self.server, self.text)


class Unsupported(ServerError):
    """The server has no such interface (404, 405, 501): another one may do."""


class TooMuch(ServerError):
    """The server refuses so much at once (400, 413, 422 or 503 about a limit): less time may do."""


class BrokenAnswer(ServerError):
    """The answer ended early or is not what the protocol says: asking again may do."""


class NothingFound(SourceError, NoSamples):
    """The servers have no sample of what was asked for; the text says what is known about the reason."""
