"""`spark-submit … local:///…/migratory_spark/jobs/sla_report.py --prometheus URL --start … --end …`

Exit code: 0 met, 1 missed, 2 bad input, 3 insufficient data, 4 samples can't be read, 70 a fault of this software.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import click

from migratory_spark.jobs.exits import Ending
from migratory_spark.jobs.options import REPORT, options
from migratory_spark.jobs.run import Question, run_report
from migratory_spark.jobs.sessions import submitted_session


@click.command()
@options(*REPORT)
def main(**values: Any) -> None:
    """Report on the window from START to END and judge the objectives."""
    with Ending():
        code = run_report(Question(**values), partial(submitted_session, "migratory-sla-report"))
    sys.exit(code)


if __name__ == "__main__":
    main()
