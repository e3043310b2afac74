"""The HTML page of a report as text: it needs no other file, escapes names, and is identical for identical reports.
Its plots mark incidents, fit wide and narrow screens, and say so when they have no data."""

from __future__ import annotations

import re

import msgspec
import pytest
from migratory_spark.document import Breakdown, BreakdownRow, BrokenDownObjective, JudgedSlices, SlaReport
from migratory_spark.render.canvas import COLORS, HALF, NARROW, Drawing
from migratory_spark.render.page import MAX_BROKEN_DOWN, render_page, share
from migratory_spark.render.plots import LEGEND_LIMIT, PLOTS, duration
from migratory_testing.pages import Reader
from migratory_testing.reports import empty_report, sample_report

NAMES = ["percentiles", "heat", "budget", "brokers", "connections", "cumulative"]


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(sample_report(slower=3.0, lost=3))


def test_each_plot_is_there_for_wide_and_narrow_screens(page: str) -> None:
    assert [plot.name for plot in PLOTS] == NAMES
    for name in NAMES:
        figure = page[page.index(f'<figure id="plot-{name}"') :].partition("</figure>")[0]
        assert figure.count("<svg") == 2
        assert figure.count("<path") + figure.count("<image") > 10
        assert ("<image" in figure) == (name == "heat")


def test_the_page_has_no_external_resources_and_no_scripts(page: str) -> None:
    read = Reader(page)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    assert read.addresses
    for address in read.addresses:
        assert address.startswith(("data:image/png;base64,", "#")), address[:80]
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_every_color_is_a_variable_of_the_page(page: str) -> None:
    for name, number in COLORS.items():
        assert number not in page, name
    used = set(re.findall(r"var\(--([a-z0-9]+)\)", page))
    style = page[page.index("<style>") : page.index("</style>")]
    light, _, dark = style.partition("@media screen and (prefers-color-scheme: dark)")
    for name in used:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark
    # Black and white would be invisible on one of the two.
    assert not re.search(r"(?:fill|stroke): ?(?:#000000|#ffffff|black|white)", page)


def test_identifiers_are_unique_and_references_resolve(page: str) -> None:
    read = Reader(page)
    assert len(read.identifiers) == len(set(read.identifiers))
    referred = set(re.findall(r"url\(#([^)]+)\)", page)) | {
        address[1:] for address in read.addresses if address.startswith("#")
    }
    assert referred <= set(read.identifiers)


def test_figures_verdicts_and_incidents_are_in_words(page: str) -> None:
    words = Reader(page).words
    for expected in (
        "2 of 3 objectives missed", "99.9318%", "3 lost", "target: 99.9% of deliveries within 250 ms",
        "broker died: b1", "during incident 1",
        "992.50", "120", "Incident 1, step by step", "00:00:30", "spent 11.4 times the error budget",
    ):  # fmt: skip
        assert expected in words, expected


def test_slices_burn_rates_and_durations_are_in_words() -> None:
    full = sample_report()
    steady = msgspec.structs.replace(
        full.objectives[0], name="steady", unit="slices", good=4, total=6, bad_slices=["2026-01-01T00:00:10.000Z"],
        slices=JudgedSlices(length_seconds=60.0, percentile="99", share=None),
    )  # fmt: skip
    words = Reader(render_page(msgspec.structs.replace(full, objectives=[steady, *full.objectives[1:]]))).words
    for expected in (
        "target: P99 within 250 ms in 99.9% of slices of 1 min", "2 bad slices of steady, the first 1", "last 1 min",
        "Burn rates at the end: 1 spends the budget exactly in the objective's window",
    ):  # fmt: skip
        assert expected in words, expected


