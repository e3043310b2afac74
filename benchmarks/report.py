"""Tables of a result on the terminal: targets first, then systems and failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.targets import TargetResult


def print_result(console: Console, result: Mapping[str, Any], checked: list[TargetResult]) -> None:
    if checked:
        console.print(_targets(checked))
    fanout = result.get("fanout", {})
    if "contenders" in fanout:
        console.print(_systems(fanout))
    if "contenders" in result.get("publish", {}):
        console.print(_publishing(result["publish"]))
    for load, one in result.get("latency", {}).get("loads", {}).items():
        console.print(_latencies(load, one))
    for name, text in result.get("failed", {}).items():
        console.print(f"FAILED: {name}: {text}", markup=False, highlight=False, soft_wrap=True)
    for name, text in result.get("not_measured", {}).items():
        console.print(f"NOT MEASURED: {name}: {text}", markup=False, highlight=False, soft_wrap=True)
    if result.get("missing_peers"):
        console.print(
            f"MISSING PEERS: {', '.join(result['missing_peers'])}: install them with `make bench-peers`", markup=False
        )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if not column else "right")
    return table


def _targets(checked: list[TargetResult]) -> Table:
    table = _table("Targets", "", "measured", "target", "reached")
    for one in checked:
        # With all digits: rounded, a value that misses a target by little would look as if it met it.
        value = "not measured" if one.value is None else f"{one.value:,.4f}".rstrip("0").rstrip(".")
        bound = f"{'at most' if one.target.upper else 'at least'} {one.target.bound:g}"
        table.add_row(f"{one.target.text} ({one.target.key})", value, bound, "yes" if one.met else "MISSED")
    return table


def _systems(fanout: Mapping[str, Any]) -> Table:
    table = _table(
        "CPU per delivery (us), medians over the rounds",
        "", "of the raw loop", "total", "spread", "user", "system", "system calls",
    )  # fmt: skip
    for name, one in fanout["contenders"].items():
        ratio = one.get("ratio_raw")
        calls = one["syscalls"]
        table.add_row(
            name, "" if ratio is None else f"{ratio['median']:.2f}x", f"{one['us']['median']:.2f}", _spread(one["us"]),
            f"{one['user_us']['median']:.2f}", f"{one['system_us']['median']:.2f}", "" if calls is None else f"{calls}",
        )  # fmt: skip
    return table


def _publishing(publish: Mapping[str, Any]) -> Table:
    table = _table(
        "Acknowledged publishing, two copies of three (medians over the rounds)",
        "", "pipelined /s", "spread", "CPU us each", "single ms", "spread", "P99 ms",
    )  # fmt: skip
    for name, one in publish["contenders"].items():
        table.add_row(
            name, f"{one['pipelined_per_s']['median']:,.0f}", _spread(one["pipelined_per_s"]),
            f"{one['pipelined_cpu_us']['median']:.1f}", f"{one['single_ms']['median']:.3f}", _spread(one["single_ms"]),
            f"{one['single_p99_ms']['median']:.3f}",
        )  # fmt: skip
    return table


def _latencies(load: str, one: Mapping[str, Any]) -> Table:
    table = _table(
        f"Latency at {load}% of the best peer's saturation, {one['deliveries_per_s']:,} deliveries/s (ms)",
        "", "median", "P99", "spread", "",
    )  # fmt: skip
    for name, seen in one["contenders"].items():
        p50, p99 = seen["p50_ms"], seen["p99_ms"]
        table.add_row(
            name, "" if p50 is None else f"{p50['median']:.2f}", "" if p99 is None else f"{p99['median']:.2f}",
            "" if p99 is None else _spread(p99), "; ".join(seen["problems"])[:60],
        )  # fmt: skip
    return table


def _spread(figure: Mapping[str, Any]) -> str:
    return "..".join(f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in (figure["low"], figure["high"]))
