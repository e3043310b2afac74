"""`migratory up` and `migratory demo`: run a cluster on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

import click
from migratory_local import LocalError
from migratory_local.cluster.state import state_folder
from migratory_resources import ClusterFileError, LoadedCluster, load_cluster, load_cluster_file

from migratory_cli.options import FiniteFloat
from migratory_cli.output import StdoutWriter, open_console, report_write_errors
from migratory_cli.runtime import SIGNAL_EXIT_BASE, run_until_signal
from migratory_cli.startup import INTERRUPTED_EXIT_CODE, INTERRUPTED_MESSAGE
from migratory_cli.terminal import echo

USER_ERROR = 2
"""The exit code for failures that the user can fix: a wrong file, a port in use, no Java, a full disk."""

SIGNAL_EXIT_CODES = tuple(SIGNAL_EXIT_BASE + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

FLUSH_TIMEOUT = 1.0
"""Seconds for standard output to accept the last lines; its reader may be gone."""

WORKDIR = click.Path(file_okay=False, path_type=Path)


class LocalCommandError(click.ClickException):
    """Raised for a failure of `up` or `demo` that the user can fix; the command exits with 2."""

    exit_code = USER_ERROR


def _load(path: Path | None) -> LoadedCluster:
    """Load and validate the cluster file at `path`, or the demo's own for None. Raise LocalCommandError if it cannot be
    read or is invalid."""
    try:
        if path is not None:
            return load_cluster_file(path)
        return load_cluster(resources.files("migratory_local.demo").joinpath("demo.yaml").read_bytes(), "demo.yaml")
    except ClusterFileError as error:
        raise LocalCommandError(str(error)) from None


def _warn(loaded: LoadedCluster) -> None:
    """Print the warnings about the cluster file on standard error."""
    for warning in loaded.warnings:
        echo(f"warning: {warning}", err=True)


def _end(code: int) -> NoReturn:
    """End the command with this exit code; after a Ctrl-C say "Interrupted"."""
    if code == INTERRUPTED_EXIT_CODE:
        click.echo(INTERRUPTED_MESSAGE, nl=False, err=True)
    sys.exit(code)


@click.command()
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="The MigratoryCluster resource, the same as for Kubernetes.",
)
@click.option(
    "--workdir",
    type=WORKDIR,
    help="Folder for logs, metrics and ZooKeeper's data. Default: ~/.local/state/migratory/NAME.",
)
@click.option(
    "--ports",
    type=click.IntRange(1024, 65_000),
    metavar="BASE",
    help="Ports for clients from BASE, administration from BASE+100, peers from BASE+200, ZooKeeper from BASE+300. "
    "Default: clients from 8800 if these are free, otherwise any free ports.",
)
@click.option(
    "--metrics",
    type=click.Choice(["auto", "prometheus", "recorder", "none"]),
    default="auto",
    show_default=True,
    help="Where to record metrics; auto: Prometheus if it is on PATH, else Parquet files (recorder).",
)
@click.option(
    "--scrape",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also record the metrics of these targets: JSON as `migratory bench run --metrics-targets FILE` writes it. "
    "The file may appear and change later.",
)
@click.option(
    "--dev-tls",
    is_flag=True,
    help="Make an authority and certificates for development in the work folder: TLS for clients, brokers, ZooKeeper.",
)
def up(path: Path, workdir: Path | None, ports: int | None, metrics: Any, scrape: Path | None, dev_tls: bool) -> None:
    """Run the cluster of a file on this machine, until Ctrl-C.

    Starts a ZooKeeper ensemble and the brokers, prints the URLs for clients, and restarts processes that end.
    Everything that was started ends with this command, however it ends. Fields that only matter on Kubernetes cause
    warnings.

    \b
    Examples:
      migratory up -f manifests/examples/cluster.yaml
      migratory up -f cluster.yaml --ports 9000 --workdir /tmp/quotes
      migratory up -f cluster.yaml --scrape targets.json
    """
    from migratory_local.cluster.up import run_up

    loaded = _load(path)
    _warn(loaded)
    out = StdoutWriter()  # a terminal that is closed or paused (Ctrl-S) must not block or end the cluster
    try:
        states = state_folder()  # needed with --workdir as well: other commands find the cluster there
        folder = workdir or states / loaded.cluster.name
        work = run_up(
            loaded.cluster,
            folder,
            ports=ports,
            metrics=metrics,
            scrape=scrape,
            source=path,
            dev_tls=dev_tls,
            say=out.put_line,
        )
        code = run_until_signal(work)
    except LocalError as error:
        raise LocalCommandError(str(error)) from None
    finally:
        out.flush(FLUSH_TIMEOUT)
    _end(code)


@click.command()
@click.option(
    "--kill",
    type=click.Choice(["broker", "coordinator", "zookeeper-leader", "none"]),
    default="broker",
    show_default=True,
    help="The process to kill: any broker, the broker that coordinates most topics, or ZooKeeper's leader.",
)
@click.option("--subscribers", type=click.IntRange(1, 1_000_000), default=2000, show_default=True)
@click.option("--topics", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option(
    "--duration",
    type=FiniteFloat(5, 3600),
    default=60.0,
    show_default=True,
    help="Seconds to measure; at least 20 with a kill. Under a minute the report may have too little data.",
)
@click.option(
    "--warmup", type=FiniteFloat(0, 600), default=5.0, show_default=True, help="Seconds before the measurement."
)
@click.option(
    "--payload", type=click.IntRange(32, 1_048_576), default=140, show_default=True, help="Bytes per publication."
)
@click.option(
    "--rate", type=FiniteFloat(0.01, 1000), default=1.0, show_default=True, help="Publications per topic and second."
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Determines subscriptions, and the broker to kill."
)
@click.option(
    "--resume-limit",
    type=FiniteFloat(0.1, 600),
    default=5.0,
    show_default=True,
    help="Seconds within which every client of the killed broker must resume.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to this file."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file, as a page with plots.",
)
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), help="A cluster to use instead of the demo's own."
)
@click.option(
    "--workdir",
    type=WORKDIR,
    help="Keep logs, metrics and the report in this folder. Default: a folder that is removed on success.",
)
@click.option("--ports", type=click.IntRange(1024, 65_000), metavar="BASE", help="As in `migratory up`.")
def demo(json_file: Path | None, path: Path | None, workdir: Path | None, **options: Any) -> None:
    """Run three brokers and thousands of subscribers, kill a broker, and verify that nothing was lost.

    Exit code 0 if every acknowledged publication reached every subscriber exactly once and in order, every client of a
    killed broker resumed in time, and no objective was missed; 1 otherwise, with topics and positions; 2 if the demo
    could not be run.

    \b
    Examples:
      migratory demo
      migratory demo --kill coordinator --subscribers 5000 --seed 7 --json result.json
    """
    from migratory_local.demo.display import DemoDisplay, show_result
    from migratory_local.demo.options import DemoOptions
    from migratory_local.demo.result import DemoResult
    from migratory_local.demo.run import DemoObserver, run_demo

    loaded = _load(path)
    _warn(loaded)
    for option, file in (("--json", json_file), ("--html", options["html"])):
        if file is not None and not os.access(file.absolute().parent, os.W_OK):
            raise LocalCommandError(f"{option}: cannot write into {file.absolute().parent}")
    console = open_console()

    folder = workdir or Path(tempfile.mkdtemp(prefix="migratory-demo-"))
    finished: list[DemoResult] = []

    async def work() -> int:
        with DemoDisplay(console, loaded.cluster.broker_names) as display:
            observer = DemoObserver(step=display.step, load=display.load)
            finished.append(await run_demo(loaded.cluster, folder, DemoOptions(**options), observer))
        return 0 if finished[0].success else 1

    code = USER_ERROR
    try:
        code = run_until_signal(work())
        for result in finished:
            show_result(result, console)
            if json_file is not None:
                with report_write_errors("--json", json_file):
                    json_file.write_text(json.dumps(result.to_json(), indent=2) + "\n")
                console.print(f"Result written to {json_file}")
            if options["html"] is not None:
                console.print(f"The report as a page: {options['html']}", highlight=False, soft_wrap=True)
    except (LocalError, OSError) as error:
        raise LocalCommandError(str(error)) from None
    finally:
        started = (folder / "logs").exists()
        if workdir is None and (code in (0, *SIGNAL_EXIT_CODES) or not started):
            shutil.rmtree(folder, ignore_errors=True)
        elif code != 0 and started:
            console.print(f"Logs and metrics are kept in {folder}", highlight=False)
    _end(code)
