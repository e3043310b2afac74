"""`python -m migratory_chaos_k8s run|table`: see docs/chaos-kubernetes.md."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from migratory_node.kubectl import Object, Refused
from migratory_node.places import NodeError, Places
from migratory_node.pods import BROKER_IMAGE

from migratory_chaos_k8s.api import Api, Silent
from migratory_chaos_k8s.place import place, version
from migratory_chaos_k8s.report import watched
from migratory_chaos_k8s.result import Run, table
from migratory_chaos_k8s.runner import Options, Runner
from migratory_chaos_k8s.schedule import KINDS, NoSuchKind, parse

SMALL: Object = {
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
"""Of the cluster that is made: it fits a small node."""


def main() -> int:
    arguments = _arguments()
    if arguments.command == "table":
        print("\n".join(table([json.loads(file.read_text()) for file in arguments.results])))
        return 0
    try:
        kinds = parse(arguments.faults)
    except NoSuchKind as error:
        print(f"chaos-k8s: {error}", file=sys.stderr)
        return 2
    kubeconfig = arguments.kubeconfig or Places.usual().kubeconfig
    if not kubeconfig.exists():
        print(f"chaos-k8s: no cluster: {kubeconfig} is not there; `make cluster` starts one", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was made is taken away then, too
    try:
        result = _run(arguments, kinds, kubeconfig)
    except (Refused, NodeError, Silent, AssertionError) as error:
        print(f"chaos-k8s: no cluster to strike: {error}", file=sys.stderr)
        return 1
    found = result.to_json()
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    _summary(result)
    return 0 if found["success"] else 1


def _run(arguments: argparse.Namespace, kinds: list[str], kubeconfig: Path) -> Run:
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1, 100_000)
    options = Options(
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
    tag = arguments.tag or version()
    how_long = "each once" if options.minutes is None else f"for {options.minutes:g} minutes"
    _say(f"Seed {seed}, {how_long}: {', '.join(kinds)}")
    with (
        place(
            kubeconfig, arguments.namespace, arguments.cluster, arguments.operator, tag, SMALL, arguments.keep
        ) as found,
        watched(found.kube, arguments.prometheus) as prometheus,
        Api(kubeconfig) as api,
    ):
        _say(f"Cluster {found.cluster} in {found.kube.namespace} is ready; {found.operator.says()}")
        return Runner(found, api, replace(options, prometheus=prometheus), _say).run()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="migratory_chaos_k8s", description="Faults on a Kubernetes while every delivery is accounted for."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="a cluster, load in a pod, faults, the accounts")
    run.add_argument("--faults", default="", metavar="KIND,...", help=f"all unless given: {', '.join(KINDS)}")
    run.add_argument("--minutes", type=float, metavar="N", help="go on drawing faults for so long (default: each once)")
    run.add_argument("--seed", type=int, metavar="N", help="draws the faults and their victims (default: by chance)")
    run.add_argument("--json", type=Path, metavar="FILE", help="the whole result")
    given = os.environ.get("MIGRATORY_KUBECONFIG")
    run.add_argument(
        "--kubeconfig",
        type=Path,
        default=Path(given) if given else None,
        metavar="FILE",
        help="default: MIGRATORY_KUBECONFIG, or the tests' own Kubernetes",
    )
    run.add_argument("--namespace", default="", metavar="NAME", help="made and deleted unless it is there")
    run.add_argument("--cluster", default="", metavar="NAME", help="one that is there in it (default: one is made)")
    run.add_argument(
        "--operator",
        choices=("auto", "own", "outside"),
        default="auto",
        help="own: one for the namespace, by the chart",
    )
    run.add_argument("--tag", default="", metavar="TAG", help="of the images of what is made (default: the version)")
    run.add_argument(
        "--prometheus",
        default="auto",
        metavar="URL",
        help="for the SLA report, as pods reach it; own: one for the run; none; auto: own on the tests' Kubernetes",
    )
    run.add_argument("--subscribers", type=int, default=60, metavar="N", help="default 60")
    run.add_argument("--topics", type=int, default=20, metavar="N", help="default 20")
    run.add_argument("--rate", type=float, default=4.0, metavar="N", help="publications a second and topic (default 4)")
    run.add_argument("--keep", action="store_true", help="leave what was made")
    rows = commands.add_parser("table", help="rows of the table in the documentation, from results")
    rows.add_argument("results", type=Path, nargs="+", metavar="FILE")
    return parser.parse_args()


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _summary(result: Run) -> None:
    print("fault               recovery  clients  publish gap  reconnects a client")
    for fault in result.faults:
        entry = result.entry(fault)

        def text(key: str, entry: Object = entry) -> str:
            return "never" if entry[key] is None else f"{entry[key]:.1f} s"

        print(
            f"  {fault.kind:16} {text('recovery_seconds'):>9} {text('clients_seconds'):>8} "
            f"{text('publish_gap_seconds'):>12} {entry['reconnects_per_client']:>9.2f}"
        )
    for line in (*result.missed, *result.lacking):
        print(f"PROBLEM {line}")
    print(f"{result.verdict.upper()}; seed {result.seed}")


if __name__ == "__main__":
    sys.exit(main())
