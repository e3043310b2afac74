"""Command line of the capacity model: `python -m benchmarks.capacity [--json FILE] [--page FILE]`.

It measures, fits, checks, and writes docs/reference/capacity.md. Exit status: 1 when the model's error at the held-out
size is above 15%; 2 when a measurement failed, which `--from FILE` then repeats alone.
"""

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
from benchmarks.capacity.page import MAX_ERROR, CapacityResult, render
from benchmarks.longrun import LongRun, check_same_machine, check_writable, write_json

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "capacity.md"
TINY = (broker.Size(20, 10, 2.0), broker.Size(40, 10, 5.0), broker.Size(80, 20, 2.0), broker.Size(100, 10, 1.0),
        broker.Size(60, 60, 1.0))  # fmt: skip
TINY_HELD_OUT = broker.Size(50, 10, 3.0)


@click.command(context_settings={"show_default": True})
@click.option("--seconds", type=click.FloatRange(1, 60), default=5.0, help="Seconds of a round.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, help="Rounds at each size; the median counts.")
@click.option("--tiny", is_flag=True, help="Small sizes, to test that everything works.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the measurements to this file.")  # fmt: skip
@click.option("--from", "given", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="Measure only what this file does not have.")  # fmt: skip
@click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, help="Write the page to this file."
)
def main(
    seconds: float, rounds: int, tiny: bool, json_path: Path | None, given: Path | None, page: Path
) -> None:  # fmt: skip
    """Measure brokers, fit the cost model, and write what larger clusters need."""
    check_writable(json_path, page)
    machine.allow_descriptors()
    result = CapacityResult(machine=machine.describe())
    if given is not None:
        result = msgspec.json.decode(given.read_bytes(), type=CapacityResult)
    asyncio.run(measure(result, seconds, rounds, tiny, lambda: write_json(json_path, result)))
    try:
        text, checks = render(result), result.checks()
    except ValueError as reason:
        click.echo(f"no page: {reason}")
        sys.exit(2)
    page.write_text(text)
    for name, check in checks.items():
        click.echo(f"{name} at the held-out size: {check.error * 100:.1f}% error, target at most {MAX_ERROR:.0%}")
    click.echo(f"wrote {page}")
    sys.exit(2 if result.failed else 0 if all(check.error <= MAX_ERROR for check in checks.values()) else 1)


async def measure(result: CapacityResult, seconds: float, rounds: int, tiny: bool, write: Callable[[], None]) -> None:
    """Run the measurements that the result lacks, and add them to it. Call `write` after each."""
    parts = LongRun(click.echo)
    result.failed = parts.failed
    held_out = TINY_HELD_OUT if tiny else broker.HELD_OUT
    measured = {
        (point.clients, point.topics) for point in [*result.points, *([result.held_out] if result.held_out else [])]
    }
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as folder:
        bench = Benchmark(Sizes(), Path(folder), click.echo)
        for size in [*(TINY if tiny else broker.SIZES), held_out]:
            if (size.clients, size.topics) in measured:
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
            if any(costs.brokers == brokers for costs in result.cluster):
                continue
            check_same_machine(result.machine)
            costs = await parts.attempt(f"{brokers} brokers", partial(cluster.measure, bench, brokers, seconds))
            if costs is not None:
                result.cluster.append(costs)
            write()


if __name__ == "__main__":
    main()
