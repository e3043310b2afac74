"""Memory of an idle subscribed client: the PSS of the server's processes with all clients, less that without any.

The kernel's memory is reported separately. It is counted for the whole machine, so it includes both ends of each
connection. The last part measures memory over cycles of connecting and disconnecting, which must not grow.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from benchmarks import machine
from benchmarks.benchmark import Benchmark
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import MAX_PER_PROCESS
from benchmarks.rig import Rig
from benchmarks.stats import slope
from benchmarks.systems import Product, System, Workload

SETTLE_SECONDS = 2.0
"""Seconds without a change after which memory counts as settled."""

SETTLE_BYTES = 256 * 1024
"""The change in bytes above which memory has not settled."""

SPARE_BYTES = 2 * 2**30
"""Bytes of memory to leave to the machine."""

CONNECTION_BYTES = 16 * 2**10
"""Bytes that a connection takes at most in server, receiver and kernel together."""

FIRST_RATE, RATE_STEP, MAX_RATE = 5000.0, 1.5, 80_000.0
"""Deliveries per second: start, factor and end of the search for the highest rate."""

MAX_P99_MS = 1000.0
"""Milliseconds of P99 above which the server does not sustain a rate."""


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Measure the memory of an idle client of the product, at all sizes, and of the peers."""
    sizes = bench.sizes
    by_clients: dict[str, dict[str, Any]] = {}
    for clients in sizes.memory_clients:
        try:
            by_clients[str(clients)] = await _measure_product(bench, clients)
        except MeasurementFailed as reason:
            if not by_clients and clients == sizes.memory_clients[-1]:
                raise  # no size could be measured
            bench.drop(f"{clients} clients", reason)
    peers = {}
    for system in bench.peers():
        try:
            peers[system.name] = await measure_system(bench, system, sizes.peer_clients)
        except MeasurementFailed as reason:
            bench.drop(system.name, reason)
    first = next(iter(by_clients.values()))
    return {
        "kib_per_client": round(max(figures["kib_per_client"] for figures in by_clients.values()), 3),
        "kernel_kib_per_client": first["kernel_kib_per_client"],
        "clients": by_clients,
        "peers": {name: figures["kib_per_client"] for name, figures in peers.items()},
        "peers_in_full": peers,
        "missing_peers": bench.missing,
    }


