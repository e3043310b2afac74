"""The plots of a report's page: draws each of them, and lists them in PLOTS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from migratory_spark.document import SlaReport, WindowSummary
from migratory_spark.render.canvas import COLORS, HEAT, QUANTILES, Drawing, series_color, shorten, with_gaps

LEGEND_LIMIT = 8
"""Brokers up to which a plot has a legend. The tables name all of them."""
_MIN_BUDGET = -1.0
"""Lowest budget that is drawn."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of one report, or of two.

    `has_data` returns whether there is anything to draw, `draw` draws the plot. `description` is shown below the title.
    `across` is True if the plot has the whole width of the page.
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
    """Draw the number of deliveries by time and latency as a heat map, with incidents."""
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
    """Draw the error budget left of each objective over time, with incidents. Values below -100% are drawn at -100%."""
    axes = drawing.axes
    _time_axis(report, drawing)
    lowest = 0.0
    for number, objective in enumerate(report.objectives):
        points = [(_moment(point.end), point.budget_left) for point in objective.budget_over_time]
        values = [(moment, max(_MIN_BUDGET, value)) for moment, value in points if value is not None]
        if not values:
            continue
        lowest = min(lowest, *(value for _, value in values))
        axes.plot(*zip(*values, strict=True), color=series_color(number), label=shorten(objective.name))
    if lowest < 0:
        axes.axhline(0, color=COLORS["limit"], linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylim(min(lowest, 0.0) * 1.06, 1.06)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_ylabel("budget left")
    _draw_incidents(report, drawing)
    drawing.legend(4)


def brokers(report: SlaReport, drawing: Drawing) -> None:
    """Draw P99 of the latency of each broker over time, with incidents."""
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
    """Draw the number of clients of each broker over time, with incidents."""
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
    """Draw the cumulative distribution of the latency. Each step up is a tenfold smaller share of slower deliveries, so
    that the last thousandth is as easy to read as the first half."""
    highest = draw_tail(report, drawing, COLORS["s1"])
    _draw_thresholds(report, drawing, across=True)
    tail_axes(drawing, highest)


def draw_tail(report: SlaReport, drawing: Drawing, color: str, label: str | None = None) -> float:
    """Draw the line of a report's cumulative distribution, and return its height: -log10 of the smallest share of
    slower deliveries that it shows, at least 1."""
    total = report.latency_ms.all.count
    points = [(bound, count / total) for bound, count in report.latency_ms.cumulative if count]
    below = [(bound, -math.log10(1 - share)) for bound, share in points if share < 1]
    highest = max([1.0, *(height for _, height in below)])
    # The first bound that covers everything would be infinitely high: the line ends there.
    full = [bound for bound, share in points if share >= 1][:1]
    line = [*below, *((bound, highest) for bound in full)]
    drawing.axes.plot(*zip(*line, strict=True), color=color, drawstyle="steps-post", label=label)
    return highest


def tail_axes(drawing: Drawing, highest: float) -> None:
    """Label the axes of cumulative distributions: latencies across, shares of deliveries upwards.

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
        "budget", "Error budget", "Share of each objective's error budget that was left at each moment.",
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
    axes = drawing.axes
    axes.set_xlim(_moment(report.window.start), _moment(report.window.end))
    locator = AutoDateLocator(minticks=3, maxticks=5 if drawing.narrow else 9, tz=UTC)
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC, show_offset=False)
    # Seconds alone would not be understood.
    formatter.formats[5] = "%H:%M:%S"
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
    return LogLocator(subs=(1,) if alone else (1, 2, 5), numticks=20)


def _draw_incidents(report: SlaReport, drawing: Drawing) -> None:
    """Draw incidents as bands, with the numbers that they have in the page's table. Must be called last, when the axis
    is final."""
    axes = drawing.axes
    first, last = axes.get_xlim()
    for number, incident in enumerate(report.incidents, 1):
        at, until = _moment(incident.at), _moment(incident.until)
        axes.axvspan(
            at, max(until, at + (last - first) / 400), color=COLORS["incident"], alpha=0.16, linewidth=0, zorder=0.5
        )
        axes.axvline(at, color=COLORS["incident"], linewidth=1.2)
        axes.annotate(
            str(number), (at, 1), xycoords=("data", "axes fraction"), xytext=(3, -1), textcoords="offset points",
            color=COLORS["incident"], va="top", fontweight="bold",
        )  # fmt: skip


def _draw_thresholds(report: SlaReport, drawing: Drawing, across: bool = False) -> None:
    """Draw a line for the threshold of each latency objective, except thresholds above ten times the highest latency,
    which would flatten the plot."""
    highest = report.latency_ms.all.max
    for objective in report.objectives:
        threshold = objective.threshold_ms
        if objective.type != "latency" or threshold is None or highest is None or threshold > 10 * highest:
            continue
        draw_line = drawing.axes.axvline if across else drawing.axes.axhline
        draw_line(threshold, color=COLORS["limit"], linewidth=1, linestyle=(0, (4, 3)))
        text = f"{shorten(objective.name)}: {duration(threshold)}"
        if across:
            drawing.axes.annotate(
                text, (threshold, 0), xycoords=("data", "axes fraction"), xytext=(-3, 4), textcoords="offset points",
                color=COLORS["limit"], rotation=90, ha="right", va="bottom", fontsize=9.5,
            )  # fmt: skip
        else:
            drawing.axes.annotate(
                text, (1, threshold), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
                color=COLORS["limit"], ha="right", va="bottom", fontsize=9.5,
            )  # fmt: skip


def _row_times(report: SlaReport) -> tuple[list[str], list[float]]:
    starts = [row.start for row in report.windows]
    return starts, [_moment(start) for start in starts]


def _column(starts: list[str], rows: list[WindowSummary], attribute: str) -> list[float]:
    return with_gaps(starts, {row.start: getattr(row, attribute) for row in rows})


def _moment(text: str) -> float:
    return float(date2num(datetime.fromisoformat(text)))


def duration(milliseconds: float) -> str:
    """Return milliseconds as text, in seconds from 1000 on: `250 ms`, `1.5 s`."""
    return f"{milliseconds / 1000:g} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"
