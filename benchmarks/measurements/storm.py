"""Reconnect storm: many clients reconnect at once, each with its last position, while others stay connected.

Measured are the latency of the live clients and the time until all are back. Every delivery is counted afterwards.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks import ipc, machine
from benchmarks.benchmark import Benchmark
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import Receivers, ReceiverTotals
from benchmarks.systems import Product, Workload

RATE = 1.0
"""Publications per topic and second."""

QUIET_SHARE = 0.4
"""Share of `storm_seconds` before the storm."""

AWAY_SHARE = 0.15
"""Share of `storm_seconds` in which clients are disconnected. They miss publications, which are then replayed."""

MIN_STORM_SECONDS = 2.0
"""Seconds of latencies from the reconnect on, at least, so that every topic has publications in them."""


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Measure a reconnect storm. Raise MeasurementFailed when a publication is not answered, or a delivery is lost,
    repeated or late."""
    sizes = bench.sizes
    topics = min(sizes.topics, sizes.storm_live)
    work = Workload(subscribers=sizes.storm_clients, topics=topics, payload=sizes.payload, rate=RATE)
    core, other_core = machine.cores()
    product = Product()
    bench.stack.push_async_callback(product.stop)
    await product.start(work, core)
    groups = []
    for first, connections in ((0, sizes.storm_live), (sizes.storm_live, sizes.storm_clients)):
        setup = ipc.ReceiverSetup(
            protocol=product.protocol, addresses=product.addresses, connections=connections, first=first, topics=topics,
            reconnects=True,
        )  # fmt: skip
        # Reconnecting receivers give way to live ones, whose latency must be the broker's and not their own core's.
        receivers = Receivers(setup, other_core, niceness=10 if first else 0)
        bench.stack.push_async_callback(receivers.stop)
        await receivers.start()
        groups.append(receivers)
    live, returning = groups
    await product.start_publisher(work, other_core)
    warmup = await product.publish_open_loop(RATE, 1.0)
    before = []
    for receivers in groups:
        await receivers.wait_for(warmup.scheduled * (receivers.connections // topics))  # the warmup-up is not counted
        before.append(await receivers.report(reset=True))

    bench.say(f"{sizes.storm_live:,} live clients, quiet")
    quiet_for, away_for = QUIET_SHARE * sizes.storm_seconds, AWAY_SHARE * sizes.storm_seconds
    total = quiet_for + away_for + sizes.storm_seconds
    clock = asyncio.get_running_loop().time
    start = clock()
    publishing = asyncio.create_task(product.publish_open_loop(RATE, total))
    try:
        await asyncio.sleep(quiet_for)
        quiet = await live.report()
        await returning.close()
        await asyncio.sleep(away_for)
        bench.say(f"{sizes.storm_clients:,} clients reconnect at once")
        await live.report(reset=True)
        begin = clock()
        reconnected = await returning.open(max_pending=sizes.storm_clients)
        seconds = clock() - begin
        await asyncio.sleep(max(0.0, MIN_STORM_SECONDS - seconds))
        due = topics * min(int(RATE * (clock() - start)), round(RATE * total))
        storm = await wait_for_deliveries(live, before[0].deliveries + due * (live.connections // topics))
        published = await publishing
    finally:
        publishing.cancel()
    if published.answered != published.scheduled:
        raise MeasurementFailed(f"{published.answered} of {published.scheduled} publications were answered")
    for receivers, then in zip(groups, before, strict=True):
        await receivers.wait_for(then.deliveries + published.scheduled * (receivers.connections // topics))
    return summary(quiet, storm, reconnected, seconds)


async def wait_for_deliveries(receivers: Receivers, deliveries: int, limit: float = 60.0) -> ReceiverTotals:
    """Wait for this number of deliveries, so that publications that a busy broker delays are counted.

    Raise MeasurementFailed when they do not arrive in time."""
    deadline = time.monotonic() + limit
    while (totals := await receivers.report()).deliveries < deliveries:
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"{totals.deliveries:,} of {deliveries:,} deliveries came within {limit:.0f} s")
        await asyncio.sleep(0.05)
    return totals


def summary(
    quiet: ReceiverTotals, storm: ReceiverTotals, reconnected: ReceiverTotals, seconds: float
) -> dict[str, Any]:
    """Return the result. `storm` has the live clients' deliveries while the others reconnected."""
    quiet_p99, storm_p99 = quiet.latency.p99, storm.latency.p99
    return {
        "returned": len(reconnected.resumes),
        "refused_attempts": reconnected.refused,
        "seconds": round(seconds, 3),
        "resume_seconds": {
            "median": _percentile(reconnected.resumes, 0.5),
            "p99": _percentile(reconnected.resumes, 0.99),
        },
        "live_disconnected": storm.disconnected - quiet.disconnected,
        "live_quiet_p99_ms": quiet_p99,
        "live_storm_p99_ms": storm_p99,
        "live_ratio": None if not quiet_p99 or storm_p99 is None else round(storm_p99 / quiet_p99, 3),
    }


def _percentile(values: list[float], fraction: float) -> float | None:
    return round(values[min(len(values) - 1, int(fraction * len(values)))], 4) if values else None
