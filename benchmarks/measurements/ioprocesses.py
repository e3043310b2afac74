"""Two I/O processes beside one: CPU per delivery over all of the broker's processes, and how evenly they share the
connections. Nothing is pinned: the point is that they can use both cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.bench import Bench, Missing
from benchmarks.contenders import Product, Unsupported, Work
from benchmarks.figures import figure, ratios
from benchmarks.rounds import interleaved
from benchmarks.stand import Stand, Turn


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    work = Work(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    stands = {
        count: Stand(Product(f"{count} I/O processes", spec={"brokers": {"ioProcesses": count}}), work, pinned=False)
        for count in (1, 2)
    }
    for stand in stands.values():
        try:
            await bench.kept(stand).start()
        except Unsupported as reason:
            raise Missing(f"this product's cluster file has no brokers.ioProcesses: {reason}") from reason
        await stand.turn(work.rate, 1.0)
    connections = established(stands[2].contender.pids, stands[2].contender.addresses[0][1])
    holders = [count for count in connections.values() if count > len(connections)]
    rows = await interleaved(
        sizes.rounds, {str(count): _turn(stand, sizes.seconds) for count, stand in stands.items()},
        lambda number, turns: bench.say(
            f"round {number} of {sizes.rounds}, us per delivery: "
            + ", ".join(f"{name} processes {turn.micros:.2f}" for name, turn in turns.items())
        ),
    )  # fmt: skip
    micros = {name: [turn.micros for turn in turns] for name, turns in rows.items()}
    return {
        "ratio_one_process": ratios(micros["2"], micros["1"]),
        "us_one": figure(micros["1"]),
        "us_two": figure(micros["2"]),
        "connections": sorted(holders),
        "spread": round(max(holders) / (sum(holders) / 2), 3) if holders else None,
    }


def _turn(stand: Stand, seconds: float) -> Callable[[], Awaitable[Turn]]:
    async def turn() -> Turn:
        return (await stand.turn(stand.work.rate, seconds))[0]

    return turn


def established(pids: Iterable[int], port: int) -> Counter[int]:
    """Connections to that local port by process: what the kernel says, whatever the processes do."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and int(fields[1].rsplit(":", 1)[1], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    found: Counter[int] = Counter()
    for pid in machine.families(pids):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found[pid] += str(link.readlink()) in inodes
            except OSError:
                continue  # closed since
    return found
