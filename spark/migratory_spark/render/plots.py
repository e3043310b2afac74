"""The plots of a report's page: draws each of them, and lists them in PLOTS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from migratory_spark.document import ObjectiveResult, SlaReport, WindowSummary
from migratory_spark.render.canvas import COLORS, HEAT, QUANTILES, Drawing, series_color, shorten, with_gaps

LEGEND_LIMIT = 8
"""Brokers up to which a plot has a legend. The tables name all of them."""
_MIN_BUDGET = -1.0
"""Lowest budget that is drawn."""
LINE_STYLES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)))
"""Styles by which lines differ for readers who cannot tell their colors apart."""
_LABEL_SHARE = 0.07
"""Share of an axis that a label takes up. Lines that are closer to each other have one label together."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of one report, or of two.

    `has_data` returns, for the reports, whether there is anything to draw. `draw` draws the plot; its arguments are the
    reports and the Drawing. `description` is shown below the title. `across` is True if the plot has the whole width of
    the page.
    """

    name: str
    title: str
    description: str
    has_data: Callable[..., bool]
    draw: Callable[..., None]
    across: bool = False


def percentiles(report: SlaReport, drawing: Drawing) -> None:
    """Draw P50, P90, P95 and P99 of the latency over time, with objectives' thresholds and incidents."""
    rows = report.latency_ms.over_time
    _time_axis(report, drawing)
    starts, moments = _row_times(report)
    for (label, attribute), color in zip(
        (("P50", "median"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99")), QUANTILES, strict=True
    ):
        drawing.axes.plot(moments, _column(starts, rows, attribute), color=color, label=label)
    _draw_thresholds(report, drawing)
    latency_axis(drawing)
    _draw_incidents(report, drawing)
    drawing.legend(4)


def heat(report: SlaReport, drawing: Drawing) -> None:
    """Draw the number of deliveries by time and latency as a heat map, with incidents. A cell is the darker, the higher
    the logarithm of its number. Deliveries above the highest bound are not drawn; there must be others."""
    heatmap = report.latency_ms.heat
    used = [number for number in range(len(heatmap.bounds_ms)) if any(row[number] for row in heatmap.counts)]
    first, last = used[0], used[-1]
    edges = [heatmap.bounds_ms[first - 1] if first else heatmap.bounds_ms[0] / 2, *heatmap.bounds_ms[first : last + 1]]
    starts = [_moment(start) for start in heatmap.starts]
    length = report.latency_ms.window_seconds / 86_400
    cells = [[math.log1p(row[number]) for row in heatmap.counts] for number in range(first, last + 1)]
    _time_axis(report, drawing)
    drawing.axes.grid(False)
    drawing.axes.pcolormesh([*starts, starts[-1] + length], edges, cells, cmap=HEAT, rasterized=True, vmin=0)
    latency_axis(drawing)
    _draw_incidents(report, drawing)


def budget(report: SlaReport, drawing: Drawing) -> None:
    """Draw the error budget left of each objective over time, with incidents. Values below -100% are drawn at -100%, as
    triangles. Of more than LEGEND_LIMIT objectives, those whose budget fell lowest have a line and a name of their own,
    and the others are faint."""
    axes = drawing.axes
    _time_axis(report, drawing)
    lines = [(result, points) for result in report.objectives if (points := _budget_points(result))]
    named = sorted(range(len(lines)), key=lambda number: min(value for _, value in lines[number][1]))[:LEGEND_LIMIT]
    for number, (objective, points) in enumerate(lines):
        moments, values = zip(*points, strict=True)
        shown = [max(_MIN_BUDGET, value) for value in values]
        if number not in named:
            axes.plot(moments, shown, color=COLORS["faint"], linewidth=0.8, alpha=0.5)
            continue
        place = sorted(named).index(number)
        color, style = series_color(place), LINE_STYLES[place % len(LINE_STYLES)]
        axes.plot(moments, shown, color=color, linestyle=style, label=shorten(objective.name))
        clipped = [moment for moment, value in points if value < _MIN_BUDGET]
        axes.plot(clipped, [_MIN_BUDGET] * len(clipped), color=color, linestyle="none", marker="v", markersize=5)
    if len(lines) > len(named):
        axes.plot([], [], color=COLORS["faint"], linewidth=0.8, alpha=0.5, label=f"{len(lines) - len(named)} more")
    lowest = min([0.0, *(max(_MIN_BUDGET, value) for _, points in lines for _, value in points)])
    if lowest < 0:
        axes.axhline(0, color=COLORS["limit"], linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylim(lowest * 1.06, 1.06)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_ylabel("budget left")
    _draw_incidents(report, drawing)
    drawing.legend(3)


def _budget_points(objective: ObjectiveResult) -> list[tuple[float, float]]:
    """Return moment (in Matplotlib's days) and value of each known point of the error budget."""
    return [
        (_moment(point.end), point.budget_left) for point in objective.budget_over_time if point.budget_left is not None
    ]


def brokers(report: SlaReport, drawing: Drawing) -> None:
    """Draw P99 of the latency of each broker over time, with incidents. With more than LEGEND_LIMIT brokers there is no
    legend."""
    _time_axis(report, drawing)
    starts, moments = _row_times(report)
    names = list(report.latency_ms.by_broker)
    for number, name in enumerate(names):
        rows = [row for row in report.latency_ms.by_window if row.broker == name]
        label = shorten(name) if len(names) <= LEGEND_LIMIT else None
        drawing.axes.plot(moments, _column(starts, rows, "p99"), color=series_color(number), label=label)
    latency_axis(drawing)
    _draw_incidents(report, drawing)
    drawing.legend(3)


def connections(report: SlaReport, drawing: Drawing) -> None:
    """Draw the number of clients of each broker over time, with incidents. With more than LEGEND_LIMIT brokers there is
    no legend."""
    _time_axis(report, drawing)
    _, moments = _row_times(report)
    for number, broker in enumerate(report.connections):
        values = [math.nan if value is None else value for value in broker.by_window]
        label = shorten(broker.broker) if len(report.connections) <= LEGEND_LIMIT else None
        drawing.axes.plot(moments, values, color=series_color(number), label=label, drawstyle="steps-post")
    drawing.axes.set_ylim(0, max(1.0, *drawing.axes.get_ylim()) * 1.05)
    drawing.axes.set_ylabel("clients")
    drawing.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _draw_incidents(report, drawing)
    drawing.legend(3)


def cumulative(report: SlaReport, drawing: Drawing) -> None:
    """Draw the cumulative distribution of the latency, with objectives' thresholds. Each step up is a tenfold smaller
    share of slower deliveries, so that the last thousandth is as easy to read as the first half."""
    highest = draw_tail(report, drawing, COLORS["s1"])
    _draw_thresholds(report, drawing, across=True)
    tail_axes(drawing, highest)


def draw_tail(report: SlaReport, drawing: Drawing, color: str, label: str | None = None) -> float:
    """Draw the line of a report's cumulative distribution, and return its height: -log10 of the smallest share of
    slower deliveries that it shows, at least 1. The report must have deliveries."""
    total = report.latency_ms.all.count
    points = [(bound, count / total) for bound, count in report.latency_ms.cumulative]
    # The line begins at the last bound below all deliveries.
    first = max([0, *(number for number, (_, share) in enumerate(points) if not share)])
    below = [(bound, -math.log10(1 - share)) for bound, share in points[first:] if share < 1]
    highest = max([1.0, *(height for _, height in below)])
    # The first bound that covers everything would be infinitely high: the line ends there.
    full = [bound for bound, share in points if share >= 1][:1]
    line = [*below, *((bound, highest) for bound in full)]
    drawing.axes.plot(*zip(*line, strict=True), color=color, drawstyle="steps-post", label=label)
    return highest


def tail_axes(drawing: Drawing, highest: float) -> None:
    """Label and scale the axes of cumulative distributions: latencies across, shares of deliveries upwards, on a
    logarithmic scale of the slower ones.

    :param highest: the height of the highest line, as `draw_tail` returns it.
    """
    axes = drawing.axes
    latency_axis(drawing, across=True)
    marks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999]
    heights = [(-math.log10(1 - share), f"{share * 100:.6g}%") for share in marks]
    shown = [(height, text) for height, text in heights if height <= highest + 0.1]
    axes.set_yticks([height for height, _ in shown], [text for _, text in shown])
    axes.set_ylim(0, highest * 1.04)
    axes.set_ylabel("deliveries at or below")


PLOTS = (
    Plot(
        "percentiles", "Latency over time", "Percentiles of live deliveries, sender and receiver on one clock.",
        lambda report: bool(report.latency_ms.over_time), percentiles, across=True,
    ),
    Plot(
        "heat", "Deliveries by latency", "Darker where there were more deliveries (logarithm of their number).",
        lambda report: any(any(row[:-1]) for row in report.latency_ms.heat.counts), heat, across=True,
    ),
    Plot(
        "budget", "Error budget",
        "Share of each objective's error budget that was left at each moment. A triangle is a value below -100%.",
        lambda report: any(
            point.budget_left is not None for result in report.objectives for point in result.budget_over_time
        ),
        budget,
    ),
    Plot(
        "brokers", "P99 by broker", "By the broker that delivered.",
        lambda report: bool(report.latency_ms.by_window), brokers,
    ),
    Plot(
        "connections", "Clients by broker", "By each broker's own count; no line while it was not scraped.",
        lambda report: any(value is not None for row in report.connections for value in row.by_window), connections,
    ),
    Plot(
        "cumulative", "Cumulative distribution", "Each step up is a tenth of the deliveries that were slower.",
        lambda report: any(count for _, count in report.latency_ms.cumulative), cumulative,
    ),
)  # fmt: skip


def _time_axis(report: SlaReport, drawing: Drawing) -> None:
    """Scale the horizontal axis to the report's window, with times in UTC as labels."""
    axes = drawing.axes
    axes.set_xlim(_moment(report.window.start), _moment(report.window.end))
    locator = AutoDateLocator(minticks=3, maxticks=5 if drawing.narrow else 9, tz=UTC)
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC, show_offset=False)
    # Seconds alone would not be understood, nor a full minute among them without its seconds.
    formatter.formats[5] = formatter.zero_formats[5] = "%H:%M:%S"
    axes.xaxis.set_major_formatter(formatter)


def latency_axis(drawing: Drawing, across: bool = False) -> None:
    """Make an axis logarithmic, with durations as labels: the horizontal axis if `across`, else the vertical one."""
    axes = drawing.axes
    axis = axes.xaxis if across else axes.yaxis
    (axes.set_xscale if across else axes.set_yscale)("log")
    low, high = axes.get_xlim() if across else axes.get_ylim()
    # A narrow drawing has room for fewer labels.
    axis.set_major_locator(_tick_locator(high / low > (8 if across and drawing.narrow else 300)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def _tick_locator(alone: bool) -> LogLocator:
    """Return the locator of the labels of a logarithmic axis: at powers of ten only if `alone`, else also at twice and
    five times these."""
    return LogLocator(subs=(1,) if alone else (1, 2, 5), numticks=20)


def _draw_incidents(report: SlaReport, drawing: Drawing) -> None:
    """Draw incidents as bands, with the numbers that they have in the page's table. Call this last, when the axis is
    final. Incidents that are close together have one label."""
    axes = drawing.axes
    first, last = axes.get_xlim()
    labels: list[tuple[float, list[str]]] = []
    for number, incident in enumerate(report.incidents, 1):
        at, until = _moment(incident.at), _moment(incident.until)
        axes.axvspan(
            at, max(until, at + (last - first) / 400), color=COLORS["incident"], alpha=0.16, linewidth=0, zorder=0.5
        )
        axes.axvline(at, color=COLORS["incident"], linewidth=1.2)
        if labels and at - labels[-1][0] < (last - first) * _LABEL_SHARE:
            labels[-1][1].append(str(number))
        else:
            labels.append((at, [str(number)]))
    for at, numbers in labels:
        # Above the plot, where nothing else is drawn.
        axes.annotate(
            numbers[0] if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}", (at, 1),
            xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            color=COLORS["incident"], va="bottom", ha="center", fontweight="bold",
        )  # fmt: skip


def _draw_thresholds(report: SlaReport, drawing: Drawing, across: bool = False) -> None:
    """Draw a line for the threshold of each latency objective, except thresholds above ten times the highest latency,
    which would flatten the plot. Draw none if the highest latency is unknown.

    :param across: True if latency is the horizontal axis.
    """
    highest = report.latency_ms.all.max
    by_threshold: dict[float, list[str]] = {}
    for objective in report.objectives:
        threshold = objective.threshold_ms
        if objective.type == "latency" and threshold is not None and highest is not None and threshold <= 10 * highest:
            by_threshold.setdefault(threshold, []).append(objective.name)
    low, high = drawing.axes.get_xlim() if across else drawing.axes.get_ylim()
    for thresholds in _close_together(sorted(by_threshold), max(low, 1e-3), high):
        _draw_group(thresholds, [name for each in thresholds for name in by_threshold[each]], drawing, across)


def _close_together(thresholds: list[float], low: float, high: float) -> list[list[float]]:
    """Return the sorted thresholds in groups, between which a label has room on a logarithmic axis from `low` to
    `high`."""
    groups: list[list[float]] = []
    for threshold in thresholds:
        if groups and math.log(threshold / groups[-1][-1]) < _LABEL_SHARE * math.log(high / low):
            groups[-1].append(threshold)
        else:
            groups.append([threshold])
    return groups


def _draw_group(thresholds: list[float], names: list[str], drawing: Drawing, across: bool) -> None:
    """Draw lines for the lowest and the highest of these sorted thresholds (ms), a band between them, and their
    objective's name; of several objectives their number.

    :param across: True if latency is the horizontal axis.
    """
    who = shorten(names[0]) if len(names) == 1 else f"{len(names)} objectives"
    least, most = duration(thresholds[0]), duration(thresholds[-1])
    text = f"{who}: {least}" if least == most else f"{who}: {least} to {most}"
    draw_line = drawing.axes.axvline if across else drawing.axes.axhline
    for end in sorted({thresholds[0], thresholds[-1]}):
        draw_line(end, color=COLORS["limit"], linewidth=1, linestyle=(0, (4, 3)))
    if len(thresholds) > 1:
        draw_band = drawing.axes.axvspan if across else drawing.axes.axhspan
        draw_band(thresholds[0], thresholds[-1], color=COLORS["limit"], alpha=0.1, linewidth=0, zorder=0.5)
    place: dict[str, Any] = {
        "textcoords": "offset points",
        "color": COLORS["limit"],
        "ha": "right",
        "va": "bottom",
        "fontsize": 9.5,
    }
    if across:
        drawing.axes.annotate(
            text, (thresholds[0], 0), xycoords=("data", "axes fraction"), xytext=(-3, 4), rotation=90, **place
        )
    else:
        drawing.axes.annotate(
            text, (1, thresholds[-1]), xycoords=("axes fraction", "data"), xytext=(0, 2), **place
        )  # fmt: skip


def _row_times(report: SlaReport) -> tuple[list[str], list[float]]:
    """Return the starts of the report's rows, as text and in Matplotlib's days."""
    starts = [row.start for row in report.windows]
    return starts, [_moment(start) for start in starts]


def _column(starts: list[str], rows: list[WindowSummary], attribute: str) -> list[float]:
    """Return an attribute of the row at each of `starts`, NaN where there is no row or no value."""
    return with_gaps(starts, {row.start: getattr(row, attribute) for row in rows})


def _moment(text: str) -> float:
    """Return an RFC 3339 time in Matplotlib's days."""
    return float(date2num(datetime.fromisoformat(text)))


def duration(milliseconds: float) -> str:
    """Return milliseconds as text with at most two units: `250 ms`, `1.5 s`, `40 min`, `2 h 5 min`, `3 d`."""
    if milliseconds < 1000:
        return f"{milliseconds:g} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g} s"
    seconds = round(milliseconds / 1000)
    for (name, length), (smaller, part) in (
        (("d", 86_400), ("h", 3600)), (("h", 3600), ("min", 60)), (("min", 60), ("s", 1)),
    ):  # fmt: skip
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            return f"{whole} {name}" + (f" {rest // part} {smaller}" if rest // part else "")
    raise AssertionError(seconds)
