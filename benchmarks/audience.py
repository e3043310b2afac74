"""All subscribers of one contender: several receivers, as no process may hold more than so many descriptors and no
source address more than so many ports."""

from __future__ import annotations

import asyncio
import time

from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_loadtest.result import LatencySummary
from migratory_loadtest.result_builder import summarize_latency
from msgspec import structs

from benchmarks import orders as o
from benchmarks.processes import Broken, Helper

PER_PROCESS = 15_000
"""Connections: below the 20,000 descriptors that a process may usually have."""
PER_SOURCE = 10_000
"""Connections from one address: below the 28,000 ephemeral ports, with room for those in TIME_WAIT."""
OPENED_PER_SECOND = 100.0  # at the slowest: bounds the wait for an audience


def sources(connections: int, first: int = 2) -> list[str]:
    """Loopback addresses to connect from; none when the kernel's own choice has enough ports."""
    if connections <= PER_SOURCE:
        return []
    return [f"127.0.{number // 250}.{number % 250 + first}" for number in range(-(-connections // PER_SOURCE))]


class Totals:
    """What all receivers of an audience have heard, added up."""

    def __init__(self, parts: list[o.Heard]) -> None:
        self.parts = parts
        self.connected = sum(part.connected for part in parts)
        self.deliveries = sum(part.deliveries for part in parts)
        self.bytes = sum(part.bytes for part in parts)
        self.lost = sum(part.lost for part in parts)
        self.repeated = sum(part.repeated for part in parts)
        self.disconnected = sum(part.disconnected for part in parts)
        self.refused = sum(part.refused for part in parts)
        self.subscribed = [sum(counts) for counts in zip(*(part.subscribed for part in parts), strict=True)]
        self.resumes = sorted(value for part in parts for value in part.resumes)
        self.user = sum(part.user for part in parts)
        self.system = sum(part.system for part in parts)
        self.error = next((part.error for part in parts if part.error), "")
        self.histogram = Histogram(bucket_bounds())
        for part in parts:
            own = Histogram(bucket_bounds())
            own.counts, own.total, own.squares, own.largest = part.counts, part.total, part.squares, part.largest
            self.histogram.add(own)

    @property
    def cpu(self) -> float:
        return self.user + self.system

    @property
    def latency(self) -> LatencySummary:
        """Of the window, in milliseconds."""
        return summarize_latency(self.histogram)


class Audience:
    """`processes` 0: as many as `PER_PROCESS` asks for. `niceness` above 0 gives way to others of the same core."""

    def __init__(self, setup: o.Audience, core: int | None, processes: int = 0, niceness: int = 0) -> None:
        self._setup = structs.replace(setup, sources=setup.sources or sources(setup.connections))
        self._core = core
        self._niceness = niceness
        self._processes = processes or -(-setup.connections // PER_PROCESS)
        self._helpers: list[Helper] = []

    @property
    def connections(self) -> int:
        return self._setup.connections

    @property
    def pids(self) -> list[int]:
        return [helper.pid for helper in self._helpers]

    async def start(self) -> None:
        """Returns when every connection is subscribed."""
        setup, count = self._setup, self._processes
        first = setup.first
        for number in range(count):
            size = setup.connections // count + (number < setup.connections % count)
            own = structs.replace(setup, connections=size, first=first, at_once=max(1, setup.at_once // count))
            first += size
            self._helpers.append(await Helper.start("benchmarks.receiver", own, self._core, self._niceness))
        limit = self._limit()
        await asyncio.gather(*(helper.ready(limit) for helper in self._helpers))

    def _limit(self) -> float:
        return 60.0 + self._setup.connections / OPENED_PER_SECOND

    async def heard(self, anew: bool = False) -> Totals:
        """`anew`: latencies and resumes are counted anew from now on."""
        parts = await asyncio.gather(*(helper.ask(o.Hear(anew), o.Heard, 120.0) for helper in self._helpers))
        return Totals(list(parts))

    async def expect(self, deliveries: int, limit: float = 30.0) -> Totals:
        """Waits for that many deliveries, counted from the start. Raises Broken when they don't come, or when any was
        lost or repeated."""
        deadline = time.monotonic() + limit
        while True:
            totals = await self.heard()
            if totals.lost or totals.repeated:
                raise Broken(f"{totals.lost} publications were lost and {totals.repeated} repeated")
            if totals.deliveries > deliveries:
                raise Broken(f"{totals.deliveries:,} deliveries came instead of {deliveries:,}")
            if totals.deliveries == deliveries:
                return totals
            if time.monotonic() > deadline:
                raise Broken(f"{totals.deliveries:,} of {deliveries:,} deliveries came within {limit:.0f} s")
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        await asyncio.gather(*(helper.ask(o.Close(), o.Heard, 60.0) for helper in self._helpers))

    async def open(self, at_once: int = 200) -> Totals:
        """All that are not connected, at most `at_once` of each process at a time."""
        limit = self._limit()
        parts = await asyncio.gather(*(helper.ask(o.Open(at_once), o.Heard, limit) for helper in self._helpers))
        return Totals(list(parts))

    async def stop(self) -> None:
        await asyncio.gather(*(helper.stop() for helper in self._helpers))
