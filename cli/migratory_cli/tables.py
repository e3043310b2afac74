"""Tables in which no digit is ever cut: a pipe or a file has no width, and where a terminal is too narrow, columns that
matter least are left out, which is said, and what is too wide even then is folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNLIMITED = 10_000

BORDERS = 3
"""Characters for each column besides its content, and one for the row."""


def open_console() -> Console:
    """Standard output: as wide as the terminal, and without end where it is none."""
    console = Console()
    return console if console.is_terminal else Console(width=UNLIMITED)


def left_out(names: Iterable[str], where: str = "") -> Text:
    """The remark below a table of which these columns are missing."""
    return Text(f"left out, as the terminal is narrow: {', '.join(names)}{where}", style="dim")


def print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    goes_first: Sequence[str] = (),
) -> None:
    """The first column names the rows, numbers are in the others. `goes_first`: columns that may be left out, in the
    order in which they are. Nothing is printed without rows."""
    if not rows:
        return
    widths = {name: max(len(row[place]) for row in (columns, *rows)) + BORDERS for place, name in enumerate(columns)}
    gone = []
    for name in goes_first:
        if sum(widths.values()) < console.width:
            break
        del widths[name]
        gone.append(name)
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        if name in widths:
            table.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name in widths))
    console.print(table)
    if gone:
        console.print(left_out(gone), soft_wrap=True)
