"""The command line of chaos runs, `python -m migratory_chaos run|check|kubernetes`. docs/contributing/chaos.md
describes it."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from migratory_node.kubectl import KubectlError
from migratory_node.paths import NodeError, NodePaths

from migratory_chaos.kubernetes.environment import OPERATOR_CHOICES, prepare_environment
from migratory_chaos.kubernetes.fault_kinds import KINDS
from migratory_chaos.kubernetes.report import provide_prometheus
from migratory_chaos.kubernetes.result import KubernetesRunResult
from migratory_chaos.kubernetes.runner import KubernetesRun
from migratory_chaos.processes import checker, history, network
from migratory_chaos.processes.fault_mixes import MIXES
from migratory_chaos.processes.runner import ProcessRun, ProcessRunOptions, ProcessRunResult


def draw_seed() -> int:
    return random.SystemRandom().randrange(1, 100_000)


FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
JSON = click.option("--json", "json_file", type=FILE, metavar="FILE", help="Write the whole result.")
SEED = click.option("--seed", type=int, default=draw_seed, show_default="random", help="Draws faults and victims.")


def parse_kinds(text: str) -> list[str]:
    """Return the kinds of faults in a list such as `kill,scale`, each once, or all kinds for an empty text. :raises
    click.UsageError: a kind does not exist."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in KINDS]:
        raise click.UsageError(f"no such fault: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return list(dict.fromkeys(names)) or list(KINDS)


def print_step(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {line}")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Inject real faults into a cluster under load and account for every delivery."""


@main.command()
@click.option("--minutes", default=2.0, help="Time of faults.")
@SEED
@click.option("--mix", type=click.Choice(MIXES), default="all", help="Kinds of faults.")
@click.option("--brokers", default=3, help="Number of brokers.")
@click.option("--copies", default=2, help="minCopies: one less may be away.")
@click.option("--subscribers", default=6, help="Each subscribes to half the topics.")
@click.option("--rate", default=1100.0, help="Publications a second.")
@click.option("--least-rate", default=0.0, help="Fail below as many acknowledged publications a second.")
@JSON
@click.option("--keep", type=FOLDER, metavar="DIR", help="Keep histories and logs in DIR.")
@click.option("--no-network", is_flag=True, help="Use no namespaces: leave out faults of networks and disks.")
def run(json_file: Path | None, keep: Path | None, no_network: bool, **values: Any) -> None:
    """Start a local cluster and its clients, inject faults, judge the histories."""
    options = ProcessRunOptions(**values)
    if not network.is_inside() and not no_network:
        reason = network.explain_missing()
        if not reason:
            # Of an option given twice the last one counts: here the seed, if it was drawn.
            words = [*sys.argv[1:], f"--seed={options.seed}"]
            network.enter_own_network([sys.executable, "-m", "migratory_chaos", *words])
        click.echo(f"Faults of networks and disks are left out: {reason}")
    folder = keep or Path(tempfile.mkdtemp(prefix="migratory-chaos-"))
    click.echo(f"Seed {options.seed}, mix {options.mix}, {options.minutes:g} minutes")
    result = asyncio.run(ProcessRun(options, folder, print_step).run())
    if json_file:
        json_file.write_text(json.dumps(result.as_data(), indent=1) + "\n")
    print_process_result(result)
    if result.passed and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        click.echo(f"Histories and logs: {folder}")
    sys.exit(not result.passed)


@main.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Judge the histories of a run again. FOLDER is `histories` of a run with --keep."""
    try:
        verdict, _ = checker.check(history.read(folder), from_start=True)
    except history.BadHistory as error:
        raise click.ClickException(str(error)) from error
    print_verdict(verdict.as_data(), verdict.problems())
    sys.exit(bool(verdict.problems()))


@main.group()
def kubernetes() -> None:
    """Inject faults into a cluster on a Kubernetes."""


@kubernetes.command("run")
@click.option("--faults", default="", metavar="KIND,...", show_default="all", help=f"Of {', '.join(KINDS)}.")
@click.option("--minutes", type=float, show_default="each kind once", help="Draw faults for as many minutes.")
@SEED
@JSON
@click.option(
    "--kubeconfig", type=FILE, envvar="MIGRATORY_KUBECONFIG", metavar="FILE", show_default="the tests' own Kubernetes"
)
@click.option("--namespace", default="", metavar="NAME", help="Made and deleted if it does not exist.")
@click.option("--cluster", default="", metavar="NAME", help="An existing one in it; else one is made.")
@click.option(
    "--operator",
    type=click.Choice(OPERATOR_CHOICES),
    default="auto",
    help="own: install one for the namespace; outside: one runs outside of the cluster; auto: use one, or own.",
)
@click.option(
    "--prometheus",
    default="auto",
    metavar="URL",
    help="For the SLA report, as pods reach it; own: start one; none; auto: own on the tests' Kubernetes.",
)
@click.option("--keep", is_flag=True, help="Do not delete what was made.")
def run_on_kubernetes(
    *,
    faults: str,
    minutes: float | None,
    seed: int,
    json_file: Path | None,
    kubeconfig: Path | None,
    prometheus: str,
    **place: Any,
) -> None:
    """Load a cluster from a pod, inject faults, account for every delivery."""
    kubeconfig = kubeconfig or NodePaths.default().kubeconfig
    kinds = parse_kinds(faults)
    if not kubeconfig.exists():
        raise click.UsageError(f"{kubeconfig} does not exist; start a cluster with `make cluster`")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was made is deleted
    print_step(f"Seed {seed}, {'each once' if minutes is None else f'for {minutes:g} minutes'}: {', '.join(kinds)}")
    try:
        with (
            prepare_environment(kubeconfig, **place) as environment,
            provide_prometheus(environment.kube, prometheus) as url,
        ):
            print_step(
                f"Cluster {environment.cluster} in {environment.kube.namespace} is ready; {environment.operator}"
            )
            result = asyncio.run(KubernetesRun(environment, kinds, seed, minutes, url, print_step).run())
    except (KubectlError, NodeError, AssertionError) as error:
        raise click.ClickException(f"the cluster did not become ready: {error}") from error
    if json_file:
        json_file.write_text(json.dumps(result.as_data(), indent=1) + "\n")
    print_kubernetes_result(result)
    sys.exit(result.verdict != "met")


def print_verdict(verdict: dict[str, Any], problems: list[str]) -> None:
    if verdict:
        keys = ("submitted", "acknowledged", "unknown", "delivered", "lost", "duplicate", "reordered", "unexpected")
        click.echo(", ".join(f"{verdict[key]:,} {key}" for key in keys))
        click.echo(
            f"{verdict['told']} missing and reported, {verdict['resets']} receipts `reset`; the slowest "
            f"acknowledgement took {verdict['slowest_ms'] / 1000:.1f} s"
        )
        for finding in verdict["findings"][:30]:
            click.echo("  {kind} {topic} {position} {client}: {text}".format_map(finding))
    for problem in problems:
        click.echo(f"PROBLEM {problem}")


def print_process_result(result: ProcessRunResult) -> None:
    click.echo(f"{len(result.faults)} faults in {result.seconds:,.0f} s, {result.rate:,.0f} acknowledged a second")
    for kind, count in sorted(Counter(fault.kind for fault in result.faults).items()):
        click.echo(f"  {count:4}  {kind}")
    print_verdict(result.verdict, result.problems)
    click.echo("PASSED" if result.passed else f"FAILED; again with: make chaos SEED={result.options.seed} MINUTES=...")


def print_kubernetes_result(result: KubernetesRunResult) -> None:
    def text(value: float | None) -> str:
        return "never" if value is None else f"{value:.1f} s"

    click.echo("fault               recovery  clients  publish gap  reconnects a client")
    for fault in result.faults:
        entry = result.fault_entry(fault)
        click.echo(
            f"  {fault.kind:16} {text(entry['recovery_seconds']):>9} {text(entry['clients_seconds']):>8} "
            f"{text(entry['publish_gap_seconds']):>12} {entry['reconnects_per_client']:>9.2f}"
        )
    for line in (*result.broken_promises, *result.missing_evidence):
        click.echo(f"PROBLEM {line}")
    click.echo(f"{result.verdict.upper()}; seed {result.seed}")


if __name__ == "__main__":
    main(prog_name="migratory_chaos")
