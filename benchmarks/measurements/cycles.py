"""Memory over cycles of connecting and disconnecting many clients: what they leave behind must not grow."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.bench import Bench
from benchmarks.contenders import Product, Work
from benchmarks.figures import slope
from benchmarks.measurements.memory import settled
from benchmarks.stand import Stand


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    topics = min(sizes.topics, sizes.cycle_clients)
    work = Work(
        subscribers=sizes.cycle_clients - sizes.cycle_clients % topics, topics=topics, payload=sizes.payload, rate=1.0
    )
    stand = Stand(Product(), work)
    await bench.kept(stand).start()
    await stand.turn(work.rate, 1.0)
    full, empty = [], []
    for cycle in range(sizes.cycles):
        if cycle:
            await stand.audience.open()
        full.append(await settled(stand) / 2**20)
        await stand.audience.close()
        empty.append(await settled(stand) / 2**20)
        bench.say(f"cycle {cycle + 1} of {sizes.cycles}: {full[-1]:.1f} MiB with clients, {empty[-1]:.1f} without")
    return summary(full, empty)


def summary(full: list[float], empty: list[float]) -> dict[str, Any]:
    """The first cycle grows the heap; from then on nothing should. `growth_ratio`: of the last third's median to that
    of the first third behind it."""
    steady = empty[1:] or empty
    third = max(1, len(steady) // 3)
    return {
        "with_mib": [round(one, 2) for one in full],
        "without_mib": [round(one, 2) for one in empty],
        "kib_per_cycle": round(slope(steady) * 1024, 2),
        "growth_ratio": round(statistics.median(steady[-third:]) / statistics.median(steady[:third]), 4),
    }
