"""Memory of an idle subscribed client: PSS of the broker's processes with all of them, less that without any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from benchmarks import machine
from benchmarks.servers import Product, Work

SETTLE = 3.0  # seconds without change that end the wait for the broker's memory to settle
CHANGE = 256 * 1024  # bytes


class Idle(Struct):
    """Bytes."""

    clients: int
    without: int
    with_clients: int
    per_client: float


async def settled(pid: int, limit: float = 30.0) -> int:
    """The PSS once it stays put."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    last, since = machine.pss(pid), loop.time()
    while loop.time() < min(deadline, since + SETTLE):
        await asyncio.sleep(0.5)
        now = machine.pss(pid)
        if abs(now - last) > CHANGE:
            last, since = now, loop.time()
    return machine.pss(pid)


async def run(clients: int, topics: int, say: Callable[[str], None]) -> Idle:
    product = Product()
    try:
        await product.start_broker()
        without = await settled(product.pid)
        say(f"a broker without clients: {without / 2**20:.1f} MiB; connecting {clients:,} subscribers")
        await product.connect(Work(subscribers=clients, topics=topics))
        full = await settled(product.pid)
    finally:
        await product.stop()
    return Idle(clients, without, full, (full - without) / clients)
