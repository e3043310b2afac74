"""The runs: as published, each client has one topic, every topic has 140 bytes once a second, topics are staggered.

Sizes are a twentieth of the published ones, on a machine with an eighth of the cores, which also has to hold all the
clients. The first table is of one broker whose I/O processes hold the clients; a size that loses something or falls
behind ends it. The second is the benchmark of the failover, with the published numbers of topics.
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

RATE = 1.0  # publications per topic and second
BEHIND = 5000.0  # milliseconds of P99 from which a size is not carried


async def vertical(
    bench: Benchmark, sizes: list[int], per_topic: int, warmup: float, seconds: float,
    keep: Callable[[dict[str, Any]], None],
) -> str:  # fmt: skip
    """`keep` gets a row for each number of subscribers, until one is not carried: which, and why, or ""."""
    for subscribers in sizes:
        try:
            row = await _row(bench, subscribers, max(1, subscribers // per_topic), warmup, seconds)
        except (MeasurementFailed, UnsupportedField) as reason:
            bench.say(f"{subscribers:,} subscribers: {reason}")
            return f"{subscribers:,} subscribers: {str(reason).splitlines()[0]}"
        if row["latency_ms"]["p99"] > BEHIND:
            return f"{subscribers:,} subscribers: P99 {row['latency_ms']['p99']:,.0f} ms"
        keep(row)
        bench.say(
            f"{subscribers:,} subscribers, {row['topics']} topics: median {row['latency_ms']['median']:.1f} ms, "
            f"P99 {row['latency_ms']['p99']:.1f} ms, broker {row['broker_cpu_percent']:.1f}% of the machine"
        )
    return ""


async def _row(bench: Benchmark, subscribers: int, topics: int, warmup: float, seconds: float) -> dict[str, Any]:
    work = Workload(subscribers=subscribers - subscribers % topics, topics=topics, payload=140, rate=RATE)
    processes = -(-subscribers * 5 // 4 // MAX_PER_PROCESS)  # with room, for shares are not quite even
    spec = {"brokers": {"ioProcesses": processes}} if processes > 1 else {}
    rig = Rig(Product(spec=spec), work, pinned=False)
    try:
        await rig.start()
        await rig.turn(RATE, warmup)
        before = await rig.receivers.report()
        turn, totals = await rig.turn(RATE, seconds)
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
        "broker_cpu_percent": round((turn.user + turn.system) / turn.seconds / cores * 100, 2),
        "clients_cpu_percent": round(turn.receiver / turn.seconds / cores * 100, 2),
        "gbps": round((totals.bytes - before.bytes) * 8 / turn.seconds / 1e9, 4),
        "broker_mib": round(memory / 2**20, 1),
        "late_sends": turn.late,
    }


async def three(bench: Benchmark, subscribers: int, topics: int, rate: float, seconds: float) -> dict[str, Any]:
    work = Workload(subscribers=subscribers - subscribers % topics, topics=topics, payload=140, rate=rate)
    return await kill_one(bench, work, seconds)
