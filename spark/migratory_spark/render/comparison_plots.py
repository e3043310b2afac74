"""Plots of two reports: each by itself on axes that both share, and one over the other."""

from __future__ import annotations

from migratory_spark.document import Report
from migratory_spark.render.canvas import COLOURS, Drawing, broken, short
from migratory_spark.render.plots import Plot, latency_axis, percentiles, tail, tail_axes
from migratory_spark.report.comparison import ENOUGH

FIRST, SECOND = COLOURS["s1"], COLOURS["s3"]
_QUANTILES = (("P50", "median"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99"), ("max", "max"))


def _of_first(first: Report, second: Report, drawing: Drawing) -> None:
    percentiles(first, drawing)
    _shared(first, second, drawing)


def _of_second(first: Report, second: Report, drawing: Drawing) -> None:
    percentiles(second, drawing)
    _shared(first, second, drawing)


def _shared(first: Report, second: Report, drawing: Drawing) -> None:
    """One scale for both: else the slower of two would look like the quicker."""
    rows = [*first.latency_ms.over_time, *second.latency_ms.over_time]
    values = [value for row in rows for value in (row.median, row.p99) if value]
    if values:
        drawing.axes.set_ylim(min(values) / 1.15, max(values) * 1.15)
        latency_axis(drawing)


def since_the_start(first: Report, second: Report, drawing: Drawing) -> None:
    """P99 and the median by the time since each window's start."""
    axes = drawing.axes
    for label, report, colour in (("first", first, FIRST), ("second", second, SECOND)):
        rows = report.latency_ms.over_time
        starts = [row.start for row in report.windows]
        minutes = [place * report.latency_ms.window_seconds / 60 for place in range(len(starts))]
        for attribute, name, style in (("p99", "P99", "-"), ("median", "P50", (0, (3, 2)))):
            values = broken(starts, {row.start: getattr(row, attribute) for row in rows})
            axes.plot(minutes, values, color=colour, linestyle=style, label=f"{label}, {name}")
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes since the window's start")
    latency_axis(drawing)
    drawing.legend(4)


def quantiles(first: Report, second: Report, drawing: Drawing) -> None:
    """Of each quantile where it was and where it is."""
    axes = drawing.axes
    one, other = first.latency_ms.all, second.latency_ms.all
    for place, (_, attribute) in enumerate(_QUANTILES):
        before, after = getattr(one, attribute), getattr(other, attribute)
        if before is not None and after is not None:
            axes.plot([before, after], [place, place], color=COLOURS["faint"], linewidth=2.5, zorder=1)
    for label, found, colour, marker in (("first", one, FIRST, "o"), ("second", other, SECOND, "D")):
        points = [(getattr(found, attribute), place) for place, (_, attribute) in enumerate(_QUANTILES)]
        known = [(value, place) for value, place in points if value is not None]
        axes.plot(*zip(*known, strict=True), color=colour, marker=marker, markersize=8, linestyle="", label=label)
    axes.set_xscale("log")
    axes.set_yticks(range(len(_QUANTILES)), [name for name, _ in _QUANTILES])
    axes.set_ylim(len(_QUANTILES) - 0.5, -0.5)
    latency_axis(drawing, across=True)
    drawing.legend(2)


def tails(first: Report, second: Report, drawing: Drawing) -> None:
    highest = [
        tail(report, drawing, colour, label)
        for label, report, colour in (("first", first, FIRST), ("second", second, SECOND))
        if _has_tail(report)
    ]
    tail_axes(drawing, max(highest))
    drawing.legend(2)


def brokers(first: Report, second: Report, drawing: Drawing) -> None:
    axes = drawing.axes
    one, other = _p99(first), _p99(second)
    names = _both(first, second)
    for place, name in enumerate(names):
        axes.plot([one[name], other[name]], [place, place], color=COLOURS["faint"], linewidth=2.5, zorder=1)
    for label, found, colour, marker in (("first", one, FIRST, "o"), ("second", other, SECOND, "D")):
        values = [found[name] for name in names]
        axes.plot(values, range(len(names)), color=colour, marker=marker, markersize=8, linestyle="", label=label)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    latency_axis(drawing, across=True)
    drawing.legend(2)


def _p99(report: Report) -> dict[str, float]:
    """Of brokers where it rests on something."""
    brokers = report.latency_ms.by_broker
    return {name: each.p99 for name, each in brokers.items() if each.p99 is not None and each.count >= ENOUGH}


def _both(first: Report, second: Report) -> list[str]:
    """Brokers of both; the first ones, for a plot holds no more."""
    other = _p99(second)
    return [name for name in _p99(first) if name in other][:12]


def _has_tail(report: Report) -> bool:
    return any(count for _, count in report.latency_ms.cumulative)


def _has_any(report: Report) -> bool:
    return any(getattr(report.latency_ms.all, attribute) is not None for _, attribute in _QUANTILES)


COMPARE_PLOTS = (
    Plot(
        "first", "First: latency over time", "Percentiles of live deliveries, on the same scale as the second.",
        lambda first, _: bool(first.latency_ms.over_time), _of_first,
    ),
    Plot(
        "second", "Second: latency over time", "Percentiles of live deliveries, on the same scale as the first.",
        lambda _, second: bool(second.latency_ms.over_time), _of_second,
    ),
    Plot(
        "since", "One over the other", "By the time since each window's start.",
        lambda first, second: bool(first.latency_ms.over_time and second.latency_ms.over_time), since_the_start,
        across=True,
    ),
    Plot(
        "quantiles", "Quantiles of all deliveries", "Where each was and where it is.",
        lambda first, second: _has_any(first) and _has_any(second), quantiles,
    ),
    Plot(
        "tails", "Cumulative distributions", "Each step up is ten times fewer deliveries that were slower.",
        lambda first, second: _has_tail(first) and _has_tail(second), tails,
    ),
    Plot(
        "brokers", "P99 by broker", "Of brokers that both have, with a hundred deliveries each.",
        lambda first, second: bool(_both(first, second)), brokers, across=True,
    ),
)  # fmt: skip
"""In pairs: two beside each other where there is room, one below the other on a telephone."""
