"""`sla_compare.py FIRST.json SECOND.json` compares two reports. Needs no Spark.

Exit code: 0 the second is the same or better, 1 it is worse, 2 a file is not a report or cannot be written, 3
insufficient data, 70 a fault of this software, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from migratory_spark.jobs import outputs
from migratory_spark.jobs.command_line import CHANGES, BadInput, ExitOnError, options, result_file
from migratory_spark.report.comparison import NotAReport, compare, load_report

COMPARE = (
    click.argument("first", type=click.Path(path_type=Path)),
    click.argument("second", type=click.Path(path_type=Path)),
    result_file("--json", "Write the comparison to this file."),
    result_file("--html", "Write the comparison to this file as one page with plots."),
)


def run_compare(first: Path, second: Path, json_file: Path | None, html_file: Path | None) -> int:
    """Compare two report files, write the requested result files, print tables, and return the exit code: 0 if the
    second is the same or better, 1 if it is worse, 3 if that is unknown.

    :raises BadInput: a file is not a report, a result cannot be written, or a result has the name of another file.
    """
    from migratory_spark.render.comparison_tables import show

    files = {"--json": json_file, "--html": html_file}
    outputs.check_distinct({"FIRST": first, **files})
    outputs.check_distinct({"SECOND": second, **files})
    for option, path in files.items():
        outputs.check_file(option, path)
    try:
        first_report, second_report = load_report(first), load_report(second)
        comparison = compare(first_report, second_report, (str(first), str(second)))
    except NotAReport as error:
        raise BadInput(str(error)) from None
    if json_file is not None:
        text = msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode()
        outputs.write("--json", json_file, text + "\n")
    if html_file is not None:
        # Imported here: loading Matplotlib takes longer than a comparison.
        from migratory_spark.render.page import render_comparison

        outputs.write("--html", html_file, render_comparison(comparison, first_report, second_report))
    show(comparison)
    return CHANGES[comparison.verdict]


@click.command()
@options(*COMPARE)
def main(**values: Any) -> None:
    """Show what became better and worse from report FIRST to report SECOND.

    Exit code: 0 the second is the same or better, 1 it is worse, 2 a file is not a report or cannot be written, 3
    insufficient data, 70 a fault of this software, 130 interrupted.
    """
    with ExitOnError():
        code = run_compare(**values)
    sys.exit(code)


if __name__ == "__main__":
    main()
