"""`migratory sla`: reports over recorded samples, by Spark on this machine, and rules for Prometheus."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migratory_cli.results import check_result_file, writing

if TYPE_CHECKING:
    from migratory_resources.objectives import Objective

EXIT_CODES = {"met": 0, "missed": 1, "insufficient": 3}


class Moment(click.ParamType[float]):
    """Seconds since 1970, or an RFC 3339 time; without a zone it is UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return float(value)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither seconds since 1970 nor a time such as 2026-11-27T10:00:00Z", param, ctx)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@click.group()
def sla() -> None:
    """Judge what was measured against service level objectives."""


@sla.command()
@click.option(
    "--samples",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder of the recorder's Parquet files.",
)
@click.option(
    "--start", type=Moment(), required=True, help="Start of the window: RFC 3339 (UTC) or seconds since 1970."
)
@click.option("--end", type=Moment(), required=True, help="End of the window.")
@click.option(
    "--objectives",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A MigratoryCluster file; its spec.sla.objectives are judged. Without it: the defaults.",
)
@click.option(
    "--window", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds per table row."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here, too."
)
def report(
    samples: Path, start: float, end: float, objectives: Path | None, window: float, json_file: Path | None
) -> None:
    """Report on the window from START to END.

    Ends with 0 when every objective is met, 1 when one is missed, 3 when the data do not suffice.

    \b
    Example:
      migratory sla report --samples out/samples --start 2026-11-27T10:00:00Z --end 2026-11-27T10:30:00Z
    """
    from migratory_local.errors import LocalError
    from migratory_local.java import find_java, spark_home
    from migratory_spark.report import sla_report
    from migratory_spark.samples import NoSamples
    from migratory_spark.session import local_session
    from migratory_spark.table import show

    if end <= start:
        raise click.UsageError("--end must be after --start")
    check_result_file("--json", json_file)
    chosen = _objectives(objectives)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="migratory-sla-") as scratch,
            local_session(spark_home(find_java(), Path(scratch)), Path(scratch)) as session,
        ):
            found = sla_report(session, samples, start, end, chosen, window_seconds=window)
    except (NoSamples, LocalError) as error:
        raise click.UsageError(str(error)) from None
    show(found)
    if json_file is not None:
        with writing("--json", json_file):
            json_file.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    sys.exit(EXIT_CODES[found["verdict"]])


@sla.command()
@click.option(
    "--objectives",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A MigratoryCluster file; rules for its spec.sla.objectives. Without it: for the defaults.",
)
def rules(objectives: Path | None) -> None:
    """Print Prometheus rules: recording rules and alerts with several windows for each objective, and about brokers.

    \b
    Example:
      migratory sla rules --objectives cluster.yaml > rules.yaml
    """
    from migratory_spark.alerting.rules import rule_file

    try:
        click.echo(rule_file(_objectives(objectives)), nl=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _objectives(path: Path | None) -> Sequence[Objective]:
    """Those of the cluster file, or the defaults. Raises a usage error that names what is wrong with the file."""
    from migratory_resources.objectives import DEFAULT_OBJECTIVES
    from migratory_resources.problems import ClusterFileError
    from migratory_resources.validation import load_cluster_file

    if path is None:
        return DEFAULT_OBJECTIVES
    try:
        return load_cluster_file(path).cluster.spec.sla.objectives or DEFAULT_OBJECTIVES
    except ClusterFileError as error:
        raise click.UsageError(str(error)) from None
