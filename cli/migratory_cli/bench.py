"""`migratory bench`: the paper's Benchpub and Benchsub, together or apart, and the verifier alone."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from migratory_loadtest import Load, LoadResult, Scenario
from migratory_loadtest.account import TopicAccount, read, write
from migratory_loadtest.api import LoadFailed
from migratory_loadtest.verifier import verify
from rich.console import Console

from migratory_cli.bench_view import Progress, summary
from migratory_cli.options import TOKEN_HELP, find_servers, server_option
from migratory_cli.results import check_result_file, writing
from migratory_cli.tables import open_console

Command = Callable[..., None]

SHARED = (
    server_option,
    click.option("--topics", default=100, help="Number of topics."),
    click.option("--rate", default=1.0, help="Publications per topic and second."),
    click.option("--duration", default=30.0, metavar="SECONDS", help="Measured time."),
    click.option("--warmup", default=5.0, metavar="SECONDS", help="Before it; not counted for latency."),
    click.option("--seed", default=1, help="Decides who subscribes to what, and the contents."),
    click.option("--workers", default=0, help="Processes; 0: as many as the subscribers need."),
    click.option("--sources", default=0, metavar="N", help="Connect from 127.0.0.2 and on, N addresses: more "
                 "connections to a broker of this machine than one address has ports for."),
    click.option("--wire", default="msgpack", type=click.Choice(["msgpack", "json"]), help="Subprotocol."),
    click.option("--token", default=None, help=TOKEN_HELP),
    click.option("--cluster", metavar="NAME", help="Which of the clusters that run on this machine; with --server only "
                 "the label `cluster` of exported metrics."),
    click.option("--threshold", "thresholds", multiple=True, type=float, metavar="SECONDS",
                 help="An objective's latency: an exact bound of the histogram. May be given several times."),
    click.option("--metrics-targets", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Serve /metrics, and write where into FILE, as Prometheus's file_sd reads it."),
    click.option("--metrics-listen", default="", metavar="HOST:PORT",
                 help="Serve /metrics here, each further worker on the next port; for pods, and where a scraper runs "
                 "elsewhere. Else on free ports of 127.0.0.1, with --metrics-targets alone."),
    click.option("--scrape-interval", default=1.0, metavar="SECONDS", help="/metrics stays up for two after the end."),
    click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Write the result here."),
)  # fmt: skip

SUBSCRIBING = (
    click.option("--subscribers", default=1000, help="Number of subscribers, each with one topic."),
    click.option("--connects", "connects_per_second", default=1000.0, metavar="PER_SECOND", help="Pace of connecting."),
    click.option("--account", "account_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Keep what the verifier reads, for `migratory bench verify`."),
)  # fmt: skip

PUBLISHING = (
    click.option("--publishers", default=10, help="Connections that publish; topics are divided among them."),
    click.option("--payload", default=140, metavar="BYTES", help="Size of each publication."),
    click.option("--qos", default="1", type=click.Choice(["0", "1"]), help="1: acknowledged, and owed to everybody."),
    click.option("--patience", default=20.0, metavar="SECONDS", help="For answers and deliveries after the end."),
)


def options(*groups: tuple[Any, ...]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for group in reversed(groups):
            for option in reversed(group):
                command = option(command)
        return command

    return add


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Put load on a cluster, measure it, and account for every single delivery.

    \b
    migratory bench run --subscribers 2000        against the cluster that `migratory up` runs
    migratory bench run -s ws://a:8800/ws,ws://b:8800/ws --subscribers 2000
    """


@bench.command()
@options(SHARED, SUBSCRIBING, PUBLISHING)
def run(**values: Any) -> None:
    """Publishers and subscribers together, every delivery verified. Exit status 0 only when nothing was lost, doubled,
    out of order, refused or left without an answer, and all was sent in time; 1 otherwise, with topic and positions."""
    _run(values)


@bench.command()
@options(SHARED, PUBLISHING)
def pub(**values: Any) -> None:
    """Publishers alone (Benchpub). Exit status 0 when every publication was acknowledged."""
    _run({**values, "subscribers": 0, "alone": True})


@bench.command()
@options(SHARED, SUBSCRIBING)
def sub(**values: Any) -> None:
    """Subscribers alone (Benchsub), for `bench pub` with the same number of topics on the same machine. Order,
    duplicates and latency are checked; what was lost, only `bench run` can tell."""
    _run({**values, "publishers": 0, "patience": 1.0, "alone": True})


@bench.command("verify")
@click.argument("account", type=click.Path(exists=True, path_type=Path, dir_okay=False))
def verify_account(account: Path) -> None:
    """Verify the ACCOUNT that `bench run --account`, or `bench sub --account`, kept. Exit status 1 when anything is
    wrong with it, or nothing was delivered."""
    try:
        # Of subscribers alone: what is owed to them only the other half knows.
        alone = not any(topic.acknowledged or topic.unanswered or topic.failed for topic in read(account))
        verdict = verify(read(account), elsewhere=alone)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    names = ("acknowledged", "unanswered", "failed", "expected", "delivered", "received", "lost", "duplicates")
    for name in (*names, "reordered", "unexpected", "conflicts", "unknown"):
        click.echo(f"{name:>14} {getattr(verdict, name):,}")
    for problem in verdict.problems:
        who = "" if problem.subscriber is None else f" at subscriber {problem.subscriber}"
        click.echo(f"{problem.kind}: {problem.topic}{who}: {', '.join(problem.positions)} ({problem.count})")
    reasons = verdict.wrong or ([] if verdict.received else ["nothing was delivered"])
    for reason in reasons:
        click.echo(f"- {reason}")
    sys.exit(1 if reasons else 0)


def _run(values: dict[str, Any]) -> None:
    json_path: Path | None = values.pop("json_path")
    account_path: Path | None = values.pop("account_path", None)
    targets: Path | None = values.pop("metrics_targets")
    cluster: str | None = values["cluster"]
    servers, found = find_servers(values["servers"], None if values["servers"] else cluster)
    values |= {"servers": tuple(servers), "cluster": cluster or found}
    values["qos"] = int(values.get("qos", 1))
    try:
        scenario = Scenario(metrics=bool(targets is not None or values["metrics_listen"]), **values)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for option, path in (("--json", json_path), ("--account", account_path), ("--metrics-targets", targets)):
        check_result_file(option, path)
    console = open_console()
    try:
        result, accounts = asyncio.run(_load(scenario, console, targets))
    except LoadFailed as error:
        raise click.ClickException(str(error)) from error
    summary(console, result)
    if account_path is not None:
        with writing("--account", account_path):
            write(account_path, accounts)
    if json_path is not None:
        with writing("--json", json_path):
            json_path.write_bytes(result.to_json())
    sys.exit(0 if result.verdict == "met" else 1)


async def _load(scenario: Scenario, console: Console, targets: Path | None) -> tuple[LoadResult, list[TopicAccount]]:
    with Progress(console) as progress:
        async with Load(scenario, progress.show) as load:
            if targets is not None:
                labels = {"job": "migratory-bench"}
                with writing("--metrics-targets", targets):
                    targets.write_text(json.dumps([{"targets": load.targets, "labels": labels}]))  # noqa: ASYNC240
            return await load.result(), load.accounts
