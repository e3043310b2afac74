"""Measurement of one broker at several sizes, to which the model is fitted."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from benchmarks import machine
from benchmarks.benchmark import Benchmark
from benchmarks.capacity.model import Point
from benchmarks.measurements.memory import settled_pss
from benchmarks.rig import Rig
from benchmarks.systems import Product, Workload


class Size(NamedTuple):
    """A size to measure. `rate` is publications per topic and second."""

    clients: int
    topics: int
    rate: float


SIZES = (
    Size(1000, 100, 2.0),
    Size(4000, 100, 5.0),
    Size(8000, 20, 3.0),
    Size(12_000, 200, 0.5),
    Size(2000, 1000, 1.0),
    Size(10_000, 10, 2.0),
    Size(6000, 2000, 0.25),
    Size(12_000, 100, 0.1),
)
"""Sizes at which clients, publications and deliveries do not rise together, so that a fit can separate them."""

HELD_OUT = Size(7000, 70, 3.0)
"""The size that the fit does not use."""


async def measure(bench: Benchmark, size: Size, seconds: float, rounds: int) -> Point:
    """Measure a size on a new broker, in `rounds` rounds of at least `seconds`. Return the CPU and rates of the round
    with the median CPU, the memory after all rounds, and the costs of a connection and a delivery."""
    work = Workload(subscribers=size.clients, topics=size.topics, payload=bench.sizes.payload, rate=size.rate)
    rig = Rig(Product(), work)
    try:
        await rig.serve()
        await settled_pss(rig)
        before, kernel = machine.cpu(rig.system.pids), machine.kernel_memory()
        await rig.connect()
        kernel = max(0, machine.kernel_memory() - kernel)
        connect = (machine.cpu(rig.system.pids) - before).total / size.clients
        await rig.system.start_publisher(work, machine.cores()[1])
        seconds = max(seconds, 1.0 / size.rate)
        await rig.run_round(size.rate, min(seconds, max(1.0, 1.0 / size.rate)))  # creates the topics
        start = await rig.receivers.report()
        results = []
        for _ in range(rounds):
            result, _ = await rig.run_round(size.rate, seconds)
            # A round includes the time until the last delivery, so rates refer to its whole length.
            results.append(((result.user + result.system) / result.seconds, result.seconds))
        end = await rig.receivers.report()
        wire = (end.bytes - start.bytes) / (end.deliveries - start.deliveries)
        memory = await settled_pss(rig)
    finally:
        await rig.stop()
    cpu, lasted = sorted(results)[len(results) // 2]
    count = round(size.rate * seconds) or 1
    point = Point(
        clients=size.clients, topics=size.topics, publications=count * size.topics / lasted,
        deliveries=count * size.clients / lasted, cpu=cpu, memory=memory, connect=connect, wire=wire,
        kernel=kernel / size.clients,
    )  # fmt: skip
    bench.say(
        f"{size.clients:,} clients, {size.topics:,} topics, {point.deliveries:,.0f} deliveries/s: "
        f"{point.cpu * 100:.1f}% of a core, {memory / 2**20:.1f} MiB"
    )
    await asyncio.sleep(0.5)
    return point
