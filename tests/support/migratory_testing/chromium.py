"""Debian's chromium without a window, for tests of pages: controlled over its debugging protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from websockets.sync.client import ClientConnection, connect

from migratory_testing.waiting import poll

LIMIT = 60.0
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip


class Chromium:
    """One browser with one page: Debian's chromium, controlled over its debugging protocol.

    `requests` are the addresses requested since the last `open`; `console` are the lines of the page's console, errors
    included.
    """

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.console: list[str] = []
        self._folder = folder / "chromium"
        self._number = 0
        self._loaded = False
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        if shutil.which("chromium") is None:
            pytest.skip("no chromium on PATH: install Debian's chromium (make debian)")
        with (self._folder.with_suffix(".log")).open("wb") as log:
            self._process = subprocess.Popen(
                ["chromium", *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"], stdout=log, stderr=log
            )
        try:
            port_file = self._folder / "DevToolsActivePort"
            poll(lambda: port_file.exists() and port_file.read_text().count("\n"), "chromium listens", LIMIT)
            port = port_file.read_text().split("\n")[0]
            pages = poll(lambda: _pages(port), "chromium has a page", LIMIT)
            self._socket: ClientConnection = self._ending.enter_context(
                connect(pages[0]["webSocketDebuggerUrl"], max_size=None)
            )
            for domain in ("Page", "Network", "Runtime", "Log"):
                self._call(f"{domain}.enable")
        except BaseException:
            self._process.kill()
            self._process.wait(10)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def set_screen(self, width: int, *, dark: bool) -> None:
        """Set the width of the screen in pixels and the colour scheme. Below 500 pixels the browser acts as a
        phone's."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Load a page and wait until it has loaded. Forget earlier requests and console lines."""
        self.requests.clear()
        self.console.clear()
        self._loaded = False
        self._call("Page.navigate", url=address)
        deadline = time.monotonic() + LIMIT
        while not self._loaded:
            self._take(self._socket.recv(timeout=deadline - time.monotonic()))

    def go_back(self) -> None:
        """Go back to the page before, and wait until it is shown: loaded again, or from the back-forward cache. Raise
        AssertionError when there is none."""
        history = self._call("Page.getNavigationHistory")
        assert history["currentIndex"] > 0
        entry = history["entries"][history["currentIndex"] - 1]
        self._call("Page.navigateToHistoryEntry", entryId=entry["id"])
        poll(lambda: self.ask("location.href + document.readyState") == entry["url"] + "complete", entry["url"], LIMIT)

    def freeze(self, frozen: bool) -> None:
        """Freeze the page, as a browser does with a tab in the background, or let it run again."""
        self._call("Page.setWebLifecycleState", state="frozen" if frozen else "active")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, with its name, its number (`KeyboardEvent.keyCode`) and the text that it enters."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        self._call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event)
        self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Enter a text into the element that has the focus."""
        self._call("Input.insertText", text=text)

    def ask(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page and return its value, that of a promise once it is fulfilled.
        Raise AssertionError when the expression throws."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        deadline = time.monotonic() + LIMIT
        while True:
            answer = self._take(self._socket.recv(timeout=deadline - time.monotonic()))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _take(self, text: str | bytes) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(text)
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.console.append(json.dumps(message["params"]))
            case "Log.entryAdded":
                self.console.append(message["params"]["entry"]["text"])
        return message


def _pages(port: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
        return [page for page in json.load(answer) if page["type"] == "page"]
