"""The plots of a comparison's page: draws two reports on the same axes or on the same scale."""

from __future__ import annotations

from migratory_spark.document import SlaReport
from migratory_spark.render.canvas import COLORS, Drawing, shorten, with_gaps
from migratory_spark.render.plots import Plot, draw_tail, latency_axis, percentiles, tail_axes
from migratory_spark.report.comparison import ENOUGH

FIRST, SECOND = COLORS["s1"], COLORS["s3"]
_QUANTILES = (("P50", "median"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99"), ("max", "max"))


def _of_first(first: SlaReport, second: SlaReport, drawing: Drawing) -> None:
    """Draw the latency percentiles of the first report over time, on a scale that fits both reports."""
    percentiles(first, drawing)
    _share_scale(first, second, drawing)


def _of_second(first: SlaReport, second: SlaReport, drawing: Drawing) -> None:
    """Draw the latency percentiles of the second report over time, on a scale that fits both reports."""
    percentiles(second, drawing)
    _share_scale(first, second, drawing)


def _share_scale(first: SlaReport, second: SlaReport, drawing: Drawing) -> None:
    """Set the latency axis of the plot to a scale that fits median and P99 of both reports, so that heights in two
    plots can be compared. Do nothing if neither has a latency."""
    rows = [*first.latency_ms.over_time, *second.latency_ms.over_time]
    values = [value for row in rows for value in (row.median, row.p99) if value]
    if values:
        drawing.axes.set_ylim(min(values) / 1.15, max(values) * 1.15)
        latency_axis(drawing)


def since_the_start(first: SlaReport, second: SlaReport, drawing: Drawing) -> None:
    """Draw median and P99 of the latency of both reports over time, in minutes since the start of each report's
    window."""
    axes = drawing.axes
    for label, report, color in (("first", first, FIRST), ("second", second, SECOND)):
        rows = report.latency_ms.over_time
        starts = [row.start for row in report.windows]
        minutes = [row * report.latency_ms.window_seconds / 60 for row in range(len(starts))]
        for attribute, name, style in (("p99", "P99", "-"), ("median", "P50", (0, (3, 2)))):
            values = with_gaps(starts, {row.start: getattr(row, attribute) for row in rows})
            axes.plot(minutes, values, color=color, linestyle=style, label=f"{label}, {name}")
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes since the window's start")
    latency_axis(drawing)
    drawing.legend(4)


def quantiles(first: SlaReport, second: SlaReport, drawing: Drawing) -> None:
    """Draw the latency quantiles of both reports: a row for each quantile, with a mark for each report. Each report
    must have one of them."""
    axes = drawing.axes
    first_values, second_values = first.latency_ms.all, second.latency_ms.all
    for row, (_, attribute) in enumerate(_QUANTILES):
        before, after = getattr(first_values, attribute), getattr(second_values, attribute)
        if before is not None and after is not None:
            axes.plot([before, after], [row, row], color=COLORS["faint"], linewidth=2.5, zorder=1)
    for label, values, color, marker in (("first", first_values, FIRST, "o"), ("second", second_values, SECOND, "D")):
        points = [(getattr(values, attribute), row) for row, (_, attribute) in enumerate(_QUANTILES)]
        known = [(value, row) for value, row in points if value is not None]
        axes.plot(*zip(*known, strict=True), color=color, marker=marker, markersize=8, linestyle="", label=label)
    axes.set_xscale("log")
    axes.set_yticks(range(len(_QUANTILES)), [name for name, _ in _QUANTILES])
    axes.set_ylim(len(_QUANTILES) - 0.5, -0.5)
    latency_axis(drawing, across=True)
    drawing.legend(2)


def tails(first: SlaReport, second: SlaReport, drawing: Drawing) -> None:
    """Draw the cumulative distributions of the latency of both reports, of which one at least must have deliveries."""
    highest = [
        draw_tail(report, drawing, color, label)
        for label, report, color in (("first", first, FIRST), ("second", second, SECOND))
        if _has_tail(report)
    ]
    tail_axes(drawing, max(highest))
    drawing.legend(2)


def brokers(first: SlaReport, second: SlaReport, drawing: Drawing) -> None:
    """Draw the P99 of the latency in both reports, for each of the brokers that `_common_brokers` returns."""
    axes = drawing.axes
    first_values, second_values = _p99(first), _p99(second)
    names = _common_brokers(first, second)
    for row, name in enumerate(names):
        axes.plot([first_values[name], second_values[name]], [row, row], color=COLORS["faint"], linewidth=2.5, zorder=1)
    for label, by_broker, color, marker in (
        ("first", first_values, FIRST, "o"),
        ("second", second_values, SECOND, "D"),
    ):
        values = [by_broker[name] for name in names]
        axes.plot(values, range(len(names)), color=color, marker=marker, markersize=8, linestyle="", label=label)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [shorten(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    latency_axis(drawing, across=True)
    drawing.legend(2)


def _p99(report: SlaReport) -> dict[str, float]:
    """Return P99 of the latency in ms by broker, for brokers with at least ENOUGH deliveries."""
    brokers = report.latency_ms.by_broker
    return {
        name: summary.p99 for name, summary in brokers.items() if summary.p99 is not None and summary.count >= ENOUGH
    }


def _common_brokers(first: SlaReport, second: SlaReport) -> list[str]:
    """Return the first twelve brokers that have enough deliveries in both reports; a plot has no room for more."""
    second_values = _p99(second)
    return [name for name in _p99(first) if name in second_values][:12]


def _has_tail(report: SlaReport) -> bool:
    """Return whether the report has a cumulative distribution of the latency."""
    return any(count for _, count in report.latency_ms.cumulative)


def _has_any(report: SlaReport) -> bool:
    """Return whether the report has a latency quantile."""
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
        "since", "One over the other", "By time since the start of each window.",
        lambda first, second: bool(first.latency_ms.over_time and second.latency_ms.over_time), since_the_start,
        across=True,
    ),
    Plot(
        "quantiles", "Quantiles of all deliveries", "Each quantile of the first and the second report.",
        lambda first, second: _has_any(first) and _has_any(second), quantiles,
    ),
    Plot(
        "tails", "Cumulative distributions", "Each step up is a tenth of the deliveries that were slower.",
        lambda first, second: _has_tail(first) and _has_tail(second), tails,
    ),
    Plot(
        "brokers", "P99 by broker", "Brokers of both reports with at least a hundred deliveries in each.",
        lambda first, second: bool(_common_brokers(first, second)), brokers, across=True,
    ),
)  # fmt: skip
"""In the order of the page. On a wide page, two that are not `across` are beside each other."""
