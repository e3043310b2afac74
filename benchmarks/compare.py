"""Comparison of two result files: `python -m benchmarks.compare OLD NEW` (`make bench-compare`).

A figure is worse when the medians differ by more than `--allowed` and the spreads of the rounds do not overlap. A
single number has no spread, and counts by its value alone. Figures of only one file are listed. Exit status: 2 when
the results are not comparable because machine, peers or the sizes of measurements in both differ (unless `--anyway`);
else 1 when a figure is worse, or no figure is in both files; else 2 when the newer run failed to measure something.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks.measurements import ALL

Verdict = Literal["better", "worse", "same"]

HIGHER_IS_BETTER = re.compile(r"(per_s|ratio_jetstream|deliveries_per_s|carried.*)$")
LOWER_ALTHOUGH = re.compile(r"single_ratio_jetstream$|cpu_ratio_jetstream$|loads\.\d+\.deliveries_per_s$")
# Not compared: sizes, counts that follow from them, figures of peers and raw loops, the machine, and slopes, which have
# no meaningful relative change around zero.
JUDGED = (
    "fanout.us_per_delivery", "fanout.user_us", "fanout.ratio_raw", "fanout.ratio_best_peer",
    "fanout.syscalls_per_delivery", "fanout.us_without_publication",
    "memory.kib_per_client", "memory.clients.*.kib_per_client", "memory.clients.*.carried.deliveries_per_s",
    "latency.loads.*.systems.product.p50_ms", "latency.loads.*.systems.product.p99_ms",
    "latency.loads.*.p99_ratio_best_peer",
    "publish.pipelined_per_s", "publish.pipelined_cpu_us", "publish.single_ms", "publish.single_p99_ms",
    "publish.single_cpu_us", "publish.ratio_jetstream", "publish.single_ratio_jetstream",
    "topics.us_per_delivery", "topics.p99_ms", "topics.ratio_best_peer",
    "batching.ratio_unbatched", "batching.us_per_message",
    "io.ratio_one_process", "io.us_two", "io.spread",
    "storm.seconds", "storm.resume_seconds.p99", "storm.live_ratio",
    "failover.resume_seconds.median", "failover.resume_seconds.p99", "failover.others_disconnected", "failover.lost",
    "failover.repeated", "failover.p99_ratio",
    "cycles.growth_ratio",
)  # fmt: skip
_PATTERNS = [re.compile(re.escape(name).replace(r"\*", "[^.]+") + "$") for name in JUDGED]


class Number(NamedTuple):
    """A figure of a result: its median, and its lowest and highest round."""

    median: float
    low: float
    high: float


class Change(NamedTuple):
    """A figure that both results have, and how it changed."""

    key: str
    old: Number
    new: Number
    verdict: Verdict

    @property
    def percent(self) -> float | None:
        """The change of the median in percent, or None if the old median is 0."""
        return None if not self.old.median else (self.new.median / self.old.median - 1) * 100


def numbers(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Number]]:
    """Yield every compared figure by its path, with its own spread or that of the same name under `rounds`."""
    rounds = result.get("rounds")
    spreads = rounds if isinstance(rounds, Mapping) else {}
    for name, own in result.items():
        key, value = f"{prefix}{name}", spreads.get(name, own)
        if isinstance(value, Mapping) and {"median", "low", "high"} <= value.keys():
            number = Number(value["median"], value["low"], value["high"])
        elif isinstance(value, Mapping):
            yield from numbers(value, f"{key}.")
            continue
        elif isinstance(value, int | float) and not isinstance(value, bool):
            number = Number(value, value, value)
        else:
            continue
        if any(pattern.match(key) for pattern in _PATTERNS):
            yield key, number


def verdict(key: str, old: Number, new: Number, allowed: float) -> Verdict:
    """Return how the figure changed: "same" if the spreads overlap, or if the medians differ by at most `allowed`, a
    share of the old median (0.05 is 5%)."""
    higher = bool(HIGHER_IS_BETTER.search(key)) and not LOWER_ALTHOUGH.search(key)
    if old.low <= new.high and new.low <= old.high and (old.low < old.high or new.low < new.high):
        return "same"  # the spreads overlap: no significant change
    change = new.median - old.median
    if abs(change) <= allowed * abs(old.median):
        return "same"
    return "better" if (change > 0) == higher else "worse"


def compare(old: Mapping[str, Any], new: Mapping[str, Any], allowed: float) -> tuple[list[Change], list[str]]:
    """Return (the changes, the keys that only one of the results has). `allowed` is a share, as in `verdict`."""
    before, after = dict(numbers(old)), dict(numbers(new))
    changes = [
        Change(key, before[key], after[key], verdict(key, before[key], after[key], allowed))
        for key in before
        if key in after
    ]
    return changes, sorted(before.keys() ^ after.keys())


def comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the results are not comparable; empty if they are. A size does not count if only
    measurements depend on it that are not in both results."""
    unused: set[str] = set()
    used: set[str] = set()
    for name, measurement in ALL.items():
        (used if name in old and name in new else unused).update(measurement.sizes)
    problems = []
    for part, names in (("machine", ("cores", "cpu")), ("sizes", None), ("peers", None)):
        before, after = old.get(part, {}), new.get(part, {})
        for name in names or sorted(before.keys() | after.keys()):
            if part == "sizes" and name in unused - used:
                continue
            if before.get(name) != after.get(name):
                problems.append(f"{part}.{name}: {before.get(name)!r} and {after.get(name)!r}")
    return problems


@click.command(context_settings={"show_default": True})
@click.argument("old", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("new", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--allowed", default=5.0, metavar="PERCENT", help="Allowed change of a median for the worse.")
@click.option("--anyway", is_flag=True, help="Compare results of different machines, sizes or peers nevertheless.")
def main(old: Path, new: Path, allowed: float, anyway: bool) -> None:
    """Show which figures became worse between two results of the benchmarks."""
    console = Console()
    first, second = (json.loads(path.read_text()) for path in (old, new))
    problems = comparable(first, second)
    if problems:
        console.print("the results are not comparable: " + "; ".join(problems), markup=False)
        if not anyway:
            sys.exit(2)
    changes, alone = compare(first, second, allowed / 100)
    table = Table(title=f"{old} -> {new}", title_justify="left")
    for column in ("", "old", "spread", "new", "spread", "change", ""):
        table.add_column(column, justify="left" if not column else "right")
    for change in changes:
        percent = "" if change.percent is None else f"{change.percent:+.1f}%"
        table.add_row(
            change.key, f"{change.old.median:g}", _spread(change.old), f"{change.new.median:g}", _spread(change.new),
            percent, "" if change.verdict == "same" else change.verdict,
        )  # fmt: skip
    console.print(table)
    for key in alone:
        console.print(f"only in one result: {key}", markup=False)
    worse = [change.key for change in changes if change.verdict == "worse"]
    console.print(f"{len(worse)} of {len(changes)} figures became worse" + "".join(f"\n  {key}" for key in worse))
    failed = second.get("failed", {})
    for name, reason in failed.items():
        console.print(f"{new} failed to measure {name}: {reason}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(1 if worse or not changes else 2 if failed else 0)


def _spread(number: Number) -> str:
    return "" if number.low == number.high else f"{number.low:g}..{number.high:g}"


if __name__ == "__main__":
    main()
