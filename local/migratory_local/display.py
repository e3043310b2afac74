"""What `migratory demo` shows: steps and a moving line while it runs, tables when it is over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from migratory_loadtest.api import LoadEvent
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from migratory_local.demo import DemoResult, caveats

_QUIET_SECONDS = 5.0
"""Between two progress lines where the output is no terminal."""
_SHOWN_FAILURES = 20


class Display:
    """Use as a context manager; `step` and `load` are the demo's watcher.

    :param brokers: whose clients each line tells, in this order.
    """

    def __init__(self, console: Console, brokers: Sequence[str] = ()) -> None:
        self.console = console
        self._brokers = sorted(brokers)
        self._named = False
        self._began = time.monotonic()
        self._last_line = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[counts]}"),
            console=console, transient=True,
        )  # fmt: skip
        self._bar = self._progress.add_task("starting", total=1.0, counts="")

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/]  {escape(text)}", highlight=False)

    def load(self, event: LoadEvent) -> None:
        if event.connections and self._brokers and not self._named:
            self._named = True
            self.step(f"Below, clients A/B/... are those of {', '.join(self._brokers)}")
        line = counts_line(event, self._brokers)
        if self.console.is_terminal:
            if event.phase == "connecting":
                done, total = float(event.connected), float(event.subscribers)
            else:
                done, total = event.elapsed, event.total
            self._progress.update(
                self._bar, description=event.phase, completed=done, total=max(total, 0.001), counts=line
            )
        elif time.monotonic() - self._last_line >= _QUIET_SECONDS:
            self._last_line = time.monotonic()
            self.step(f"{event.phase}: {line}")


def counts_line(event: LoadEvent, brokers: Sequence[str] = ()) -> str:
    """The state of the load in one line. Each of `brokers` has its place in it, also while it is away."""
    if event.phase == "connecting":
        return f"{event.connected:,} of {event.subscribers:,} subscribers"
    parts = [
        f"{event.elapsed:.0f}/{event.total:.0f} s",
        f"{event.acknowledged:,}/{event.published:,} acknowledged",
        f"{event.received:,} received",
        f"{event.reconnects:,} reconnects",
    ]
    if "p99" in event.latency_ms:
        parts.append(f"p99 {event.latency_ms['p99']:.0f} ms")
    if event.connections:
        names = sorted({*brokers, *event.connections})
        parts.append("clients " + "/".join(str(event.connections.get(name, 0)) for name in names))
    return ", ".join(parts)


def show_result(result: DemoResult, console: Console) -> None:
    """Totals, the fault, the SLA report, and what went wrong if anything did."""
    from migratory_spark.table import render

    console.print(Group(_totals(result.to_json()), render(result.report)))
    for failure in result.failures[:_SHOWN_FAILURES]:
        console.print(f"[bold red]failed:[/] {escape(failure)}", highlight=False)
    if len(result.failures) > _SHOWN_FAILURES:
        console.print(f"and {len(result.failures) - _SHOWN_FAILURES} more; --json FILE has all of them")
    console.print(verdict_line(result), highlight=False)


def verdict_line(result: DemoResult) -> str:
    """The last word, with all that could be read as its contradiction explained in it. With rich's markup."""
    load = result.load
    if load.lost or load.duplicates or load.reordered:
        deliveries = f"{load.lost:,} deliveries lost, {load.duplicates:,} doubled, {load.reordered:,} out of order"
    elif result.success:
        deliveries = "nothing was lost: all that was acknowledged reached every subscriber exactly once and in order"
    else:
        deliveries = "no delivery was lost, doubled or out of order"
    parts = [deliveries, *caveats(load)]
    undecided = [each for each in result.report["objectives"] if each["verdict"] == "insufficient"]
    if undecided:
        reasons = "; ".join(f"{each['name']}: {each['reason']}" for each in undecided)
        parts.append(f"the SLA report calls insufficient what it has too little data to judge ({reasons})")
    if result.success:
        return f"[bold green]success:[/] {escape('; '.join(parts))}"
    return f"[bold red]no success[/], for the reasons above: {escape('; '.join(parts))}"


def _totals(result: dict[str, Any]) -> Table:
    table = Table(title="What became of it", title_justify="left", title_style="bold", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    for name in ("published", "acknowledged", "expected", "delivered", "lost", "duplicates", "reordered", "reconnects"):
        table.add_row(name, f"{result[name]:,}")
    kill = result["kill"]
    table.add_row("killed", f"{kill['kind']} ({kill['target']})" if "target" in kill else kill["kind"])
    if kill.get("rejoined_seconds") is not None:
        table.add_row("rejoined after", f"{kill['rejoined_seconds']:.1f} s")
    if result["marks"]:
        others = sum(mark["others_disconnected"] for mark in result["marks"])
        table.add_row("disconnected from other brokers", f"{others:,}")
    for when in ("before", "after"):
        clients = result["connections"][when]
        table.add_row(f"clients {when}", ", ".join(f"{name} {clients[name]:,}" for name in sorted(clients)) or "-")
    return table
