"""The page of a comparison: two reports beside each other, with the parts of a report's page."""

from __future__ import annotations

from migratory_spark.compare import DISTRIBUTION_COLUMNS, Comparison, Figure
from migratory_spark.document import Report
from migratory_spark.html.compare_plots import COMPARE_PLOTS
from migratory_spark.html.page import drawn, environment

SAID = {
    "better": "The second is better",
    "worse": "The second is worse",
    "same": "The second is as good as the first",
    "unknown": "Not known: there is not enough data",
}
SHOWN = ("median", "mean", "p90", "p95", "p99", "max")


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
