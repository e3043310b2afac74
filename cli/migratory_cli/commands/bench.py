"""`migratory bench`: put load on a cluster (Benchpub and Benchsub of the paper), measure it, and verify every delivery,
also later from a record in a file."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from migratory_loadtest import Load, LoadResult, Scenario
from migratory_loadtest.api import LoadFailed
from migratory_loadtest.records import TopicRecord, read_records, write_records
from migratory_loadtest.verifier import verify
from rich.console import Console

from migratory_cli.commands.bench_view import ProgressDisplay, print_summary
from migratory_cli.options import find_servers, server_option, token_options
from migratory_cli.output import check_result_file, open_console, report_write_errors
from migratory_cli.terminal import echo

Command = Callable[..., None]

SHARED_OPTIONS = (
    server_option,
    click.option("--topics", default=100, help="Number of topics."),
    click.option("--rate", default=1.0, help="Publications per topic and second."),
    click.option("--duration", default=30.0, metavar="SECONDS", help="Time to measure."),
    click.option("--warmup", default=5.0, metavar="SECONDS", help="Time before that; its latencies do not count."),
    click.option("--seed", default=1, help="Determines subscriptions, send times and contents."),
    click.option("--workers", default=0, help="Number of processes; 0: one per 4,000 subscribers, at least 2."),
    click.option("--sources", default=0, metavar="N", help="Connect from N addresses, 127.0.0.2 and following: for "
                 "more connections to a broker of this machine than one address has ports."),
    click.option("--wire", default="msgpack", type=click.Choice(["msgpack", "json"]), help="Encoding of the protocol."),
    token_options,
    click.option("--cluster", metavar="NAME", help="The cluster to use, if several run on this machine. With --server: "
                 "only the label `cluster` of exported metrics."),
    click.option("--threshold", "thresholds", multiple=True, type=float, metavar="SECONDS",
                 help="Latency threshold of an objective: an exact bound of the histogram. Repeatable."),
    click.option("--metrics-targets", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Serve /metrics, and write the addresses into FILE in the format of Prometheus's file_sd."),
    click.option("--metrics-listen", default="", metavar="HOST:PORT",
                 help="Serve /metrics on this address, each further worker on the next port; for scrapers on other "
                 "machines. Default with --metrics-targets: free ports of 127.0.0.1."),
    click.option("--scrape-interval", default=1.0, metavar="SECONDS",
                 help="Interval of the scraper; /metrics stays up for two intervals after the end."),
    click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Write the result to FILE."),
)  # fmt: skip

SUBSCRIBER_OPTIONS = (
    click.option("--subscribers", default=1000, help="Number of subscribers, each with one topic."),
    click.option("--connects", "connects_per_second", default=1000.0, metavar="PER_SECOND",
                 help="New connections per second."),
    click.option("--account", "account_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Write the record of all publications and deliveries, for `migratory bench verify`."),
)  # fmt: skip

PUBLISHER_OPTIONS = (
    click.option("--publishers", default=10, help="Number of publishers; topics are divided among them."),
    click.option("--payload", default=140, metavar="BYTES", help="Size of each publication."),
    click.option(
        "--qos", default="1", type=click.Choice(["0", "1"]), help="1: acknowledged and delivered to every subscriber."
    ),
    click.option(
        "--patience",
        default=20.0,
        metavar="SECONDS",
        help="Time to wait for answers and deliveries after the last publication.",
    ),
)


def add_options(*groups: tuple[Any, ...]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options to a command, in this order in its help."""

    def add(command: Command) -> Command:
        for group in reversed(groups):
            for option in reversed(group):
                command = option(command)
        return command

    return add


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Put load on a cluster, measure it, and verify every single delivery.

    \b
    migratory bench run --subscribers 2000        against the cluster that `migratory up` runs
    migratory bench run -s ws://a:8800/ws,ws://b:8800/ws --subscribers 2000
    """


@bench.command()
@add_options(SHARED_OPTIONS, SUBSCRIBER_OPTIONS, PUBLISHER_OPTIONS)
def run(**values: Any) -> None:
    """Run publishers and subscribers together and verify every delivery.

    Exit code 0 if nothing was lost, duplicated, out of order, refused or unanswered, and everything was sent in time;
    otherwise 1, with topics and positions.
    """
    _run(values)


@bench.command()
@add_options(SHARED_OPTIONS, PUBLISHER_OPTIONS)
def pub(**values: Any) -> None:
    """Run publishers only (Benchpub). Exit code 0 if all publications were sent in time and, at QoS 1, answered."""
    _run({**values, "subscribers": 0, "alone": True})


@bench.command()
@add_options(SHARED_OPTIONS, SUBSCRIBER_OPTIONS)
def sub(**values: Any) -> None:
    """Run subscribers only (Benchsub), with `bench pub` and the same number of topics on the same machine.

    Order, duplicates and latency are checked. Only `bench run` can find lost deliveries.
    """
    _run({**values, "publishers": 0, "patience": 1.0, "alone": True})


@bench.command("verify")
@click.argument("account", type=click.Path(exists=True, path_type=Path, dir_okay=False))
def verify_account(account: Path) -> None:
    """Verify the file that `bench run --account` or `bench sub --account` wrote.

    Exit code 1 if a guarantee was violated, a publication was refused, or nothing was delivered.
    """
    try:
        # A file of `bench sub` has no publications: what must be delivered is not known.
        subscribers_only = not any(
            topic.acknowledged or topic.unanswered or topic.failed for topic in read_records(account)
        )
        verification = verify(read_records(account), published_elsewhere=subscribers_only)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    names = ("acknowledged", "unanswered", "failed", "expected", "delivered", "received", "lost", "duplicates")
    for name in (*names, "reordered", "unexpected", "conflicts", "unknown"):
        echo(f"{name:>14} {getattr(verification, name):,}")
    for problem in verification.problems:
        subscriber = "" if problem.subscriber is None else f" at subscriber {problem.subscriber}"
        echo(f"{problem.kind}: {problem.topic}{subscriber}: {', '.join(problem.positions)} ({problem.count})")
    reasons = verification.violations or ([] if verification.received else ["nothing was delivered"])
    for reason in reasons:
        echo(f"- {reason}")
    sys.exit(1 if reasons else 0)


def _run(values: dict[str, Any]) -> None:
    """Run a load with the values of the options, print and write its result, and exit with 0 if the verdict is `met`,
    else 1.

    :raises click.ClickException: the options are wrong, or the load or a file failed.
    """
    json_path: Path | None = values.pop("json_path")
    account_path: Path | None = values.pop("account_path", None)
    targets: Path | None = values.pop("metrics_targets")
    cluster: str | None = values["cluster"]
    servers, local_cluster = find_servers(values["servers"], None if values["servers"] else cluster)
    values |= {"servers": tuple(servers), "cluster": cluster or local_cluster}
    values["qos"] = int(values.get("qos", 1))
    try:
        scenario = Scenario(metrics=bool(targets is not None or values["metrics_listen"]), **values)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for option, path in (("--json", json_path), ("--account", account_path), ("--metrics-targets", targets)):
        check_result_file(option, path)
    console = open_console()
    try:
        result, records = asyncio.run(_load(scenario, console, targets))
    except LoadFailed as error:
        raise click.ClickException(str(error)) from error
    print_summary(console, result)
    if account_path is not None:
        with report_write_errors("--account", account_path):
            write_records(account_path, records)
    if json_path is not None:
        with report_write_errors("--json", json_path):
            json_path.write_bytes(result.to_json())
    sys.exit(0 if result.verdict == "met" else 1)


async def _load(scenario: Scenario, console: Console, targets: Path | None) -> tuple[LoadResult, list[TopicRecord]]:
    """Run the load with a display of its progress, and return its result and the record of all publications and
    deliveries.

    :param targets: the file for the addresses of the metrics; None for none.
    """
    with ProgressDisplay(console) as progress:
        async with Load(scenario, progress.show) as load:
            if targets is not None:
                labels = {"job": "migratory-bench"}
                with report_write_errors("--metrics-targets", targets):
                    targets.write_text(json.dumps([{"targets": load.targets, "labels": labels}]))  # noqa: ASYNC240
            return await load.result(), load.records