def test_a_breakdown_has_a_row_for_each_combination() -> None:
    full = sample_report()
    objective = BrokenDownObjective(
        name="fast", good=99, total=100, compliance=0.99, budget_left=None, verdict="missed"
    )  # fmt: skip
    row = BreakdownRow(
        labels=["north", ""], expected=7001, received=7000, lost=1, duplicates=0, reordered=0, reconnects=None,
        attempts=5, failures=0, latency_ms=full.latency_ms.all, resume_seconds=full.resume_seconds,
        objectives=[objective],
    )  # fmt: skip
    broken_down = Breakdown(by=["region", "topic_class"], rows=[row])
    words = Reader(render_page(msgspec.structs.replace(full, breakdown=broken_down))).words
    for expected in ("By region, topic_class", "north", "7,001", "99.0000%"):
        assert expected in words, expected


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0.5, "0.5 ms"), (250, "250 ms"), (1500, "1.5 s"), (60_000, "1 min"), (2_400_000, "40 min"),
        (90_000, "1 min 30 s"), (7_500_000, "2 h 5 min"), (86_400_000, "1 d"), (2_592_000_000, "30 d"),
        (7_200_500, "2 h"),
    ],
)  # fmt: skip
def test_durations_have_at_most_two_units(milliseconds: float, expected: str) -> None:
    assert duration(milliseconds) == expected


def test_many_objectives_have_one_label_where_labels_would_overlap() -> None:
    """Of 40 budgets those with the least left are named, values below the axis are marked, and thresholds that are
    close together have one label."""
    full = sample_report(slower=3.0)
    fast = full.objectives[0]
    many = [
        msgspec.structs.replace(fast, name=f"fast{number}", threshold_ms=200.0 + number) for number in range(40)
    ]  # fmt: skip
    report = msgspec.structs.replace(full, objectives=many)
    budgets = drawn(report, "budget")
    assert len(re.findall(r"fast\d+<", budgets)) == LEGEND_LIMIT
    assert "32 more<" in budgets
    assert budgets.count("stroke-dasharray") > drawn(full, "budget").count("stroke-dasharray")
    assert budgets.count("<use") > LEGEND_LIMIT
    for name in ("percentiles", "cumulative"):
        svg = drawn(report, name)
        assert "40 objectives: 200 ms to 239 ms<" in svg
        assert "fast7" not in svg


def test_what_needs_attention_comes_first() -> None:
    page = render_page(sample_report(slower=3.0, lost=3, objectives=9))
    assert re.findall(r'<li class="card (\w+)">', page) == ["missed"] * 4 + ["insufficient"] * 4 + ["met"]


def test_a_page_breaks_down_no_more_objectives_than_fit() -> None:
    """Of 27 objectives that count events, those that most brokers miss are shown."""
    report = sample_report(slower=3.0, lost=3, objectives=40)
    page = render_page(report)
    table = page[page.index('aria-label="Breakdown"') :].partition("</table>")[0]
    shown = re.findall(r'<th scope="col" class="n">([a-z-]+(?:-\d+)?[\w-]*)</th>', table)[-MAX_BROKEN_DOWN:]
    assert report.breakdown is not None
    rows = report.breakdown.rows
    missed = [{part.name for part in row.objectives if part.verdict == "missed"} for row in rows if row.labels[0]]
    assert len(shown) == MAX_BROKEN_DOWN
    assert missed[0] & missed[1] <= set(shown) <= missed[0] | missed[1]
    assert f"{MAX_BROKEN_DOWN} of {len(rows[0].objectives)} objectives" in page


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (1.0, "100.0000%"), (0.9999999, "> 99.9999%"), (0.99999, "99.9990%"), (0.0, "0.0000%")],
)
def test_less_than_all_is_never_shown_as_all(value: float | None, expected: str) -> None:
    assert share(value) == expected


def test_a_legend_of_long_names_fits() -> None:
    full = sample_report(slower=3.0)
    report = msgspec.structs.replace(
        full, objectives=[msgspec.structs.replace(full.objectives[0], name=f"o{number}" * 9) for number in range(8)]
    )
    with Drawing("budget", HALF) as drawing:
        next(plot for plot in PLOTS if plot.name == "budget").draw(report, drawing)
        drawing.figure.draw_without_rendering()
        (legend,) = drawing.figure.legends
        assert legend.get_window_extent().x1 <= drawing.figure.bbox.x1


def test_incidents_close_together_have_one_label() -> None:
    full = sample_report()
    svg = drawn(msgspec.structs.replace(full, incidents=full.incidents * 5), "percentiles")
    assert ">1–5<" in svg


def test_the_same_report_makes_the_same_page(page: str) -> None:
    assert render_page(sample_report(slower=3.0, lost=3)) == page


def drawn(report: SlaReport, name: str) -> str:
    plot = next(plot for plot in PLOTS if plot.name == name)
    assert plot.has_data(report)
    with Drawing(name, NARROW) as drawing:
        plot.draw(report, drawing)
    return drawing.svg


