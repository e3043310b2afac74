"""The page of a report: what the template shows, and the plots inside it. `comparison.py` makes another of them."""

from __future__ import annotations

from datetime import datetime
from importlib import resources
from typing import Any

import jinja2

from migratory_spark.document import Report, Summary
from migratory_spark.render.canvas import HALF, NARROW, WIDE, Drawing
from migratory_spark.render.comparison_plots import COMPARE_PLOTS
from migratory_spark.render.plots import PLOTS, Plot, duration
from migratory_spark.report.comparison import DISTRIBUTION_COLUMNS, Comparison, Figure

COLUMNS = ("count", "median", "mean", "stdev", "p90", "p95", "p99", "max")
SAID = {
    "better": "The second is better",
    "worse": "The second is worse",
    "same": "The second is as good as the first",
    "unknown": "Not known: there is not enough data",
}
SHOWN = ("median", "mean", "p90", "p95", "p99", "max")


def render_page(report: Report) -> str:
    """One HTML file with everything in it."""
    template = environment().get_template("report.html.j2")
    return template.render(
        report=report,
        columns=COLUMNS,
        latencies=_latencies(report),
        interruptions=[
            ("resume, s", report.resume_seconds),
            ("publish gap, s", report.publish_gap_seconds),
            ("publish to acknowledgement, ms", report.publish_ms),
        ],
        plots=[drawn(plot, report) for plot in PLOTS],
        several_days=report.window.start[:10] != report.window.end[:10],
    )


def render_comparison(found: Comparison, first: Report, second: Report) -> str:
    """One HTML file with everything in it. `found` is `compare(first, second)`."""
    quantiles = [each for each in found.figures if each.name in DISTRIBUTION_COLUMNS]
    return (
        environment()
        .get_template("comparison.html.j2")
        .render(
            found=found,
            said=SAID[found.verdict],
            sides=[("First", found.first, first), ("Second", found.second, second)],
            counts=[each for each in found.figures if each not in quantiles],
            shown=SHOWN,
            rows=_rows(quantiles),
            plots=[drawn(plot, first, second) for plot in COMPARE_PLOTS],
            delta=delta,
        )
    )


def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("migratory_spark.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"number": number, "exact": exact, "share": share, "clock": clock, "day": day, "duration": duration}
    environment.filters |= filters
    environment.globals["style"] = (
        resources.files("migratory_spark.render").joinpath("templates/style.css").read_text("utf-8")
    )
    return environment


def drawn(plot: Plot, *reports: Report) -> dict[str, Any]:
    """A plot in its two sizes, as the template has it."""
    drawings = {}
    if plot.there(*reports):
        for name, size in (("wide", WIDE if plot.across else HALF), ("narrow", NARROW)):
            with Drawing(plot.name, size) as drawing:
                plot.draw(*reports, drawing)
            drawings[name] = drawing.svg
    return {"name": plot.name, "title": plot.title, "about": plot.about, "across": plot.across, "drawings": drawings}


def _latencies(report: Report) -> list[tuple[str, Summary]]:
    latency = report.latency_ms
    rows = [("all brokers", latency.all), *latency.by_broker.items()]
    for place, incident in enumerate(report.incidents, 1):
        around = incident.latency_ms
        rows += [
            (f"{when} incident {place}", found)
            for when, found in (("before", around.before), ("during", around.during), ("after", around.after))
        ]
    for name, found in (("replayed", report.replay_latency_ms), ("across clocks", report.estimated_latency_ms)):
        if found.count:
            rows.append((name, found))
    return rows


def _rows(figures: list[Figure]) -> list[tuple[str, dict[str, Figure]]]:
    """A row for each distribution of which anything is known."""
    rows: dict[str, dict[str, Figure]] = {}
    for each in figures:
        rows.setdefault(f"{each.section}, {each.unit}", {})[each.name] = each
    return [(name, row) for name, row in rows.items() if any(_known(each) for each in row.values())]


def _known(each: Figure) -> bool:
    return each.first is not None or each.second is not None


def delta(each: Figure) -> str:
    """By how much the second differs; nothing where there is no ratio."""
    return "" if each.ratio is None else f"{(each.ratio - 1) * 100:+,.1f}%"


def number(value: float | None, digits: int = 2) -> str:
    """Without needless noughts; a dash for what nobody measured."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def exact(value: float | None) -> str:
    """To a millionth, without the noughts behind."""
    text = number(value, 6)
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}%}"


def clock(moment: str) -> str:
    """10:20:30 of an RFC 3339 time."""
    return datetime.fromisoformat(moment).strftime("%H:%M:%S")


def day(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d")
