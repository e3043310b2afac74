"""`migratory sla`: reports by Spark on this machine, comparisons, rules for Prometheus, and reports from Kubernetes.

The jobs are `migratory_spark.jobs`, with the same options for `spark-submit`; here they get a session on this machine.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from migratory_spark.jobs.exits import BadInput, Ending, Unreadable
from migratory_spark.jobs.options import REPORT, objectives_option, options, result_file
from migratory_spark.jobs.recorder_compact import COMPACT
from migratory_spark.jobs.sla_compare import COMPARE

from migratory_cli.finite import Finite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.group()
def sla() -> None:
    """Judge what was measured against service level objectives."""


@sla.command()
@options(*REPORT)
def report(**values: Any) -> None:
    """Report on the window from START to END.

    Ends with 0 when every objective is met, 1 when one is missed, 2 when the question is wrong, 3 when the data do not
    suffice, 4 when samples can't be read.

    \b
    Examples:
      migratory sla report --samples out/samples --start -5m
      migratory sla report --prometheus http://127.0.0.1:9090 --start ... --end ... --html report.html
    """
    with Ending():
        from migratory_spark.jobs.run import Question, run_report

        code = run_report(Question(**values), _session)
    sys.exit(code)


@sla.command("compare")
@options(*COMPARE)
def compare_reports(**values: Any) -> None:
    """Say what became better and what worse from report FIRST to SECOND, both of `sla report --json`.

    Ends with 0, with 1 when an objective that was met is missed, or deliveries are lost, doubled or out of order more
    often, or with 3 when nothing is worse and an objective has insufficient data.

    \b
    Example:
      migratory sla compare before.json after.json --html comparison.html
    """
    with Ending():
        from migratory_spark.jobs.sla_compare import run_compare

        code = run_compare(**values)
    sys.exit(code)


@sla.command()
@options(*COMPACT)
def compact(**values: Any) -> None:
    """Write recorded samples anew in few files, one for each day."""
    with Ending():
        from migratory_spark.jobs.recorder_compact import run_compact

        code = run_compact(**values, open_session=_session)
    sys.exit(code)


@sla.command()
@objectives_option("A MigratoryCluster file; rules for its spec.sla.objectives.")
@click.option("--prometheus-rule", "resource", metavar="NAME", help="As a PrometheusRule of this name, for Kubernetes.")
def rules(objectives: Path | None, resource: str | None) -> None:
    """Print Prometheus rules: recording rules and alerts with several windows for each objective, and about brokers.

    \b
    Examples:
      migratory sla rules --objectives cluster.yaml > rules.yaml
      migratory sla rules --prometheus-rule quotes | kubectl apply -f -
    """
    with Ending():
        from migratory_spark.alerting.rules import rule_file, rule_resource
        from migratory_spark.jobs.run import load_objectives

        asked = load_objectives(objectives)
        try:
            text = rule_resource(asked, resource) if resource else rule_file(asked)
        except ValueError as error:
            raise BadInput(f"--objectives: {error}") from None
        click.echo(text, nl=False)


@sla.command()
@click.argument("name", metavar="REPORT")
@click.option("-n", "--namespace", default="default", show_default=True, help="Where the SLAReport is.")
@click.option("--wait", type=Finite(min=0), default=0.0, metavar="SECONDS", help="For a report to come.")
@result_file("--json", "Write the report here.")
@result_file("--html", "Write its page here.")
def fetch(name: str, namespace: str, wait: float, json_file: Path | None, html_file: Path | None) -> None:
    """Get what came of an SLAReport in Kubernetes; KUBECONFIG names the cluster.

    Ends like `sla report`: with 0, 1 or 3 by the verdict, 2 when there is no such report or it is not finished, 4 when
    it failed or the cluster can't be asked.

    \b
    Example:
      migratory sla fetch quotes-202611271030 -n market --html report.html
    """
    with Ending():
        from migratory_cli.sla_fetch import run_fetch

        code = run_fetch(name, namespace, wait, {"report.json": json_file, "report.html": html_file})
    sys.exit(code)


@contextmanager
def _session() -> Iterator[SparkSession]:
    """On all cores of this machine, with whatever Java there is. Raises Unreadable where there is none."""
    from migratory_local.errors import LocalError
    from migratory_local.java import find_java, spark_home
    from migratory_spark.session import local_session

    with tempfile.TemporaryDirectory(prefix="migratory-sla-") as folder:
        scratch = Path(folder)
        try:
            java_home = spark_home(find_java(), scratch)
        except LocalError as error:
            raise Unreadable(str(error)) from None
        with local_session(java_home, scratch) as session:
            yield session
