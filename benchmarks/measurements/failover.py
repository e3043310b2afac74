"""One of three brokers killed, with all its clients connected: how long until they are back, what everybody else feels,
and that every publication reached every client once.

Publishers are the product's own client, which resends what a dead coordinator did not answer. Subscribers are the lean
ones of `receiver.py`, which keep the rules of the product's client: a random other broker after a random wait.
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

from benchmarks import machine
from benchmarks import orders as o
from benchmarks.audience import Audience, Totals
from benchmarks.bench import Bench
from benchmarks.contenders import Product, Work
from benchmarks.payload import build
from benchmarks.processes import Broken

SETTLE = 10.0  # seconds behind the kill that are neither before nor after
KILLED = 1
PUBLISHERS = 4
CATCH_UP = 90.0  # seconds for what waited during the takeover


class Publishing:
    """An open loop on the product's own client: each publication is a task, acknowledged or it raises."""

    def __init__(self, urls: list[str], work: Work) -> None:
        self._work = work
        self._names = o.topic_names(work.topics, "bench")
        self._numbers = [0] * work.topics
        self._clients = [Client(urls) for _ in range(PUBLISHERS)]
        self._tasks: set[asyncio.Task[object]] = set()
        self.acknowledged = 0
        self.late = 0

    async def run(self, seconds: float) -> None:
        """Returns when everything is acknowledged."""
        work = self._work
        offsets = {topic: topic / work.topics / work.rate for topic in range(work.topics)}
        # rounded up: nobody is to measure a window behind the last publication
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

    async def __aenter__(self) -> Publishing:
        for client in self._clients:
            await client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    topics = min(sizes.topics, sizes.failover_clients)
    clients = sizes.failover_clients - sizes.failover_clients % topics
    work = Work(
        subscribers=clients, topics=topics, payload=sizes.payload, rate=sizes.failover_deliveries / clients
    )  # fmt: skip
    return await kill_one(bench, work, sizes.failover_seconds)


async def kill_one(bench: Bench, work: Work, seconds: float) -> dict[str, Any]:
    """Also made for the evaluation's table, which wants latency and CPU before and after."""
    product = Product(brokers=3)
    bench.stack.push_async_callback(product.stop)
    await product.start(work, None)
    setup = o.Audience(
        dialect=product.dialect, addresses=product.addresses, connections=work.subscribers, topics=work.topics,
        stays=True,
    )  # fmt: skip
    audience = Audience(setup, None)
    bench.stack.push_async_callback(audience.stop)
    bench.say(f"connecting {work.subscribers:,} subscribers to three brokers")
    await audience.start()
    async with Publishing(product.cluster.urls, work) as publishing:
        await publishing.run(1.0 / work.rate)  # every topic is there, every client knows a position
        await audience.expect(publishing.acknowledged * work.audience)
        start = await audience.heard(anew=True)
        cpu = {name: machine.cpu([pid]) for name, pid in _pids(product).items()}
        bench.say(f"{work.subscribers * work.rate:,.0f} deliveries/s for {seconds:.0f} s, then the kill")
        task = asyncio.create_task(publishing.run(2 * seconds + SETTLE))
        try:
            await asyncio.sleep(seconds)
            before = await audience.heard(anew=True)
            cores_before = _cores(product, cpu, seconds)
            product.cluster.kill_broker(product.cluster.brokers[KILLED].name, restart=False)
            await asyncio.sleep(SETTLE)
            during = await audience.heard(anew=True)
            cpu = {name: machine.cpu([pid]) for name, pid in _pids(product).items()}
            await asyncio.sleep(seconds)
            cores_after = _cores(product, cpu, seconds)
            await task
        finally:
            task.cancel()
        # up to the last delivery: one that waits for a coordinator longer than the run lasts is late, not left out
        after = await audience.expect(publishing.acknowledged * work.audience, CATCH_UP)
        late = publishing.late
    if start.disconnected or before.disconnected:
        raise Broken(f"{before.disconnected} clients lost their link before the kill")
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
    """CPU of each broker, in cores."""
    return {name: round((machine.cpu([pid]) - before[name]).total / seconds, 4) for name, pid in _pids(product).items()}


def summary(before: Totals, during: Totals, after: Totals) -> dict[str, Any]:
    """Three windows, each from the end of the one before; the last ends when everything was delivered."""
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
    found = nearest_rank(values, fraction)
    return None if found is None else round(found, 4)
