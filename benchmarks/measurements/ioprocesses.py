"""Two I/O processes beside one: CPU per delivery over all of the broker's processes, and how evenly they share the
connections. Nothing is pinned: the point is that they can use both cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.bench import Bench, Missing
from benchmarks.contenders import Product, Unsupported, Work
from benchmarks.contest import Contest, micros
from benchmarks.figures import figure, headline, ratios
from benchmarks.stand import Stand

ONE, TWO = "one process", "two processes"


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    work = Work(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    stands = {
        name: Stand(Product(name, spec={"brokers": {"ioProcesses": count}}), work, pinned=False)
        for name, count in ((ONE, 1), (TWO, 2))
    }
    contest = Contest(bench, stands)
    try:
        await contest.start(1.0)
    except Unsupported as reason:
        raise Missing(f"this product's cluster file has no brokers.ioProcesses: {reason}") from reason
    connections = established(stands[TWO].contender.pids, stands[TWO].contender.addresses[0][1])
    holders = [count for count in connections.values() if count > len(connections)]
    each = micros(await contest.rounds())
    return {
        **headline(
            ratio_one_process=ratios(each[TWO], each[ONE]), us_one=figure(each[ONE]), us_two=figure(each[TWO])
        ),
        "connections": sorted(holders),
        "spread": round(max(holders) / (sum(holders) / 2), 3) if holders else None,
    }  # fmt: skip


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
