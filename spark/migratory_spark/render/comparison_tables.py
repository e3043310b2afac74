"""Tables of a comparison of two reports for a terminal. Nothing is compared here."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from migratory_spark.render.tables import COLORS, number, plain_text, wide_console
from migratory_spark.report.comparison import DISTRIBUTION_COLUMNS, ComparedFigure, Comparison

SHOWN_COLUMNS = ("median", "mean", "p90", "p95", "p99", "max")
CHANGES = {"better": "green", "worse": "bold red", "same": "", "unknown": "dim"}
VERDICT_TEXTS = {
    "better": ("the second is ", "better"),
    "worse": ("the second is ", "worse"),
    "same": ("the second is the ", "same"),
    "unknown": ("whether the second is better or worse is ", "not known"),
}


def render(comparison: Comparison) -> RenderableType:
    """Return the comparison as tables of objectives, deliveries and distributions, with notes and the verdict."""
    parts: list[RenderableType] = []
    for title, side in (("first ", comparison.first), ("second", comparison.second)):
        parts.append(
            Text.assemble(
                plain_text(f"{title} {side.name}: {side.cluster or 'no cluster'}, {side.start} to {side.end}, "),
                (side.verdict, COLORS[side.verdict]),
            )
        )
    parts += [plain_text(f"- {note}") for note in comparison.notes]
    quantiles = [figure for figure in comparison.figures if figure.name in DISTRIBUTION_COLUMNS]
    parts += [_objectives(comparison), _counts([figure for figure in comparison.figures if figure not in quantiles])]
    parts.append(_distributions(quantiles))
    parts.append(
        Text.assemble(
            VERDICT_TEXTS[comparison.verdict][0],
            (VERDICT_TEXTS[comparison.verdict][1], CHANGES[comparison.verdict] or "bold"),
        )
    )
    return Group(*parts)


def show(comparison: Comparison) -> None:
    """Print the comparison's tables, notes and verdict to the standard output."""
    wide_console().print(render(comparison))


def _objectives(comparison: Comparison) -> Table:
    """Return a table of the objectives of both reports with verdict, compliance, budget left, and change."""
    table = Table(title="Objectives", title_justify="left", title_style="bold")
    for name in ("objective", "first", "second"):
        table.add_column(name, overflow="fold")
    for name in ("compliance", "budget left"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("change", overflow="fold")
    for objective in comparison.objectives:
        change = objective.change if objective.comparable else "another objective"
        table.add_row(
            plain_text(objective.name),
            _verdict(objective.first),
            _verdict(objective.second),
            f"{_share(objective.first_compliance, 4)} → {_share(objective.second_compliance, 4)}",
            f"{_share(objective.first_budget_left, 1)} → {_share(objective.second_budget_left, 1)}",
            Text(change, style=CHANGES[objective.change]),
        )
    return table


def _counts(figures: list[ComparedFigure]) -> Table:
    """Return a table of the figures that are counts or shares, with their change."""
    table = Table(title="Deliveries", title_justify="left", title_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("unit", overflow="fold")
    for name in ("first", "second"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("change", overflow="fold")
    for figure in figures:
        # One of very many deliveries is less than 0.01 per million.
        small = any(0 < (value or 0) < 0.01 for value in (figure.first, figure.second))
        digits = 6 if figure.unit == "share" or small else 2
        values = (number(figure.first, digits), number(figure.second, digits))
        table.add_row(figure.name, figure.unit, *values, Text(figure.change, style=CHANGES[figure.change]))
    return table


def _distributions(figures: list[ComparedFigure]) -> Table:
    """Return a table with a row for each distribution that is known in a report, and `first → second` in the column of
    each figure.

    :param figures: the figures of all distributions, of each the names in DISTRIBUTION_COLUMNS.
    """
    table = Table(title="Distributions, first → second", title_justify="left", title_style="bold")
    table.add_column("of", overflow="fold")
    for name in SHOWN_COLUMNS:
        table.add_column(name, justify="right", overflow="fold")
    rows: dict[str, dict[str, ComparedFigure]] = {}
    for figure in figures:
        rows.setdefault(f"{figure.section}, {figure.unit}", {})[figure.name] = figure
    for name, row in rows.items():
        if any(figure.first is not None or figure.second is not None for figure in row.values()):
            table.add_row(plain_text(name), *(_shift(row[column]) for column in SHOWN_COLUMNS))
    return table


def _shift(figure: ComparedFigure) -> Text:
    """Return a cell `first → second` in the color of the change."""
    return Text(f"{number(figure.first)} → {number(figure.second)}", style=CHANGES[figure.change])


def _verdict(verdict: str | None) -> Text:
    """Return the cell of a verdict, a dash for None."""
    return Text("-") if verdict is None else Text(verdict, style=COLORS[verdict])


def _share(value: float | None, digits: int) -> str:
    """Return a share (0 to 1) as a percentage, a dash for None."""
    return "-" if value is None else f"{value:.{digits}%}"
