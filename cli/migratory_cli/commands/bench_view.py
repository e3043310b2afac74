"""Formats the output of `migratory bench`: a live progress line (plain lines without a terminal), then tables, problems
and the verdict."""

from __future__ import annotations

from migratory_loadtest import LoadEvent, LoadResult
from migratory_loadtest.result import DurationSummary, LatencySummary
from rich.console import Console
from rich.live import Live
from rich.text import Text

from migratory_cli.output import print_table

MAX_PROBLEMS = 10
"""Problems that are printed. The JSON result has more."""
LINE_SECONDS = 5
"""Seconds between two progress lines if the output is not a terminal."""
COLOURS = {"met": "green", "missed": "red", "insufficient": "yellow"}


class ProgressDisplay:
    """The display of a running load's progress: a line that changes on a terminal, else a new line every LINE_SECONDS.
    Use it as a context manager, and pass `show` to the load as its `on_event`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._last_shown: tuple[str, int, bool] = ("", -1, False)

    def __enter__(self) -> ProgressDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: LoadEvent) -> None:
        """Show the state of the load. Without a terminal, print it only every LINE_SECONDS, when phase or mark changes,
        and when an error appears or goes."""
        text = describe(event)
        if self._live is not None:
            self._live.update(Text(text))
            return
        # Print every few seconds, at every change of phase, and at the first error. Events continue after "done".
        interval = 0 if event.phase == "done" else int(event.elapsed) // LINE_SECONDS
        if (current := (event.phase + event.mark, interval, bool(event.error))) != self._last_shown:
            self._last_shown = current
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe(event: LoadEvent) -> str:
    """Return the state of a running load in one line: phase, counts, latency, connections; while subscribers connect,
    only their number and the last error."""
    if event.phase == "connecting":
        text = f"connecting  {event.connected:,} of {event.subscribers:,} subscribers"
        return f"{text}; retrying: {event.error}" if event.error else text
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


def print_summary(console: Console, result: LoadResult) -> None:
    """Print the result of a run: tables of counts, latencies and times, then at most MAX_PROBLEMS problems, the reasons
    and the verdict."""
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
    if not result.marks:  # without a fault there is no before and after
        phases = [("all", result.latency_ms.before)]
    print_table(
        console,
        "Latency from the scheduled send (ms)",
        ("", "deliveries", "median", "mean", "stdev", "P90", "P95", "P99", "max"),
        [_latency_row(name, latency) for name, latency in phases if latency.count],
        optional=("stdev", "P90", "mean", "P95", "deliveries"),
    )
    durations = (
        ("publish to acknowledgement", result.publish_seconds),
        ("resume", result.resume_seconds),
        ("publish gap", result.publish_gap_seconds),
    )
    times = [
        (name, f"{duration.count:,}", *_duration_cells(duration)) for name, duration in durations if duration.count
    ]
    print_table(console, "Times (seconds)", ("", "count", "P50", "P99", "max"), times, optional=("P50", "count"))
    for phase, connections in (("before", result.connections.before), ("after", result.connections.after)):
        shares = " / ".join(f"{broker} {count:,}" for broker, count in sorted(connections.items()))
        console.print(f"connections {phase}: {shares or 'none'}", markup=False, highlight=False)
    console.print(
        f"traffic to subscribers {result.traffic_gbps:.4f} Gbps; {result.late_sends:,} of {result.scheduled:,} sends "
        f"late, the latest by {result.latest_send_ms:.1f} ms",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    usage = result.generator
    per_delivery = "" if usage.cpu_us_per_delivery is None else f", {usage.cpu_us_per_delivery:.1f} us per delivery"
    console.print(
        f"the load generator itself: {usage.workers} processes, {usage.cpu_seconds:.1f} s of CPU{per_delivery}, "
        f"{usage.peak_mib:,.0f} MiB",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    for problem in result.problems[:MAX_PROBLEMS]:
        subscriber = "" if problem.subscriber is None else f" at subscriber {problem.subscriber}"
        more = f" and {problem.count - len(problem.positions)} more" if problem.count > len(problem.positions) else ""
        text = f"{problem.kind}: {problem.topic}{subscriber}: {', '.join(problem.positions)}{more}"
        console.print(
            text + (f" ({problem.text})" if problem.text else ""), markup=False, highlight=False, soft_wrap=True
        )
    if len(result.problems) > MAX_PROBLEMS:
        console.print(f"and {len(result.problems) - MAX_PROBLEMS} more problems", markup=False)
    for reason in result.reasons:
        console.print(f"- {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(Text(result.verdict, style=f"bold {COLOURS[result.verdict]}"))


def _latency_row(name: str, latency: LatencySummary) -> tuple[str, ...]:
    values = (latency.median, latency.mean, latency.stdev, latency.p90, latency.p95, latency.p99, latency.max)
    return name, f"{latency.count:,}", *(f"{value:,.2f}" if value is not None else "-" for value in values)


def _duration_cells(duration: DurationSummary) -> list[str]:
    return [f"{value:,.3f}" if value is not None else "-" for value in (duration.p50, duration.p99, duration.max)]
