"""`python -m benchmarks [--json FILE]`: what a delivery and an idle client cost. Ends 1 when a goal is missed."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import fanout, idle, machine
from benchmarks.servers import Product, Raw, Server, Work, compile_c, python_loop

RATIO_GOAL = 1.3  # CPU per delivery, of the raw C loop's, with its share of publications, heartbeats and timers
MEMORY_GOAL = 3 * 1024  # bytes per idle subscribed client


@click.command(context_settings={"show_default": True})
@click.option("--rounds", default=5, help="Interleaved rounds; medians count.")
@click.option("--subscribers", default=5000, help="Subscribers of the fan-out.")
@click.option("--topics", default=100, help="Topics that they are spread over.")
@click.option("--payload", default=140, metavar="BYTES", help="Size of a publication.")
@click.option("--rate", default=5.0, help="Publications per topic and second.")
@click.option("--seconds", default=6.0, help="Length of each server's turn in a round.")
@click.option("--idle-clients", default=10_000, help="Clients for the memory figure; 0 leaves it out.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write all figures here.")  # fmt: skip
def main(
    rounds: int, subscribers: int, topics: int, payload: int, rate: float, seconds: float, idle_clients: int,
    json_path: Path | None,
) -> None:  # fmt: skip
    """What a delivery costs beside the raw limit, and what an idle client does."""
    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    work = Work(subscribers, topics, payload, rate, seconds)
    results, met = asyncio.run(measure(work, rounds, idle_clients, say, console))
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    sys.exit(0 if met else 1)


async def measure(
    work: Work, rounds: int, idle_clients: int, say: Any, console: Console
) -> tuple[dict[str, object], bool]:
    results: dict[str, object] = {"machine": machine.describe(), "work": work}
    met = True
    if idle_clients:
        memory = await idle.run(idle_clients, work.topics, say)
        results["idle"] = memory
        reached = memory.per_client <= MEMORY_GOAL
        met = met and reached
        say(
            f"an idle subscribed client: {memory.per_client:,.0f} bytes, goal {MEMORY_GOAL:,}: "
            + ("reached" if reached else "MISSED")
        )
    if not rounds:
        return results, met
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as folder:
        servers: list[Server] = []
        command = compile_c(Path(folder))
        if command is None:
            say("SKIPPED: the raw C loop, for there is no C compiler here; ratios are to the Python loop")
        else:
            servers.append(Raw("raw loop in C", command))
        servers += [Raw("raw loop in Python", python_loop()), Product("product, all in all")]
        servers.append(Product("product, publications alone", heard=False))
        rows = await fanout.run(servers, work, rounds, say)
    whole, alone = rows[-2:]
    delivery = fanout.difference("product, a delivery", whole, alone, rows[0])
    rows.append(delivery)
    results |= {"fanout": rows, "limit": rows[0].name, "ratio": whole.ratio, "ratio_delivery": delivery.ratio}
    show(console, rows)
    reached = whole.ratio is not None and whole.ratio <= RATIO_GOAL
    say(
        f"a delivery costs {whole.ratio:.2f} times the {rows[0].name} all in all (median of {rounds} rounds), "
        f"goal {RATIO_GOAL}: "
        + ("reached" if reached else "MISSED")
        + f"; without its share of the publication {delivery.ratio:.2f}"
    )
    return results, met and reached


def show(console: Console, rows: list[fanout.Row]) -> None:
    table = Table(title="CPU per delivery (us), median over the rounds", title_justify="left")
    for column in ("", "total", "user", "system", "lowest", "highest", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        middle = len(row.micros) // 2
        table.add_row(
            row.name, f"{row.median:.2f}", f"{sorted(row.user)[middle]:.2f}", f"{sorted(row.system)[middle]:.2f}",
            f"{min(row.micros):.2f}", f"{max(row.micros):.2f}", f"{row.ratio:.2f}",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
