"""`migratory sla`: SLA reports with Spark on this machine, comparisons, Prometheus rules, and reports from Kubernetes.

The jobs are those of `migratory_spark.jobs`, which have the same options for `spark-submit`. Here they get a Spark
session on this machine.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from migratory_spark.jobs import outputs
from migratory_spark.jobs.command_line import (
    REPORT,
    VERDICTS,
    BadInput,
    ExitOnError,
    SamplesUnreadable,
    objectives_option,
    options,
    result_file,
)
from migratory_spark.jobs.recorder_compact import COMPACT
from migratory_spark.jobs.sla_budget import BUDGET
from migratory_spark.jobs.sla_compare import COMPARE

from migratory_cli.options import INSTALL_HINT, FiniteFloat
from migratory_cli.terminal import echo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FETCH_INTERVAL = 2.0
"""Seconds between two requests for a report that is not finished."""


@click.group()
def sla() -> None:
    """Judge recorded metrics against service level objectives."""


@sla.command()
@options(*REPORT)
def report(**values: Any) -> None:
    """Report on the window from START to END.

    Exit codes: 0 every objective is met, 1 an objective is missed, 2 wrong usage, 3 insufficient data, 4 samples cannot
    be read.

    \b
    Examples:
      migratory sla report --samples out/samples --start -5m
      migratory sla report --prometheus http://127.0.0.1:9090 --start ... --end ... --html report.html
    """
    with ExitOnError():
        from migratory_spark.jobs.sla_report import ReportOptions, run_report

        code = run_report(ReportOptions(**values), _session)
    sys.exit(code)


@sla.command("compare")
@options(*COMPARE)
def compare_reports(**values: Any) -> None:
    """Show what is better and what is worse in report SECOND than in FIRST, both written by `sla report --json`.

    Exit codes: 0 nothing is worse; 1 an objective is missed that was met, or more deliveries are lost, duplicated or
    out of order; 2 a file is not a report or cannot be written; 3 nothing is worse and an objective has insufficient
    data.

    \b
    Example:
      migratory sla compare before.json after.json --html comparison.html
    """
    with ExitOnError():
        from migratory_spark.jobs.sla_compare import run_compare

        code = run_compare(**values)
    sys.exit(code)


@sla.command()
@options(*BUDGET)
def budget(**values: Any) -> None:
    """Show error budgets over a rolling window, from reports that `sla report --history` kept.

    Exit codes: 0 all are met, 1 one is missed, 2 wrong usage or no history, 3 insufficient data.

    \b
    Example:
      migratory sla budget --history history --rolling 28d
    """
    with ExitOnError():
        from migratory_spark.jobs.sla_budget import run_budget

        code = run_budget(**values)
    sys.exit(code)


@sla.command()
@options(*COMPACT)
def compact(**values: Any) -> None:
    """Rewrite recorded samples into fewer files, one per day."""
    with ExitOnError():
        from migratory_spark.jobs.recorder_compact import run_compact

        code = run_compact(**values, open_session=_session)
    sys.exit(code)


@sla.command()
@objectives_option("A MigratoryCluster file with the objectives (spec.sla.objectives).")
@click.option(
    "--prometheus-rule", "resource", metavar="NAME", help="Print a PrometheusRule of this name, for Kubernetes."
)
def rules(objectives: Path | None, resource: str | None) -> None:
    """Print Prometheus rules: recording rules and alerts for each objective, and alerts about brokers and the operator.

    \b
    Examples:
      migratory sla rules --objectives cluster.yaml > rules.yaml
      migratory sla rules --prometheus-rule quotes | kubectl apply -f -
    """
    with ExitOnError():
        from migratory_spark.alerting.rules import rule_file, rule_resource
        from migratory_spark.jobs.sla_report import load_objectives

        loaded = load_objectives(objectives)
        try:
            text = rule_resource(loaded, resource) if resource else rule_file(loaded)
        except ValueError as error:
            raise BadInput(f"--objectives: {error}") from None
        echo(text.removesuffix("\n"))


@sla.command()
@click.argument("name", metavar="REPORT")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the SLAReport.")
@click.option("--wait", type=FiniteFloat(min=0), default=0.0, metavar="SECONDS", help="Wait for the report to finish.")
@result_file("--json", "Write the report to this file.")
@result_file("--html", "Write its page to this file.")
def fetch(name: str, namespace: str, wait: float, json_file: Path | None, html_file: Path | None) -> None:
    """Download a finished SLAReport from Kubernetes; KUBECONFIG selects the cluster.

    Exit codes: 0, 1 or 3 by the verdict, as for `sla report`; 2 there is no such report or it is not finished; 4 the
    report failed or the cluster does not answer.

    \b
    Example:
      migratory sla fetch quotes-202611271030 -n market --html report.html
    """
    with ExitOnError():
        code = _run_fetch(name, namespace, wait, {"report.json": json_file, "report.html": html_file})
    sys.exit(code)


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Return a context with a Spark session on all cores of this machine.

    :raises SamplesUnreadable: no usable Java is found.
    """
    from migratory_local import LocalError
    from migratory_local.processes.java import find_java, spark_home
    from migratory_spark.session import local_session

    with tempfile.TemporaryDirectory(prefix="migratory-sla-") as folder:
        scratch = Path(folder)
        try:
            java_home = spark_home(find_java(), scratch)
        except LocalError as error:
            raise SamplesUnreadable(str(error)) from None
        with local_session(java_home, scratch) as session:
            yield session


