"""The command line of the simulation, `python -m migratory_simulation run|planted`. docs/contributing/simulation.md
describes it.

The cores are imported only after a planted fault is in place, so this module imports nothing that needs them.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from migratory_simulation import detection, planted

CORES = os.cpu_count() or 1
AT_LEAST_ONE = click.IntRange(min=1)


@click.group()
def main() -> None:
    """Simulate whole clusters from seeds, and search for planted faults."""


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of an option's text, () for 'none', and None without the option. Raise click.BadParameter for
    other text."""
    try:
        return None if text is None else () if text == "none" else tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not allowed; use 'none' or numbers separated by commas") from None


@main.command("run")
@click.option("--seeds", type=AT_LEAST_ONE, default=100, show_default=True, help="How many seeds.")
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="This seed only, with its trace.")
@click.option(
    "--profile", type=click.Choice(["mixed", "short", "long", "losses"]), default="mixed", show_default=True,
    help="Short seeds, long ones, mostly short ones, or these with a ZooKeeper that loses its data.",
)  # fmt: skip
@click.option("--faults", callback=_numbers, metavar="N,N", help="Only these faults of --seed's plan, or 'none'.")
@click.option("--jobs", type=AT_LEAST_ONE, default=CORES, help="Processes. [default: one for each core]")
@click.option("--trace", type=click.Path(path_type=Path), help="Write the whole trace of --seed to this file.")
@click.option("--planted", "fault", metavar="NAME", help="Run with a planted fault.")
@click.option("--keep-going", is_flag=True, help="Continue after a violation.")
@click.option("--no-coverage", is_flag=True, help="Do not fail when something was not exercised.")
def run_seeds(
    seeds: int, first: int, seed: int | None, profile: str, faults: tuple[int, ...] | None, jobs: int,
    trace: Path | None, fault: str | None, keep_going: bool, no_coverage: bool,
) -> None:  # fmt: skip
    """Run seeds and check the invariants after every step."""
    if fault is not None:
        planted.plant(planted.named(fault))
    from migratory_simulation import runner

    batch = runner.Batch(range(first, first + seeds), profile, jobs, planted=fault, faults=faults)  # type: ignore[arg-type]
    if seed is not None:
        try:
            raise SystemExit(runner.run_one(batch, seed, trace))
        except ValueError as error:  # a fault that the plan lacks
            raise click.UsageError(str(error)) from None
    if faults is not None or trace is not None:
        raise click.UsageError("--faults and --trace need --seed, the seed they apply to")
    raise SystemExit(runner.run(batch, keep_going=keep_going, need_coverage=not no_coverage and fault is None))


@main.command("planted")
@click.option("--limit", default=detection.LIMIT, show_default=True, help="Random plans for each fault.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this fault. May be repeated.")
@click.option("--jobs", type=AT_LEAST_ONE, default=1, show_default=True, help="Faults tried at the same time.")
@click.option("--no-hints", is_flag=True, help="Search without the faults' hints.")
def try_planted(limit: int, only: tuple[str, ...], jobs: int, no_hints: bool) -> None:
    """Search for a trial that detects each planted fault, and print which invariant it breaks."""
    faults = [planted.named(name) for name in only] or planted.load()
    raise SystemExit(detection.run(faults, limit, jobs, hints=not no_hints))


if __name__ == "__main__":
    main(prog_name="migratory_simulation")
