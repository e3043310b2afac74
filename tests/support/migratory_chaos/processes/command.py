"""`python -m migratory_chaos run|check`: a run on local processes, and its histories judged again."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from migratory_chaos.processes import history, network
from migratory_chaos.processes.checker import check
from migratory_chaos.processes.fault_mixes import MIXES
from migratory_chaos.processes.runner import ProcessRun, ProcessRunOptions, ProcessRunResult


def add_commands(commands: Any) -> None:
    run = commands.add_parser("run", help="start a local cluster and its clients, inject faults, judge the histories")
    run.add_argument("--minutes", type=float, default=2.0, metavar="N", help="of faults (default 2)")
    run.add_argument("--seed", type=int, default=None, metavar="N", help="draws the faults (default: random)")
    run.add_argument("--mix", choices=sorted(MIXES), default="all", help="kinds of faults (default all)")
    run.add_argument("--brokers", type=int, default=3, metavar="N", help="default 3")
    run.add_argument("--copies", type=int, default=2, metavar="N", help="minCopies: one less may be away (default 2)")
    run.add_argument("--subscribers", type=int, default=6, metavar="N", help="each of half the topics (default 6)")
    run.add_argument("--rate", type=float, default=1100.0, metavar="N", help="publications a second (default 1100)")
    run.add_argument(
        "--least-rate", type=float, default=0.0, metavar="N", help="fail below N acknowledged publications a second"
    )
    run.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the whole result")
    run.add_argument("--keep", type=Path, default=None, metavar="DIR", help="keep histories and logs in DIR")
    run.add_argument("--no-network", action="store_true", help="no namespaces: leave out faults of networks")
    run.set_defaults(handle=_run)
    again = commands.add_parser("check", help="judge the histories of a run again")
    again.add_argument("folder", type=Path, help="the folder `histories` of a run with --keep")
    again.set_defaults(handle=_check)


def _run(arguments: argparse.Namespace) -> int:
    words = sys.argv[1:]
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1, 100_000)
        words.append(f"--seed={arguments.seed}")
    if not network.is_inside() and not arguments.no_network:
        reason = network.explain_missing()
        if not reason:
            network.enter_own_network([sys.executable, "-m", "migratory_chaos", *words])
        print(f"Faults of networks and disks are left out: {reason}", flush=True)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="migratory-chaos-"))
    options = ProcessRunOptions(
        minutes=arguments.minutes,
        seed=arguments.seed,
        folder=folder,
        mix=arguments.mix,
        brokers=arguments.brokers,
        copies=arguments.copies,
        subscribers=arguments.subscribers,
        rate=arguments.rate,
        least_rate=arguments.least_rate,
    )
    print(f"Seed {options.seed}, mix {options.mix}, {options.minutes:g} minutes", flush=True)
    result = asyncio.run(ProcessRun(options, print_step).run())
    if arguments.json:
        arguments.json.write_text(json.dumps(result.as_data(), indent=1) + "\n")
    _print_result(result)
    if result.passed and not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"Histories and logs: {folder}")
    return 0 if result.passed else 1


def _check(arguments: argparse.Namespace) -> int:
    try:
        verdict, _ = check(history.read(arguments.folder), from_start=True)
    except history.BadHistory as error:
        print(error)
        return 1
    _print_verdict(verdict.as_data(), verdict.problems())
    return 1 if verdict.problems() else 0


def print_step(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _print_verdict(verdict: dict[str, Any], problems: list[str]) -> None:
    if verdict:
        keys = ("submitted", "acknowledged", "unknown", "delivered", "lost", "duplicate", "reordered", "unexpected")
        print(", ".join(f"{verdict[key]:,} {key}" for key in keys))
        print(
            f"{verdict['told']} missing and reported, {verdict['resets']} receipts `reset`; the slowest "
            f"acknowledgement took {verdict['slowest_ms'] / 1000:.1f} s"
        )
        for finding in verdict["findings"][:30]:
            print("  {kind} {topic} {position} {client}: {text}".format_map(finding))
    for problem in problems:
        print(f"PROBLEM {problem}")


def _print_result(result: ProcessRunResult) -> None:
    print(f"{len(result.faults)} faults in {result.seconds:,.0f} s, {result.rate:,.0f} acknowledged a second")
    for kind, count in sorted(result.kinds.items()):
        print(f"  {count:4}  {kind}")
    _print_verdict(result.verdict, result.problems)
    print("PASSED" if result.passed else f"FAILED; again with: make chaos SEED={result.seed} MINUTES=...")
