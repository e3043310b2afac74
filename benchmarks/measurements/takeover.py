"""Takeover: how long publications and deliveries pause when the coordinator of a third of all topic groups fails.

One of three brokers is killed (SIGKILL) or stopped (SIGSTOP) again and again, in turn, each time with an even share of
groups and clients. A *feed* has all subscribers; a *probe* publishes on topics without subscribers, often enough that
its acknowledgements show the pause of each topic group. Both are runs of the load generator, which verifies every
delivery. In the same run the leader of a JetStream stream with three replicas is killed as often.

A publish gap includes the time between two publications of the probe, `1 / PROBE_RATE` seconds.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from migratory_loadtest.api import Load, LoadFailed, LoadResult, Scenario
from migratory_local import LocalError
from migratory_local.cluster.local_cluster import READY_SECONDS, LocalCluster
from migratory_local.processes.process import Process

from benchmarks.benchmark import Benchmark
from benchmarks.processes import MeasurementFailed
from benchmarks.stats import round_stats, with_medians
from benchmarks.systems import JetStream, Product, Workload
from benchmarks.systems.nats import PublishProbe

FEED_TOPICS, FEED_RATE = 100, 0.5
"""Topics that have the subscribers, and publications per topic and second."""

PROBE_TOPICS, PROBE_RATE = 100, 10.0
"""Topics without subscribers, at most, and publications per topic and second."""

OBSERVED = 6.0
"""Seconds after a fault until the failed process is started again, or continues: longer than a takeover."""

_EVEN = 0.8
"""The smallest part of an even share of groups that every broker coordinates before the next fault."""

_EVEN_SECONDS = 90.0
"""Seconds for groups to move back to a broker that was started again."""

_CYCLE_SECONDS = OBSERVED + READY_SECONDS + _EVEN_SECONDS
"""The longest time from one fault to the next, to which the load's duration is made to fit."""


def kill(process: Process) -> None:
    """End the process at once, so that the kernel closes its connections: strong evidence."""
    process.kill()


def hang(process: Process) -> None:
    """Stop the process: its connections stay open, and silence is the only evidence."""
    process.signal(signal.SIGSTOP)


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Measure kills with few and with many topic groups, hangs with few, and kills of JetStream's leader."""
    sizes = bench.sizes
    few, many = sizes.takeover_groups
    result = {
        "kill": await _faults(bench, few, "kill", kill),
        "hang": await _faults(bench, few, "hang", hang),
        "kill_many_groups": await _faults(bench, many, "kill", kill),
    }
    if "nats" not in bench.missing:
        try:
            result["jetstream"] = await _jetstream(bench)
        except MeasurementFailed as reason:
            bench.drop("jetstream", reason)
    return {**result, "missing_peers": [] if "jetstream" in result else ["jetstream"]}


async def _faults(bench: Benchmark, groups: int, name: str, cause: Callable[[Process], None]) -> dict[str, Any]:
    """Cause a fault `takeover_faults` times at a cluster with this number of topic groups, and return its figures.

    Raise MeasurementFailed when a publication was lost, repeated or reordered, or the cluster does not recover.
    """
    sizes = bench.sizes
    product = Product(brokers=3, spec={"topics": {"groups": groups}})
    async with AsyncExitStack() as stack:
        stack.push_async_callback(product.stop)
        await product.start(
            Workload(subscribers=sizes.takeover_clients, topics=1, payload=sizes.payload, rate=0.0), None
        )
        cluster = product.cluster
        seconds = sizes.takeover_faults * _CYCLE_SECONDS
        feed_topics = min(FEED_TOPICS, sizes.takeover_clients)
        feed = Scenario(
            servers=tuple(cluster.urls), subscribers=sizes.takeover_clients, topics=feed_topics, rate=FEED_RATE,
            duration=seconds, groups=groups, payload=sizes.payload, topic_prefix="feed", warmup=2.0,
        )  # fmt: skip
        probe = Scenario(
            servers=tuple(cluster.urls), subscribers=0, topics=min(PROBE_TOPICS, groups), publishers=4, rate=PROBE_RATE,
            duration=seconds, groups=groups, payload=sizes.payload, topic_prefix="probe", warmup=2.0, alone=True,
            workers=1,
        )  # fmt: skip
        bench.say(f"connecting {sizes.takeover_clients:,} subscribers to three brokers with {groups:,} topic groups")
        try:
            loads = [await stack.enter_async_context(Load(scenario)) for scenario in (feed, probe)]
            for load in loads:
                await load.measuring()
            for number in range(sizes.takeover_faults):
                await _await_even(cluster, groups)
                await _fault(cluster, loads, number, name, cause)
            await _await_even(cluster, groups)
            for load in loads:
                load.stop_publishing()
            fed, probed = [await load.result() for load in loads]
        except (LoadFailed, LocalError) as error:
            raise MeasurementFailed(f"{name}, {groups} groups: {error}") from error
    figures = summary(fed, probed)
    bench.say(
        f"{name}, {groups:,} groups: publish gap P99 {figures['publish_gap_p99']:.2f} s, "
        f"worst {figures['publish_gap_worst']:.2f} s; latest delivery {figures['latest_delivery']:.2f} s"
    )
    return figures