@pytest.mark.parametrize("name", NAMES[:5])
def test_incidents_are_marked_in_every_plot_over_time(name: str) -> None:
    calm = msgspec.structs.replace(sample_report(), incidents=[])
    assert "var(--incident)" in drawn(sample_report(), name)
    assert "var(--incident)" not in drawn(calm, name)


def everywhere(thing: object, text: str) -> object:
    """Return a part of a report with `text` in place of every text that a label may fill, keys of dictionaries
    included."""
    match thing:
        case dict():
            free = {"by_broker", "clients_by_broker", "before", "after", "errors_by_reason"}
            return {
                key: {text: everywhere(next(iter(value.values())), text)}
                if key in free and isinstance(value, dict) and value and "count" not in value
                else text
                if key in ("cluster", "broker", "name", "reason", "note", "kind") and value not in ("report", "")
                else everywhere(value, text)
                for key, value in thing.items()
            }
        case list():
            return [text if isinstance(each, str) and " " in each else everywhere(each, text) for each in thing]
        case _:
            return thing


NASTY = " ".join(
    (
        "<script>alert(1)</script>&\"'",
        "</text></svg><img src=x onerror=alert(1)>",
        "]]><svg onload=alert(1)>",
        "--><iframe src=javascript:alert(1)>",
        '" onmouseover="alert(1)',
        "{{ 7 * 7 }}{% raw %}",
    )
)


def test_names_are_escaped_everywhere() -> None:
    noted = msgspec.structs.replace(sample_report(lost=3), notes=["a note"])
    document = everywhere(msgspec.to_builtins(noted), NASTY)
    page = render_page(msgspec.convert(document, SlaReport))
    read = Reader(page)  # which refuses attributes that run something
    assert not {"script", "iframe", "object"} & set(read.tags)
    assert "img" not in read.tags
    assert sum(NASTY in word for word in read.words) >= 10


def test_broker_names_with_characters_special_to_matplotlib() -> None:
    nasty = "$x^2$ <b>_&"
    full = sample_report()
    renamed = msgspec.structs.replace(
        full.latency_ms,
        by_broker={nasty: full.latency_ms.all},
        by_window=[msgspec.structs.replace(row, broker=nasty) for row in full.latency_ms.over_time],
    )
    assert "$x^2$ &lt;b&gt;_&amp;</text>" in drawn(msgspec.structs.replace(full, latency_ms=renamed), "brokers")


def test_long_name_does_not_shrink_a_plot() -> None:
    """A name of thousands of characters is shortened in a plot. matplotlib warns when no room is left for the axes,
    and warnings are errors here."""
    full, long = sample_report(), "a\n" * 60 + "b" * 3000
    renamed = msgspec.structs.replace(
        full.latency_ms,
        by_broker={long: full.latency_ms.all},
        by_window=[msgspec.structs.replace(row, broker=long) for row in full.latency_ms.over_time],
    )
    svg = drawn(msgspec.structs.replace(full, latency_ms=renamed), "brokers")
    assert "b" * 100 not in svg
    assert "…</text>" in svg


def test_plots_without_data_say_so() -> None:
    page = render_page(empty_report())
    assert page.count("Nothing was measured that could be shown here.") == len(NAMES)
    assert "<svg" not in page
    assert "Not enough data for 3 of 3 objectives" in page
    assert "nan" not in page.lower().replace("finan", "")


@pytest.mark.parametrize("windows", [1, 2])
def test_a_report_of_one_window_can_be_drawn(windows: int) -> None:
    full = sample_report()
    latency = full.latency_ms
    heat = msgspec.structs.replace(
        latency.heat, starts=latency.heat.starts[:windows], counts=latency.heat.counts[:windows]
    )
    short: SlaReport = msgspec.structs.replace(
        full,
        windows=full.windows[:windows],
        incidents=[],
        latency_ms=msgspec.structs.replace(
            latency, over_time=latency.over_time[:windows], by_window=latency.by_window[: 2 * windows], heat=heat
        ),
        connections=[msgspec.structs.replace(each, by_window=each.by_window[:windows]) for each in full.connections],
    )
    for name in NAMES:
        assert drawn(short, name).startswith("<svg")
