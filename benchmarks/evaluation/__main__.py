"""`python -m benchmarks.evaluation [--json FILE] [--page FILE]`: makes the runs and writes docs/evaluation.md."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks import machine
from benchmarks.bench import Bench, Sizes
from benchmarks.evaluation.page import render
from benchmarks.evaluation.runs import three, vertical

PAGE = Path(__file__).parent.parent.parent / "docs" / "evaluation.md"


@click.command(context_settings={"show_default": True})
@click.option("--largest", type=click.IntRange(10, 200_000), default=50_000, help="Subscribers of the last row.")
@click.option("--rows", type=click.IntRange(1, 20), default=10, help="Sizes up to it, evenly.")
@click.option("--per-topic", type=click.IntRange(1, 100_000), default=1000, help="Subscribers of a topic.")
@click.option("--warmup", type=click.FloatRange(1, 600), default=4.0, help="Seconds.")
@click.option("--seconds", type=click.FloatRange(1, 3600), default=20.0, help="Measured, of each row.")
@click.option("--clients", type=click.IntRange(6, 100_000), default=30_000, help="Of the run with three brokers.")
@click.option("--topics", type=click.IntRange(1, 1000), default=30, help="Of the run with three brokers.")
@click.option("--rate", type=click.FloatRange(0.01, 10), default=0.25, help="Per topic and second, three brokers.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write what was measured here.")  # fmt: skip
@click.option("--from", "given", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="Measure nothing: take it from here.")  # fmt: skip
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, help="Write the page here.")
def main(
    largest: int, rows: int, per_topic: int, warmup: float, seconds: float, clients: int, topics: int, rate: float,
    json_path: Path | None, given: Path | None, page: Path,
) -> None:  # fmt: skip
    """The published evaluation's tables, by this product on this machine."""
    if given is not None:
        result = msgspec.json.decode(given.read_bytes())
    else:
        sizes = [largest * row // rows for row in range(1, rows + 1)]
        result = asyncio.run(measure(sizes, per_topic, warmup, seconds, clients, topics, rate))
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    page.write_text(render(result))
    click.echo(f"wrote {page}")


async def measure(
    sizes: list[int], per_topic: int, warmup: float, seconds: float, clients: int, topics: int, rate: float
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as folder:
        bench = Bench(Sizes(), Path(folder), click.echo)
        async with bench.stack:
            one = await vertical(bench, sizes, per_topic, warmup, seconds)
            killed = await three(bench, clients, topics, rate, seconds)
    described = machine.describe()
    killed |= {"topics": topics, "deliveries_per_s": killed["clients"] * rate, "cores": described["cores"]}
    return {"machine": described, "warmup": warmup, "seconds": seconds, "vertical": one, "three": killed}


if __name__ == "__main__":
    main()