async def _fault(
    cluster: LocalCluster, loads: list[Load], number: int, name: str, cause: Callable[[Process], None]
) -> None:
    """Mark the fault, cause it at the broker whose turn it is, and return when that broker is ready again."""
    broker = cluster.brokers[number % len(cluster.brokers)]
    for load in loads:
        await load.mark(f"{name} {number + 1}", broker.name)
    cluster.supervisor.hold(broker.name)
    process = broker.process
    cause(process)
    await asyncio.sleep(OBSERVED)
    process.signal(signal.SIGCONT)  # a stopped one then learns that it was replaced, or its watchdog ends it
    cluster.supervisor.release(broker.name)
    await cluster.wait_ready()


async def _await_even(cluster: LocalCluster, groups: int) -> None:
    """Wait until every broker coordinates nearly an even share of the groups. Raise MeasurementFailed if one does not
    after `_EVEN_SECONDS`."""
    deadline = time.monotonic() + _EVEN_SECONDS
    share = groups / len(cluster.brokers)
    while True:
        counts = await cluster.coordinated_groups()
        if (
            len(counts) == len(cluster.brokers)
            and sum(counts.values()) == groups
            and min(counts.values()) >= _EVEN * share
        ):
            return
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"groups are not spread evenly after {_EVEN_SECONDS:g} s: {counts}")
        await asyncio.sleep(0.5)


def summary(fed: LoadResult, probed: LoadResult) -> dict[str, Any]:
    """Return the figures of the faults, in seconds: medians over the faults, and the worst. Raise MeasurementFailed if
    the load generator found a violation, or a fault without publish gaps."""
    for result in (fed, probed):
        if result.lost or result.duplicates or result.reordered or result.conflicts or result.unexpected:
            raise MeasurementFailed(
                f"{result.lost} deliveries were lost, {result.duplicates} duplicate, {result.reordered} reordered"
            )
    gaps = [mark.publish_gap_seconds for mark in probed.marks]
    if not gaps or any(gap.p99 is None or gap.max is None for gap in gaps):
        raise MeasurementFailed("the probe has no publish gaps")
    slowest = [mark.slowest for mark in fed.marks if mark.slowest is not None]
    phases = fed.latency_ms
    latest = [phase.max for phase in (phases.during, phases.after) if phase.max is not None]
    return {
        **with_medians(
            publish_gap_p99=round_stats([gap.p99 for gap in gaps if gap.p99 is not None]),
            publish_gap_max=round_stats([gap.max for gap in gaps if gap.max is not None]),
            resume_slowest=round_stats(slowest) if slowest else None,
        ),
        "publish_gap_worst": max(gap.max for gap in gaps if gap.max is not None),
        "latest_delivery": round(max(latest) / 1e3, 4) if latest else 0.0,
        "faults": len(gaps),
        "clients_at_failed_brokers": [mark.clients for mark in fed.marks],
        "others_disconnected": sum(mark.others_disconnected for mark in fed.marks),
        "acknowledged": probed.acknowledged + fed.acknowledged,
        "unanswered": probed.unanswered + fed.unanswered,
        "verdicts": [fed.verdict, probed.verdict],
        "reasons": [*fed.reasons, *probed.reasons],
    }  # fmt: skip


async def _jetstream(bench: Benchmark) -> dict[str, Any]:
    """Kill the leader of a stream with three replicas `takeover_faults` times, and return the gaps between successive
    acknowledgements of a publisher that is connected to another server."""
    system = JetStream()
    worst: list[float] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(system.stop)
        bench.say("starting three servers of: jetstream")
        await system.start(Workload(subscribers=0, topics=1, payload=bench.sizes.payload, rate=0.0), None)
        for _ in range(bench.sizes.takeover_faults):
            leader = await system.settled_leader()
            async with PublishProbe(system.client_ports[(leader + 1) % 3], PROBE_RATE, bench.sizes.payload) as probe:
                await probe.acknowledged(5)
                at = time.monotonic()
                system.servers[leader].kill()
                await asyncio.sleep(OBSERVED)
                await probe.acknowledged(1)
                times = probe.times
            worst.append(max(later - earlier for earlier, later in pairwise(times) if later > at))
            system.servers[leader].start()
    figures = round_stats(worst)
    bench.say(f"jetstream: publish gap {figures.median:.2f} s, worst {figures.high:.2f} s")
    return {**with_medians(publish_gap_max=figures), "publish_gap_worst": figures.high, "faults": len(worst)}
