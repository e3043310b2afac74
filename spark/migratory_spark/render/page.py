"""Renders the HTML pages of a report and of a comparison: values for the templates, and the plots inside."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from importlib import resources
from typing import Any

import jinja2

from migratory_spark.document import DistributionSummary, ObjectiveResult, SlaReport
from migratory_spark.render.canvas import HALF, NARROW, WIDE, Drawing
from migratory_spark.render.comparison_plots import COMPARE_PLOTS
from migratory_spark.render.plots import PLOTS, Plot, duration
from migratory_spark.report.comparison import DISTRIBUTION_COLUMNS, ComparedFigure, Comparison

COLUMNS = ("count", "median", "mean", "stdev", "p90", "p95", "p99", "max")
VERDICT_TEXTS = {
    "better": "The second is better",
    "worse": "The second is worse",
    "same": "The second is as good as the first",
    "unknown": "Not known: there is not enough data",
}
SEVERITY = ("missed", "insufficient", "met")
"""Verdicts in the order of an objective's cards: what needs a reader's attention comes first."""
MAX_BROKEN_DOWN = 8
"""Objectives that the page's breakdown shows. All are in the JSON and in the CSV."""
SHOWN_COLUMNS = ("median", "mean", "p90", "p95", "p99", "max")


def render_page(report: SlaReport) -> str:
    """Return the report as one HTML page that needs no other files."""
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
        plots=[draw_plot(plot, report) for plot in PLOTS],
        several_days=report.window.start[:10] != report.window.end[:10],
        promises={result.name: promise(result) for result in report.objectives},
        cards=sorted(report.objectives, key=lambda result: SEVERITY.index(result.verdict)),
        verdict_text=verdict_text(report),
        broken_down=_broken_down(report),
        burn_lengths=sorted(
            {burn.window_seconds for result in report.objectives for burn in result.burn if burn.rate is not None}
        ),
    )


def verdict_text(report: SlaReport) -> str:
    """Return the report's verdict in words, with the number of objectives that have it."""
    count, of_all = sum(result.verdict == report.verdict for result in report.objectives), len(report.objectives)
    objectives = "objective" if of_all == 1 else "objectives"
    match report.verdict:
        case "met":
            return "Objective met" if of_all == 1 else f"All {of_all} objectives met"
        case "missed":
            return f"{count} of {of_all} {objectives} missed"
        case _:
            return f"Not enough data for {count} of {of_all} {objectives}"


def _broken_down(report: SlaReport) -> list[str]:
    """Return the names of the objectives that the page's breakdown shows, in the report's order: of more than
    MAX_BROKEN_DOWN those that most rows miss."""
    rows = report.breakdown.rows if report.breakdown else []
    missed = Counter(part.name for row in rows for part in row.objectives if part.verdict == "missed")
    names = [result.name for result in report.objectives if result.slices is None]
    shown = sorted(names, key=lambda name: -missed[name])[:MAX_BROKEN_DOWN]
    return [name for name in names if name in shown]


def promise(objective: ObjectiveResult) -> str:
    """Return what an objective asks for, in words: `P99 within 250 ms in 99.5% of slices of 1 min`."""
    within = "" if objective.threshold_ms is None else f"within {duration(objective.threshold_ms)}"
    if objective.slices is None:
        return f"{objective.target}% of {objective.unit} {within}".strip()
    slices = objective.slices
    good = f"P{slices.percentile} {within}" if slices.percentile is not None else f"{slices.share}% acknowledged"
    return f"{good} in {objective.target}% of slices of {duration(slices.length_seconds * 1000)}"


def render_comparison(comparison: Comparison, first: SlaReport, second: SlaReport) -> str:
    """Return the comparison of two reports as one HTML page that needs no other files."""
    quantiles = [figure for figure in comparison.figures if figure.name in DISTRIBUTION_COLUMNS]
    return (
        environment()
        .get_template("comparison.html.j2")
        .render(
            comparison=comparison,
            verdict_text=VERDICT_TEXTS[comparison.verdict],
            sides=[("First", comparison.first, first), ("Second", comparison.second, second)],
            counts=[figure for figure in comparison.figures if figure not in quantiles],
            shown=SHOWN_COLUMNS,
            rows=_rows(quantiles),
            plots=[draw_plot(plot, first, second) for plot in COMPARE_PLOTS],
            percent_change=percent_change,
        )
    )


