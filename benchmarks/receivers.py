"""All subscribers of one system, in several receiver processes, because a process has a limited number of descriptors
and a source address a limited number of ports."""

from __future__ import annotations

import asyncio
import time

from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_loadtest.result import LatencySummary
from migratory_loadtest.result_builder import summarize_latency
from msgspec import structs

from benchmarks import ipc
from benchmarks.processes import HelperProcess, MeasurementFailed

MAX_PER_PROCESS = 15_000
"""Connections of a process: below the 20,000 descriptors that a process may usually have."""

MAX_PER_SOURCE = 10_000
"""Connections from one address: below the 28,000 ephemeral ports, with room for those in TIME_WAIT."""

_MIN_OPENED_PER_SECOND = 100.0
"""Connections opened per second at the slowest. Bounds the wait for all subscribers."""


def sources(connections: int, first: int = 2) -> list[str]:
    """Return loopback addresses to connect from; none when the kernel's own choice has enough ports."""
    if connections <= MAX_PER_SOURCE:
        return []
    return [f"127.0.{number // 250}.{number % 250 + first}" for number in range(-(-connections // MAX_PER_SOURCE))]


class ReceiverTotals:
    """The sum of the reports of all receivers."""

    def __init__(self, reports: list[ipc.ReceiverReport]) -> None:
        self.reports = reports
        self.connected = sum(report.connected for report in reports)
        self.deliveries = sum(report.deliveries for report in reports)
        self.bytes = sum(report.bytes for report in reports)
        self.lost = sum(report.lost for report in reports)
        self.repeated = sum(report.repeated for report in reports)
        self.disconnected = sum(report.disconnected for report in reports)
        self.refused = sum(report.refused for report in reports)
        self.subscribed = [sum(counts) for counts in zip(*(report.subscribed for report in reports), strict=True)]
        self.resumes = sorted(value for report in reports for value in report.resumes)
        self.user = sum(report.user for report in reports)
        self.system = sum(report.system for report in reports)
        self.error = next((report.error for report in reports if report.error), "")
        self.histogram = Histogram(bucket_bounds())
        for report in reports:
            own = Histogram(bucket_bounds())
            own.counts, own.total = report.counts, report.total
            own.squares, own.largest = report.squares, report.largest
            self.histogram.add(own)

    @property
    def cpu(self) -> float:
        """CPU seconds of all receivers."""
        return self.user + self.system

    @property
    def latency(self) -> LatencySummary:
        """The latencies of the window, in milliseconds."""
        return summarize_latency(self.histogram)


class Receivers:
    """The receiver processes of one setup. `processes` 0 starts as many as `MAX_PER_PROCESS` requires. A `niceness`
    above 0 gives way to other processes of the same core."""

    def __init__(self, setup: ipc.ReceiverSetup, core: int | None, processes: int = 0, niceness: int = 0) -> None:
        self._setup = structs.replace(setup, sources=setup.sources or sources(setup.connections))
        self._core = core
        self._niceness = niceness
        self._processes = processes or -(-setup.connections // MAX_PER_PROCESS)
        self._helpers: list[HelperProcess] = []

    @property
    def connections(self) -> int:
        """The number of subscribers."""
        return self._setup.connections

    @property
    def pids(self) -> list[int]:
        """The receivers' process ids."""
        return [helper.pid for helper in self._helpers]

    async def start(self) -> None:
        """Start the receivers. Return when every connection is subscribed."""
        setup, count = self._setup, self._processes
        first = setup.first
        for number in range(count):
            size = setup.connections // count + (number < setup.connections % count)
            pending = max(1, setup.max_pending // count)
            own = structs.replace(setup, connections=size, first=first, max_pending=pending)
            first += size
            self._helpers.append(await HelperProcess.start("benchmarks.receiver", own, self._core, self._niceness))
        limit = self._open_limit()
        await asyncio.gather(*(helper.ready(limit) for helper in self._helpers))

    def _open_limit(self) -> float:
        """Return the seconds that opening all connections may take."""
        return 60.0 + self._setup.connections / _MIN_OPENED_PER_SECOND

    async def report(self, reset: bool = False) -> ReceiverTotals:
        """Return the counts since the start, and the latencies and resumes since the last reset. `reset` then starts
        a new window of these."""
        command = ipc.GetReport(reset)
        reports = await asyncio.gather(*(helper.ask(command, ipc.ReceiverReport, 120.0) for helper in self._helpers))
        return ReceiverTotals(list(reports))

    async def wait_for(self, deliveries: int, limit: float = 30.0) -> ReceiverTotals:
        """Wait until there were exactly this many deliveries since the start. Raise MeasurementFailed when they do
        not arrive within `limit` seconds, when there are more, or when one was lost or repeated."""
        deadline = time.monotonic() + limit
        while True:
            totals = await self.report()
            if totals.lost or totals.repeated:
                raise MeasurementFailed(f"{totals.lost} publications were lost and {totals.repeated} repeated")
            if totals.deliveries > deliveries:
                raise MeasurementFailed(f"{totals.deliveries:,} deliveries came instead of {deliveries:,}")
            if totals.deliveries == deliveries:
                return totals
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"{totals.deliveries:,} of {deliveries:,} deliveries came within {limit:.0f} s")
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        """Close all connections."""
        command = ipc.CloseAll()
        await asyncio.gather(*(helper.ask(command, ipc.ReceiverReport, 60.0) for helper in self._helpers))

    async def open(self, max_pending: int = 200) -> ReceiverTotals:
        """Open all missing connections, at most `max_pending` of each process at a time. Return the counts when all
        are subscribed."""
        limit, command = self._open_limit(), ipc.OpenAll(max_pending)
        reports = await asyncio.gather(*(helper.ask(command, ipc.ReceiverReport, limit) for helper in self._helpers))
        return ReceiverTotals(list(reports))

    async def stop(self) -> None:
        """End the receivers."""
        await asyncio.gather(*(helper.stop() for helper in self._helpers))
