"""`sla_budget.py --history DIR` adds kept reports up to rolling error budgets. Needs no Spark.

Exit code: 0 all are met, 1 one is missed, 2 the folder is no history or an option is wrong, 3 insufficient data, 70 a
fault of this software, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from migratory_spark.jobs import outputs
from migratory_spark.jobs.command_line import (
    VERDICTS,
    BadInput,
    DurationParam,
    ExitOnError,
    MomentParam,
    options,
    result_file,
)

BUDGET = (
    click.option("--history", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="DIR",
                 help="Folder into which `sla report --history` wrote."),
    click.option("--rolling", type=DurationParam(), default="28d", show_default=True, metavar="DURATION",
                 help="Length of the window."),
    click.option("--end", type=MomentParam(), default="now", show_default=True,
                 help="End of the window: -1d (before now), RFC 3339 (UTC) or seconds since 1970."),
    click.option("--cluster", metavar="NAME", help="Show only budgets of this cluster."),
    result_file("--json", "Write the budgets to this file."),
)  # fmt: skip


def run_budget(history: Path, rolling: float, end: float, cluster: str | None, json_file: Path | None) -> int:
    """Add up the kept reports, print a table, write the requested file, and return the exit code.

    :param rolling: length of the window in seconds.
    :param end: its end in seconds since 1970.
    :raises BadInput: the folder is no history, has no report in the window, or the result cannot be written.
    """
    from migratory_spark.render.budget_tables import show
    from migratory_spark.report.budget import NotAHistory, load_results, rolling_budgets

    outputs.check_file("--json", json_file)
    end_ms, length_ms = round(end * 1000), round(rolling * 1000)
    try:
        # The first moment of the budget's course has a whole window before it.
        results = load_results(history, max(0, end_ms - 2 * length_ms))
    except NotAHistory as error:
        raise BadInput(f"--history: {error}") from None
    chosen = [result for result in results if cluster is None or result.cluster == cluster]
    budgets = rolling_budgets(chosen, end_ms, length_ms)
    if not budgets.budgets:
        of_cluster = "" if cluster is None else f" of cluster {cluster!r}"
        raise BadInput(
            f"--history: {history} has no report{of_cluster} that ends between {budgets.start} and {budgets.end}"
        )
    if json_file is not None:
        text = msgspec.json.format(msgspec.json.encode(budgets), indent=2).decode()
        outputs.write("--json", json_file, text + "\n")
    show(budgets)
    return VERDICTS[budgets.verdict]


@click.command()
@options(*BUDGET)
def main(**values: Any) -> None:
    """Show the error budgets of kept reports over a rolling window."""
    with ExitOnError():
        code = run_budget(**values)
    sys.exit(code)


if __name__ == "__main__":
    main()
