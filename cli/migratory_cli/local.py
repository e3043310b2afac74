"""`migratory up` and `migratory demo`: a cluster on this machine."""

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
from migratory_local.errors import LocalError
from migratory_local.running import ENDED_BY_SIGNAL, run
from migratory_local.state import state_folder
from migratory_resources import ClusterFileError, LoadedCluster, load_cluster, load_cluster_file

from migratory_cli.finite import Finite
from migratory_cli.interrupts import INTERRUPTED, MESSAGE
from migratory_cli.output import Output
from migratory_cli.results import writing
from migratory_cli.tables import open_console

PROBLEM = 2
"""Exit code for what a person can put right: a wrong file, a busy port, no Java, a full disk."""

ENDED_BY_PERSON = tuple(ENDED_BY_SIGNAL + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

LAST_WORDS = 1.0
"""Seconds for standard output to take what was said last."""

WORKDIR = click.Path(file_okay=False, path_type=Path)


class Refused(click.ClickException):
    exit_code = PROBLEM


def _read(path: Path | None) -> LoadedCluster:
    try:
        if path is not None:
            return load_cluster_file(path)
        return load_cluster(resources.files("migratory_local").joinpath("demo.yaml").read_bytes(), "demo.yaml")
    except ClusterFileError as error:
        raise Refused(str(error)) from None


def _warn(loaded: LoadedCluster) -> None:
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)


def _end(code: int) -> NoReturn:
    if code == INTERRUPTED:
        click.echo(MESSAGE, nl=False, err=True)
    sys.exit(code)


@click.command()
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="The MigratoryCluster resource, as for Kubernetes.",
)
@click.option(
    "--workdir", type=WORKDIR, help="Logs, metrics, ZooKeeper's data. Default: ~/.local/state/migratory/NAME."
)
@click.option(
    "--ports",
    type=click.IntRange(1024, 65_000),
    metavar="BASE",
    help="Clients' ports from BASE on; administration from BASE+100, peers BASE+200, ZooKeeper BASE+300.  "
    "Default: clients from 8800 on when free, the rest anywhere.",
)
@click.option(
    "--metrics",
    type=click.Choice(["auto", "prometheus", "recorder", "none"]),
    default="auto",
    show_default=True,
    help="Who keeps the metrics; auto: Prometheus when it is on PATH, else Parquet files.",
)
@click.option(
    "--scrape",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the metrics of these targets, too: JSON as `migratory bench run --metrics-targets FILE` writes it. "
    "The file may appear and change later.",
)
def up(path: Path, workdir: Path | None, ports: int | None, metrics: Any, scrape: Path | None) -> None:
    """Run the cluster of a file on this machine, until Ctrl-C.

    Starts a ZooKeeper ensemble and the brokers, prints where clients connect, and starts again what dies. All that was
    started ends with this command, however it ends. Fields that only Kubernetes gives a meaning are named in warnings.

    \b
    Examples:
      migratory up -f manifests/examples/cluster.yaml
      migratory up -f cluster.yaml --ports 9000 --workdir /tmp/quotes
      migratory up -f cluster.yaml --scrape targets.json
    """
    from migratory_local.up import up as run_up

    loaded = _read(path)
    _warn(loaded)
    out = Output()  # a terminal that is gone, or holds (Ctrl-S), ends nothing and holds nothing up
    try:
        states = state_folder()  # asked for first, also with --workdir: the cluster is made known there
        folder = workdir or states / loaded.cluster.name
        work = run_up(loaded.cluster, folder, ports=ports, metrics=metrics, scrape=scrape, source=path, say=out.line)
        code = run(work)
    except LocalError as error:
        raise Refused(str(error)) from None
    finally:
        out.flush(LAST_WORDS)
    _end(code)


@click.command()
@click.option(
    "--kill",
    type=click.Choice(["broker", "coordinator", "zookeeper-leader", "none"]),
    default="broker",
    show_default=True,
    help="What is killed in mid-run: any broker, the one that coordinates most topics, ZooKeeper's leader.",
)
@click.option("--subscribers", type=click.IntRange(1, 1_000_000), default=2000, show_default=True)
@click.option("--topics", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option(
    "--duration",
    type=Finite(5, 3600),
    default=60.0,
    show_default=True,
    help="Seconds that are measured; with a kill at least 20. Under a minute, the report may have too little to judge.",
)
@click.option("--warmup", type=Finite(0, 600), default=5.0, show_default=True, help="Seconds before that.")
@click.option("--payload", type=click.IntRange(32, 1_048_576), default=140, show_default=True, help="Bytes.")
@click.option("--rate", type=Finite(0.01, 1000), default=1.0, show_default=True, help="Per topic and second.")
@click.option("--seed", type=int, default=1, show_default=True, help="Fixes who subscribes to what, and who is killed.")
@click.option(
    "--resume-limit",
    type=Finite(0.1, 600),
    default=5.0,
    show_default=True,
    help="Seconds in which every client of the killed broker must be served again.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here as a page with plots."
)
@click.option("-f", "--file", "path", type=click.Path(path_type=Path), help="Another cluster than the demo's own.")
@click.option(
    "--workdir",
    type=WORKDIR,
    help="Keep logs, metrics and the report here. Default: a folder that goes away on success.",
)
@click.option("--ports", type=click.IntRange(1024, 65_000), metavar="BASE", help="As for `migratory up`.")
def demo(json_file: Path | None, path: Path | None, workdir: Path | None, **options: Any) -> None:
    """Three brokers, thousands of subscribers, a kill in the middle, and the accounts.

    Ends with 0 only when every acknowledged publication reached every subscriber exactly once and in order, every
    client of a killed broker was served again in time, and no objective was missed; with 1 when not, naming topics and
    positions; with 2 when the demo could not be run.

    \b
    Examples:
      migratory demo
      migratory demo --kill coordinator --subscribers 5000 --seed 7 --json result.json
    """
    from migratory_local.demo import DemoResult, Watcher
    from migratory_local.demo import demo as run_demo
    from migratory_local.demo_options import DemoOptions
    from migratory_local.display import Display, show_result

    loaded = _read(path)
    _warn(loaded)
    for option, file in (("--json", json_file), ("--html", options["html"])):
        if file is not None and not os.access(file.absolute().parent, os.W_OK):
            raise Refused(f"{option}: cannot write into {file.absolute().parent}")
    console = open_console()

    folder = workdir or Path(tempfile.mkdtemp(prefix="migratory-demo-"))
    finished: list[DemoResult] = []

    async def work() -> int:
        with Display(console, loaded.cluster.broker_names) as display:
            watcher = Watcher(step=display.step, load=display.load)
            finished.append(await run_demo(loaded.cluster, folder, DemoOptions(**options), watcher))
        return 0 if finished[0].success else 1

    code = PROBLEM
    try:
        code = run(work())
        for result in finished:
            show_result(result, console)
            if json_file is not None:
                with writing("--json", json_file):
                    json_file.write_text(json.dumps(result.to_json(), indent=2) + "\n")
                console.print(f"Result written to {json_file}")
            if options["html"] is not None:
                console.print(f"The report as a page: {options['html']}", highlight=False, soft_wrap=True)
    except (LocalError, OSError) as error:
        raise Refused(str(error)) from None
    finally:
        started = (folder / "logs").exists()
        if workdir is None and (code in (0, *ENDED_BY_PERSON) or not started):
            shutil.rmtree(folder, ignore_errors=True)
        elif code != 0 and started:
            console.print(f"Logs and metrics are kept in {folder}", highlight=False)
    _end(code)
