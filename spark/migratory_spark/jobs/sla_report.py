"""`spark-submit … local:///…/migratory_spark/jobs/sla_report.py --prometheus URL --start … --end …` makes a report.

Options are checked, samples are read and judged, results are written. `migratory sla report` and the pod's driver run
the same code. Exit code: 0 met, 1 missed, 2 bad input, 3 insufficient data, 4 samples unreadable, 70 a fault of this
software, 130 interrupted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
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
from migratory_spark.jobs.command_line import REPORT, VERDICTS, BadInput, ExitOnError, options
from migratory_spark.jobs.inputs import SampleInput, sample_input
from migratory_spark.jobs.progress import task_progress
from migratory_spark.jobs.spark_errors import OpenSession, spark_session

if TYPE_CHECKING:
    from migratory_spark.document import SlaReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The options of a report, named as on the command line. `start` and `end` are seconds since 1970, `window` is the
    length of a table row in seconds, None to choose it. A file or folder is None if the option is not given."""

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
    by: Sequence[str] = ()
    csv_folder: Path | None = None


def run_report(report_options: ReportOptions, open_session: OpenSession) -> int:
    """Make a report, write the requested files, add it to the history, print tables, and return the exit code of the
    verdict. Raises BadInput or SamplesUnreadable."""
    report = make_report(report_options, load_objectives(report_options.objectives), open_session)
    _write(report_options, report)
    from migratory_spark.render.tables import show

    show(msgspec.to_builtins(report))
    for option, path in (("--json", report_options.json_file), ("--html", report_options.html_file)):
        if path is not None:
            click.echo(f"{option.removeprefix('--')}: {path}")
    if report_options.csv_folder is not None:
        click.echo(f"csv: {report_options.csv_folder}")
    return VERDICTS[report.verdict]


def make_report(report_options: ReportOptions, objectives: Sequence[Objective], open_session: OpenSession) -> SlaReport:
    """Check the options, read the samples and return the report. Write no result. The report is marked provisional if
    its window ends after the moment up to which all samples had arrived when reading began.

    Raises BadInput if an option, a file or the window is wrong or there are no samples, and SamplesUnreadable if
    samples cannot be read.

    :param objectives: the objectives to judge; the option of that name is not looked at.
    """
    samples = _check(report_options, objectives)
    # Before samples are read: what arrives while they are read may be missed.
    early = report_options.end - samples.settled()
    final_at = time.time() + early
    report = _build(report_options, objectives, samples, open_session)
    return report if early <= 0 else _mark_provisional(report, early, final_at)


def _mark_provisional(report: SlaReport, early: float, final_at: float) -> SlaReport:
    """Return the report marked as provisional, with a note.

    :param early: seconds by which the report was made too early.
    :param final_at: the time from which a report of this window is final, in seconds since 1970.
    """
    from migratory_spark.times import iso

    note = (
        f"provisional: samples of the last {early:.0f} s of the window may not have arrived when they were read; a "
        f"report that is made after {iso(round(final_at * 1000))} is final"
    )
    window = msgspec.structs.replace(report.window, provisional=True)
    return msgspec.structs.replace(report, window=window, notes=[note, *report.notes])


def load_objectives(path: Path | None) -> Sequence[Objective]:
    """Return the objectives of a MigratoryCluster file, or the defaults if `path` is None or the file has none. Raises
    BadInput if the file cannot be read or is invalid, or if its objectives contradict each other."""
    try:
        chosen = load_cluster_file(path).cluster.spec.sla.objectives if path is not None else ()
        check_objectives(chosen or DEFAULT_OBJECTIVES)
    except (ClusterFileError, ValueError) as error:
        raise BadInput(f"--objectives: {error}") from None
    return tuple(chosen) or DEFAULT_OBJECTIVES


def _check(report_options: ReportOptions, objectives: Sequence[Objective]) -> SampleInput:
    """Check all options, as far as possible without Spark, and return the input with the samples. Raises BadInput or
    SamplesUnreadable."""
    from migratory_spark.report.build import LOOKBACK_MS, plan_report

    if round(report_options.end * 1000) <= round(report_options.start * 1000):
        raise BadInput("--end must be after --start, by a millisecond at least")
    try:
        plan = plan_report(
            report_options.start, report_options.end, objectives, report_options.window, report_options.zone
        )
    except ValueError as error:
        raise BadInput(str(error)) from None
    files = {"--json": report_options.json_file, "--html": report_options.html_file}
    outputs.check_distinct(files)
    for option, path in files.items():
        outputs.check_file(option, path)
    outputs.check_folder("--history", report_options.history)
    outputs.check_folder("--csv", report_options.csv_folder)
    samples = sample_input(
        report_options.samples,
        report_options.prometheus,
        report_options.cluster,
        (plan.first_ms - LOOKBACK_MS, plan.end_ms),
        report_options.settings,
    )
    samples.check()
    return samples


def _build(
    report_options: ReportOptions, objectives: Sequence[Objective], samples: SampleInput, open_session: OpenSession
) -> SlaReport:
    """Open a session, read the samples and return the report. Raises BadInput if there are no samples, no series has a
    label of the breakdown, or the report would have too many totals or combinations of labels. Raises SamplesUnreadable
    if Spark or a server fails."""
    from migratory_spark.errors import NoSamples
    from migratory_spark.prometheus.errors import NoSamplesFound
    from migratory_spark.report.build import build_report

    try:
        with spark_session(open_session) as session, task_progress(session):
            return build_report(
                session, samples.samples(session), report_options.start, report_options.end, objectives,
                window_seconds=report_options.window, zone=report_options.zone,
                replica_labels=report_options.replica_labels, cluster=report_options.cluster,
                by=report_options.by,
            )  # fmt: skip
    except (NoSamples, NoSamplesFound, ValueError) as error:
        raise BadInput(str(error)) from error


def _write(report_options: ReportOptions, report: SlaReport) -> None:
    """Write the files that the options name, and add the report to the history. Raises BadInput if one cannot be
    written."""
    if report_options.json_file is not None:
        text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
        outputs.write("--json", report_options.json_file, text + "\n")
    if report_options.html_file is not None:
        from migratory_spark.render.page import render_page

        outputs.write("--html", report_options.html_file, render_page(report))
    if report_options.csv_folder is not None:
        from migratory_spark.report.csv_tables import csv_files

        outputs.make_folder("--csv", report_options.csv_folder)
        for name, text in csv_files(report).items():
            outputs.write("--csv", report_options.csv_folder / name, text)
    add_to_history(report_options, report)


def add_to_history(report_options: ReportOptions, report: SlaReport) -> None:
    """Add the report to the history folder, if the options name one. Raises BadInput if the folder cannot be
    written."""
    if report_options.history is None:
        return
    from migratory_spark.report.history import append

    try:
        append(report, report_options.history)
    except OSError as error:
        raise BadInput(f"--history: {report_options.history}: {error}") from None


@click.command()
@options(*REPORT)
def main(**values: Any) -> None:
    """Report on the window from START to END and judge the objectives.

    Exit code: 0 met, 1 missed, 2 bad input, 3 insufficient data, 4 samples unreadable, 70 a fault of this software, 130
    interrupted.
    """
    from migratory_spark.session import submitted_session

    with ExitOnError():
        code = run_report(ReportOptions(**values), partial(submitted_session, "migratory-sla-report"))
    sys.exit(code)


if __name__ == "__main__":
    main()
