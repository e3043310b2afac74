"""The HTML page of a comparison as text: it needs no other file, escapes names, and is identical for identical
reports. Its plots share scales, and say so when they have no data."""

from __future__ import annotations

import re

import msgspec
import pytest
from migratory_spark.document import SlaReport
from migratory_spark.render.canvas import COLORS, HALF, Drawing
from migratory_spark.render.comparison_plots import COMPARE_PLOTS
from migratory_spark.render.page import render_comparison
from migratory_spark.report.comparison import Change, compare
from migratory_testing.pages import Reader
from migratory_testing.reports import empty_report, sample_report

NAMES = ["first", "second", "since", "quantiles", "tails", "brokers"]


def page_of(first: SlaReport, second: SlaReport, names: tuple[str, str] = ("before.json", "after.json")) -> str:
    return render_comparison(compare(first, second, names), first, second)


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(sample_report(), sample_report(slower=3.0, lost=3))


def test_each_plot_is_there_for_wide_and_narrow_screens(page: str) -> None:
    assert [plot.name for plot in COMPARE_PLOTS] == NAMES
    for name in NAMES:
        figure = page[page.index(f'<figure id="plot-{name}"') :].partition("</figure>")[0]
        assert figure.count("<svg") == 2
        assert figure.count("<path") + figure.count("<use") > 10, name


def test_the_page_has_no_external_resources_and_no_scripts(page: str) -> None:
    read = Reader(page)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    assert all(address.startswith("#") for address in read.addresses)
    assert "default-src 'none'" in page
    for name, number in COLORS.items():
        assert number not in page, name
    assert len(read.identifiers) == len(set(read.identifiers))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(read.identifiers)


def test_verdict_deltas_and_both_sides_are_in_words(page: str) -> None:
    words = Reader(page).words
    for expected in (
        "The second is worse", "before.json", "after.json", "4,400 received of 4,400 expected; incidents: 1",
        "100.0000%", "98.8636%", "99.9318%", "100.0%", "-1036.4%", "681.818182", "7.39", "22.18", "+200.0%",
        "latency b1, ms", "met", "missed", "worse", "same",
    ):  # fmt: skip
        assert expected in words, expected


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        ("better", "The second is better"),
        ("same", "The second is as good as the first"),
        ("unknown", "Not known: there is not enough data"),
    ],
)
def test_every_verdict_has_a_text(verdict: Change, text: str) -> None:
    nothing = empty_report()
    comparison = msgspec.structs.replace(compare(nothing, nothing), verdict=verdict)
    assert text in Reader(render_comparison(comparison, nothing, nothing)).words


def test_the_same_reports_make_the_same_page(page: str) -> None:
    assert page_of(sample_report(), sample_report(slower=3.0, lost=3)) == page


def scale(name: str, first: SlaReport, second: SlaReport) -> tuple[float, float]:
    plot = next(plot for plot in COMPARE_PLOTS if plot.name == name)
    with Drawing(name, HALF) as drawing:
        plot.draw(first, second, drawing)
        low, high = drawing.axes.get_ylim()
    return low, high


def test_plots_beside_each_other_share_a_scale() -> None:
    quick, slow = sample_report(), sample_report(slower=30.0)
    assert scale("first", quick, slow) == scale("second", quick, slow)
    low, high = scale("first", quick, slow)
    values = [row.p99 for report in (quick, slow) for row in report.latency_ms.over_time if row.p99]
    assert low < min(values) < max(values) < high


def test_names_are_escaped_wherever_they_come_from() -> None:
    """Names that contain HTML, from labels of samples, a report's file or the command line, appear on the comparison
    page only in escaped form."""
    nasty = "<script>alert(1)</script>&\"'<img src=x onerror=alert(1)>"
    full = sample_report()
    latency = msgspec.structs.replace(full.latency_ms, by_broker={nasty: full.latency_ms.all})
    objectives = [msgspec.structs.replace(full.objectives[0], name=nasty), *full.objectives[1:]]
    report = msgspec.structs.replace(full, cluster=nasty, latency_ms=latency, objectives=objectives)
    other = msgspec.structs.replace(report, cluster=nasty + "2")
    page = page_of(report, other, (nasty, nasty))
    read = Reader(page)  # which refuses attributes that run something
    assert "script" not in read.tags
    assert "img" not in read.tags
    assert page.count("&lt;script&gt;") > 8


def test_plots_without_data_say_so() -> None:
    for first, second, drawn in (
        (empty_report(), empty_report(), set()),
        (empty_report(), sample_report(), {"second"}),
        (sample_report(), empty_report(), {"first"}),
    ):
        page = page_of(first, second)
        assert page.count("Nothing was measured that could be shown here.") == len(NAMES) - len(drawn)
        assert page.count("<svg") == 2 * len(drawn)
        assert "nan" not in page.lower()
