"""The page docs/reference/evaluation.md, made from a result of `python -m benchmarks.evaluation` and a template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.capacity.page import table

TEMPLATE = Path(__file__).parent / "evaluation.template.md"
STATISTICS = ("median", "mean", "stdev", "p90", "p95", "p99")
HEADS = ("median", "mean", "stdev", "P90", "P95", "P99")


def render(result: Mapping[str, Any]) -> str:
    """Return the page's text."""
    vertical, three, machine = result["vertical"], result["three"], result["machine"]
    ended, largest = vertical["ended"], vertical["rows"][-1]
    return TEMPLATE.read_text().format(
        machine=f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}",
        warmup=f"{result['warmup']:g}", seconds=f"{result['seconds']:g}", vertical=_vertical(vertical["rows"]),
        per_topic=f"{largest['subscribers'] // largest['topics']:,}",
        ended=f"Not sustained: {ended}." if ended else "Every size was sustained.", three=_three(three),
        clients=f"{three['clients']:,}", topics=three["topics"], deliveries=f"{three['deliveries_per_s']:,.0f}",
        resumed=f"{three['resumed']:,}", killed=f"{three['killed_clients']:,}", others=three["others_disconnected"],
        median=_seconds(three, "median"), p99=_seconds(three, "p99"), largest=_seconds(three, "max"),
        delivered=f"{three['deliveries']:,}", lost=three["lost"], repeated=three["repeated"],
        before=_counts(three["connections_before"]), after=_counts(three["connections_after"]),
    )  # fmt: skip


def _seconds(three: Mapping[str, Any], name: str) -> str:
    latency = three["resume_seconds"][name]
    return "-" if latency is None else f"{latency:.2f}"


def _counts(counts: list[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)


def _latency(latency: Mapping[str, Any]) -> list[str]:
    return ["" if latency[name] is None else f"{latency[name]:,.2f}" for name in STATISTICS]


def _vertical(rows: list[Mapping[str, Any]]) -> str:
    return table(
        ("subscribers", "topics", *HEADS, "CPU", "Gbps", "clients' CPU", "broker's MiB"),
        [
            (
                f"{row['subscribers']:,}", f"{row['topics']}", *_latency(row["latency_ms"]),
                f"{row['broker_cpu_percent']:.2f}%", f"{row['gbps']:.3f}", f"{row['clients_cpu_percent']:.2f}%",
                f"{row['broker_mib']:.0f}",
            )
            for row in rows
        ],
    )  # fmt: skip


def _three(three: Mapping[str, Any]) -> str:
    def cpu(cores: Mapping[str, float]) -> str:
        return ", ".join(f"{share / three['cores'] * 100:.2f}%" for share in cores.values())

    rows = [
        ("before", *_latency(three["before_ms"]), cpu(three["cores_before"]), _counts(three["connections_before"])),
        ("after", *_latency(three["after_ms"]), cpu(three["cores_after"]), _counts(three["connections_after"])),
    ]
    return table(("", *HEADS, "CPU per server", "connections"), rows)