def environment() -> jinja2.Environment:
    """Return the Jinja environment of the page templates, with their filters and style sheet. Texts are escaped for
    HTML, and an unknown variable is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("migratory_spark.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "number": number, "exact": exact, "share": share, "budget": budget, "clock": clock, "day": day,
        "duration": duration, "seconds": seconds, "between": between,
    }  # fmt: skip
    environment.filters |= filters
    environment.globals["style"] = (
        resources.files("migratory_spark.render").joinpath("templates/style.css").read_text("utf-8")
    )
    return environment


def draw_plot(plot: Plot, *reports: SlaReport) -> dict[str, Any]:
    """Return name, title and description of a plot, and its drawings in two sizes as SVG text, as the template expects
    them. Without data there are no drawings."""
    drawings = {}
    if plot.has_data(*reports):
        for name, size in (("wide", WIDE if plot.across else HALF), ("narrow", NARROW)):
            with Drawing(plot.name, size) as drawing:
                plot.draw(*reports, drawing)
            drawings[name] = drawing.svg
    return {
        "name": plot.name,
        "title": plot.title,
        "description": plot.description,
        "across": plot.across,
        "drawings": drawings,
    }


def _latencies(report: SlaReport) -> list[tuple[str, DistributionSummary]]:
    """Return the rows of the page's table of latencies: name and summary of all brokers, of each broker, around each
    incident, and of replayed deliveries and those across clocks if there are any."""
    latency = report.latency_ms
    rows = [("all brokers", latency.all), *latency.by_broker.items()]
    for position, incident in enumerate(report.incidents, 1):
        around = incident.latency_ms
        rows += [
            (f"{when} incident {position}", summary)
            for when, summary in (("before", around.before), ("during", around.during), ("after", around.after))
        ]
    for name, summary in (("replayed", report.replay_latency_ms), ("across clocks", report.estimated_latency_ms)):
        if summary.count:
            rows.append((name, summary))
    return rows


def _rows(figures: list[ComparedFigure]) -> list[tuple[str, dict[str, ComparedFigure]]]:
    """Return name and figures (by column) of each distribution that is known in at least one report."""
    rows: dict[str, dict[str, ComparedFigure]] = {}
    for figure in figures:
        rows.setdefault(f"{figure.section}, {figure.unit}", {})[figure.name] = figure
    return [(name, row) for name, row in rows.items() if any(_is_known(figure) for figure in row.values())]


def _is_known(figure: ComparedFigure) -> bool:
    return figure.first is not None or figure.second is not None


def percent_change(figure: ComparedFigure) -> str:
    """Return by how many percent the second report's figure differs from the first one's, such as `+12.5%`, or ""
    without a ratio."""
    return "" if figure.ratio is None else f"{(figure.ratio - 1) * 100:+,.1f}%"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number as text with thousands separators, or a dash if it is unknown. A whole number (int) has no digits
    after the point, others have `digits`."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def exact(value: float | None) -> str:
    """Return a number as text with thousands separators, rounded to a millionth, without trailing zeros. Return a dash
    if it is unknown."""
    text = number(value, 6)
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: float | None, digits: int = 4) -> str:
    """Return a share (0 to 1) as a percentage with `digits` digits after the point, or a dash if it is unknown. Less
    than all is never shown as 100%, but as more than the highest percentage below it."""
    if value is None:
        return "–"
    text, whole = f"{value:.{digits}%}", f"{1:.{digits}%}"
    return f"> {1 - 10 ** -(digits + 2):.{digits}%}" if value < 1 and text == whole else text


def budget(left: float | None) -> str:
    """Return in words what is left of an error budget (1 without bad events, below 0 when overspent)."""
    if left is None or left >= 0:
        return f"budget left {share(left, 1)}"
    return f"spent {1 - left:,.1f} times the error budget"


def seconds(value: float) -> str:
    """Return seconds, rounded to a tenth, in words, such as `40 min`."""
    return duration(round(value, 1) * 1000)


def between(start: str, end: str) -> str:
    """Return the time between two RFC 3339 times in words, such as `40 min`."""
    return seconds((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


def clock(moment: str) -> str:
    """Return the time of day of an RFC 3339 time, such as 10:20:30, by its own offset."""
    return datetime.fromisoformat(moment).strftime("%H:%M:%S")


def day(moment: str) -> str:
    """Return the date of an RFC 3339 time, such as 2026-11-27, by its own offset."""
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d")
