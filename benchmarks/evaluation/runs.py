"""The runs of the evaluation: as published, each client has one topic, and topics with payloads of 140 bytes publish
staggered over a second.

Sizes are a twentieth of the published ones, on a machine with an eighth of the cores that also holds all clients. The
first table is of one broker whose I/O processes hold the clients; the first size that loses a delivery or falls behind
ends it. The second is the failover benchmark with the published number of topics.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from msgspec import to_builtins

from benchmarks import machine
from benchmarks.benchmark import Benchmark
from benchmarks.measurements.failover import kill_one
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import MAX_PER_PROCESS
from benchmarks.rig import Rig
from benchmarks.systems import Product, UnsupportedField, Workload

RATE = 1.0
"""Publications per topic and second."""

MAX_P99_MS = 5000.0
"""Milliseconds of P99 above which the broker does not sustain a size."""


async def run_one_server(
    bench: Benchmark, sizes: list[int], per_topic: int, warmup: float, seconds: float,
    add_row: Callable[[dict[str, Any]], None],
) -> str:  # fmt: skip
    """Measure a new broker with each number of subscribers in turn, and call `add_row` for each that it sustains. Stop
    at the first that it does not, and return it with the reason; return "" if it sustains all."""
    for subscribers in sizes:
        try:
            row = await _row(bench, subscribers, max(1, subscribers // per_topic), warmup, seconds)
        except (MeasurementFailed, UnsupportedField) as reason:
            bench.say(f"{subscribers:,} subscribers: {reason}")
            return f"{subscribers:,} subscribers: {str(reason).splitlines()[0]}"
        if row["latency_ms"]["p99"] > MAX_P99_MS:
            return f"{subscribers:,} subscribers: P99 {row['latency_ms']['p99']:,.0f} ms"
        add_row(row)
        bench.say(
            f"{subscribers:,} subscribers, {row['topics']} topics: median {row['latency_ms']['median']:.1f} ms, "
            f"P99 {row['latency_ms']['p99']:.1f} ms, broker {row['broker_cpu_percent']:.1f}% of the machine"
        )
    return ""


async def _row(bench: Benchmark, subscribers: int, topics: int, warmup: float, seconds: float) -> dict[str, Any]:
    work = Workload(subscribers=subscribers - subscribers % topics, topics=topics, payload=140, rate=RATE)
    processes = -(
        -subscribers * 5 // 4 // MAX_PER_PROCESS
    )  # with spare room, because processes have slightly uneven shares
    spec = {"brokers": {"ioProcesses": processes}} if processes > 1 else {}
    rig = Rig(Product(spec=spec), work, pinned=False)
    try:
        await rig.start()
        await rig.run_round(RATE, warmup)
        before = await rig.receivers.report()
        result, totals = await rig.run_round(RATE, seconds)
        assert totals is not None
        memory = machine.pss(rig.system.pids)
    finally:
        await rig.stop()
    cores = len(os.sched_getaffinity(0))
    return {
        "subscribers": work.subscribers,
        "topics": topics,
        "io_processes": processes if processes > 1 else 0,
        "latency_ms": to_builtins(totals.latency),
        "broker_cpu_percent": round((result.user + result.system) / result.seconds / cores * 100, 2),
        "clients_cpu_percent": round(result.receiver / result.seconds / cores * 100, 2),
        "gbps": round((totals.bytes - before.bytes) * 8 / result.seconds / 1e9, 4),
        "broker_mib": round(memory / 2**20, 1),
        "late_sends": result.late,
    }


async def run_three_servers(
    bench: Benchmark, subscribers: int, topics: int, rate: float, seconds: float
) -> dict[str, Any]:
    """Measure three brokers of which one is killed, as the failover benchmark does, and return the figures."""
    work = Workload(subscribers=subscribers - subscribers % topics, topics=topics, payload=140, rate=rate)
    return await kill_one(bench, work, seconds)
