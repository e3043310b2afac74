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
    for load, figures in result.get("latency", {}).get("loads", {}).items():
        console.print(_latencies(load, figures))
    if result.get("attack", {}).get("attacks"):
        console.print(_attacks(result["attack"]))
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
    for result in checked:
        # With all digits: rounded, a value that misses a target by little would look as if it met it.
        value = "not measured" if result.value is None else f"{result.value:,.4f}".rstrip("0").rstrip(".")
        bound = f"{'at most' if result.target.upper else 'at least'} {result.target.bound:g}"
        table.add_row(f"{result.target.text} ({result.target.key})", value, bound, "yes" if result.met else "MISSED")
    return table


def _systems(fanout: Mapping[str, Any]) -> Table:
    table = _table(
        "CPU per delivery (us), medians over the rounds",
        "", "of the raw loop", "total", "spread", "user", "system", "system calls",
    )  # fmt: skip
    for name, figures in fanout["contenders"].items():
        ratio = figures.get("ratio_raw")
        calls = figures["syscalls"]
        table.add_row(
            name, "" if ratio is None else f"{ratio['median']:.2f}x", f"{figures['us']['median']:.2f}",
            _spread(figures["us"]),
            f"{figures['user_us']['median']:.2f}", f"{figures['system_us']['median']:.2f}",
            "" if calls is None else f"{calls}",
        )  # fmt: skip
    return table


def _publishing(publish: Mapping[str, Any]) -> Table:
    table = _table(
        "Acknowledged publishing, two copies of three (medians over the rounds)",
        "", "pipelined /s", "spread", "CPU us each", "single ms", "spread", "P99 ms",
    )  # fmt: skip
    for name, figures in publish["contenders"].items():
        table.add_row(
            name, f"{figures['pipelined_per_s']['median']:,.0f}", _spread(figures["pipelined_per_s"]),
            f"{figures['pipelined_cpu_us']['median']:.1f}", f"{figures['single_ms']['median']:.3f}",
            _spread(figures["single_ms"]),
            f"{figures['single_p99_ms']['median']:.3f}",
        )  # fmt: skip
    return table


def _latencies(load: str, figures: Mapping[str, Any]) -> Table:
    table = _table(
        f"Latency at {load}% of the best peer's saturation, {figures['deliveries_per_s']:,} deliveries/s (ms)",
        "", "median", "P99", "spread", "",
    )  # fmt: skip
    for name, result in figures["contenders"].items():
        p50, p99 = result["p50_ms"], result["p99_ms"]
        table.add_row(
            name, "" if p50 is None else f"{p50['median']:.2f}", "" if p99 is None else f"{p99['median']:.2f}",
            "" if p99 is None else _spread(p99), "; ".join(result["problems"])[:60],
        )  # fmt: skip
    return table


def _attacks(attack: Mapping[str, Any]) -> Table:
    table = _table(
        f"Attacks (medians over the rounds, load average {attack['load_average']:.1f})",
        "", "P99 ms", "control", "ratio", "spread", "lost", "MiB", "of", "kernel",
    )  # fmt: skip
    for kind, figures in attack["attacks"].items():
        table.add_row(
            kind, f"{figures['p99_ms']['median']:.1f}", f"{figures['control_p99_ms']['median']:.1f}",
            f"{figures['p99_ratio']['median']:.2f}", _spread(figures["p99_ratio"]), f"{figures['disconnected']}",
            f"{figures['memory_mib']:,.0f}", f"{figures['memory_cap_mib']:,.0f}",
            f"{figures['kernel_growth_mib']:,.0f}",
        )  # fmt: skip
    return table


def _spread(figure: Mapping[str, Any]) -> str:
    return "..".join(f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in (figure["low"], figure["high"]))
