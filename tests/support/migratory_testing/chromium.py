"""Debian's chromium without a window, for tests of pages: controlled over its debugging protocol."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from migratory_testing.browser import Browser

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip


class Chromium(Browser):
    """Debian's chromium. It speaks WebDriver BiDi through a driver only, so it is controlled over its debugging
    protocol."""

    program = "chromium"
    keeps_connected_pages = True
    _loaded = False

    def command(self) -> list[str]:
        return [*_FLAGS, f"--user-data-dir={self.folder}", "about:blank"]

    def find_address(self) -> str:
        port_file = self.folder / "DevToolsActivePort"
        if not port_file.exists() or "\n" not in (lines := port_file.read_text()):
            return ""
        with urllib.request.urlopen(f"http://127.0.0.1:{lines.split()[0]}/json/list", timeout=10) as answer:
            return next((page["webSocketDebuggerUrl"] for page in json.load(answer) if page["type"] == "page"), "")

    def begin(self) -> None:
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def navigate(self, address: str) -> None:
        self._loaded = False
        self.call("Page.navigate", url=address)
        if not self._loaded:
            self.receive(lambda _: self._loaded)

    def navigate_back(self) -> None:
        history = self.call("Page.getNavigationHistory")
        entry = history["entries"][history["currentIndex"] - 1]
        self.call("Page.navigateToHistoryEntry", entryId=entry["id"])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Return a context in which the page is frozen, as a browser does with a tab in the background."""
        self.call("Page.setWebLifecycleState", state="frozen")
        yield
        self.call("Page.setWebLifecycleState", state="active")

    def set_screen(self, width: int, *, dark: bool) -> None:
        """Set the width of the screen in pixels and the colour scheme. Below 500 pixels the browser acts as a
        phone's."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, with its name, its number (`KeyboardEvent.keyCode`) and the text that it enters."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Enter a text into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def ask(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def take(self, method: str, parameters: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled":
                self.console.append(json.dumps(parameters))
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(parameters))
                self.exceptions.append(json.dumps(parameters))
            case "Log.entryAdded":
                self.console.append(parameters["entry"]["text"])
