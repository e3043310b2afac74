"""Command line of the benchmarks: `python -m benchmarks [--json FILE] [--plots DIR] [--only NAME]`.

Exit status: 2 when a requested measurement failed, or dropped a system that failed (an installed peer, or the C loop
without a compiler); else 1 when a target is missed or has no number. A peer that is not installed is only reported. A
failed measurement does not stop the others. The result is written after each measurement.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import structs
from rich.console import Console

from benchmarks import machine, peers, plots, report
from benchmarks.benchmark import TINY, Benchmark, NotMeasurable, Sizes
from benchmarks.longrun import MINUTES, LongRun, check_writable, write_json
from benchmarks.measurements import ALL
from benchmarks.targets import check_targets


@click.command(context_settings={"show_default": True})
@click.option("--only", multiple=True, type=click.Choice(list(ALL)), help="This measurement alone; may be repeated.")
@click.option("--rounds", type=click.IntRange(1, 50), default=None, help="Interleaved rounds; medians count.")
@click.option(
    "--seconds", type=click.FloatRange(0.5, 120), default=None, help="Seconds of one system's part of a round."
)
@click.option("--subscribers", type=click.IntRange(1, 50_000), default=None, help="Subscribers of the fan-out.")
@click.option("--topics", type=click.IntRange(1, 50_000), default=None, help="Topics of the fan-out.")
@click.option(
    "--set", "changes", multiple=True, metavar="SIZE=NUMBER", help="Any other size (benchmarks/benchmark.py)."
)
@click.option("--limit", type=click.FloatRange(min=0.1), default=MINUTES, help="Minutes that one measurement may take.")
@click.option("--tiny", is_flag=True, help="Small sizes, to test that everything works.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write all figures to this file.")  # fmt: skip
@click.option("--plots", "plot_folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Draw plots into this folder.")  # fmt: skip
def main(
    only: tuple[str, ...], rounds: int | None, seconds: float | None, subscribers: int | None, topics: int | None,
    changes: tuple[str, ...], limit: float, tiny: bool, json_path: Path | None, plot_folder: Path | None,
) -> None:  # fmt: skip
    """Measure what deliveries, publications and clients cost, compared with installed peers and the raw loops."""
    console = Console()
    given = {"rounds": rounds, "seconds": seconds, "subscribers": subscribers, "topics": topics}
    try:
        sizes = with_changes(TINY if tiny else Sizes(), {k: v for k, v in given.items() if v is not None}, changes)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    def write(result: dict[str, Any]) -> None:
        result["goals"] = [
            {"key": entry.target.key, "bound": entry.target.bound, "value": entry.value, "met": entry.met}
            for entry in check_targets(result, list(result["seconds"]))
        ]
        write_json(json_path, result)

    check_writable(json_path, plot_folder and plot_folder / "plot.png")
    machine.allow_descriptors()
    names = [name for name, each in ALL.items() if (name in only if only else each.by_default)]
    result = asyncio.run(measure(sizes, names, console, write, limit))
    checked = check_targets(result, names)
    report.print_result(console, result, checked)
    if plot_folder is not None:
        for path in plots.write(result, plot_folder):
            console.print(f"wrote {path}", markup=False, highlight=False)
    sys.exit(2 if result["failed"] else 0 if all(entry.met for entry in checked) else 1)


def with_changes(sizes: Sizes, given: dict[str, Any], changes: tuple[str, ...]) -> Sizes:
    """Return the sizes with the changes of the command line. Raise ValueError for an unknown name or a malformed
    value."""
    wanted = dict(given)
    for change in changes:
        name, _, text = change.partition("=")
        if name not in sizes.__struct_fields__:
            raise ValueError(f"--set {change}: no size {name!r}; there are {', '.join(sizes.__struct_fields__)}")
        wanted[name] = (
            [int(part) for part in text.split(",")] if name in ("memory_clients", "takeover_groups") else float(text)
        )
    values = {**structs.asdict(sizes), **wanted}
    try:
        return msgspec.convert(values, Sizes, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"sizes: {error}") from error


async def measure(
    sizes: Sizes, names: list[str], console: Console, write: Callable[[dict[str, Any]], None], minutes: float
) -> dict[str, Any]:
    """Run the measurements, and call `write` with the result so far after each. Return the result as plain
    dictionaries: `failed` has the measurements and peers that failed, `not_measured` the measurements that are
    impossible here, each with the reason."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    parts = LongRun(say, minutes)
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "sizes": msgspec.to_builtins(sizes),
        "peers": {peer.name: peers.version(peer.name) for peer in peers.PEERS if peers.find(peer.name)},
        "missing_peers": peers.missing(),
        "not_measured": {},
        "failed": parts.failed,
        "seconds": {},
    }
    if result["missing_peers"]:
        say(f"MISSING PEERS: {', '.join(result['missing_peers'])}: install them with `make bench-peers`")
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as folder:
        for number, name in enumerate(names, 1):
            say(f"[{number} of {len(names)}] {name}: {ALL[name].title}")
            begin = time.monotonic()
            bench = Benchmark(sizes, Path(folder), say)

            async def run(name: str = name, bench: Benchmark = bench) -> None:
                async with bench.stack:
                    result[name] = msgspec.to_builtins(await ALL[name].measure(bench))

            try:
                await parts.attempt(name, run)
            except NotMeasurable as reason:
                result["not_measured"][name] = str(reason)
                say(f"NOT MEASURED: {name}: {reason}")
            parts.failed |= {f"{name}: {peer}": reason for peer, reason in bench.dropped.items()}
            result["seconds"][name] = round(time.monotonic() - begin, 1)
            write(result)
    return result


if __name__ == "__main__":
    main()
