"""The commands `run` and `exhaust`: their options, translated for `runner.py` and `exhaust.py`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from migratory_simulation import planted
from migratory_simulation.plans import STRIKES

if TYPE_CHECKING:
    from migratory_simulation.runner import Run


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run seeds and check the invariants after every step")
    run.add_argument("--seeds", type=_positive, default=100, metavar="N", help="how many seeds (default 100)")
    run.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed (default 1)")
    run.add_argument("--seed", type=int, default=None, metavar="SEED", help="this seed only, with its trace")
    run.add_argument(
        "--profile",
        choices=("mixed", "short", "long"),
        default=None,
        help="short seeds, long ones, or mostly short ones (mixed, the default; long with --planted)",
    )
    run.add_argument(
        "--faults", type=_numbers, default=None, metavar="N,N", help="only these faults of --seed's plan, or none"
    )
    run.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one for each core)",
    )
    run.add_argument("--trace", type=Path, default=None, metavar="FILE", help="write the whole trace of --seed to FILE")
    run.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write the outcome to FILE, updated as it runs"
    )
    run.add_argument("--budget", type=float, default=None, metavar="SECONDS", help="stop after this much real time")
    run.add_argument("--planted", default=None, metavar="NAME", help="run with a planted fault")
    run.add_argument("--keep-going", action="store_true", help="continue after a violation and list all")
    run.add_argument("--no-shrink", action="store_true", help="do not minimise a failing schedule")
    run.add_argument("--no-coverage", action="store_true", help="do not fail when something was not exercised")
    run.add_argument("--quiet", action="store_true", help="only the verdict")
    run.set_defaults(act=_act)
    _add_exhaust(commands)


def _act(arguments: argparse.Namespace) -> int:
    single = arguments.seed is not None
    if not single and (arguments.faults is not None or arguments.trace is not None):
        print("--faults and --trace need --seed, the seed they apply to", file=sys.stderr)
        return 2
    _plant(arguments.planted)
    from migratory_simulation import runner

    try:
        return runner.run(_run(arguments, single))
    except ValueError as error:  # an invalid option, such as a fault that the plan lacks
        print(error, file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace, single: bool) -> Run:
    from migratory_simulation.runner import Run

    return Run(
        first=arguments.seed if single else arguments.first,
        seeds=1 if single else arguments.seeds,
        profile=arguments.profile or ("mixed" if arguments.planted is None else "long"),
        single=single,
        faults=arguments.faults,
        jobs=1 if single else min(arguments.jobs, arguments.seeds),
        trace=arguments.trace,
        json=arguments.json,
        budget=arguments.budget,
        planted=arguments.planted,
        keep_going=arguments.keep_going,
        need_coverage=not arguments.no_coverage and arguments.planted is None and not single,
        quiet=arguments.quiet,
        shrink=not arguments.no_shrink,
    )


def _add_exhaust(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("exhaust", help="explore every run of a small cluster within bounds")
    parser.add_argument("--brokers", type=_positive, default=3, metavar="N", help="(default 3)")
    parser.add_argument("--copies", type=_positive, default=2, metavar="N", help="minCopies (default 2)")
    parser.add_argument("--publications", type=_positive, default=2, metavar="N", help="(default 2)")
    parser.add_argument("--faults", type=int, default=1, metavar="N", help="the most in one run (default 1)")
    parser.add_argument("--deviations", type=int, default=0, metavar="N", help="from the order of sending (default 0)")
    parser.add_argument("--kind", action="append", choices=STRIKES, default=None, help="of fault; all by default")
    parser.add_argument("--no-restart", action="store_true", help="crashed brokers do not restart")
    parser.add_argument("--from-start", action="store_true", help="search from the start of the brokers")
    parser.add_argument("--budget", type=float, default=None, metavar="SECONDS", help="stop after this much real time")
    parser.add_argument("--planted", default=None, metavar="NAME", help="search with a planted fault")
    parser.set_defaults(act=_act_exhaust)


def _act_exhaust(arguments: argparse.Namespace) -> int:
    _plant(arguments.planted)
    from migratory_simulation import exhaust

    bounds = exhaust.Bounds(
        brokers=arguments.brokers,
        copies=arguments.copies,
        publications=arguments.publications,
        faults=arguments.faults,
        deviations=arguments.deviations,
        kinds=tuple(arguments.kind or STRIKES),
        restart=not arguments.no_restart,
        from_start=arguments.from_start,
    )
    try:
        return exhaust.show(bounds, arguments.budget)
    except ValueError as error:  # such as more copies than brokers
        print(error, file=sys.stderr)
        return 2


def _plant(name: str | None) -> None:
    """Apply a planted fault. It must be in place before the cores are imported."""
    if name is not None:
        planted.plant(planted.named(name))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use 1 or more")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return () if text == "none" else tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; use 'none' or numbers separated by commas"
        ) from None
