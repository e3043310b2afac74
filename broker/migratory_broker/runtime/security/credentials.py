"""Keys and revocations from files and URLs, for all edges of this broker.

A document that cannot be read, fetched or parsed never replaces the last good one. Files are read again when they
changed, and while they cannot be read. URLs are fetched by a task of the loop: regularly, and when a token names an
unknown key, at most one fetch of all URLs at a time and one in `MIN_FETCH_INTERVAL`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import aiohttp

from migratory_broker.core.edge.events import Credentials
from migratory_broker.core.security.authorizer import parse_revocations
from migratory_broker.core.security.tokens import parse_keys
from migratory_broker.runtime.errors import ConfigError
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.security.config import KeysSection, TokensSection
from migratory_broker.runtime.watched_file import WatchedFile

CHECK_INTERVAL = 2.0
"""Seconds between two checks of the files."""

MIN_FETCH_INTERVAL = 10.0
"""Seconds between two fetches: tokens with invented key ids must not make this broker flood the keys' server."""

FETCH_TIMEOUT = 10.0
"""Seconds for the answer of a URL."""

MAX_DOCUMENT = 1_048_576
"""Bytes of a document. Key sets have some kilobytes; a list of 20,000 revoked tokens fits in."""


class _File:
    """A file that is read again when it changed. `content` is the last content that `check` accepted, empty before the
    first. `check` raises ValueError for content that is not valid."""

    def __init__(self, path: str, check: Callable[[bytes], object]) -> None:
        self.path = path
        self._file = WatchedFile(Path(path))
        self._check = check
        self.content = b""

    def read(self) -> bool | None:
        """Read the file if it was replaced or written. Return None if it was not, else whether `content` changed.
        Raises OSError, or ValueError for a file that is too long or that `check` rejects; `content` then stays."""
        content = self._file.read(MAX_DOCUMENT + 1)
        if content is None:
            return None
        check_length(content)
        self._check(content)
        changed = content != self.content
        self.content = content
        return changed


class CredentialStore:
    """The documents of keys and revocations of a broker. `publish` receives all of them at the start, after each change
    of a file, and after each fetch. `failing` has the files and URLs whose present content is not in use."""

    def __init__(
        self, section: TokensSection, clock: Callable[[], float], log: Log, publish: Callable[[Credentials], None]
    ) -> None:
        self._section = section
        self._clock = clock
        self._log = log
        self._publish = publish
        self._files = {
            number: _File(source.file, partial(parse_keys, algorithms=source.algorithms))
            for number, source in enumerate(section.keys)
            if source.file is not None
        }
        self._urls = {number: source for number, source in enumerate(section.keys) if source.url is not None}
        self._revoked = _File(section.revoked, parse_revocations) if section.revoked is not None else None
        self._fetched: dict[int, bytes] = {}
        self.failing: set[str] = set()  # files and URLs whose present content is not in use
        self._next_check = 0.0
        self._next_fetch = 0.0
        self._earliest_fetch = 0.0
        self._fetching: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read all files and publish their content. URLs are fetched at the first tick. Raises ConfigError for a file
        that cannot be read or whose content is not valid."""
        for file in self._all_files():
            try:
                file.read()
            except (OSError, ValueError) as error:
                raise ConfigError(f"security.tokens: {file.path}: {_describe(error)}") from error
        self._next_check = self._clock() + CHECK_INTERVAL
        self._send(fetched=False)

    def tick(self, now: float) -> None:
        """Read the files every `CHECK_INTERVAL`, and publish all documents if a content changed. Start a fetch of all
        URLs if the last one began `refresh` seconds ago, or earlier after a `request`; at most one in
        `MIN_FETCH_INTERVAL`."""
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL
            changed = [self._read(file) for file in self._all_files()]
            if any(changed):
                self._send(fetched=False)
        if self._urls and self._fetching is None and now >= max(self._next_fetch, self._earliest_fetch):
            self._next_fetch = now + self._section.refresh
            self._earliest_fetch = now + MIN_FETCH_INTERVAL
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_all())

    def request(self, _: object = None) -> None:
        """Let a `tick` fetch the keys of all URLs as soon as `MIN_FETCH_INTERVAL` allows: a token names an unknown
        key."""
        self._next_fetch = 0.0

    async def close(self) -> None:
        """Cancel a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching
            self._fetching = None  # a task that never ran does not do it itself

    def _all_files(self) -> list[_File]:
        return [*self._files.values(), *([self._revoked] if self._revoked is not None else [])]

    def _read(self, file: _File) -> bool:
        """Read a file if it was replaced or written. Return whether its content changed. If it cannot be used, log why
        and return False."""
        try:
            changed = file.read()
        except (OSError, ValueError) as error:
            self._set_failing(file.path, _describe(error))
            return False
        if changed is not None:
            self.failing.discard(file.path)
        if changed:
            self._log("info", "credentials_changed", source=file.path)
        return bool(changed)

    def _set_failing(self, source: str, reason: str) -> None:
        """Record that the content of a file or URL cannot be used. Log the reason if it could be used before."""
        if source not in self.failing:
            self.failing.add(source)
            self._log("error", "credentials_rejected", source=source, reason=reason)

    def _send(self, fetched: bool) -> None:
        """Publish all documents. `fetched`: all URLs were just fetched, with success."""
        documents = tuple(
            self._files[number].content if number in self._files else self._fetched.get(number, b"")
            for number in range(len(self._section.keys))
        )
        revoked = b"" if self._revoked is None else self._revoked.content
        self._publish(Credentials(documents, revoked, fetched))

    async def _fetch_all(self) -> None:
        """Fetch all URLs, one after the other, and publish all documents, also if a fetch failed: its last good
        document then stays."""
        try:
            results = [await self._fetch(number, source) for number, source in self._urls.items()]
            self._send(fetched=all(results))
        finally:
            self._fetching = None

    async def _fetch(self, number: int, source: KeysSection) -> bool:
        """Fetch the keys of one URL, and store them. Return whether it answered with usable keys; if not, log why."""
        url = source.url or ""
        try:
            content = await fetch_document(url)
            parse_keys(content, source.algorithms)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._set_failing(url, _describe(error))
            return False
        self.failing.discard(url)
        if content != self._fetched.get(number):
            self._fetched[number] = content
            self._log("info", "credentials_changed", source=url)
        return True


async def fetch_document(url: str) -> bytes:
    """Return the document at a URL, not parsed. Raises aiohttp.ClientError, OSError (TimeoutError, after
    `FETCH_TIMEOUT`, among them), or ValueError for a status other than 200 and for a document of more than
    `MAX_DOCUMENT` bytes. Follows no redirects."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_TIMEOUT)) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != 200:
            raise ValueError(f"HTTP status {response.status}")
        content = await response.content.read(MAX_DOCUMENT + 1)
        while len(content) <= MAX_DOCUMENT and (more := await response.content.read(MAX_DOCUMENT)):
            content += more
    check_length(content)
    return content


def check_length(content: bytes) -> None:
    """Raise ValueError for a document of more than `MAX_DOCUMENT` bytes."""
    if len(content) > MAX_DOCUMENT:
        raise ValueError(f"more than {MAX_DOCUMENT} bytes")


def _describe(error: Exception) -> str:
    """Return the reason in an error, in words for the log."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