async def _measure_product(bench: Benchmark, clients: int) -> dict[str, Any]:
    if machine.memory_available() < SPARE_BYTES + clients * CONNECTION_BYTES:
        raise MeasurementFailed(f"{clients:,} clients don't fit into this machine's memory")
    # More clients than a process has descriptors for need several I/O processes.
    several = clients > MAX_PER_PROCESS
    spec = {"brokers": {"ioProcesses": -(-clients // MAX_PER_PROCESS)}} if several else {}
    return await measure_system(bench, Product(spec=spec), clients, find_rate=several)


async def measure_system(bench: Benchmark, system: System, clients: int, *, find_rate: bool = False) -> dict[str, Any]:
    """Measure the memory of an idle client of a system with this many, and with `find_rate` the highest rate."""
    topics = min(bench.sizes.topics, clients)
    work = Workload(subscribers=clients - clients % topics, topics=topics, payload=bench.sizes.payload, rate=0.0)
    rig = Rig(system, work, pinned=not find_rate)
    try:
        await rig.serve()
        without, kernel = await settled_pss(rig), machine.kernel_memory()
        bench.say(f"{system.name}: {without / 2**20:.1f} MiB without clients; connecting {work.subscribers:,}")
        await rig.connect()
        full, kernel_full = await settled_pss(rig), machine.kernel_memory()
        there = (await rig.receivers.report()).connected
        if there != work.subscribers:
            raise MeasurementFailed(f"{system.name}: {there:,} of {work.subscribers:,} clients are connected")
        figures: dict[str, Any] = {
            "processes": len(rig.system.pids),
            "without_mib": round(without / 2**20, 2),
            "with_mib": round(full / 2**20, 2),
            "kib_per_client": round((full - without) / work.subscribers / 1024, 3),
            "kernel_kib_per_client": round((kernel_full - kernel) / work.subscribers / 1024, 3),
            "receivers_kib_per_client": round(machine.pss(rig.receivers.pids) / work.subscribers / 1024, 3),
        }
        if find_rate:
            figures["carried"] = await _max_rate(bench, rig)
    finally:
        await rig.stop()
    bench.say(f"{system.name}: {figures['kib_per_client']:.2f} KiB for each of {work.subscribers:,} clients")
    return figures


async def settled_pss(rig: Rig, limit: float = 30.0) -> int:
    """Return the PSS in bytes once it has settled, or after `limit` seconds. Raise MeasurementFailed when a server has
    ended, whose memory would be missing."""
    loop = asyncio.get_running_loop()
    pids = rig.system.pids
    deadline = loop.time() + limit
    last, since = machine.pss(pids), loop.time()
    while loop.time() < min(deadline, since + SETTLE_SECONDS):
        await asyncio.sleep(0.5)
        now = machine.pss(pids)
        if abs(now - last) > SETTLE_BYTES:
            last, since = now, loop.time()
    pss = machine.pss(pids)
    if rig.system.pids != pids:
        raise MeasurementFailed(f"{rig.name}: a server ended while its memory was measured{rig.system.last_log_lines}")
    return pss


async def _max_rate(bench: Benchmark, rig: Rig) -> dict[str, Any]:
    """Return the highest rate of deliveries per second that this machine sustains with all clients, receivers
    included, with a P99 below `MAX_P99_MS`, and what failed at the next rate."""
    await rig.start_publisher()
    seconds = bench.sizes.seconds
    subscribers = rig.work.subscribers
    rate = max(FIRST_RATE, subscribers / seconds)  # at least one publication for each topic in a round
    figures: dict[str, Any] = {"deliveries_per_s": 0.0, "p99_ms": None, "not_carried": ""}
    while rate <= MAX_RATE:
        try:
            _, totals = await rig.run_round(rate / subscribers, seconds, limit=60.0)
        except MeasurementFailed as reason:
            return {**figures, "not_carried": f"{rate:,.0f} deliveries/s: {reason}"}
        assert totals is not None
        p99 = totals.latency.p99
        bench.say(f"{subscribers:,} clients: {rate:,.0f} deliveries/s, P99 {p99} ms")
        if p99 is None or p99 > MAX_P99_MS:
            return {**figures, "not_carried": f"{rate:,.0f} deliveries/s: P99 {p99} ms"}
        # The scheduled rate: a round has whole publications of each topic, more or fewer than fit into `seconds`.
        figures |= {"deliveries_per_s": round(rate, 1), "p99_ms": p99}
        rate *= RATE_STEP
    return figures


# ---- cycles ------------------------------------------------------------------------------------------------------


async def measure_cycles(bench: Benchmark) -> dict[str, Any]:
    """Measure the memory over cycles of connecting and disconnecting all clients."""
    sizes = bench.sizes
    topics = min(sizes.topics, sizes.cycle_clients)
    work = Workload(
        subscribers=sizes.cycle_clients - sizes.cycle_clients % topics, topics=topics, payload=sizes.payload, rate=1.0
    )
    rig = Rig(Product(), work)
    await bench.stop_after(rig).start()
    await rig.run_round(work.rate, 1.0)
    full, empty = [], []
    for cycle in range(sizes.cycles):
        if cycle:
            await rig.receivers.open()
        full.append(await settled_pss(rig) / 2**20)
        await rig.receivers.close()
        empty.append(await settled_pss(rig) / 2**20)
        bench.say(f"cycle {cycle + 1} of {sizes.cycles}: {full[-1]:.1f} MiB with clients, {empty[-1]:.1f} without")
    return cycle_summary(full, empty)


def cycle_summary(full: list[float], empty: list[float]) -> dict[str, Any]:
    """Return the result. The first cycle grows the heap, later ones must not: `growth_ratio` is the memory without
    clients in the last third of the other cycles (median), divided by that in their first third."""
    steady = empty[1:] or empty
    third = max(1, len(steady) // 3)
    return {
        "with_mib": [round(mib, 2) for mib in full],
        "without_mib": [round(mib, 2) for mib in empty],
        "kib_per_cycle": round(slope(steady) * 1024, 2),
        "growth_ratio": round(statistics.median(steady[-third:]) / statistics.median(steady[:third]), 4),
    }
