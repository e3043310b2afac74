"""The worker processes as their parent sees them: the last that each said, and sums of that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from migratory_loadtest.control import Hello, Marked, Progress, Summary, ToWorker, line
from migratory_loadtest.histogram import Histogram


class Seat:
    """One worker process, and the last it said."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.progress = Progress()
        self.hello: Hello | None = None
        self.summary: Summary | None = None
        self.marked: dict[int, Marked] = {}
        self.ended = False

    def tell(self, order: ToWorker) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line(order))


class Seats(list[Seat]):
    """All workers of a run."""

    def tell(self, order: ToWorker) -> None:
        for seat in self:
            seat.tell(order)

    def sum(self, name: str) -> int:
        """Of a field of their progress."""
        return sum(int(getattr(seat.progress, name)) for seat in self)

    def connections(self) -> dict[str, int]:
        """By broker."""
        total: Counter[str] = Counter()
        for seat in self:
            total.update(seat.progress.connections)
        return dict(sorted(total.items()))

    def errors(self) -> list[str]:
        """What the clients that are not connected last met."""
        return [seat.progress.error for seat in self if seat.progress.error]

    def take_latencies(self, bounds: Sequence[float]) -> Histogram:
        """Of the deliveries since the last call."""
        recent = Histogram(bounds)
        for seat in self:
            for bucket, count in seat.progress.latencies.items():
                upper = bounds[min(bucket, len(bounds) - 1)]
                recent.counts[bucket] += count
                recent.largest = max(recent.largest, upper)
            seat.progress.latencies = {}
        return recent
