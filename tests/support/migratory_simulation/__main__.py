"""`python -m migratory_simulation run|planted`: see docs/simulation.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from migratory_simulation import hunt, planted


def main() -> int:
    parser = argparse.ArgumentParser(prog="migratory_simulation", description="The cluster, simulated from seeds.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run seeds and check the invariants after every step")
    run.add_argument("--seeds", type=int, default=100, metavar="N", help="how many seeds (default 100)")
    run.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed (default 1)")
    run.add_argument("--seed", type=int, default=None, metavar="SEED", help="this seed alone, with its trace")
    run.add_argument("--trace", type=Path, default=None, metavar="FILE", help="write the whole trace of --seed to FILE")
    run.add_argument("--budget", type=float, default=None, metavar="SECONDS", help="stop after so much real time")
    run.add_argument("--planted", default=None, metavar="NAME", help="run with a planted fault")
    run.add_argument("--keep-going", action="store_true", help="go on after a violation, list all")
    run.add_argument("--no-coverage", action="store_true", help="do not fail when something was not exercised")
    run.add_argument("--quiet", action="store_true", help="only the verdict")
    hunt.add_arguments(commands)
    arguments = parser.parse_args()
    if arguments.command != "run":
        return int(arguments.act(arguments))
    if arguments.planted is not None:
        planted.plant(planted.named(arguments.planted))
    # Only now: a planted fault must be there before the cores are imported.
    from migratory_simulation import runner

    return runner.run(
        first=arguments.first if arguments.seed is None else arguments.seed,
        seeds=arguments.seeds if arguments.seed is None else 1,
        single=arguments.seed is not None,
        trace=arguments.trace,
        budget=arguments.budget,
        planted=arguments.planted,
        keep_going=arguments.keep_going,
        need_coverage=not arguments.no_coverage and arguments.planted is None and arguments.seed is None,
        quiet=arguments.quiet,
    )


if __name__ == "__main__":
    sys.exit(main())
