"""`python -m benchmarks.sla`: measure the reader alone, then reports of growing sizes. Exit status: 1 when a goal is
missed or an error ends the run."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.sla import jobs, peers, reading
from benchmarks.sla.backfill import parquet_files, prometheus_blocks
from benchmarks.sla.samples import Fleet
from benchmarks.sla.server import prometheus

READER_GOAL = 3_000_000  # samples per CPU second of one process
MEMORY_GOAL = 8 * 2**30  # bytes of driver, executors and Python workers together
PROMQL_GOAL = 5.0  # a report's CPU time of that of PromQL's, without Spark's start
WORKERS = 14  # 10,710 series
PEERS = ("promql", *peers.SCRIPTS)


@click.command(context_settings={"show_default": True})
@click.option("--millions", default="1,10", help="Sizes, in millions of samples.", metavar="LIST")
@click.option("--cores", default="2", help="Spark's cores; each size runs with each of them.", metavar="LIST")
@click.option("--source", "sources", type=click.Choice(["prometheus", "parquet"]), multiple=True,
              default=["prometheus", "parquet"], help="Where reports read from.")  # fmt: skip
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Samples are kept here and used again; without it they are made anew. 100 M take 0.4 GB in "
              "Prometheus and about 20 minutes to make.")  # fmt: skip
@click.option(
    "--rounds",
    default=3,
    help="Rounds: of the reader alone the best counts, of reports the median. 0 leaves the reader out.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write all figures here.")  # fmt: skip
def main(
    millions: str, cores: str, sources: tuple[str, ...], data: Path | None, rounds: int, json_path: Path | None
) -> None:
    """Measure how fast samples are read and reports are made, and with how much memory, beside PromQL, pandas and
    Polars. Needs prometheus and promtool."""
    console = Console()
    with ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="migratory-bench-sla-")))
        results, met = run([float(text) for text in millions.split(",")], [int(text) for text in cores.split(",")],
                           sources, data, rounds, console)  # fmt: skip
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    sys.exit(0 if met else 1)


def run(
    sizes: list[float], cores: list[int], sources: tuple[str, ...], data: Path, rounds: int, console: Console
) -> tuple[dict[str, Any], bool]:
    results: dict[str, Any] = {"machine": machine.describe(), "reader": [], "reports": [], "peers": []}
    met = True
    for number, size in enumerate(sizes):
        fleet = Fleet(WORKERS, round(size * 1_000_000 / len(Fleet(WORKERS, 1).series)))
        folder = data / f"{size:g}M"
        with ExitStack() as stack:
            places = {}
            if "prometheus" in sources:
                make_once(folder / "prometheus", lambda to, fleet=fleet: prometheus_blocks(fleet, to), console)
                url, pid = stack.enter_context(prometheus(folder / "prometheus"))
                places["prometheus"] = url
                if number == len(sizes) - 1 and rounds:
                    met &= reader(fleet, url, pid, rounds, results, console)
            if "parquet" in sources:
                make_once(folder / "parquet", lambda to, fleet=fleet: parquet_files(fleet, to), console)
                places["parquet"] = str(folder / "parquet")
            for round_ in range(max(1, rounds)):
                of_round: list[peers.PeerCosts] = []
                if "prometheus" in places:
                    of_round.append(peers.promql(fleet, places["prometheus"], pid))
                if "parquet" in places:
                    of_round += [
                        peers.script(name, fleet, Path(places["parquet"]))
                        for name, (_, limit) in peers.SCRIPTS.items()
                        if fleet.samples <= limit
                    ]
                results["peers"] += [{"round": round_, **asdict(costs)} for costs in of_round]
                for source, location in places.items():
                    for count in cores:
                        row = jobs.measure(fleet, source, location, count, folder / "work")
                        met &= row.memory <= MEMORY_GOAL
                        entry = asdict(row)
                        entry["verdict"] = entry.pop("report")["verdict"]
                        entry["round"] = round_
                        entry["of_peers"] = {costs.peer: row.cpu / costs.cpu for costs in of_round}
                        results["reports"].append(entry)
            table, within = reports(fleet, results)
            met &= within
            console.print(table)
    return results, met


def reports(fleet: Fleet, results: dict[str, Any]) -> tuple[Table, bool]:
    """Return the table of reports and peers of the fleet's size, with medians of the rounds, and whether reports from
    Prometheus reach the goal beside PromQL."""
    table = Table(title=f"Totals of {fleet.samples / 1e6:,.1f} M samples", title_justify="left")
    for column in ("what", "cores", "CPU s", "M samples/s of all cores", "wall s", "start: CPU s", "wall s", "GiB",
                   *(f"CPU of {peer}'s" for peer in PEERS)):  # fmt: skip
        table.add_column(column, justify="left" if column == "what" else "right")
    met = True
    for peer in PEERS:
        rows = [row for row in results["peers"] if (row["peer"], row["samples"]) == (peer, fleet.samples)]
        if rows:
            cpu, wall = (median(row[key] for row in rows) for key in ("cpu", "seconds"))
            table.add_row(peer, "", f"{cpu:.1f}", "", f"{wall:.1f}", "", "", "", "", "")
    mine = [row for row in results["reports"] if row["samples"] == fleet.samples]
    for source, cores in dict.fromkeys((row["source"], row["cores"]) for row in mine):
        rows = [row for row in mine if (row["source"], row["cores"]) == (source, cores)]
        middle = {key: median(row[key] for row in rows)
                  for key in ("cpu", "seconds", "start_cpu", "start_seconds", "memory")}  # fmt: skip
        ratios = {peer: median(row["of_peers"][peer] for row in rows) for peer in rows[0]["of_peers"]}
        if source == "prometheus":
            met &= ratios["promql"] <= PROMQL_GOAL
        table.add_row(
            f"report from {source}", str(cores), f"{middle['cpu']:.1f}",
            f"{fleet.samples * cores / middle['cpu'] / 1e6:.2f}", f"{middle['seconds']:.1f}",
            f"{middle['start_cpu']:.1f}", f"{middle['start_seconds']:.1f}", f"{middle['memory'] / 2**30:.2f}",
            *(f"{ratios[peer]:.2f}" if peer in ratios else "" for peer in PEERS),
        )  # fmt: skip
    return table, met


def make_once(folder: Path, make: Any, console: Console) -> None:
    """Make the folder with `make` and mark it as complete, unless an earlier run has."""
    done = folder.with_suffix(".done")
    if not done.exists():
        console.print(f"making {folder}", highlight=False, soft_wrap=True)
        make(folder)
        done.touch()


def reader(fleet: Fleet, url: str, pid: int, rounds: int, results: dict[str, Any], console: Console) -> bool:
    table = Table(title=f"The reader alone, {fleet.samples / 1e6:,.1f} M samples", title_justify="left")
    for column in ("interface", "shape", "M samples/CPU s", "wall s", "server CPU s"):
        table.add_column(column, justify="left" if column in ("interface", "shape") else "right")
    met = True
    for interface, shape in [(interface, "series") for interface in reading.INTERFACES] + [("remote_read", "samples")]:
        rows = [reading.measure(fleet, url, pid, interface, shape) for _ in range(rounds)]
        best = max(rows, key=lambda row: row.per_cpu_second)
        table.add_row(
            interface, shape, f"{best.per_cpu_second / 1e6:.2f}", f"{best.wall:.1f}", f"{best.server_cpu:.1f}"
        )
        results["reader"] += [asdict(row) for row in rows]
        if (interface, shape) == ("remote_read", "series"):
            met = best.per_cpu_second >= READER_GOAL
    console.print(table)
    console.print(f"goal {READER_GOAL / 1e6:g} M by remote_read: {'reached' if met else 'MISSED'}", highlight=False)
    return met


if __name__ == "__main__":
    main()
