"""`python -m migratory_fuzz run|replay`: see docs/contributing/fuzzing.md."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import click

from migratory_fuzz import corpus, targets

TARGET = click.Choice(targets.NAMES)


@click.group()
def main() -> None:
    """Coverage-guided fuzzing of all parsers."""


@main.command()
@click.argument("names", metavar="[TARGET]...", nargs=-1, type=TARGET)
@click.option("--minutes", default=1.0, show_default=True, help="For each target.")
@click.option("--keep", is_flag=True, help="Write the minimised corpus back into tests/fuzz/corpus.")
def run(names: tuple[str, ...], minutes: float, keep: bool) -> None:
    """Fuzz these targets, or all, one after the other."""
    from migratory_fuzz import campaign

    failed = False
    for name in names or targets.NAMES:
        click.echo(f"{name}: {minutes * 60:.0f} s from {time.strftime('%H:%M:%S')}")
        folder = corpus.ROOT / "regressions" / name
        outcome = campaign.run(targets.load(name), name, minutes * 60, say=click.echo, regressions=folder, keep=keep)
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
