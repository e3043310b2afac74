"""Memory of an idle subscribed client: PSS of the server's processes with all of them, less that without any.

The kernel's memory grows as well; it is counted for the whole machine, both ends of each connection, and stands beside.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks import machine
from benchmarks.audience import PER_PROCESS
from benchmarks.bench import Bench
from benchmarks.contenders import Contender, Product, Work
from benchmarks.processes import Broken
from benchmarks.stand import Stand

SETTLE = 2.0  # seconds without change that end the wait for memory to settle
CHANGE = 256 * 1024  # bytes
SPARE = 2 * 2**30  # bytes of memory to leave to the machine
BOTH_ENDS = 16 * 2**10  # bytes that a connection takes at most: server, receiver and kernel
FIRST, STEP = 5000.0, 1.5  # deliveries per second of the search for what is carried
HIGHEST = 80_000.0
SLOW = 1000.0  # milliseconds of P99 from which so many are not carried


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    by_clients: dict[str, dict[str, Any]] = {}
    for clients in sizes.memory_clients:
        try:
            by_clients[str(clients)] = await _product(bench, clients)
        except Broken as reason:
            if not by_clients and clients == sizes.memory_clients[-1]:
                raise  # there is none at all
            bench.drop(f"{clients} clients", reason)
    peers = {}
    for contender in bench.peers():
        try:
            peers[contender.name] = await _of(bench, contender, sizes.peer_clients)
        except Broken as reason:
            bench.drop(contender.name, reason)
    first = next(iter(by_clients.values()))
    return {
        "kib_per_client": round(max(one["kib_per_client"] for one in by_clients.values()), 3),
        "kernel_kib_per_client": first["kernel_kib_per_client"],
        "clients": by_clients,
        "peers": {name: one["kib_per_client"] for name, one in peers.items()},
        "peers_in_full": peers,
        "missing_peers": bench.missing,
    }


async def _product(bench: Bench, clients: int) -> dict[str, Any]:
    if machine.memory_available() < SPARE + clients * BOTH_ENDS:
        raise Broken(f"{clients:,} clients don't fit into this machine's memory")
    # a process has descriptors for so many; more need several I/O processes
    several = clients > PER_PROCESS
    spec = {"brokers": {"ioProcesses": -(-clients // PER_PROCESS)}} if several else {}
    return await _of(bench, Product(spec=spec), clients, carries=several)


async def _of(bench: Bench, contender: Contender, clients: int, *, carries: bool = False) -> dict[str, Any]:
    topics = min(bench.sizes.topics, clients)
    work = Work(subscribers=clients - clients % topics, topics=topics, payload=bench.sizes.payload, rate=0.0)
    stand = Stand(contender, work, pinned=not carries)
    try:
        await stand.serve()
        without, kernel = await settled(stand), machine.kernel_memory()
        bench.say(f"{contender.name}: {without / 2**20:.1f} MiB without clients; connecting {work.subscribers:,}")
        await stand.connect()
        full, kernel_full = await settled(stand), machine.kernel_memory()
        there = (await stand.audience.heard()).connected
        if there != work.subscribers:
            raise Broken(f"{contender.name}: {there:,} of {work.subscribers:,} clients are connected")
        found: dict[str, Any] = {
            "processes": len(stand.contender.pids),
            "without_mib": round(without / 2**20, 2),
            "with_mib": round(full / 2**20, 2),
            "kib_per_client": round((full - without) / work.subscribers / 1024, 3),
            "kernel_kib_per_client": round((kernel_full - kernel) / work.subscribers / 1024, 3),
            "receivers_kib_per_client": round(machine.pss(stand.audience.pids) / work.subscribers / 1024, 3),
        }
        if carries:
            found["carried"] = await _carried(bench, stand)
    finally:
        await stand.stop()
    bench.say(f"{contender.name}: {found['kib_per_client']:.2f} KiB for each of {work.subscribers:,} clients")
    return found


async def settled(stand: Stand, limit: float = 30.0) -> int:
    """The PSS once it stays put. Raises Broken when a server has ended: what is gone takes nothing."""
    loop = asyncio.get_running_loop()
    pids = stand.contender.pids
    deadline = loop.time() + limit
    last, since = machine.pss(pids), loop.time()
    while loop.time() < min(deadline, since + SETTLE):
        await asyncio.sleep(0.5)
        now = machine.pss(pids)
        if abs(now - last) > CHANGE:
            last, since = now, loop.time()
    found = machine.pss(pids)
    if stand.contender.pids != pids:
        raise Broken(f"{stand.name}: a server ended while its memory was looked at{stand.contender.last_words}")
    return found


async def _carried(bench: Bench, stand: Stand) -> dict[str, Any]:
    """The most deliveries per second that this machine carries with all of them, receivers included: P99 below 1 s."""
    await stand.publishes()
    seconds = bench.sizes.seconds
    subscribers = stand.work.subscribers
    rate = max(FIRST, subscribers / seconds)  # every topic speaks in each turn
    found: dict[str, Any] = {"deliveries_per_s": 0.0, "p99_ms": None, "not_carried": ""}
    while rate <= HIGHEST:
        try:
            _, totals = await stand.turn(rate / subscribers, seconds, limit=60.0)
        except Broken as reason:
            return {**found, "not_carried": f"{rate:,.0f} deliveries/s: {reason}"}
        assert totals is not None
        p99 = totals.latency.p99
        bench.say(f"{subscribers:,} clients: {rate:,.0f} deliveries/s, P99 {p99} ms")
        if p99 is None or p99 > SLOW:
            return {**found, "not_carried": f"{rate:,.0f} deliveries/s: P99 {p99} ms"}
        # as they were due: a turn takes whole publications of each topic, more or fewer than fit into `seconds`
        found |= {"deliveries_per_s": round(rate, 1), "p99_ms": p99}
        rate *= STEP
    return found
