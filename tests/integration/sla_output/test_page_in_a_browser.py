"""Test the HTML pages in a real browser, at the sizes of a phone and of a desktop screen, in light and dark mode, and
in print. Pages with 9 and 40 objectives are accessible by the rules of axe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migratory_spark.render.comparison_plots import COMPARE_PLOTS
from migratory_spark.render.page import render_comparison, render_page
from migratory_spark.render.plots import PLOTS
from migratory_spark.report.comparison import compare
from migratory_testing.chromium import Chromium
from migratory_testing.javascript import violations
from migratory_testing.reports import empty_report, sample_report
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
SCREENS = [(390, False), (390, True), (1280, False), (1280, True)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
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
        "9 objectives": render_page(sample_report(slower=3.0, lost=3, objectives=9)),
        "40 objectives": render_page(sample_report(slower=3.0, lost=3, objectives=40)),
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


@pytest.mark.parametrize("name", ["9 objectives", "40 objectives"])
def test_the_page_is_accessible(browser: Chromium, pages: dict[str, Path], name: str) -> None:
    for width, dark in ((390, False), (1280, True)):
        browser.set_screen(width, dark=dark)
        browser.open(pages[name].as_uri())
        rules = {"color-contrast", "scrollable-region-focusable", "role-img-alt", "heading-order"}
        assert violations(browser.ask, rules) == [], (width, dark)


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


def test_a_printed_page_is_light_and_has_all_details(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.set_screen(1280, dark=True)
    browser.open(pages["9 objectives"].as_uri())
    steps = "document.querySelector('.steps li').checkVisibility({contentVisibilityAuto: true})"
    assert not browser.ask(steps)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    try:
        poll(lambda: browser.ask(steps), "details are open in print")
        for name in ("ink", "q4", "s1", "bad"):
            color = browser.ask(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')").strip()
            assert max(int(color[place : place + 2], 16) for place in (1, 3)) < 0xC0, (name, color)
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])


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
