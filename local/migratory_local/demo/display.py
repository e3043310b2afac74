"""The output of `migratory demo`: steps and a progress line while the demo runs, tables when it is over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from migratory_loadtest.api import LoadEvent
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from migratory_local.demo.result import DemoResult, describe_caveats

_LINE_SECONDS = 5.0
"""Seconds between two progress lines if the output is not a terminal."""
_MAX_FAILURES = 20
"""Failures that are printed. The JSON result has all of them."""


class DemoDisplay:
    """The display of a running demo. Use it as a context manager, and pass its methods `step` and `load` to
    DemoObserver.

    :param brokers: brokers that progress lines show even while they have no clients.
    """

    def __init__(self, console: Console, brokers: Sequence[str] = ()) -> None:
        self.console = console
        self._brokers = sorted(brokers)
        self._names_shown = False
        self._started_at = time.monotonic()
        self._last_line = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[counts]}"),
            console=console, transient=True,
        )  # fmt: skip
        self._bar = self._progress.add_task("starting", total=1.0, counts="")

    def __enter__(self) -> DemoDisplay:
        if self.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Print a line of text after the seconds since the display was created."""
        self.console.print(f"[dim]{time.monotonic() - self._started_at:6.1f} s[/]  {escape(text)}", highlight=False)

    def load(self, event: LoadEvent) -> None:
        """Show the state of the load: in a terminal as a progress bar, otherwise as a line at most every
        `_LINE_SECONDS`. Before the first numbers of clients, print once to which brokers they belong."""
        if event.connections and self._brokers and not self._names_shown:
            self._names_shown = True
            self.step(f"The numbers of clients below are those of {', '.join(self._brokers)}")
        line = counts_line(event, self._brokers)
        if self.console.is_terminal:
            if event.phase == "connecting":
                done, total = float(event.connected), float(event.subscribers)
            else:
                done, total = event.elapsed, event.total
            self._progress.update(
                self._bar, description=event.phase, completed=done, total=max(total, 0.001), counts=line
            )
        elif time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            self.step(f"{event.phase}: {line}")


def counts_line(event: LoadEvent, brokers: Sequence[str] = ()) -> str:
    """Return the state of the load in one line: time, counts, P99 if known, and the clients of each broker if known.
    While subscribers connect, return their number only. A broker of `brokers` that has none, such as a dead one, is
    shown with 0 clients."""
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
    """Print totals, the fault, the SLA report, the first `_MAX_FAILURES` failures if there are any, and the verdict."""
    from migratory_spark.render.tables import render

    console.print(Group(_totals(result.to_json()), render(result.report)))
    for failure in result.failures[:_MAX_FAILURES]:
        console.print(f"[bold red]failed:[/] {escape(failure)}", highlight=False)
    if len(result.failures) > _MAX_FAILURES:
        console.print(f"and {len(result.failures) - _MAX_FAILURES} more; --json FILE has all of them")
    console.print(verdict_line(result), highlight=False)


def verdict_line(result: DemoResult) -> str:
    """Return the verdict in one line with rich's markup, with facts that could seem to contradict it."""
    load = result.load
    if load.lost or load.duplicates or load.reordered:
        deliveries = f"{load.lost:,} deliveries lost, {load.duplicates:,} duplicated, {load.reordered:,} out of order"
    elif result.success:
        deliveries = (
            "nothing was lost: every acknowledged publication reached every subscriber exactly once and in order"
        )
    else:
        deliveries = "no delivery was lost, duplicated or out of order"
    parts = [deliveries, *describe_caveats(load)]
    insufficient = [each for each in result.report["objectives"] if each["verdict"] == "insufficient"]
    if insufficient:
        reasons = "; ".join(f"{each['name']}: {each['reason']}" for each in insufficient)
        parts.append(f"the SLA report has too little data to judge some objectives ({reasons})")
    if result.success:
        return f"[bold green]success:[/] {escape('; '.join(parts))}"
    return f"[bold red]failed[/] for the reasons above: {escape('; '.join(parts))}"


def _totals(result: dict[str, Any]) -> Table:
    """Return a table of the result's counts, the killed process and its recovery, and the clients of each broker before
    and after. `result` is that of `DemoResult.to_json`."""
    table = Table(title="Result", title_justify="left", title_style="bold", show_header=False)
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
        table.add_row("clients disconnected from other brokers", f"{others:,}")
    for phase in ("before", "after"):
        clients = result["connections"][phase]
        table.add_row(f"clients {phase}", ", ".join(f"{name} {clients[name]:,}" for name in sorted(clients)) or "-")
    return table
