"""Measurement of costs that grow with the number of brokers: the CPU of an acknowledged publication over all of them,
and ZooKeeper's load while idle."""

from __future__ import annotations

import asyncio
import re
import time

from msgspec import Struct

from benchmarks import machine
from benchmarks.benchmark import Benchmark
from benchmarks.processes import MeasurementFailed
from benchmarks.stats import slope
from benchmarks.systems import Product, Workload

BROKERS = (1, 3, 5)
"""Numbers of brokers to measure."""

RATE = 5.0
"""Publications per topic and second: 500 a second in all."""

QUIET = 6.0
"""Seconds in which the idle cluster is measured."""


class ClusterCosts(Struct, frozen=True, kw_only=True):
    """Costs of a number of brokers. `publication_us` is the CPU of all brokers for a publication without their idle
    CPU, `idle_cores` their CPU while idle. `zookeeper_per_s` are packets that ZooKeeper receives, `zookeeper_cores` its
    CPU."""

    brokers: int
    publication_us: float
    idle_cores: float
    zookeeper_per_s: float
    zookeeper_cores: float


async def measure(bench: Benchmark, brokers: int, seconds: float) -> ClusterCosts:
    """Measure a cluster of `brokers` brokers, publishing for `seconds`. Raise MeasurementFailed when a publication is
    not answered."""
    work = Workload(subscribers=0, topics=100, payload=bench.sizes.payload, rate=RATE)
    product = Product(brokers=brokers)
    try:
        await product.start(work, None)
        await product.start_publisher(work, None)
        await product.publish_open_loop(RATE, 1.0)  # elects coordinators and creates topics
        await asyncio.sleep(2.0)
        packets, begin = await _received(product), time.monotonic()
        idle, zookeeper = machine.cpu(product.pids), machine.cpu(product.zookeeper_pids)
        await asyncio.sleep(QUIET)
        lasted = time.monotonic() - begin
        idle_cores = (machine.cpu(product.pids) - idle).total / lasted
        zookeeper_cores = (machine.cpu(product.zookeeper_pids) - zookeeper).total / lasted
        per_second = (await _received(product) - packets) / lasted
        before = machine.cpu(product.pids)
        published = await product.publish_open_loop(RATE, seconds)
        spent = (machine.cpu(product.pids) - before).total - idle_cores * published.seconds
        if published.answered != published.scheduled:
            raise MeasurementFailed(f"{published.answered} of {published.scheduled} publications were answered")
    finally:
        await product.stop()
    costs = ClusterCosts(
        brokers=brokers, publication_us=spent / published.answered * 1e6, idle_cores=idle_cores,
        zookeeper_per_s=per_second, zookeeper_cores=zookeeper_cores,
    )  # fmt: skip
    bench.say(
        f"{brokers} brokers: {costs.publication_us:.0f} us for a publication over all of them, "
        f"{per_second:.1f} packets a second to ZooKeeper when idle"
    )
    return costs


async def _received(product: Product) -> int:
    """Return the packets that all ZooKeeper members have received, from the command `srvr`. Raise MeasurementFailed
    when one does not report it."""
    total = 0
    for server in product.cluster.ensemble.servers.split(","):
        host, port = server.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(b"srvr")
            async with asyncio.timeout(5):
                text = (await reader.read()).decode()
        finally:
            writer.close()
        match = re.search(r"^Received: (\d+)", text, re.MULTILINE)
        if match is None:
            raise MeasurementFailed(f"ZooKeeper at {server} does not report what it received: {text[:200]!r}")
        total += int(match[1])
    return total


def copy_cost(measured: list[ClusterCosts]) -> float:
    """Return the CPU seconds that one more broker adds to a publication. A single broker is left out, because it does
    not replicate. Raise ValueError with fewer than two numbers of brokers."""
    several = [costs for costs in measured if costs.brokers > 1]
    steps = [costs.brokers for costs in several]
    if len(several) < 2:
        raise ValueError("replication was measured with one number of brokers only")
    return max(0.0, slope([costs.publication_us for costs in several]) / (steps[1] - steps[0])) / 1e6
