"""Test the HTML pages in a real browser, at the sizes of a phone and of a desktop screen, in light and dark mode."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from migratory_spark.render.comparison_plots import COMPARE_PLOTS
from migratory_spark.render.page import render_comparison, render_page
from migratory_spark.render.plots import PLOTS
from migratory_spark.report.comparison import compare
from migratory_testing.reports import empty_report, sample_report
from migratory_testing.waiting import poll
from websockets.sync.client import ClientConnection, connect

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
SCREENS = [(390, False), (390, True), (1280, False), (1280, True)]
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

    def ask(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page and return its value. Raise AssertionError when the
        expression throws."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if shutil.which("chromium") is None:
        pytest.skip("no chromium on PATH: install Debian's chromium (make debian)")
    with Chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    good, bad, none = sample_report(), sample_report(slower=3.0, lost=3), empty_report()
    long = "/".join(["a-folder-with-a-long-name"] * 8)
    made = {
        "full": render_page(bad),
        "empty": render_page(none),
        "comparison": render_comparison(compare(good, bad, (long, "after.json")), good, bad),
        "nothing to compare": render_comparison(compare(none, none), none, none),
    }
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in made}


def shown(browser: Chromium, name: str) -> list[dict[str, Any]]:
    """Return for each visible drawing of a plot its width and height, its number of marks (`marks`), and the height
    of its smallest text (`letters`), in pixels."""
    elements: list[dict[str, Any]] = browser.ask(
        f"""[...document.querySelectorAll('#plot-{name} svg')].map(svg => ({{
            width: svg.getBoundingClientRect().width, height: svg.getBoundingClientRect().height,
            marks: svg.querySelectorAll('path, image').length,
            letters: Math.min(...[...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect().height)),
        }})).filter(svg => svg.width > 0)"""
    )
    return elements


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_the_page_sends_no_requests_and_fits(browser: Chromium, pages: dict[str, Path], width: int, dark: bool) -> None:
    browser.set_screen(width, dark=dark)
    for name, page in pages.items():
        browser.open(page.as_uri())
        assert browser.console == []
        # Images inside the page are requests to itself.
        outside = [address for address in browser.requests if not address.startswith("data:")]
        assert outside == [page.as_uri()]
        assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth"), name
        assert browser.ask("document.documentElement.clientWidth") <= width
        # What is too wide (a table) can be moved inside its own frame; nothing else sticks out.
        assert (
            browser.ask(
                """[...document.querySelectorAll('body *')].filter(node => !node.closest('.table, svg')
                && node.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"""
            )
            == 0
        )


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_each_plot_is_visible_once_at_a_readable_size(
    browser: Chromium, pages: dict[str, Path], width: int, dark: bool
) -> None:
    browser.set_screen(width, dark=dark)
    for page, plots in (("full", PLOTS), ("comparison", COMPARE_PLOTS)):
        browser.open(pages[page].as_uri())
        for plot in plots:
            visible = shown(browser, plot.name)
            assert len(visible) == 1, plot.name
            assert visible[0]["width"] > 0.8 * min(width, 560)
            assert visible[0]["height"] > 150
            assert visible[0]["marks"] > 5
            assert visible[0]["letters"] >= 8, "letters too small to read"


@pytest.mark.parametrize(("width", "beside"), [(390, False), (1280, True)])
def test_two_reports_are_beside_each_other_where_there_is_room(
    browser: Chromium, pages: dict[str, Path], width: int, beside: bool
) -> None:
    browser.set_screen(width, dark=False)
    browser.open(pages["comparison"].as_uri())
    tops = browser.ask(
        """['.side1', '.side2', '#plot-first', '#plot-second'].map(
        name => Math.round(document.querySelector(name).getBoundingClientRect().top))"""
    )
    assert (tops[0] == tops[1], tops[2] == tops[3]) == (beside, beside)


def test_the_page_follows_light_and_dark_mode(browser: Chromium, pages: dict[str, Path]) -> None:
    sizes = {}
    for dark in (False, True):
        browser.set_screen(390, dark=dark)
        browser.open(pages["full"].as_uri())
        sizes[dark] = (
            browser.ask("getComputedStyle(document.body).backgroundColor"),
            browser.ask("getComputedStyle(document.body).color"),
            # A line of a plot, which must follow.
            browser.ask(
                """getComputedStyle([...document.querySelectorAll('#plot-percentiles svg path')]
                .find(path => (path.getAttribute('style') || '').includes('--q4'))).stroke"""
            ),
        )
    for light, dark in zip(sizes[False], sizes[True], strict=True):
        assert light != dark
    paper, ink, line = (tuple(brightness(sizes[dark][place]) for dark in (False, True)) for place in range(3))
    assert paper[0] > 200
    assert paper[1] < 60
    assert ink[0] < 60
    assert ink[1] > 200
    assert line[0] < 100
    assert line[1] > 180


def test_the_browser_test_detects_requests(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "leaky.html"
    page.write_text("<!doctype html><img src='http://127.0.0.1:9/pixel.png'><p style='width: 900px'>wide</p>")
    browser.set_screen(390, dark=False)
    browser.open(page.as_uri())
    assert "http://127.0.0.1:9/pixel.png" in browser.requests
    assert not browser.ask("document.documentElement.scrollWidth <= 390")


def brightness(colour: str) -> float:
    """Return the brightness of a colour `rgb(r, g, b)`, from 0 to 255."""
    red, green, blue = (float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return 0.3 * red + 0.59 * green + 0.11 * blue
