"""Debian's firefox-esr without a window, for tests of pages: controlled over WebDriver BiDi, which it speaks itself."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from migratory_testing.browser import START, Browser
from migratory_testing.processes import descendants

_EXCEPTION = re.compile(r"\w+: |uncaught ")
"""How the text of an exception begins. Firefox logs refused connections in the same way, but as a sentence."""


class Firefox(Browser):
    """Debian's firefox-esr."""

    program = "firefox-esr"
    keeps_connected_pages = False
    _page = ""

    def command(self) -> list[str]:
        return ["--headless", "--no-remote", "--remote-debugging-port=0", "--profile", str(self.folder), "about:blank"]

    def find_address(self) -> str:
        file = self.folder / "WebDriverBiDiServer.json"
        if not file.exists() or not (text := file.read_text()):
            return ""
        return f"ws://127.0.0.1:{json.loads(text)['ws_port']}/session"

    def begin(self) -> None:
        self.call("session.new", START, capabilities={})
        self.call("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        self._page = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def navigate(self, address: str) -> None:
        self.call("browsingContext.navigate", context=self._page, url=address, wait="complete")

    def navigate_back(self) -> None:
        self.call("browsingContext.traverseHistory", context=self._page, delta=-1)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Return a context in which the whole browser stands still, as when the machine sleeps."""
        processes = [psutil.Process(self.process.pid), *descendants(self.process.pid)]
        _send(processes, signal.SIGSTOP)
        try:
            yield
        finally:
            _send(processes, signal.SIGCONT)

    def ask(self, expression: str) -> Any:
        target = {"context": self._page}
        found = self.call("script.evaluate", expression=expression, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return _value(found["result"])

    def take(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "network.beforeRequestSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "log.entryAdded":
            self.console.append(json.dumps(parameters))
            if parameters["type"] == "javascript" and _EXCEPTION.match(parameters["text"]):
                self.exceptions.append(json.dumps(parameters))


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to all processes that still run: a browser ends processes of its own at any time."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _value(found: dict[str, Any]) -> Any:
    """Return the value that a browser describes; None also stands for undefined."""
    match found["type"]:
        case "array":
            return [_value(item) for item in found["value"]]
        case "object":
            return {name: _value(item) for name, item in found["value"]}
        case _:
            return found.get("value")
