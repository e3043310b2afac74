"""`python -m migratory_chaos kubernetes run|table`: a run on a Kubernetes, and rows of the documentation's table."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from migratory_node.kubectl import KubectlError, Object
from migratory_node.paths import NodeError, NodePaths
from migratory_node.pods import BROKER_IMAGE

from migratory_chaos.kubernetes.environment import image_tag, prepare_environment
from migratory_chaos.kubernetes.fault_kinds import KINDS, UnknownKind, parse_kinds
from migratory_chaos.kubernetes.report import provide_prometheus
from migratory_chaos.kubernetes.result import KubernetesRunResult, table_rows
from migratory_chaos.kubernetes.runner import KubernetesRun, KubernetesRunOptions
from migratory_chaos.kubernetes.target import Api, NoAnswer
from migratory_chaos.processes.command import print_step

SMALL_CLUSTER: Object = {
    "brokers": {"replicas": 3, "drain": {"period": "5s"}},
    "topics": {"groups": 20},
    "sla": {
        "window": "5m",
        "objectives": [
            {"name": "complete", "type": "delivery", "target": "100"},
            {"name": "back", "type": "resume", "threshold": "10s", "target": "90"},
        ],
    },
}
"""The spec of a cluster that is made, which fits a small node."""


def add_commands(commands: Any) -> None:
    run = commands.add_parser("run", help="load a cluster from a pod, inject faults, account for every delivery")
    run.add_argument("--faults", default="", metavar="KIND,...", help=f"default: all of {', '.join(KINDS)}")
    run.add_argument("--minutes", type=float, metavar="N", help="draw faults for N minutes (default: each kind once)")
    run.add_argument("--seed", type=int, metavar="N", help="draws the faults and their victims (default: random)")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the whole result")
    kubeconfig = os.environ.get("MIGRATORY_KUBECONFIG")
    run.add_argument(
        "--kubeconfig",
        type=Path,
        default=Path(kubeconfig) if kubeconfig else None,
        metavar="FILE",
        help="default: MIGRATORY_KUBECONFIG, or the tests' own Kubernetes",
    )
    run.add_argument("--namespace", default="", metavar="NAME", help="made and deleted if it does not exist")
    run.add_argument("--cluster", default="", metavar="NAME", help="an existing one in it (default: one is made)")
    run.add_argument(
        "--operator",
        choices=("auto", "own", "outside"),
        default="auto",
        help="own: install one for the namespace; outside: one runs outside of the cluster; auto: use one, or own",
    )
    run.add_argument("--tag", default="", metavar="TAG", help="of the images of what is made (default: the version)")
    run.add_argument(
        "--prometheus",
        default="auto",
        metavar="URL",
        help="for the SLA report, as pods reach it; own: start one; none; auto: own on the tests' Kubernetes",
    )
    run.add_argument("--subscribers", type=int, default=60, metavar="N", help="default 60")
    run.add_argument("--topics", type=int, default=20, metavar="N", help="default 20")
    run.add_argument("--rate", type=float, default=4.0, metavar="N", help="publications a second and topic (default 4)")
    run.add_argument("--keep", action="store_true", help="do not delete what was made")
    run.set_defaults(handle=_run)
    rows = commands.add_parser("table", help="print rows of the documentation's table from results")
    rows.add_argument("results", type=Path, nargs="+", metavar="FILE")
    rows.set_defaults(handle=_table)


def _table(arguments: argparse.Namespace) -> int:
    print("\n".join(table_rows([json.loads(file.read_text()) for file in arguments.results])))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    try:
        kinds = parse_kinds(arguments.faults)
    except UnknownKind as error:
        print(f"chaos-k8s: {error}", file=sys.stderr)
        return 2
    kubeconfig = arguments.kubeconfig or NodePaths.default().kubeconfig
    if not kubeconfig.exists():
        print(f"chaos-k8s: {kubeconfig} does not exist; start a cluster with `make cluster`", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was made is deleted
    try:
        result = _run_on(kubeconfig, kinds, arguments)
    except (KubectlError, NodeError, NoAnswer, AssertionError) as error:
        print(f"chaos-k8s: the cluster did not become ready: {error}", file=sys.stderr)
        return 1
    data = result.as_data()
    if arguments.json:
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    _print_result(result)
    return 0 if data["success"] else 1


def _run_on(kubeconfig: Path, kinds: list[str], arguments: argparse.Namespace) -> KubernetesRunResult:
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1, 100_000)
    options = KubernetesRunOptions(
        kinds=kinds,
        seed=seed,
        image=f"migratory-broker:{arguments.tag}" if arguments.tag else BROKER_IMAGE,
        minutes=arguments.minutes,
        load={
            "subscribers": arguments.subscribers,
            "topics": arguments.topics,
            "rate": arguments.rate,
            "publishers": 4,
            "seed": seed,
            "patience": 60.0,
            "resume_limit": 60.0,
            "topic_prefix": f"chaos/{seed}",
        },
    )
    duration = "each once" if options.minutes is None else f"for {options.minutes:g} minutes"
    print_step(f"Seed {seed}, {duration}: {', '.join(kinds)}")
    with (
        prepare_environment(
            kubeconfig,
            arguments.namespace,
            arguments.cluster,
            arguments.operator,
            arguments.tag or image_tag(),
            SMALL_CLUSTER,
            arguments.keep,
        ) as environment,
        provide_prometheus(environment.kube, arguments.prometheus) as prometheus,
        Api(kubeconfig) as api,
    ):
        namespace, operator = environment.kube.namespace, environment.operator.describe()
        print_step(f"Cluster {environment.cluster} in {namespace} is ready; {operator}")
        run = KubernetesRun(environment, api, replace(options, prometheus=prometheus), print_step)
        return asyncio.run(run.run())


def _print_result(result: KubernetesRunResult) -> None:
    def text(value: float | None) -> str:
        return "never" if value is None else f"{value:.1f} s"

    print("fault               recovery  clients  publish gap  reconnects a client")
    for fault in result.faults:
        entry = result.fault_entry(fault)
        print(
            f"  {fault.kind:16} {text(entry['recovery_seconds']):>9} {text(entry['clients_seconds']):>8} "
            f"{text(entry['publish_gap_seconds']):>12} {entry['reconnects_per_client']:>9.2f}"
        )
    for line in (*result.broken_promises, *result.missing_evidence):
        print(f"PROBLEM {line}")
    print(f"{result.verdict.upper()}; seed {result.seed}")
