"""`python -m migratory_chaos run|check`: see docs/chaos.md."""

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

from migratory_chaos import history, network
from migratory_chaos.checker import Verdict, check
from migratory_chaos.mixes import MIXES
from migratory_chaos.runner import Run, Runner, RunOptions


def main() -> int:
    arguments = _arguments()
    if arguments.command == "check":
        try:
            verdict, _ = check(history.read(arguments.folder), from_start=True)
        except history.BadHistory as error:
            print(error)
            return 1
        _tell(verdict)
        return 1 if verdict.problems() else 0
    words = sys.argv[1:]
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1, 100_000)
        words.append(f"--seed={arguments.seed}")
    if not network.inside() and not arguments.no_network:
        why = network.missing()
        if not why:
            network.enter_own_network([sys.executable, "-m", "migratory_chaos", *words])
        print(f"Faults of networks and disks are left out: {why}", flush=True)
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="migratory-chaos-"))
    options = RunOptions(
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
    result = asyncio.run(Runner(options, _say).run())
    if arguments.json:
        arguments.json.write_text(json.dumps(result.as_data(), indent=1) + "\n")
    _summary(result)
    if result.passed and not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"Histories and logs: {folder}")
    return 0 if result.passed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="migratory_chaos", description="Real processes under real faults; what clients saw is checked."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start a cluster and its clients, strike, judge")
    run.add_argument("--minutes", type=float, default=2.0, metavar="N", help="of faults (default 2)")
    run.add_argument("--seed", type=int, default=None, metavar="N", help="draws the faults (default: by chance)")
    run.add_argument("--mix", choices=sorted(MIXES), default="all", help="kinds of faults (default all)")
    run.add_argument("--brokers", type=int, default=3, metavar="N", help="default 3")
    run.add_argument("--copies", type=int, default=2, metavar="N", help="minCopies: one less may be away (default 2)")
    run.add_argument("--subscribers", type=int, default=6, metavar="N", help="each of half the topics (default 6)")
    run.add_argument("--rate", type=float, default=1100.0, metavar="N", help="publications a second (default 1100)")
    run.add_argument(
        "--least-rate", type=float, default=0.0, metavar="N", help="fail below so many acknowledged a second"
    )
    run.add_argument("--json", type=Path, default=None, metavar="FILE", help="the whole result")
    run.add_argument("--keep", type=Path, default=None, metavar="DIR", help="histories and logs go there and stay")
    run.add_argument("--no-network", action="store_true", help="no namespaces: faults of networks are left out")
    again = commands.add_parser("check", help="judge the histories of a run again")
    again.add_argument("folder", type=Path, help="the folder `histories` of a run that was kept")
    return parser.parse_args()


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _tell(verdict: Verdict) -> None:
    print(
        f"{verdict.submitted:,} submitted, {verdict.acknowledged:,} acknowledged (the slowest after "
        f"{verdict.slowest_ms / 1000:.1f} s), {verdict.unknown:,} unknown, {verdict.delivered:,} delivered\n"
        f"{verdict.lost} lost, {verdict.duplicate} duplicate, {verdict.reordered} reordered, "
        f"{verdict.unexpected} unexpected, {verdict.told} missing and told, {verdict.resets} receipts `reset`"
    )
    for problem in verdict.problems():
        print(f"PROBLEM {problem}")
    for finding in verdict.findings[:30]:
        print(f"  {finding.kind} {finding.topic} {finding.place} {finding.client}: {finding.text}")


def _summary(result: Run) -> None:
    print(f"{len(result.faults)} faults in {result.seconds:,.0f} s, {result.rate:,.0f} acknowledged a second")
    for kind, count in sorted(result.kinds.items()):
        print(f"  {count:4}  {kind}")
    keys = ("submitted", "acknowledged", "unknown", "delivered", "lost", "duplicate", "reordered", "unexpected", "told")
    print(", ".join(f"{result.verdict.get(key, '?')} {key}" for key in keys))
    for finding in list(result.verdict.get("findings", []))[:30]:  # type: ignore[call-overload]
        print(f"  {finding['kind']} {finding['topic']} {finding['place']} {finding['client']}: {finding['text']}")
    for problem in result.problems:
        print(f"PROBLEM {problem}")
    print("PASSED" if result.passed else f"FAILED; again with: make chaos SEED={result.seed} MINUTES=...")


if __name__ == "__main__":
    sys.exit(main())
