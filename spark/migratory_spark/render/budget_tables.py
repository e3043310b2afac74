"""A table of rolling error budgets for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from migratory_spark.render.tables import COLORS, plain_text, wide_console
from migratory_spark.report.budget import RollingBudget, RollingBudgets


def render(budgets: RollingBudgets) -> RenderableType:
    """Return the budgets as a table, with a line for each that needs an explanation, and the verdict."""
    table = Table(title=f"Error budgets from {budgets.start} to {budgets.end}", title_justify="left",
                  title_style="bold")  # fmt: skip
    for name in ("cluster", "objective"):
        table.add_column(name, overflow="fold")
    for name in ("target", "good", "total", "compliance", "budget left", "covered", "reports"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for budget in budgets.budgets:
        table.add_row(
            plain_text(budget.cluster), plain_text(budget.objective), f"{budget.target}%", f"{budget.good:,}",
            f"{budget.total:,}", _percent(budget.compliance, 4), _percent(budget.budget_left, 1),
            _percent(budget.coverage, 1), f"{budget.reports:,}", Text(budget.verdict, COLORS[budget.verdict]),
        )  # fmt: skip
    notes = [plain_text(f"- {budget.objective}: {note}") for budget in budgets.budgets for note in _notes(budget)]
    return Group(table, *notes, Text(budgets.verdict, COLORS[budgets.verdict]))


def show(budgets: RollingBudgets) -> None:
    """Print the table of budgets to the standard output."""
    wide_console().print(render(budgets))


def _notes(budget: RollingBudget) -> list[str]:
    notes = [budget.reason] if budget.reason else []
    for count, note in (
        (budget.overlapping, "reports were left out, because others cover their time"),
        (budget.different, "reports were left out, because they judged another target, threshold or slices"),
        (budget.provisional, "of the reports are provisional: their last samples may be missing"),
    ):
        if count:
            notes.append(f"{count:,} {note}")
    return notes


def _percent(share: float | None, digits: int) -> str:
    return "-" if share is None else f"{share:.{digits}%}"
