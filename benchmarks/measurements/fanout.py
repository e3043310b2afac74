"""CPU per delivery: the product, the peers and the raw loops on the same work, in interleaved rounds.

A single figure means little on a shared machine, so the result is the median over the rounds of the ratio *within* each
round. The product's CPU includes its publications, heartbeats and timers. A second broker without subscribers shows the
cost of the publications alone. The last part measures many topics with one subscriber each, the published evaluation's
ten million clients in small: nothing is shared, so a publication and its delivery cost together.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks import machine
from benchmarks.benchmark import Benchmark
from benchmarks.comparison import SystemComparison, latencies, micros
from benchmarks.processes import MeasurementFailed
from benchmarks.rig import Rig, RoundResult
from benchmarks.stats import ratios, round_stats, with_medians
from benchmarks.systems import C_LOOP, Product, Workload

PRODUCT, ALONE = "product", "product, publications alone"

_WARMUP = 1.0
"""Seconds of publishing before the first round, which are not counted."""

_STRACE_SECONDS = 2.0
"""Seconds in which system calls are counted."""

_ATTACH_TIMEOUT = 10.0
"""Seconds for strace to attach to all processes. Shorter than the silence after which a client sends a heartbeat
(`protocols.HEARTBEAT`), see `_count_syscalls`."""


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Measure the CPU per delivery of all systems."""
    sizes = bench.sizes
    work = Workload(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    limits, peers = bench.limits(), bench.peers()
    rigs = {system.name: Rig(system, work) for system in (*limits, Product(PRODUCT), *peers)}
    rigs[ALONE] = Rig(Product(ALONE), work, subscribed=False)
    comparison = SystemComparison(bench, rigs, [peer.name for peer in peers])
    await comparison.start(_WARMUP)
    results = await comparison.rounds()
    calls = {name: await _count_syscalls(rig) for name, rig in comparison.rigs.items() if rig.subscribed}
    return summary(results, calls, C_LOOP if C_LOOP in rigs else None, comparison.peers, bench.missing)


async def _count_syscalls(rig: Rig) -> float | None:
    """Return the system calls per delivery, whatever they are for. None when they can't be counted.

    Publish before the count, so that no client has been silent while other systems were measured: the heartbeats of
    10,000 silent clients would add 0.1 to 0.25 calls to each delivery."""
    if not machine.CallCounter.available():
        return None
    try:
        await rig.run_round(rig.work.rate, _WARMUP)
    except MeasurementFailed:
        return None
    counter = machine.CallCounter(rig.system.pids)
    counter.start()
    deadline = time.monotonic() + _ATTACH_TIMEOUT
    while not counter.attached and time.monotonic() < deadline:  # noqa: ASYNC110 - strace does not report it
        await asyncio.sleep(0.1)
    if not counter.attached:
        counter.stop()
        return None
    try:
        result, _ = await rig.run_round(rig.work.rate / 2, _STRACE_SECONDS, limit=60.0)
    except MeasurementFailed:
        result = None  # too slow under strace
    calls = counter.stop()
    if calls is None or result is None:
        return None
    return round(sum(calls.values()) / result.deliveries, 3)


def summary(
    results: dict[str, list[RoundResult]], calls: dict[str, float | None], limit: str | None, peers: list[str],
    missing: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the result. `limit` is the raw loop in C, to which ratios refer, or None when it can't be compiled:
    another loop would make them look better."""
    each = micros(results)
    limit_us = None if limit is None else each[limit]
    systems: dict[str, dict[str, Any]] = {}
    for name, rows in results.items():
        shared = [result.deliveries or results[PRODUCT][place].deliveries for place, result in enumerate(rows)]
        systems[name] = {
            "us": round_stats(
                [(result.user + result.system) / n * 1e6 for result, n in zip(rows, shared, strict=True)]
            ),
            "user_us": round_stats([result.user / n * 1e6 for result, n in zip(rows, shared, strict=True)]),
            "system_us": round_stats([result.system / n * 1e6 for result, n in zip(rows, shared, strict=True)]),
            "syscalls": calls.get(name),
        }
        if rows[0].deliveries:
            systems[name]["ratio_raw"] = None if limit_us is None else ratios(each[name], limit_us)
            systems[name]["receiver_us"] = round_stats([result.receiver / result.deliveries * 1e6 for result in rows])
    product = results[PRODUCT]
    without = [
        (whole.user + whole.system - part.user - part.system) / whole.deliveries * 1e6
        for whole, part in zip(product, results[ALONE], strict=True)
    ]
    best = min(peers, key=lambda name: systems[name]["us"].median, default=None)
    own = systems[PRODUCT]
    return {
        **with_medians(
            us_per_delivery=own["us"], user_us=own["user_us"], system_us=own["system_us"],
            us_without_publication=round_stats(without), ratio_raw=own["ratio_raw"],
            ratio_raw_without_publication=None if limit_us is None else ratios(without, limit_us),
            ratio_best_peer=None if best is None else ratios(each[PRODUCT], each[best]),
        ),
        "syscalls_per_delivery": calls.get(PRODUCT),
        "limit": limit,
        "best_peer": best,
        "peers": {name: systems[name]["us"].median for name in peers},
        "missing_peers": missing,
        "contenders": systems,
    }  # fmt: skip


# ---- many topics -------------------------------------------------------------------------------------------------

MANY_TOPICS_PAYLOAD = 512
"""Bytes of a payload, as in the published evaluation."""


async def measure_many_topics(bench: Benchmark) -> dict[str, Any]:
    """Measure the product and the peers when every topic has one subscriber. Return their CPU per publication and
    delivery, the P99 latency, and the ratio to the best peer (None without peers)."""
    sizes = bench.sizes
    count = sizes.many_topics
    # Once for each topic in a round: more would take longer without showing more.
    seconds = max(sizes.seconds, count / sizes.many_rate)
    work = Workload(subscribers=count, topics=count, payload=MANY_TOPICS_PAYLOAD, rate=1.0 / seconds)
    spec = {"topics": {"maxTopics": 2 * count}, "limits": {"topicsPerClient": count}}
    peers = bench.peers()
    rigs = {system.name: Rig(system, work) for system in (Product(spec=spec), *peers)}
    comparison = SystemComparison(
        bench, rigs, [peer.name for peer in peers], seconds=seconds, unit="publication and delivery"
    )
    await comparison.start(seconds)  # creates the topics
    results = await comparison.rounds()
    each = micros(results)
    systems = {
        name: {"us": round_stats(each[name]), "p99_ms": round_stats(latencies(results[name])[1])} for name in results
    }
    best = min(comparison.peers, key=lambda name: systems[name]["us"].median, default=None)
    return {
        "topics": count,
        **with_medians(
            us_per_delivery=systems["product"]["us"], p99_ms=systems["product"]["p99_ms"],
            ratio_best_peer=None if best is None else ratios(each["product"], each[best]),
        ),
        "best_peer": best,
        "contenders": systems,
        "missing_peers": bench.missing,
    }  # fmt: skip
