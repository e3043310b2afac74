"""`sla_compare.py FIRST.json SECOND.json`: two reports beside each other. Needs no Spark.

Exit code: 0 the second is the same or better, 1 it is worse, 2 a file is no report, 3 the data don't suffice to say.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from migratory_spark.jobs import outputs
from migratory_spark.jobs.command_line import CHANGES, BadInput, Ending, options, result_file
from migratory_spark.report.comparison import NotAReport, compare, load_report

COMPARE = (
    click.argument("first", type=click.Path(path_type=Path)),
    click.argument("second", type=click.Path(path_type=Path)),
    result_file("--json", "Write the comparison here."),
    result_file("--html", "Write the comparison here as one page with plots."),
)


def run_compare(first: Path, second: Path, json_file: Path | None, html_file: Path | None) -> int:
    """Prints the tables and returns the exit code. Raises BadInput."""
    from migratory_spark.render.comparison_tables import show

    files = {"--json": json_file, "--html": html_file}
    outputs.check_apart({"FIRST": first, **files})
    outputs.check_apart({"SECOND": second, **files})
    for option, path in files.items():
        outputs.check(option, path)
    try:
        one, other = load_report(first), load_report(second)
        found = compare(one, other, (str(first), str(second)))
    except NotAReport as error:
        raise BadInput(str(error)) from None
    if json_file is not None:
        text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
        outputs.write("--json", json_file, text + "\n")
    if html_file is not None:
        # Matplotlib loads longer than a comparison takes.
        from migratory_spark.render.page import render_comparison

        outputs.write("--html", html_file, render_comparison(found, one, other))
    show(found)
    return CHANGES[found.verdict]


@click.command()
@options(*COMPARE)
def main(**values: Any) -> None:
    """Say what became better and what worse from report FIRST to report SECOND."""
    with Ending():
        code = run_compare(**values)
    sys.exit(code)


if __name__ == "__main__":
    main()
