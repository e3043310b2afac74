"""Browsers without a window, for tests of pages: each is controlled by JSON commands over a WebSocket of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest
from websockets.sync.client import ClientConnection, connect

from migratory_testing.waiting import poll

LIMIT = 60.0
START = 150.0
"""Seconds until the browser listens, and then until it takes the first command. Firefox does so once its start has left
it idle: after 3 s, and after more than 60 s on a machine with ten times as much to do as it can."""


class Browser(ABC):
    """One browser with one page.

    `requests` are the addresses requested since the last `open`; `console` are the lines of the page's console, errors
    included, and `exceptions` those of exceptions that were not caught.
    """

    program: ClassVar[str]
    """The name of the program and of Debian's package."""

    keeps_connected_pages: ClassVar[bool]
    """Whether the back-forward cache takes a page that closes its WebSocket no sooner than the page is hidden."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.console: list[str] = []
        self.exceptions: list[str] = []
        self.folder = folder / self.program
        self._number = 0
        self._addresses: list[str] = []  # of the pages that were opened
        self._ending = ExitStack()

    @abstractmethod
    def command(self) -> list[str]:
        """Return the arguments with which the program shows an empty page, keeps all its files in `folder` and listens
        for commands."""

    @abstractmethod
    def find_address(self) -> str:
        """Return the address of the WebSocket for commands, or "" while there is none."""

    @abstractmethod
    def begin(self) -> None:
        """Ask for the events of the page."""

    @abstractmethod
    def navigate(self, address: str) -> None:
        """Load a page and wait until it has loaded."""

    @abstractmethod
    def navigate_back(self) -> None:
        """Go back in the page's history."""

    @abstractmethod
    def frozen(self) -> AbstractContextManager[None]:
        """Return a context in which the page does not run, as in a tab in the background or while the machine
        sleeps."""

    @abstractmethod
    def ask(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page and return its value, that of a promise once it is fulfilled.
        Raise AssertionError when the expression throws."""

    @abstractmethod
    def take(self, method: str, parameters: dict[str, Any]) -> None:
        """Handle an event of the page."""

    def __enter__(self) -> Self:
        if shutil.which(self.program) is None:
            pytest.skip(f"no {self.program} on PATH: install Debian's {self.program} (make debian)")
        self.folder.mkdir()
        with self.folder.with_suffix(".log").open("wb") as log:
            self.process = subprocess.Popen([self.program, *self.command()], stdout=log, stderr=log)
        try:
            address = poll(self.find_address, f"{self.program} listens", START)
            self._socket: ClientConnection = self._ending.enter_context(connect(address, max_size=None))
            self.begin()
        except BaseException:
            self.process.kill()
            self.process.wait(10)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def open(self, address: str) -> None:
        """Load a page and wait until it has loaded. Forget earlier requests and console lines."""
        for lines in (self.requests, self.console, self.exceptions):
            lines.clear()
        self.navigate(address)
        self._addresses.append(address)

    def go_back(self) -> None:
        """Go back to the page that was opened before, and wait until it is shown: loaded again, or from the
        back-forward cache."""
        self._addresses.pop()
        self.navigate_back()
        address = self._addresses[-1]
        poll(lambda: self.ask("location.href + document.readyState") == address + "complete", address, LIMIT)

    def call(self, method: str, limit: float = LIMIT, /, **parameters: Any) -> dict[str, Any]:
        """Carry out a command and return its result. Raise AssertionError when it is refused, TimeoutError after
        `limit` seconds."""
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        answer = self.receive(lambda message: message.get("id") == number, limit)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def receive(self, wanted: Callable[[dict[str, Any]], bool], limit: float = LIMIT) -> dict[str, Any]:
        """Handle what the browser sends until a message is wanted, and return that message. Raise TimeoutError after
        `limit` seconds."""
        deadline = time.monotonic() + limit
        while True:
            message: dict[str, Any] = json.loads(self._socket.recv(timeout=deadline - time.monotonic()))
            if "method" in message:
                self.take(message["method"], message["params"])
            if wanted(message):
                return message
