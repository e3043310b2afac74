"""The context of a measurement: its sizes, the systems that take part, and progress messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct

from benchmarks import peers
from benchmarks.processes import MeasurementFailed
from benchmarks.rig import Rig
from benchmarks.systems import C_LOOP, PEERS, RawLoop, System, c_loop, python_loop


class Sizes(Struct, frozen=True, kw_only=True):
    """The sizes of all measurements. Seconds are of one system's part of a round."""

    rounds: int = 5
    seconds: float = 4.0
    subscribers: int = 10_000
    topics: int = 100
    payload: int = 140
    rate: float = 2.5  # publications per topic and second
    memory_clients: tuple[int, ...] = (10_000, 50_000)
    peer_clients: int = 5000  # for the peers' memory
    latency_seconds: float = 3.0
    highest: float = 120_000.0  # deliveries per second at which the search for saturation ends
    publish_seconds: float = 3.0
    window: int = 256  # publications without an answer, of each of four connections
    many_topics: int = 10_000
    many_rate: float = 2000.0  # publications per second over all of them
    storm_clients: int = 10_000
    storm_live: int = 1000
    storm_seconds: float = 20.0  # of publishing after the clients reconnect
    failover_clients: int = 30_000
    failover_deliveries: float = 3000.0  # per second
    failover_seconds: float = 12.0  # before the kill, and from 10 s after it
    takeover_clients: int = 10_000
    takeover_faults: int = 20
    takeover_groups: tuple[int, int] = (100, 1000)
    batching_subscribers: int = 400
    batching_rate: float = 100.0  # messages per second and client
    cycle_clients: int = 10_000
    cycles: int = 10
    attack_live: int = 1000  # subscribers that others attack
    attack_clients: int = 1000  # stalled readers and slow handshakes
    attack_connects: float = 5000.0  # per second, from one address
    attack_frames: float = 500.0  # hostile frames per second
    attack_messages: float = 20_000.0  # publications or topics per second
    attack_seconds: float = 5.0
    attack_address_connections: int = 0  # `limits.addresses` for attackers: connections, and a fourth of that a second


TINY = Sizes(
    rounds=2, seconds=1.0, subscribers=40, topics=10, rate=2.0, memory_clients=(40,), peer_clients=40,
    latency_seconds=1.0, highest=400.0, publish_seconds=0.5, window=16, many_topics=40, many_rate=40.0,
    storm_clients=40, storm_live=20, storm_seconds=4.0, failover_clients=60, failover_deliveries=60.0,
    failover_seconds=2.0, takeover_clients=60, takeover_faults=2, takeover_groups=(6, 12),
    batching_subscribers=20, batching_rate=10.0, cycle_clients=40, cycles=3,
    attack_live=20, attack_clients=20, attack_connects=100.0, attack_frames=50.0, attack_messages=500.0,
    attack_seconds=1.0,
)  # fmt: skip
"""Sizes that run every measurement once in a few minutes, to test that it works."""


class Benchmark:
    """The context of one measurement. `say` shows a line of progress. `stack` stops everything that the measurement
    started, even when it fails. `dropped` has the reason of each peer that failed: the measurement continues without
    it, and is incomplete."""

    def __init__(self, sizes: Sizes, folder: Path, say: Callable[[str], None]) -> None:
        self.sizes = sizes
        self.folder = folder
        self.say = say
        self.missing = peers.missing()
        self.dropped: dict[str, str] = {}
        self.stack = AsyncExitStack()

    def peers(self) -> list[System]:
        """Return new systems for the installed peers."""
        return [make() for name, make in PEERS.items() if name not in self.missing]

    def limits(self) -> list[System]:
        """Return the raw loops: programs that only send. Ratios refer to the one in C; without a compiler it is
        dropped."""
        command = c_loop(self.folder)
        if command is None:
            self.drop(C_LOOP, MeasurementFailed("no C compiler is installed"))
        loops: list[System] = [] if command is None else [RawLoop(C_LOOP, command)]
        return [*loops, RawLoop("raw loop in Python", python_loop())]

    def drop(self, name: str, reason: Exception) -> None:
        """Record the failure of a system or size, and show it. The caller continues without the system."""
        self.dropped[name] = str(reason)
        self.say(f"DROPPED: {name}: {reason}")

    def stop_after(self, rig: Rig) -> Rig:
        """Register the rig to be stopped at the end of the measurement, and return it."""
        self.stack.push_async_callback(rig.stop)
        return rig


class NotMeasurable(Exception):
    """A measurement can't be made on this machine or with this product. The text says what is missing."""
