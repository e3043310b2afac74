"""What a fault is: a typed value that strikes a running cluster, lasts, is over, and leaves proofs that it was there.

A fault whose proof does not hold makes the run fail: a partition that parted nobody shows nothing. Faults take their
victims when they strike (the busiest coordinator, ZooKeeper's leader), by the run's random numbers.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from migratory_chaos.cluster import ChaosCluster
from migratory_chaos.network import Network

POLL = 0.1
TAKEOVER_SECONDS = 120.0
"""Until a takeover must show in the metrics: session and promises, on a busy machine; or until ZooKeeper is back, when
it is away as well."""


@dataclass(frozen=True)
class Proof:
    what: str
    expected: str
    seen: str
    holds: bool


@dataclass
class Scene:
    """What a fault works on, and what it leaves: `blows` are the moments (ms) at which something was taken away."""

    cluster: ChaosCluster
    random: random.Random
    burst: Callable[[], Awaitable[None]]
    proofs: list[Proof] = field(default_factory=list)
    blows: list[int] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)

    @property
    def network(self) -> Network:
        if self.cluster.network is None:
            raise RuntimeError("a fault of networks where there are none")
        return self.cluster.network

    async def blow(self, *victims: str) -> None:
        """Right before something is taken away: the publishers have just sent more than can be answered at once."""
        await self.burst()
        self.blows.append(int(time.monotonic() * 1000))
        self.victims += victims

    def prove(self, what: str, expected: object, seen: object, holds: bool | None = None) -> None:
        """By default it holds when `seen` equals `expected`."""
        self.proofs.append(Proof(what, str(expected), str(seen), expected == seen if holds is None else holds))

    async def happens(
        self, what: str, expected: str, look: Callable[[], Awaitable[tuple[bool, object]]], within: float
    ) -> None:
        """Proved by what `look` says (whether it happened, what was seen), for so many seconds at most."""
        deadline = time.monotonic() + within
        while True:
            holds, seen = await look()
            if holds or time.monotonic() > deadline:
                self.prove(what, expected, seen, holds)
                return
            await asyncio.sleep(POLL)

    async def pick(self, count: int, coordinator: bool) -> list[str]:
        """`count` brokers, among them the busiest coordinator if so wished."""
        names = list(self.cluster.names)
        self.random.shuffle(names)
        if coordinator:
            led = await self.cluster.coordinated()
            names.sort(key=lambda name: -led.get(name, 0))
        return names[:count]

    async def takeovers(self, victims: list[str]) -> Callable[[], Awaitable[None]]:
        """What to await later: it proves that the groups of the victims were taken over by others. Nothing is to be
        proved when they had none."""
        led = await self.cluster.coordinated()
        groups = sum(led.get(name, 0) for name in victims)
        others = [name for name in self.cluster.names if name not in victims]
        before = await self.cluster.total("migratory_takeovers_total", others)

        async def look() -> tuple[bool, object]:
            now = await self.cluster.total("migratory_takeovers_total", others) - before
            return now >= groups, f"{now:g}"

        async def prove() -> None:
            if groups:
                await self.happens("takeovers by the others", f">= {groups}", look, TAKEOVER_SECONDS)

        return prove


class Fault(ABC):
    """Subclasses are frozen dataclasses: what a seed drew is data."""

    kind: ClassVar[str]
    needs_network: ClassVar[bool] = False

    @abstractmethod
    async def inflict(self, scene: Scene) -> None:
        """Strikes, proves, lasts and ends; whatever happens, nothing of it is left when this returns."""

    def as_data(self) -> dict[str, object]:
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Together(Fault):
    """Two at once, of different parts of the cluster: each keeps to what the promise allows."""

    first: Fault
    second: Fault
    kind: ClassVar[str] = "together"

    async def inflict(self, scene: Scene) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.first.inflict(scene))
            tasks.create_task(self.second.inflict(scene))

    def as_data(self) -> dict[str, object]:
        return {
            "kind": f"{self.first.kind} + {self.second.kind}",
            "first": self.first.as_data(),
            "second": self.second.as_data(),
        }


def state(pid: int | None) -> str:
    """A process's state as the kernel names it: R, S, T (stopped), Z; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def refused(host: str, port: int) -> str:
    """What a new connection meets: "refused", "accepted" or "silence"."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return "accepted"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silence"