def _run_fetch(name: str, namespace: str, wait: float, files: Mapping[str, Path | None]) -> int:
    """Download a report, write the requested files, and return the exit code of its verdict.

    :param wait: seconds to wait for the report to finish.
    :param files: the paths for "report.json" and "report.html"; None for a file that is not wanted.
    :raises BadInput: there is no such report, it is not finished, a file is missing or cannot be written, or this
        machine lacks the operator's libraries or a Kubernetes configuration.
    :raises SamplesUnreadable: the report failed, or the cluster does not answer.
    """
    paths = {f"--{file.rpartition('.')[2]}": path for file, path in files.items()}
    outputs.check_distinct(paths)
    for option, path in paths.items():
        outputs.check_file(option, path)
    return asyncio.run(_fetch(name, namespace, wait, files))


async def _fetch(name: str, namespace: str, wait: float, files: Mapping[str, Path | None]) -> int:
    """Do what `_run_fetch` does, after its check of the files' paths."""
    try:
        from migratory_operator.api.kubernetes import ApiError, KubernetesApi, NoKubernetes, load_configuration
        from migratory_operator.reports.fetch import ReportUnavailable, fetch
    except ImportError as error:
        raise BadInput(f"sla fetch needs the operator's libraries ({error}): {INSTALL_HINT}") from None
    deadline = time.monotonic() + wait
    try:
        api = KubernetesApi((), await load_configuration())
    except NoKubernetes as error:
        raise BadInput(str(error)) from None
    try:
        while (report := await fetch(api, namespace, name)) is None:
            if time.monotonic() >= deadline:
                raise BadInput(f"SLAReport {name} is not finished; use --wait SECONDS to wait for it")
            await asyncio.sleep(_FETCH_INTERVAL)
    except ReportUnavailable as error:
        raise BadInput(str(error)) from None
    except ApiError as error:
        raise SamplesUnreadable(f"the cluster does not answer: {error}") from None
    finally:
        await api.close()
    if report.verdict is None:
        raise SamplesUnreadable(f"the report failed: {report.message}")
    echo(f"{report.verdict}: {report.message}")
    for file, path in files.items():
        if path is None:
            continue
        if file not in report.files:
            raise BadInput(f"{file} was too large to be stored; the report has {', '.join(report.files) or 'no files'}")
        outputs.write(f"--{file.rpartition('.')[2]}", path, report.files[file].decode())
        echo(f"{file.rpartition('.')[2]}: {path}")
    return VERDICTS[report.verdict]
