"""Command line of the evaluation: `python -m benchmarks.evaluation [--json FILE] [--page FILE]`.

It makes the runs and writes docs/reference/evaluation.md. When one of the two runs failed, the exit status is 2 and the
page is not written; `--from FILE` then repeats that run alone.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks import machine
from benchmarks.benchmark import Benchmark, Sizes
from benchmarks.evaluation.page import render
from benchmarks.evaluation.runs import run_one_server, run_three_servers
from benchmarks.longrun import LongRun, check_same_machine, check_writable, write_json
from benchmarks.processes import MeasurementFailed

MINUTES = 20.0
"""Minutes that a run may take."""
PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "evaluation.md"


@click.command(context_settings={"show_default": True})
@click.option("--largest", type=click.IntRange(10, 200_000), default=50_000, help="Subscribers of the last row.")
@click.option(
    "--rows", type=click.IntRange(1, 20), default=10, help="Number of sizes up to the last row, evenly spaced."
)
@click.option("--per-topic", type=click.IntRange(1, 100_000), default=1000, help="Subscribers of each topic.")
@click.option("--warmup", type=click.FloatRange(1, 600), default=3.0, help="Seconds before the measurement.")
@click.option("--seconds", type=click.FloatRange(1, 3600), default=10.0, help="Measured seconds of each row.")
@click.option(
    "--clients", type=click.IntRange(6, 100_000), default=30_000, help="Clients of the run with three brokers."
)
@click.option("--topics", type=click.IntRange(1, 1000), default=30, help="Topics of the run with three brokers.")
@click.option(
    "--rate",
    type=click.FloatRange(0.01, 10),
    default=0.25,
    help="Publications per topic and second with three brokers.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the measurements to this file.")  # fmt: skip
@click.option("--from", "given", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="Measure only what this file does not have.")  # fmt: skip
@click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, help="Write the page to this file."
)
def main(
    largest: int, rows: int, per_topic: int, warmup: float, seconds: float, clients: int, topics: int, rate: float,
    json_path: Path | None, given: Path | None, page: Path,
) -> None:  # fmt: skip
    """Measure the published evaluation's tables with this product on this machine."""
    machine.allow_descriptors()
    check_writable(json_path, page)
    result: dict[str, Any] = {"vertical": None, "three": None, "warmup": warmup, "seconds": seconds}
    if given is not None:
        result |= msgspec.json.decode(given.read_bytes())
    sizes = [largest * row // rows for row in range(1, rows + 1)]
    asyncio.run(
        measure(result, sizes, per_topic, clients, topics, rate, lambda: write_json(json_path, result))
    )  # fmt: skip
    if result["failed"]:
        sys.exit(2)
    page.write_text(render(result))
    click.echo(f"wrote {page}")


async def measure(
    result: dict[str, Any], sizes: list[int], per_topic: int, clients: int, topics: int, rate: float,
    write: Callable[[], None],
) -> None:  # fmt: skip
    """Make the runs that the result does not have yet, and add them to it. Call `write` after each."""
    seconds = result["seconds"]
    parts = LongRun(click.echo, MINUTES)
    result["machine"] = described = result.get("machine") or machine.describe()
    result["failed"] = parts.failed
    rows: list[dict[str, Any]] = []

    def add_row(row: dict[str, Any]) -> None:
        rows.append(row)
        result["rows"] = rows  # until the run is complete
        write()

    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as folder:

        async def one_server() -> None:
            bench = Benchmark(Sizes(), Path(folder), click.echo)
            async with bench.stack:
                ended = await run_one_server(bench, sizes, per_topic, result["warmup"], seconds, add_row)
            if not rows:
                raise MeasurementFailed(f"the smallest size failed: {ended}")
            result["vertical"] = {"rows": rows, "ended": ended}
            result.pop("rows", None)

        async def three_servers() -> None:
            bench = Benchmark(Sizes(), Path(folder), click.echo)
            async with bench.stack:
                measured = await run_three_servers(bench, clients, topics, rate, seconds)
            deliveries = measured["clients"] * rate
            result["three"] = {
                **measured,
                "topics": topics,
                "deliveries_per_s": deliveries,
                "cores": described["cores"],
            }

        for name, part in (("vertical", one_server), ("three", three_servers)):
            if not result[name]:
                check_same_machine(described)
                await parts.attempt(name, part)
                write()


if __name__ == "__main__":
    main()
