"""Failover: one of three brokers is killed with all its clients connected.

Measured are the time until its clients are back and the latency of all others. Every publication must reach every
client once. Publishers are the product's own client, which resends publications that a dead coordinator did not answer.
Subscribers are those of `receiver.py`, which reconnect by the same rules as the product's client: to another broker,
chosen at random, after a random wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from migratory_client import Client
from migratory_loadtest.histogram import nearest_rank
from migratory_loadtest.workload import SendSchedule
from msgspec import to_builtins

from benchmarks import ipc, machine
from benchmarks.benchmark import Benchmark
from benchmarks.payload import build
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import Receivers, ReceiverTotals
from benchmarks.systems import Product, Workload

SETTLE = 10.0
"""Seconds after the kill that count neither as before nor as after."""

KILLED = 1
"""Index of the broker that is killed."""

PUBLISHERS = 4
"""Clients that publish."""

CATCH_UP = 90.0
"""Seconds after the run for the publications that waited during the takeover."""


class OpenLoopPublisher:
    """An open loop on the product's client. Each publication is a task, which raises when it is not acknowledged."""

    def __init__(self, urls: list[str], work: Workload) -> None:
        self._work = work
        self._names = ipc.topic_names(work.topics, "bench")
        self._numbers = [0] * work.topics
        self._clients = [Client(urls) for _ in range(PUBLISHERS)]
        self._tasks: set[asyncio.Task[object]] = set()
        self.acknowledged = 0
        self.late = 0

    async def run(self, seconds: float) -> None:
        """Publish for `seconds`. Return when everything is acknowledged."""
        work = self._work
        offsets = {topic: topic / work.topics / work.rate for topic in range(work.topics)}
        # Rounded up, so that no window is measured after the last publication.
        schedule = SendSchedule(offsets, work.rate, max(1, math.ceil(round(work.rate * seconds, 9))))
        start = time.monotonic_ns()
        async with asyncio.TaskGroup() as group:
            while (at := schedule.next_due()) is not None:
                await asyncio.sleep(max(0.0, at - (time.monotonic_ns() - start) / 1e9))
                while (due := schedule.pop_due((time.monotonic_ns() - start) / 1e9)) is not None:
                    self._numbers[due.topic] += 1
                    payload = build(work.payload, start + round(due.at * 1e9), self._numbers[due.topic])
                    group.create_task(self._publish(due.topic, payload))
        self.late += schedule.late

    async def _publish(self, topic: int, payload: bytes) -> None:
        await self._clients[topic % PUBLISHERS].publish(self._names[topic], payload)
        self.acknowledged += 1

    async def __aenter__(self) -> OpenLoopPublisher:
        for client in self._clients:
            await client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Measure a failover with the sizes of the run."""
    sizes = bench.sizes
    topics = min(sizes.topics, sizes.failover_clients)
    clients = sizes.failover_clients - sizes.failover_clients % topics
    work = Workload(
        subscribers=clients, topics=topics, payload=sizes.payload, rate=sizes.failover_deliveries / clients
    )  # fmt: skip
    return await kill_one(bench, work, sizes.failover_seconds)


async def kill_one(bench: Benchmark, work: Workload, seconds: float) -> dict[str, Any]:
    """Kill one of three brokers. Return the result, with latency and CPU before and after the kill for the evaluation.

    Raise MeasurementFailed when clients lose their connection before the kill, or a delivery is lost or repeated.
    """
    product = Product(brokers=3)
    bench.stack.push_async_callback(product.stop)
    await product.start(work, None)
    setup = ipc.ReceiverSetup(
        protocol=product.protocol, addresses=product.addresses, connections=work.subscribers, topics=work.topics,
        reconnects=True,
    )  # fmt: skip
    receivers = Receivers(setup, None)
    bench.stack.push_async_callback(receivers.stop)
    bench.say(f"connecting {work.subscribers:,} subscribers to three brokers")
    await receivers.start()
    async with OpenLoopPublisher(product.cluster.urls, work) as publishing:
        await publishing.run(1.0 / work.rate)  # creates the topics, and gives every client a position
        await receivers.wait_for(publishing.acknowledged * work.subscribers_per_topic)
        start = await receivers.report(reset=True)
        cpu = {name: machine.cpu([pid]) for name, pid in _pids(product).items()}
        bench.say(f"{work.subscribers * work.rate:,.0f} deliveries/s for {seconds:.0f} s, then the kill")
        task = asyncio.create_task(publishing.run(2 * seconds + SETTLE))
        try:
            await asyncio.sleep(seconds)
            before = await receivers.report(reset=True)
            cores_before = _cores(product, cpu, seconds)
            product.cluster.kill_broker(product.cluster.brokers[KILLED].name, restart=False)
            await asyncio.sleep(SETTLE)
            during = await receivers.report(reset=True)
            cpu = {name: machine.cpu([pid]) for name, pid in _pids(product).items()}
            await asyncio.sleep(seconds)
            cores_after = _cores(product, cpu, seconds)
            await task
        finally:
            task.cancel()
        # Up to the last delivery: one that waits for a coordinator longer than the run lasts counts as late.
        after = await receivers.wait_for(publishing.acknowledged * work.subscribers_per_topic, CATCH_UP)
        late = publishing.late
    if start.disconnected or before.disconnected:
        raise MeasurementFailed(f"{before.disconnected} clients lost their link before the kill")
    return {
        "clients": work.subscribers,
        "deliveries": after.deliveries,
        "late_sends": late,
        "cores_before": cores_before,
        "cores_after": cores_after,
        **summary(before, during, after),
    }


def _pids(product: Product) -> dict[str, int]:
    brokers = product.cluster.brokers
    return {broker.name: broker.process.pid for broker in brokers if broker.process.pid is not None}


def _cores(product: Product, before: dict[str, machine.Cpu], seconds: float) -> dict[str, float]:
    """Return the CPU of each broker in cores, over the `seconds` since `before`."""
    return {name: round((machine.cpu([pid]) - before[name]).total / seconds, 4) for name, pid in _pids(product).items()}


def summary(before: ReceiverTotals, during: ReceiverTotals, after: ReceiverTotals) -> dict[str, Any]:
    """Return the figures of three consecutive windows: before the kill, right after it, and later, up to the last
    delivery."""
    killed = before.subscribed[KILLED]
    resumes = sorted(during.resumes + after.resumes)
    p99_before, p99_after = before.latency.p99, after.latency.p99
    return {
        "connections_before": before.subscribed,
        "connections_after": after.subscribed,
        "killed_clients": killed,
        "disconnected": after.disconnected,
        "others_disconnected": after.disconnected - killed,
        "resumed": len(resumes),
        "resume_seconds": {
            "median": _seconds(resumes, 0.5), "p99": _seconds(resumes, 0.99), "max": _seconds(resumes, 1.0)
        },
        "before_ms": to_builtins(before.latency),
        "during_ms": to_builtins(during.latency),
        "after_ms": to_builtins(after.latency),
        "p99_ratio": None if not p99_before or p99_after is None else round(p99_after / p99_before, 3),
        "lost": after.lost,
        "repeated": after.repeated,
    }  # fmt: skip


def _seconds(values: list[float], fraction: float) -> float | None:
    value = nearest_rank(values, fraction)
    return None if value is None else round(value, 4)
