"""The command line of the mutation runs, `python -m migratory_mutation`. docs/contributing/simulation.md describes
it under "Mutation"."""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir

import click

from migratory_mutation import sampling

CORES = tuple(sampling.CORES)


@click.command(help=sampling.__doc__)
@click.option("--core", "cores", type=click.Choice(CORES), multiple=True, default=CORES, help="This core only.")
@click.option("--sample", default=60, show_default=True, help="Mutants of each core.")
@click.option("--seed", default=1, show_default=True, help="The seed of the sample.")
@click.option("--seeds", default=6, show_default=True, help="Trials of the simulation for each mutant.")
@click.option("--jobs", default=1, show_default=True, help="Mutants tried at the same time.")
def main(cores: tuple[str, ...], sample: int, seed: int, seeds: int, jobs: int) -> None:
    raise SystemExit(sampling.run(cores, sample, seed, seeds, jobs, Path(gettempdir()) / "migratory-mutation"))


if __name__ == "__main__":
    main(prog_name="migratory_mutation")
