"""How a load run looks in a terminal: a live line of progress, then tables. Plain lines where there is no terminal."""

from __future__ import annotations

from migratory_loadtest import LoadEvent, LoadResult
from migratory_loadtest.result import Latency, Spread
from rich.console import Console
from rich.live import Live
from rich.text import Text

from migratory_cli.tables import print_table

NAMED = 10  # problems shown; the JSON has more
COLOURS = {"met": "green", "missed": "red", "insufficient": "yellow"}


class Progress:
    """Use as a context manager, and `show` as the run's `on_event`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._last: tuple[str, int, bool] = ("", -1, False)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: LoadEvent) -> None:
        text = describe(event)
        if self._live is not None:
            self._live.update(Text(text))
            return
        pace = 0 if event.phase == "done" else int(event.elapsed) // 5  # workers go on to tell when all is done
        if (moment := (event.phase + event.mark, pace, bool(event.error))) != self._last:
            self._last = moment  # every fifth second and every change; the first obstacle, not each
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe(event: LoadEvent) -> str:
    if event.phase == "connecting":
        text = f"connecting  {event.connected:,} of {event.subscribers:,} subscribers"
        return f"{text}; tries again: {event.error}" if event.error else text
    parts = [
        f"{event.phase:<10}  {min(event.elapsed, event.total):.0f} of {event.total:.0f} s",
        f"published {event.published:,}, acknowledged {event.acknowledged:,}",
        f"received {event.received:,} of {event.expected:,}",
    ]
    if event.latency_ms:
        parts.append(f"{event.latency_ms['median']:.1f} ms, P99 {event.latency_ms['p99']:.1f} ms")
    parts.append(" / ".join(f"{broker} {count:,}" for broker, count in sorted(event.connections.items())))
    if event.reconnects:
        parts.append(f"{event.reconnects:,} reconnects")
    if event.late:
        parts.append(f"{event.late:,} sent late")
    if event.mark:
        parts.append(f"[{event.mark}]")
    return "  ".join(part for part in parts if part)


def summary(console: Console, result: LoadResult) -> None:
    counts = (
        ("published", result.published), ("acknowledged", result.acknowledged), ("never answered", result.unanswered),
        ("refused", result.failed), ("expected deliveries", result.expected), ("delivered", result.delivered),
        ("lost", result.lost), ("duplicates", result.duplicates), ("reordered", result.reordered),
        ("unexpected", result.unexpected), ("conflicts", result.conflicts), ("reconnects", result.reconnects),
    )  # fmt: skip
    rows = [(name, f"{value:,}") for name, value in counts]
    print_table(console, "Publications and deliveries", ("", "count"), rows)
    phases = [
        ("before the fault", result.latency_ms.before),
        ("during it", result.latency_ms.during),
        ("after it", result.latency_ms.after),
    ]
    if not result.marks:  # nothing happened that anything could be before
        phases = [("all", result.latency_ms.before)]
    print_table(
        console,
        "Latency from the scheduled send (ms)",
        ("", "deliveries", "median", "mean", "stdev", "P90", "P95", "P99", "max"),
        [_latency(name, found) for name, found in phases if found.count],
        goes_first=("stdev", "P90", "mean", "P95", "deliveries"),
    )
    spreads = (
        ("publish to acknowledgement", result.publish_seconds),
        ("resume", result.resume_seconds),
        ("publish gap", result.publish_gap_seconds),
    )
    times = [(name, f"{spread.count:,}", *_spread(spread)) for name, spread in spreads if spread.count]
    print_table(console, "Times (seconds)", ("", "count", "P50", "P99", "max"), times, goes_first=("P50", "count"))
    for when, found in (("before", result.connections.before), ("after", result.connections.after)):
        shares = " / ".join(f"{broker} {count:,}" for broker, count in sorted(found.items()))
        console.print(f"connections {when}: {shares or 'none'}", markup=False, highlight=False)
    console.print(
        f"traffic to subscribers {result.traffic_gbps:.4f} Gbps; {result.late_sends:,} of {result.scheduled:,} sends "
        f"late, the latest by {result.latest_send_ms:.1f} ms",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    own = result.generator
    each = "" if own.cpu_us_per_delivery is None else f", {own.cpu_us_per_delivery:.1f} us a delivery"
    console.print(
        f"the load generator itself: {own.workers} processes, {own.cpu_seconds:.1f} s of CPU{each}, "
        f"{own.peak_mib:,.0f} MiB",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    for problem in result.problems[:NAMED]:
        who = "" if problem.subscriber is None else f" at subscriber {problem.subscriber}"
        more = f" and {problem.count - len(problem.positions)} more" if problem.count > len(problem.positions) else ""
        text = f"{problem.kind}: {problem.topic}{who}: {', '.join(problem.positions)}{more}"
        console.print(
            text + (f" ({problem.text})" if problem.text else ""), markup=False, highlight=False, soft_wrap=True
        )
    if len(result.problems) > NAMED:
        console.print(f"and {len(result.problems) - NAMED} more problems", markup=False)
    for reason in result.reasons:
        console.print(f"- {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(Text(result.verdict, style=f"bold {COLOURS[result.verdict]}"))


def _latency(name: str, found: Latency) -> tuple[str, ...]:
    values = (found.median, found.mean, found.stdev, found.p90, found.p95, found.p99, found.max)
    return name, f"{found.count:,}", *(f"{value:,.2f}" if value is not None else "-" for value in values)


def _spread(spread: Spread) -> list[str]:
    return [f"{value:,.3f}" if value is not None else "-" for value in (spread.p50, spread.p99, spread.max)]
