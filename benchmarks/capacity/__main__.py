"""`python -m benchmarks.capacity [--json FILE] [--page FILE]`: measures, fits, checks, writes docs/capacity.md.
Ends 1 when the model misses the held-out size by more than 15%, 2 when something could not be measured: `--from FILE`
then measures that alone."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import msgspec

from benchmarks import machine
from benchmarks.benchmark import Benchmark, Sizes
from benchmarks.capacity import broker, cluster
from benchmarks.capacity.page import ALLOWED, Result, render
from benchmarks.longrun import LongRun, check_same_machine, check_writable, write_json

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "capacity.md"
TINY = (broker.Size(20, 10, 2.0), broker.Size(40, 10, 5.0), broker.Size(80, 20, 2.0), broker.Size(100, 10, 1.0),
        broker.Size(60, 60, 1.0))  # fmt: skip
HELD_OUT = broker.Size(50, 10, 3.0)  # of the tiny ones


@click.command(context_settings={"show_default": True})
@click.option("--seconds", type=click.FloatRange(1, 60), default=5.0, help="Length of a turn.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, help="Turns at each size; the median counts.")
@click.option("--tiny", is_flag=True, help="Sizes that only show that it works.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write what was measured here.")  # fmt: skip
@click.option("--from", "given", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="Measure only what this has not.")  # fmt: skip
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, help="Write the page here.")
def main(
    seconds: float, rounds: int, tiny: bool, json_path: Path | None, given: Path | None, page: Path
) -> None:  # fmt: skip
    """What clusters need that don't fit onto one machine."""
    check_writable(json_path, page)
    machine.allow_descriptors()
    result = Result(machine=machine.describe())
    if given is not None:
        result = msgspec.json.decode(given.read_bytes(), type=Result)
    asyncio.run(measure(result, seconds, rounds, tiny, lambda: write_json(json_path, result)))
    try:
        text, checks = render(result), result.checks()
    except ValueError as reason:
        click.echo(f"no page: {reason}")
        sys.exit(2)
    page.write_text(text)
    for name, one in checks.items():
        click.echo(f"{name} at the held-out size: {one.error * 100:.1f}% from what was measured, goal {ALLOWED:.0%}")
    click.echo(f"wrote {page}")
    sys.exit(2 if result.failed else 0 if all(one.error <= ALLOWED for one in checks.values()) else 1)


async def measure(result: Result, seconds: float, rounds: int, tiny: bool, write: Callable[[], None]) -> None:
    """Adds to the result what it has not."""
    parts = LongRun(click.echo)
    result.failed = parts.failed
    held_out = HELD_OUT if tiny else broker.HELD_OUT
    there = {(one.clients, one.topics) for one in [*result.points, *([result.held_out] if result.held_out else [])]}
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as folder:
        bench = Benchmark(Sizes(), Path(folder), click.echo)
        for size in [*(TINY if tiny else broker.SIZES), held_out]:
            if (size.clients, size.topics) in there:
                continue
            check_same_machine(result.machine)
            name = f"{size.clients} clients, {size.topics} topics"
            point = await parts.attempt(name, partial(broker.measure, bench, size, seconds, rounds))
            if point is not None and size == held_out:
                result.held_out = point
            elif point is not None:
                result.points.append(point)
            write()
        for brokers in cluster.BROKERS:
            if any(one.brokers == brokers for one in result.cluster):
                continue
            check_same_machine(result.machine)
            seen = await parts.attempt(f"{brokers} brokers", partial(cluster.measure, bench, brokers, seconds))
            if seen is not None:
                result.cluster.append(seen)
            write()


if __name__ == "__main__":
    main()
