"""Each plot of the page, from the report's figures. None where there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from migratory_spark.document import Report, WindowSummary
from migratory_spark.render.canvas import COLOURS, HEAT, QUANTILES, Drawing, broken, series, short

LEGEND_LIMIT = 8
"""More brokers than this have no names in a plot; the table has them."""
_FLOOR = -1.0
"""How far below nothing a budget is drawn."""


@dataclass(frozen=True, slots=True)
class Plot:
    """`about` stands below it. `draw` draws a report, or two beside each other; `there` says whether there is anything
    to draw; `across`: all of the page's width is for it."""

    name: str
    title: str
    about: str
    there: Callable[..., bool]
    draw: Callable[..., None]
    across: bool = False


def percentiles(report: Report, drawing: Drawing) -> None:
    rows = report.latency_ms.over_time
    _over_time(report, drawing)
    starts, moments = _grid(report)
    for (label, attribute), colour in zip(
        (("P50", "median"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99")), QUANTILES, strict=True
    ):
        drawing.axes.plot(moments, _column(starts, rows, attribute), color=colour, label=label)
    _thresholds(report, drawing)
    latency_axis(drawing)
    _incidents(report, drawing)
    drawing.legend(4)


def heat(report: Report, drawing: Drawing) -> None:
    found = report.latency_ms.heat
    used = [place for place in range(len(found.bounds_ms)) if any(row[place] for row in found.counts)]
    first, last = used[0], used[-1]
    edges = [found.bounds_ms[first - 1] if first else found.bounds_ms[0] / 2, *found.bounds_ms[first : last + 1]]
    starts = [_moment(start) for start in found.starts]
    length = report.latency_ms.window_seconds / 86_400
    cells = [[math.log1p(row[place]) for row in found.counts] for place in range(first, last + 1)]
    _over_time(report, drawing)
    drawing.axes.grid(False)
    drawing.axes.pcolormesh([*starts, starts[-1] + length], edges, cells, cmap=HEAT, rasterized=True, vmin=0)
    latency_axis(drawing)
    _incidents(report, drawing)


def budget(report: Report, drawing: Drawing) -> None:
    axes = drawing.axes
    _over_time(report, drawing)
    lowest = 0.0
    for place, objective in enumerate(report.objectives):
        points = [(_moment(point.end), point.budget_left) for point in objective.budget_over_time]
        values = [(moment, max(_FLOOR, value)) for moment, value in points if value is not None]
        if not values:
            continue
        lowest = min(lowest, *(value for _, value in values))
        axes.plot(*zip(*values, strict=True), color=series(place), label=short(objective.name))
    if lowest < 0:
        axes.axhline(0, color=COLOURS["limit"], linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylim(min(lowest, 0.0) * 1.06, 1.06)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_ylabel("budget left")
    _incidents(report, drawing)
    drawing.legend(4)


def brokers(report: Report, drawing: Drawing) -> None:
    _over_time(report, drawing)
    starts, moments = _grid(report)
    names = list(report.latency_ms.by_broker)
    for place, name in enumerate(names):
        rows = [row for row in report.latency_ms.by_window if row.broker == name]
        label = short(name) if len(names) <= LEGEND_LIMIT else None
        drawing.axes.plot(moments, _column(starts, rows, "p99"), color=series(place), label=label)
    latency_axis(drawing)
    _incidents(report, drawing)
    drawing.legend(3)


def connections(report: Report, drawing: Drawing) -> None:
    _over_time(report, drawing)
    _, moments = _grid(report)
    for place, found in enumerate(report.connections):
        values = [math.nan if value is None else value for value in found.by_window]
        label = short(found.broker) if len(report.connections) <= LEGEND_LIMIT else None
        drawing.axes.plot(moments, values, color=series(place), label=label, drawstyle="steps-post")
    drawing.axes.set_ylim(0, max(1.0, *drawing.axes.get_ylim()) * 1.05)
    drawing.axes.set_ylabel("clients")
    drawing.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _incidents(report, drawing)
    drawing.legend(3)


def cumulative(report: Report, drawing: Drawing) -> None:
    """The share that was slower halves in equal steps upwards, so that the last thousandth is as easy to read as the
    first half."""
    highest = tail(report, drawing, COLOURS["s1"])
    _thresholds(report, drawing, across=True)
    tail_axes(drawing, highest)


def tail(report: Report, drawing: Drawing, colour: str, label: str | None = None) -> float:
    """The line of a cumulative distribution. Returns how high it rises."""
    total = report.latency_ms.all.count
    points = [(bound, count / total) for bound, count in report.latency_ms.cumulative if count]
    below = [(bound, -math.log10(1 - share)) for bound, share in points if share < 1]
    highest = max([1.0, *(height for _, height in below)])
    # The bound at or below which everything is has no height of its own: the line ends there.
    full = [bound for bound, share in points if share >= 1][:1]
    line = [*below, *((bound, highest) for bound in full)]
    drawing.axes.plot(*zip(*line, strict=True), color=colour, drawstyle="steps-post", label=label)
    return highest


def tail_axes(drawing: Drawing, highest: float) -> None:
    axes = drawing.axes
    latency_axis(drawing, across=True)
    marks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999]
    heights = [(-math.log10(1 - share), f"{share * 100:.6g}%") for share in marks]
    shown = [(height, text) for height, text in heights if height <= highest + 0.1]
    axes.set_yticks([height for height, _ in shown], [text for _, text in shown])
    axes.set_ylim(0, highest * 1.04)
    axes.set_ylabel("deliveries at most so late")


PLOTS = (
    Plot(
        "percentiles", "Latency over time", "Percentiles of live deliveries, sender and receiver on one clock.",
        lambda report: bool(report.latency_ms.over_time), percentiles, across=True,
    ),
    Plot(
        "heat", "How deliveries spread", "Stronger where more deliveries fell (logarithm of their number).",
        lambda report: any(any(row[:-1]) for row in report.latency_ms.heat.counts), heat, across=True,
    ),
    Plot(
        "budget", "Error budget", "What was left at each moment of what each objective allows to be bad.",
        lambda report: any(
            point.budget_left is not None for found in report.objectives for point in found.budget_over_time
        ),
        budget,
    ),
    Plot(
        "brokers", "P99 by broker", "Of the broker that delivered.",
        lambda report: bool(report.latency_ms.by_window), brokers,
    ),
    Plot(
        "connections", "Clients by broker", "As each broker counted; no line where it did not answer.",
        lambda report: any(value is not None for found in report.connections for value in found.by_window), connections,
    ),
    Plot(
        "cumulative", "Cumulative distribution", "Each step up is ten times fewer deliveries that were slower.",
        lambda report: any(count for _, count in report.latency_ms.cumulative), cumulative,
    ),
)  # fmt: skip


def _over_time(report: Report, drawing: Drawing) -> None:
    axes = drawing.axes
    axes.set_xlim(_moment(report.window.start), _moment(report.window.end))
    locator = AutoDateLocator(minticks=3, maxticks=5 if drawing.narrow else 9, tz=UTC)
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC, show_offset=False)
    # A bare number of seconds is a riddle.
    formatter.formats[5] = "%H:%M:%S"
    axes.xaxis.set_major_formatter(formatter)


def latency_axis(drawing: Drawing, across: bool = False) -> None:
    """Logarithmic, in words. `across`: the one that lies."""
    axes = drawing.axes
    axis = axes.xaxis if across else axes.yaxis
    (axes.set_xscale if across else axes.set_yscale)("log")
    low, high = axes.get_xlim() if across else axes.get_ylim()
    # A narrow drawing's has room for fewer words.
    axis.set_major_locator(_decades(high / low > (8 if across and drawing.narrow else 300)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def _decades(alone: bool) -> LogLocator:
    return LogLocator(subs=(1,) if alone else (1, 2, 5), numticks=20)


def _incidents(report: Report, drawing: Drawing) -> None:
    """Bands with the numbers of the table of incidents. Last of all, for the axis must be final."""
    axes = drawing.axes
    first, last = axes.get_xlim()
    for number, incident in enumerate(report.incidents, 1):
        at, until = _moment(incident.at), _moment(incident.until)
        axes.axvspan(
            at, max(until, at + (last - first) / 400), color=COLOURS["incident"], alpha=0.16, linewidth=0, zorder=0.5
        )
        axes.axvline(at, color=COLOURS["incident"], linewidth=1.2)
        axes.annotate(
            str(number), (at, 1), xycoords=("data", "axes fraction"), xytext=(3, -1), textcoords="offset points",
            color=COLOURS["incident"], va="top", fontweight="bold",
        )  # fmt: skip


def _thresholds(report: Report, drawing: Drawing, across: bool = False) -> None:
    """Those of latency objectives that lie near what was measured: one far away would flatten everything else."""
    highest = report.latency_ms.all.max
    for objective in report.objectives:
        threshold = objective.threshold_ms
        if objective.type != "latency" or threshold is None or highest is None or threshold > 10 * highest:
            continue
        place = drawing.axes.axvline if across else drawing.axes.axhline
        place(threshold, color=COLOURS["limit"], linewidth=1, linestyle=(0, (4, 3)))
        text = f"{short(objective.name)}: {duration(threshold)}"
        if across:
            drawing.axes.annotate(
                text, (threshold, 0), xycoords=("data", "axes fraction"), xytext=(-3, 4), textcoords="offset points",
                color=COLOURS["limit"], rotation=90, ha="right", va="bottom", fontsize=9.5,
            )  # fmt: skip
        else:
            drawing.axes.annotate(
                text, (1, threshold), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
                color=COLOURS["limit"], ha="right", va="bottom", fontsize=9.5,
            )  # fmt: skip


def _grid(report: Report) -> tuple[list[str], list[float]]:
    starts = [row.start for row in report.windows]
    return starts, [_moment(start) for start in starts]


def _column(starts: list[str], rows: list[WindowSummary], attribute: str) -> list[float]:
    return broken(starts, {row.start: getattr(row, attribute) for row in rows})


def _moment(text: str) -> float:
    return float(date2num(datetime.fromisoformat(text)))


def duration(milliseconds: float) -> str:
    return f"{milliseconds / 1000:g} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"
