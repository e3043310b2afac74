"""`python -m benchmarks.large [--json FILE] [--page FILE]`: measures, fits, checks, writes docs/capacity.md.
Ends 1 when the model misses the held-out size by more than 15%."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from benchmarks import machine
from benchmarks.bench import Bench, Sizes
from benchmarks.large import cluster, points
from benchmarks.large.page import ALLOWED, Result, render

PAGE = Path(__file__).parent.parent.parent / "docs" / "capacity.md"
TINY = (points.Size(20, 10, 2.0), points.Size(40, 10, 5.0), points.Size(80, 20, 2.0), points.Size(100, 10, 1.0),
        points.Size(60, 60, 1.0))  # fmt: skip


@click.command(context_settings={"show_default": True})
@click.option("--seconds", type=click.FloatRange(1, 60), default=5.0, help="Length of a turn.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, help="Turns at each size; the median counts.")
@click.option("--tiny", is_flag=True, help="Sizes that only show that it works.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write what was measured here.")  # fmt: skip
@click.option("--from", "given", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="Measure nothing: take it from here.")  # fmt: skip
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, help="Write the page here.")
def main(
    seconds: float, rounds: int, tiny: bool, json_path: Path | None, given: Path | None, page: Path
) -> None:  # fmt: skip
    """What clusters need that don't fit onto one machine."""
    if given is not None:
        result = msgspec.json.decode(given.read_bytes(), type=Result)
    else:
        result = asyncio.run(measure(seconds, rounds, tiny))
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    page.write_text(render(result))
    for name, one in result.checks().items():
        click.echo(f"{name} at the held-out size: {one.error * 100:.1f}% from what was measured, goal {ALLOWED:.0%}")
    click.echo(f"wrote {page}")
    sys.exit(0 if all(one.error <= ALLOWED for one in result.checks().values()) else 1)


async def measure(seconds: float, rounds: int, tiny: bool) -> Result:
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as folder:
        bench = Bench(Sizes(), Path(folder), click.echo)
        async with bench.stack:
            *found, held_out = await points.measure(
                bench, [*TINY, TINY[1]] if tiny else [*points.SIZES, points.HELD_OUT], seconds, rounds
            )
            seen = await cluster.measure(bench, seconds)
    return Result(machine=machine.describe(), points=found, held_out=held_out, cluster=seen)


if __name__ == "__main__":
    main()
