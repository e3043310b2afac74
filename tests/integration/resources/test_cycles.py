"""Ten cycles, in each of which five thousand clients connect, receive something and disconnect in several ways: the
broker's memory and descriptors stay flat. There are fewer clients on machines where so many would take minutes to
connect, and twice as many in `make nightly`.

An allocator takes memory in steps, in some cycle or other; a leak adds memory in every cycle. Therefore the test judges
the median of the growth from one cycle to the next, and not the sum.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
import uvloop
from migratory_testing.crowd import CrowdClient, all_ended, allow_descriptors, closed, descriptors, gather, resident
from migratory_testing.processes import Broker
from migratory_testing.rawclient import CLOSE, RawClient, close_all, frame
from migratory_testing.waiting import poll_apart

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200), pytest.mark.alone]

# A busy machine may take long for a handshake; and whoever left must not be held by the time that it might have taken.
SETTINGS = {"topics": {"groups": 4}, "limits": {"heartbeat": 15.0, "handshake": 120.0}}
WANTED, TRIED, LEAST = int(os.environ.get("MIGRATORY_CYCLE_CLIENTS", "5000")), 500, 1_000
PATIENCE = 10.0
"""Seconds within which the clients of a cycle should connect; it limits their number."""
CYCLES, WARM = 10, 3
"""The number of cycles, and the number of those at the beginning whose growth is not judged, because the broker still
reserves memory."""
KEPT = 48
"""Bytes per client of a cycle that count as a leak: fewer than any object that could be left of a client, with its
place in a list."""
NOISE = 64 * 1024


def grows(memory: list[int], clients: int) -> bool:
    """Return whether the memory in bytes after each cycle shows a leak: after the warm cycles, its median growth per
    cycle exceeds `NOISE` and `KEPT` bytes per client."""
    return median(after - before for before, after in pairwise(memory[WARM - 1 :])) > max(NOISE, KEPT * clients)


# Resident KiB behind each of the cycles of 10,000 clients, as they were seen.
SEEN = (71_532, 74_448, 74_624, 74_880, 74_880, 74_884, 74_896, 75_240, 75_308, 77_400, 78_792, 78_796, 78_796, 78_796)


@pytest.mark.parametrize("first", range(len(SEEN) - CYCLES + 1))
def test_a_leak_is_told_from_the_steps_of_an_allocator(first: int) -> None:
    steps = [kib * 1024 for kib in SEEN[first : first + CYCLES]]
    assert not grows(steps, 10_000)
    assert grows([size + 64 * 10_000 * cycle for cycle, size in enumerate(steps)], 10_000)


def polite(member: CrowdClient) -> None:
    member.transport.write(frame(CLOSE, b"\x03\xe8"))


def rude(member: CrowdClient) -> None:
    member.reset()


def plain(member: CrowdClient) -> None:
    member.transport.close()


WAYS: tuple[Callable[[CrowdClient], None], ...] = (polite, rude, plain)


def test_connection_cycles_leak_neither_memory_nor_descriptors(broker: Broker) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # so many cost half as much there
        try:
            runner.run(cycles(broker))
        finally:
            runner.run(close_all())


async def cycles(broker: Broker) -> None:
    used = descriptors(broker)
    began = time.monotonic()
    tried = await gather(broker, TRIED)
    possible = int(PATIENCE * TRIED / (time.monotonic() - began))
    for member in tried:
        member.reset()
    await all_ended(tried)
    count = max(LEAST, min(allow_descriptors(WANTED), possible))

    writer = await RawClient.join(broker, name="writer")
    memory: list[int] = []
    for cycle in range(CYCLES):
        # Each cycle from another address: a polite client's port rests for a minute.
        crowd = await gather(broker, count, source=f"127.0.3.{cycle + 1}")
        before = [member.received for member in crowd]
        for topic in range(10):
            await writer.publish(f"crowd/{topic}", b"hello", cycle + 1, "cycles")
        pairs = list(zip(crowd, before, strict=True))
        await poll_apart(
            lambda pairs=pairs: all(member.received > count for member, count in pairs),  # type: ignore[misc]
            "every client received a message",
        )
        assert not any(member.ended.done() for member in crowd)
        for member in crowd:
            WAYS[cycle % len(WAYS)](member)
        await all_ended(crowd)
        await poll_apart(lambda: descriptors(broker) <= used + 1, "descriptors are given back")
        memory.append(resident(broker))
    kib = [value // 1024 for value in memory]
    print(f"{count} clients a cycle; resident KiB behind each: {kib}")
    assert not grows(memory, count), f"{count} clients a cycle: {kib} KiB"
    assert closed(broker, "slow_consumer") == closed(broker, "heartbeat") == 0
