"""`spark-submit … local:///…/migratory_spark/jobs/sla_report.py --prometheus URL --start … --end …`

Exit code: 0 met, 1 missed, 2 bad input, 3 insufficient data, 4 samples can't be read, 70 a fault of this software.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from migratory_resources.objectives import DEFAULT_OBJECTIVES, Objective, check_objectives
from migratory_resources.validation.loading import load_cluster_file
from migratory_resources.validation.problems import ClusterFileError

from migratory_spark.jobs import outputs
from migratory_spark.jobs.command_line import REPORT, VERDICTS, BadInput, Ending, Unreadable, options
from migratory_spark.jobs.inputs import Source, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from migratory_spark.document import Report

OpenSession = Callable[[], AbstractContextManager["SparkSession"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The options of a report, by their names there."""

    samples: Path | None
    prometheus: str | None
    settings: Sequence[tuple[str, str]]
    start: float
    end: float
    objectives: Path | None
    cluster: str | None
    window: float | None
    zone: str
    replica_labels: Sequence[str]
    json_file: Path | None
    html_file: Path | None
    history: Path | None


def run_report(question: Question, open_session: OpenSession) -> int:
    """Prints the tables and returns the exit code. Raises BadInput or Unreadable (exits.py)."""
    report = answer(question, load_objectives(question.objectives), open_session)
    _write(question, report)
    from migratory_spark.render.tables import show

    show(msgspec.to_builtins(report))
    for option, path in (("--json", question.json_file), ("--html", question.html_file)):
        if path is not None:
            click.echo(f"{option.removeprefix('--')}: {path}")
    return VERDICTS[report.verdict]


def answer(question: Question, objectives: Sequence[Objective], open_session: OpenSession) -> Report:
    """The report alone; nothing is written. Raises BadInput or Unreadable."""
    where = _checked(question, objectives)
    return _report(question, objectives, where, open_session)


def load_objectives(path: Path | None) -> Sequence[Objective]:
    """Those of a MigratoryCluster file, or the defaults. Raises BadInput."""
    try:
        chosen = load_cluster_file(path).cluster.spec.sla.objectives if path is not None else ()
        check_objectives(chosen or DEFAULT_OBJECTIVES)
    except (ClusterFileError, ValueError) as error:
        raise BadInput(f"--objectives: {error}") from None
    return tuple(chosen) or DEFAULT_OBJECTIVES


def _checked(question: Question, objectives: Sequence[Objective]) -> Source:
    """Everything that can be wrong with the question and can be found without Spark."""
    from migratory_spark import times
    from migratory_spark.judge.objective_windows import scope
    from migratory_spark.report.build import LOOKBACK_MS

    start_ms, end_ms = round(question.start * 1000), round(question.end * 1000)
    if end_ms <= start_ms:
        raise BadInput("--end must be after --start, by a millisecond at least")
    try:
        times.zone(question.zone)
        scopes = [scope(objective, start_ms, end_ms, [end_ms], question.zone) for objective in objectives]
    except ValueError as error:
        raise BadInput(str(error)) from None
    first_ms = min([start_ms, *(each.start for each in scopes)]) - LOOKBACK_MS
    files = {"--json": question.json_file, "--html": question.html_file}
    outputs.check_apart(files)
    for option, path in files.items():
        outputs.check(option, path)
    outputs.check_folder("--history", question.history)
    where = source(question.samples, question.prometheus, question.cluster, (first_ms, end_ms), question.settings)
    where.check()
    return where


def _report(question: Question, objectives: Sequence[Objective], where: Source, open_session: OpenSession) -> Report:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from migratory_spark.errors import NoSamples
    from migratory_spark.report.build import build_report

    try:
        with open_session() as session:
            return build_report(
                session, where.samples(session), question.start, question.end, objectives,
                window_seconds=question.window, zone=question.zone, replica_labels=question.replica_labels,
                cluster=question.cluster,
            )  # fmt: skip
    except (NoSamples, ValueError) as error:
        raise BadInput(str(error)) from None
    except (PySparkException, Py4JError) as error:
        raise Unreadable(f"Spark could not read or work: {_first_lines(str(error))}") from error


def _write(question: Question, report: Report) -> None:
    if question.json_file is not None:
        text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
        outputs.write("--json", question.json_file, text + "\n")
    if question.html_file is not None:
        from migratory_spark.render.page import render_page

        outputs.write("--html", question.html_file, render_page(report))
    add_to_history(question, report)


def add_to_history(question: Question, report: Report) -> None:
    """Where one is asked for. Raises BadInput when it can't be written: a full disk, say."""
    if question.history is None:
        return
    from migratory_spark.report.history import append

    try:
        append(report, question.history)
    except OSError as error:
        raise BadInput(f"--history: {question.history}: {error}") from None


def _first_lines(text: str) -> str:
    """Spark's texts go on with the JVM's stack, in which the last cause says what it was. Where a Python worker ended,
    it is the line after its traceback, which no blank precedes."""
    _, traced, after = text.partition("Traceback (most recent call last):")
    if traced and (found := re.search(r"^[A-Za-z_][\w.]*: (.+)$", after, re.MULTILINE)):
        return found[1].strip()[:600]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    told = [
        line for line in lines if not line.startswith(("at ", "JVM stacktrace", "File ", "Traceback", "Caused by: "))
    ]
    return " ".join([*told[:2], *causes[-1:]])[:600] or "no reason was given"


@click.command()
@options(*REPORT)
def main(**values: Any) -> None:
    """Report on the window from START to END and judge the objectives."""
    from migratory_spark.session import submitted_session

    with Ending():
        code = run_report(Question(**values), partial(submitted_session, "migratory-sla-report"))
    sys.exit(code)


if __name__ == "__main__":
    main()
