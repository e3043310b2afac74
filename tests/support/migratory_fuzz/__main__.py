"""The command line of the fuzzers, `python -m migratory_fuzz run|replay`. docs/contributing/fuzzing.md describes it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from hashlib import sha256
from pathlib import Path

import click
import migratory_compiled

from migratory_fuzz import corpus, targets

TARGET = click.Choice(targets.NAMES)


def _search(inputs: int, seed: int, keep: bool) -> None:
    """Search for costly inputs, and store the costliest as corpus if `keep`. An input above a bound is stored as a
    regression and ends the search with its AssertionError."""
    from migratory_fuzz.search import Search, shrink_limits

    shrink_limits()
    from migratory_fuzz.targets import cost

    def measure(data: bytes) -> list[int]:
        try:
            return cost.check(data)
        except AssertionError:
            path = corpus.ROOT / "regressions" / "cost" / f"costly-{sha256(data).hexdigest()[:8]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            click.echo(f"cost: an input above the bound: {path}")
            raise

    search = Search(measure, cost.TOKENS, cost.MAX_LEN, seed)
    search.run(corpus.inputs(targets.load("cost")), inputs, click.echo)
    if keep:
        click.echo(f"cost: {corpus.keep('cost', search.costliest())} inputs stored")
    click.echo(f"cost: {inputs:,} inputs, none above the bound of {cost.STEP_LIMIT:,}; costliest step {search.worst:,}")


@click.group()
def main() -> None:
    """Coverage-guided fuzzing of all parsers."""
    os.environ[migratory_compiled.SWITCH] = "0"  # of compiled code the fuzzer sees no branch, and no step is counted


@main.command()
@click.argument("names", metavar="[TARGET]...", nargs=-1, type=TARGET)
@click.option("--minutes", default=1.0, show_default=True, help="For each target.")
@click.option("--inputs", type=int, metavar="N", help="End after N inputs; for `cost`, 100,000 by default.")
@click.option("--seed", default=1, show_default=True, help="Of the search for costly inputs.")
@click.option("--keep", is_flag=True, help="Write the minimised corpus back into tests/fuzz/corpus.")
def run(names: tuple[str, ...], minutes: float, inputs: int | None, seed: int, keep: bool) -> None:
    """Fuzz these targets, or all but `cost`, one after the other. `cost` is searched, alone."""
    if names == ("cost",):
        _search(inputs or 100_000, seed, keep)
        return
    if "cost" in names:
        raise click.UsageError("cost is searched in a process of its own: name it alone")
    from migratory_fuzz import campaign

    failed = False
    for name in names or targets.FUZZED:
        click.echo(f"{name}: {minutes * 60:.0f} s from {time.strftime('%H:%M:%S')}")
        folder = corpus.ROOT / "regressions" / name
        outcome = campaign.run(
            targets.load(name),
            name,
            minutes * 60,
            say=click.echo,
            regressions=folder,
            keep=keep,
            executions=inputs,
        )
        click.echo(outcome.line)
        if outcome.artifact is not None:
            click.echo(
                f"replay it with: PYTHONPATH=tests/support python -m migratory_fuzz replay {name} {outcome.artifact}"
            )
        failed = failed or bool(outcome.failure)
    sys.exit(failed)


@main.command()
@click.argument("name", metavar="TARGET", type=TARGET)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, path_type=Path))
def replay(name: str, files: tuple[Path, ...]) -> None:
    """Run these inputs, or all stored ones, through their target without a fuzzer."""
    target = targets.load(name)
    inputs = [file.read_bytes() for file in files] or corpus.inputs(target)
    failed = 0
    for data in inputs:
        try:
            target.run(data)
        except Exception:  # noqa: BLE001
            failed += 1
            click.echo(f"{data[:300]!r}:")
            traceback.print_exc(file=sys.stdout)
    click.echo(f"{name}: {len(inputs)} inputs, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(prog_name="migratory_fuzz")
