"""CPU per delivery: the product beside the raw loops, on the same work, in rounds that take turns.

A single figure says little on a shared machine, so each round measures every server once, the order rotates, and what
counts is the median over the rounds of the ratio to the C loop *of the same round*.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from benchmarks.servers import Cost, Server, Work


class Row(Struct):
    """Microseconds of CPU per delivery in each round, and the median of the ratios to the limit with its spread."""

    name: str
    micros: list[float] = field(default_factory=list)
    user: list[float] = field(default_factory=list)
    system: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    deliveries: int = 0

    def add(self, cost: Cost) -> None:
        self.micros.append(round(cost.micros, 3))
        self.user.append(round(cost.user / cost.deliveries * 1e6, 3))
        self.system.append(round(cost.system / cost.deliveries * 1e6, 3))
        self.deliveries += cost.deliveries

    @property
    def median(self) -> float:
        return statistics.median(self.micros)

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None


def difference(name: str, whole: Row, part: Row, limit: Row) -> Row:
    """What is left of `whole` without `part`, round by round."""
    row = Row(name, deliveries=whole.deliveries)
    for place, micros in enumerate(whole.micros):
        row.micros.append(round(micros - part.micros[place], 3))
        row.user.append(round(whole.user[place] - part.user[place], 3))
        row.system.append(round(whole.system[place] - part.system[place], 3))
        row.ratios.append(round(row.micros[-1] / limit.micros[place], 4))
    return row


async def run(servers: Sequence[Server], work: Work, rounds: int, say: Callable[[str], None]) -> list[Row]:
    """The first server is the limit that ratios are to. All are connected before the first round."""
    rows = [Row(server.name) for server in servers]
    try:
        for server in servers:
            say(f"connecting {work.subscribers:,} subscribers to: {server.name}")
            await server.start(work)
            await server.round(Work(work.subscribers, work.topics, work.payload, work.rate, 1.0))  # warm caches
        for number in range(rounds):
            costs: dict[int, Cost] = {}
            for turn in range(len(servers)):
                place = (turn + number) % len(servers)
                costs[place] = await servers[place].round(work)
            for place, row in enumerate(rows):
                row.add(costs[place])
                row.ratios.append(round(costs[place].micros / costs[0].micros, 4))
            parts = (f"{row.name} {row.micros[-1]:.2f} us ({row.ratios[-1]:.2f}x)" for row in rows)
            say(f"round {number + 1} of {rounds}: " + ", ".join(parts))
    finally:
        for server in servers:
            await server.stop()
    return rows
