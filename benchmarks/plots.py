"""Plots of a result as PNG files, each with the spread of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

OWN, OTHER = "#1f6f8b", "#9aa5ab"


def write(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a file for each measurement that has a plot and figures. Return the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in PLOTS.items():
        part = result.get(name)
        if not isinstance(part, Mapping):
            continue
        path = folder / f"{name}.png"
        if draw(part, path):
            written.append(path)
    return written


def _bars(path: Path, title: str, unit: str, rows: Mapping[str, Mapping[str, Any] | float]) -> bool:
    """Draw horizontal bars with whiskers from the lowest to the highest round. Return False without rows."""
    from matplotlib import pyplot

    if not rows:
        return False
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(rows) + 1.4))
    for place, (name, value) in enumerate(reversed(list(rows.items()))):
        median = value["median"] if isinstance(value, Mapping) else value
        axes.barh(place, median, color=OWN if name.startswith(("product", "batched")) else OTHER)
        if isinstance(value, Mapping):
            axes.plot([value["low"], value["high"]], [place, place], color="black", linewidth=1.2)
        axes.text(median, place, f" {median:,.3g}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), list(reversed(list(rows))))
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _fanout(part: Mapping[str, Any], path: Path) -> bool:
    rows = {name: figures["us"] for name, figures in part.get("contenders", {}).items() if "ratio_raw" in figures}
    return _bars(path, "CPU per delivery (median and spread of the rounds)", "microseconds", rows)


def _memory(part: Mapping[str, Any], path: Path) -> bool:
    rows = {f"product, {int(n):,} clients": figures["kib_per_client"] for n, figures in part.get("clients", {}).items()}
    return _bars(path, "Memory per idle subscribed client (PSS)", "KiB", {**rows, **part.get("peers", {})})


def _publish(part: Mapping[str, Any], path: Path) -> bool:
    rows = {name: figures["pipelined_per_s"] for name, figures in part.get("contenders", {}).items()}
    return _bars(path, "Acknowledged publications, two copies of three, pipelined", "per second", rows)


def _latency(part: Mapping[str, Any], path: Path) -> bool:
    from matplotlib import pyplot

    loads = part.get("loads", {})
    if not loads:
        return False
    figure, axes = pyplot.subplots(figsize=(8, 4))
    names = list(next(iter(loads.values()))["contenders"])
    for name in names:
        measured_points = [(load["deliveries_per_s"], load["contenders"][name]["p99_ms"]) for load in loads.values()]
        points = [(rate, p99) for rate, p99 in measured_points if p99 is not None]
        if points:
            axes.errorbar(
                [rate for rate, _ in points], [p99["median"] for _, p99 in points],
                yerr=[
                    [p99["median"] - p99["low"] for _, p99 in points],
                    [p99["high"] - p99["median"] for _, p99 in points],
                ],
                label=name, marker="o", capsize=3, linewidth=2 if name == "product" else 1,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("deliveries per second")
    axes.set_ylabel("P99 latency, ms")
    axes.set_title("Latency under load (median and spread of the rounds)", loc="left", fontsize=10)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _cycles(part: Mapping[str, Any], path: Path) -> bool:
    from matplotlib import pyplot

    if not part.get("with_mib"):
        return False
    figure, axes = pyplot.subplots(figsize=(8, 3.4))
    cycles = range(1, len(part["with_mib"]) + 1)
    axes.plot(cycles, part["with_mib"], marker="o", color=OWN, label="all clients connected")
    axes.plot(cycles, part["without_mib"], marker="o", color=OTHER, label="no clients connected")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cycle")
    axes.set_ylabel("MiB")
    axes.set_title("Broker memory over cycles of connecting and disconnecting", loc="left", fontsize=10)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _attack(part: Mapping[str, Any], path: Path) -> bool:
    rows = {name: figures["p99_ratio"] for name, figures in part.get("attacks", {}).items()}
    return _bars(path, "P99 of others under attack (median and spread of the rounds)", "of that in control", rows)


PLOTS: dict[str, Callable[[Mapping[str, Any], Path], bool]] = {
    "fanout": _fanout, "memory": _memory, "publish": _publish, "latency": _latency, "cycles": _cycles,
    "attack": _attack,
}  # fmt: skip
