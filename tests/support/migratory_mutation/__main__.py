"""`python -m migratory_mutation`: see docs/contributing/simulation.md, "Mutation"."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import gettempdir

from migratory_mutation import sampling


def main() -> int:
    parser = argparse.ArgumentParser(prog="migratory_mutation", description=sampling.__doc__)
    parser.add_argument("--core", action="append", choices=list(sampling.CORES), help="this core only (both)")
    parser.add_argument("--sample", type=int, default=60, metavar="N", help="mutants of each core (60)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the seed of the sample (1)")
    parser.add_argument("--seeds", type=int, default=6, metavar="N", help="trials of the simulation for each (6)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants tried at the same time (1)")
    cache = Path(gettempdir()) / "migratory-mutation"
    parser.add_argument(
        "--cache", type=Path, default=cache, metavar="DIR", help="where the map of lines to tests is stored"
    )
    arguments = parser.parse_args()
    return sampling.run(
        arguments.core or list(sampling.CORES),
        arguments.sample,
        arguments.seed,
        arguments.seeds,
        arguments.jobs,
        arguments.cache,
    )


if __name__ == "__main__":
    sys.exit(main())
