"""A comparison for people at a terminal. Layout only."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from migratory_spark.render.tables import COLOURS, number, plain, wide_console
from migratory_spark.report.comparison import DISTRIBUTION_COLUMNS, Comparison, Figure

SHOWN = ("median", "mean", "p90", "p95", "p99", "max")
CHANGES = {"better": "green", "worse": "bold red", "same": "", "unknown": "dim"}
SAID = {
    "better": ("the second is ", "better"),
    "worse": ("the second is ", "worse"),
    "same": ("the second is the ", "same"),
    "unknown": ("whether the second is better or worse is ", "not known"),
}


def render(found: Comparison) -> RenderableType:
    parts: list[RenderableType] = []
    for title, side in (("first ", found.first), ("second", found.second)):
        parts.append(
            Text.assemble(
                plain(f"{title} {side.name}: {side.cluster or 'no cluster'}, {side.start} to {side.end}, "),
                (side.verdict, COLOURS[side.verdict]),
            )
        )
    parts += [plain(f"- {note}") for note in found.notes]
    quantiles = [each for each in found.figures if each.name in DISTRIBUTION_COLUMNS]
    parts += [_objectives(found), _counts([each for each in found.figures if each not in quantiles])]
    parts.append(_distributions(quantiles))
    parts.append(Text.assemble(SAID[found.verdict][0], (SAID[found.verdict][1], CHANGES[found.verdict] or "bold")))
    return Group(*parts)


def show(found: Comparison) -> None:
    wide_console().print(render(found))


def _objectives(found: Comparison) -> Table:
    table = Table(title="Objectives", title_justify="left", title_style="bold")
    for name in ("objective", "first", "second"):
        table.add_column(name, overflow="fold")
    for name in ("compliance", "budget left"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("change", overflow="fold")
    for each in found.objectives:
        change = each.change if each.comparable else "another promise"
        table.add_row(
            plain(each.name),
            _verdict(each.first),
            _verdict(each.second),
            f"{_share(each.first_compliance, 4)} → {_share(each.second_compliance, 4)}",
            f"{_share(each.first_budget_left, 1)} → {_share(each.second_budget_left, 1)}",
            Text(change, style=CHANGES[each.change]),
        )
    return table


def _counts(figures: list[Figure]) -> Table:
    table = Table(title="Deliveries", title_justify="left", title_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("unit", overflow="fold")
    for name in ("first", "second"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("change", overflow="fold")
    for each in figures:
        # One of very many is less than a hundredth of a million.
        small = any(0 < (value or 0) < 0.01 for value in (each.first, each.second))
        digits = 6 if each.unit == "share" or small else 2
        values = (number(each.first, digits), number(each.second, digits))
        table.add_row(each.name, each.unit, *values, Text(each.change, style=CHANGES[each.change]))
    return table


def _distributions(figures: list[Figure]) -> Table:
    """A row for each distribution, `first → second` in the column of each quantile."""
    table = Table(title="Distributions, first → second", title_justify="left", title_style="bold")
    table.add_column("of", overflow="fold")
    for name in SHOWN:
        table.add_column(name, justify="right", overflow="fold")
    rows: dict[str, dict[str, Figure]] = {}
    for each in figures:
        rows.setdefault(f"{each.section}, {each.unit}", {})[each.name] = each
    for name, row in rows.items():
        if any(each.first is not None or each.second is not None for each in row.values()):
            table.add_row(plain(name), *(_shift(row[column]) for column in SHOWN))
    return table


def _shift(each: Figure) -> Text:
    return Text(f"{number(each.first)} → {number(each.second)}", style=CHANGES[each.change])


def _verdict(verdict: str | None) -> Text:
    return Text("-") if verdict is None else Text(verdict, style=COLOURS[verdict])


def _share(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}%}"
