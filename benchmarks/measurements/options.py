"""Options of the product compared with their defaults: batching of messages, and several I/O processes.

A product whose cluster file does not have the option has no figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.benchmark import Benchmark, NotMeasurable
from benchmarks.comparison import SystemComparison, latencies, micros
from benchmarks.rig import Rig
from benchmarks.stats import ratios, round_stats, with_medians
from benchmarks.systems import Product, UnsupportedField, Workload

# ---- batching ----------------------------------------------------------------------------------------------------

INTERVAL = "100ms"
SPEC = {"delivery": {"batching": {"maxDelay": INTERVAL}}}
WITH, WITHOUT = "batched", "unbatched"


async def measure_batching(bench: Benchmark) -> dict[str, Any]:
    """Measure the CPU per message with and without batching, at many messages a second for each client. Per message,
    because a delivery with batching contains several.

    Raise NotMeasurable when the product has no such option.
    """
    sizes = bench.sizes
    work = Workload(subscribers=sizes.batching_subscribers, topics=1, payload=sizes.payload, rate=sizes.batching_rate)
    rigs = {WITHOUT: Rig(Product(WITHOUT), work), WITH: Rig(Product(WITH, spec=SPEC), work)}
    comparison = SystemComparison(bench, rigs, unit="message")
    try:
        await comparison.start(1.0)
    except UnsupportedField as reason:
        raise NotMeasurable(f"this product's cluster file has no delivery.batching: {reason}") from reason
    results = await comparison.rounds()
    each = micros(results)
    return {
        "interval": INTERVAL,
        **with_medians(
            ratio_unbatched=ratios(each[WITH], each[WITHOUT]), us_per_message=round_stats(each[WITH]),
            us_unbatched=round_stats(each[WITHOUT]),
        ),
        "median_ms": {name: round_stats(latencies(rows)[0]) for name, rows in results.items()},
    }  # fmt: skip


# ---- I/O processes -----------------------------------------------------------------------------------------------

ONE, TWO = "one process", "two processes"


async def measure_io_processes(bench: Benchmark) -> dict[str, Any]:
    """Measure the CPU per delivery over all of the broker's processes, and how evenly they share the connections.
    Nothing is pinned, so that they can use both cores.

    Raise NotMeasurable when the product has no such option.
    """
    sizes = bench.sizes
    work = Workload(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    rigs = {
        name: Rig(Product(name, spec={"brokers": {"ioProcesses": count}}), work, pinned=False)
        for name, count in ((ONE, 1), (TWO, 2))
    }
    comparison = SystemComparison(bench, rigs)
    try:
        await comparison.start(1.0)
    except UnsupportedField as reason:
        raise NotMeasurable(f"this product's cluster file has no brokers.ioProcesses: {reason}") from reason
    connections = established(rigs[TWO].system.pids, rigs[TWO].system.addresses[0][1])
    shares = [count for count in connections.values() if count > len(connections)]
    each = micros(await comparison.rounds())
    return {
        **with_medians(
            ratio_one_process=ratios(each[TWO], each[ONE]), us_one=round_stats(each[ONE]), us_two=round_stats(each[TWO])
        ),
        "connections": sorted(shares),
        "spread": round(max(shares) / (sum(shares) / 2), 3) if shares else None,
    }  # fmt: skip


def established(pids: Iterable[int], port: int) -> Counter[int]:
    """Return the established IPv4 connections to a local port by process, from the kernel's tables."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and int(fields[1].rsplit(":", 1)[1], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    counts: Counter[int] = Counter()
    for pid in machine.process_trees(pids):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                counts[pid] += str(link.readlink()) in inodes
            except OSError:
                continue  # closed since
    return counts
