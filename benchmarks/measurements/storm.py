"""Many clients that come back at once, each with the position it saw last, while others go on listening: what the live
ones feel of it, how long the returning take, and that nothing is missing afterwards."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks import machine
from benchmarks import orders as o
from benchmarks.audience import Audience, Totals
from benchmarks.bench import Bench
from benchmarks.contenders import Product, Work
from benchmarks.processes import Broken

RATE = 1.0  # publications per topic and second
QUIET = 0.4  # of `storm_seconds`: before the storm
AWAY = 0.15  # of them: the clients are away, and what they miss is replayed
LEAST = 2.0  # seconds of what the live clients hear from the return on: every topic speaks in it


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    topics = min(sizes.topics, sizes.storm_live)
    work = Work(subscribers=sizes.storm_clients, topics=topics, payload=sizes.payload, rate=RATE)
    core, rest = machine.cores()
    product = Product()
    bench.stack.push_async_callback(product.stop)
    await product.start(work, core)
    audiences = []
    for first, connections in ((0, sizes.storm_live), (sizes.storm_live, sizes.storm_clients)):
        setup = o.Audience(
            dialect=product.dialect, addresses=product.addresses, connections=connections, first=first, topics=topics,
            stays=True,
        )  # fmt: skip
        # those who return give way to those who stayed: what these feel is to be the broker's, not their own core's
        audience = Audience(setup, rest, niceness=10 if first else 0)
        bench.stack.push_async_callback(audience.stop)
        await audience.start()
        audiences.append(audience)
    live, returning = audiences
    await product.publishes(work, rest)
    warm = await product.schedule(RATE, 1.0)
    before = []
    for audience in audiences:
        await audience.expect(warm.scheduled * (audience.connections // topics))  # none of them is counted below
        before.append(await audience.heard(anew=True))

    bench.say(f"{sizes.storm_live:,} live clients, quiet")
    quiet_for, away_for = QUIET * sizes.storm_seconds, AWAY * sizes.storm_seconds
    total = quiet_for + away_for + sizes.storm_seconds
    clock = asyncio.get_running_loop().time
    start = clock()
    publishing = asyncio.create_task(product.schedule(RATE, total))
    try:
        await asyncio.sleep(quiet_for)
        quiet = await live.heard()
        await returning.close()
        await asyncio.sleep(away_for)
        bench.say(f"{sizes.storm_clients:,} clients come back at once")
        await live.heard(anew=True)
        begin = clock()
        back = await returning.open(at_once=sizes.storm_clients)
        took = clock() - begin
        await asyncio.sleep(max(0.0, LEAST - took))
        due = topics * min(int(RATE * (clock() - start)), round(RATE * total))
        storm = await heard_all(live, before[0].deliveries + due * (live.connections // topics))
        published = await publishing
    finally:
        publishing.cancel()
    if published.answered != published.scheduled:
        raise Broken(f"{published.answered} of {published.scheduled} publications were answered")
    for audience, then in zip(audiences, before, strict=True):
        await audience.expect(then.deliveries + published.scheduled * (audience.connections // topics))
    return summary(quiet, storm, back, took)


async def heard_all(audience: Audience, deliveries: int, limit: float = 60.0) -> Totals:
    """Once so many have come: a broker that stands still makes late what was due meanwhile, and it must be counted.
    Raises Broken."""
    deadline = time.monotonic() + limit
    while (totals := await audience.heard()).deliveries < deliveries:
        if time.monotonic() > deadline:
            raise Broken(f"{totals.deliveries:,} of {deliveries:,} deliveries came within {limit:.0f} s")
        await asyncio.sleep(0.05)
    return totals


def summary(quiet: Totals, storm: Totals, back: Totals, took: float) -> dict[str, Any]:
    """`storm` is what the live clients heard while the others came back."""
    quiet_p99, storm_p99 = quiet.latency.p99, storm.latency.p99
    return {
        "returned": len(back.resumes),
        "refused_attempts": back.refused,
        "seconds": round(took, 3),
        "resume_seconds": {"median": _rank(back.resumes, 0.5), "p99": _rank(back.resumes, 0.99)},
        "live_disconnected": storm.disconnected - quiet.disconnected,
        "live_quiet_p99_ms": quiet_p99,
        "live_storm_p99_ms": storm_p99,
        "live_ratio": None if not quiet_p99 or storm_p99 is None else round(storm_p99 / quiet_p99, 3),
    }


def _rank(values: list[float], fraction: float) -> float | None:
    return round(values[min(len(values) - 1, int(fraction * len(values)))], 4) if values else None
