"""What grows with the number of brokers: the CPU of an acknowledged publication over all of them, and what ZooKeeper is
asked while nothing happens."""

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
RATE = 5.0  # publications per topic and second: 500 a second
QUIET = 6.0  # seconds


class Seen(Struct, frozen=True, kw_only=True):
    """`publication_us`: CPU of all brokers, less what they take when idle. `idle_cores`: of all brokers.
    `zookeeper_per_s`: packets that ZooKeeper received; `zookeeper_cores`: its CPU."""

    brokers: int
    publication_us: float
    idle_cores: float
    zookeeper_per_s: float
    zookeeper_cores: float


async def measure(bench: Benchmark, brokers: int, seconds: float) -> Seen:
    work = Workload(subscribers=0, topics=100, payload=bench.sizes.payload, rate=RATE)
    product = Product(brokers=brokers)
    try:
        await product.start(work, None)
        await product.start_publisher(work, None)
        await product.publish_open_loop(RATE, 1.0)  # groups are taken, topics made
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
    seen = Seen(
        brokers=brokers, publication_us=spent / published.answered * 1e6, idle_cores=idle_cores,
        zookeeper_per_s=per_second, zookeeper_cores=zookeeper_cores,
    )  # fmt: skip
    bench.say(
        f"{brokers} brokers: {seen.publication_us:.0f} us for a publication over all of them, "
        f"{per_second:.1f} packets a second to ZooKeeper when idle"
    )
    return seen


async def _received(product: Product) -> int:
    """Packets that the ZooKeeper members have received: the word `srvr` of each. Raises MeasurementFailed when one is
    silent."""
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
        found = re.search(r"^Received: (\d+)", text, re.MULTILINE)
        if found is None:
            raise MeasurementFailed(f"ZooKeeper at {server} does not tell what it received: {text[:200]!r}")
        total += int(found[1])
    return total


def copy_cost(seen: list[Seen]) -> float:
    """CPU seconds that one more broker adds to a publication. Over 3 and more: a single broker replicates nothing."""
    several = [one for one in seen if one.brokers > 1]
    steps = [one.brokers for one in several]
    if len(several) < 2:
        raise ValueError("replication was measured with one number of brokers only")
    return max(0.0, slope([one.publication_us for one in several]) / (steps[1] - steps[0])) / 1e6
