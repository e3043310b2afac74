"""The values that both targets (`processes`, `kubernetes`) read from their brokers' metrics: coordinators, fencing,
takeovers, health. Also the scene of faults whose proofs read them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from migratory_local.metrics.exposition import SeriesTable

from migratory_chaos.engine import Observation, Scene

Metrics = dict[tuple[str, str], float]
"""Maps (metric, value of its label `role` or "") to the sum of its samples."""


def parse_metrics(broker: str, page: str) -> Metrics:
    table = SeriesTable()
    found: Metrics = {}
    for number, value in zip(*table.read(broker, page, {}), strict=True):
        key = (table.metrics[number], table.labels[number].get("role", ""))
        found[key] = found.get(key, 0.0) + value
    return found


class ObservedCluster(ABC):
    """A cluster under test, whose brokers' metrics can be read."""

    @abstractmethod
    def broker_names(self) -> list[str]:
        """Return the names of all brokers, in order."""

    @abstractmethod
    async def metrics(self, broker: str) -> Metrics | None:
        """Return a broker's metrics, or None when it does not answer."""

    async def read_all(self, metric: str, role: str = "", brokers: Sequence[str] | None = None) -> dict[str, float]:
        """Return a metric, summed over its samples with this role, of all brokers or of the named ones, by broker.
        Brokers that do not answer are left out."""
        names = self.broker_names() if brokers is None else brokers
        answers = await asyncio.gather(*(self.metrics(name) for name in names))
        return {
            name: answer.get((metric, role), 0.0)
            for name, answer in zip(names, answers, strict=True)
            if answer is not None
        }

    async def count_coordinated(self) -> dict[str, int]:
        """Return the number of topic groups that each answering broker coordinates, by broker."""
        return {name: int(value) for name, value in (await self.read_all("migratory_groups", "coordinator")).items()}

    async def find_unhealthy_brokers(self, groups: int) -> list[str]:
        """Return one text for each thing that is wrong, or [] when all brokers are healthy.

        Wrong are: a broker that does not answer, is fenced or is not a member of every group; groups that wait; and
        another number of coordinated groups than `groups`.
        """
        found = []
        coordinated = 0
        names = self.broker_names()
        for name, answer in zip(names, await asyncio.gather(*map(self.metrics, names)), strict=True):
            if answer is None:
                found.append(f"{name} does not answer")
                continue
            if answer.get(("migratory_member", "")) != 1 or answer.get(("migratory_fenced", "")) != 0:
                found.append(f"{name} is not a member of every group, or fenced")
            if waiting := answer.get(("migratory_waiting_groups", ""), 0):
                found.append(f"{name}: {waiting:g} groups wait")
            coordinated += int(answer.get(("migratory_groups", "coordinator"), 0))
        if coordinated != groups:
            found.append(f"{coordinated} of {groups} groups have a coordinator")
        return found


class BrokerScene(Scene):
    """A scene with proofs that faults of both targets share."""

    cluster: ObservedCluster

    async def expect_takeovers(self, victims: Sequence[str]) -> Callable[[], Awaitable[None]]:
        """Return a function that proves, when awaited later, that the other brokers took over as many groups as the
        victims coordinate now. It does nothing if they coordinate none."""
        coordinated = await self.cluster.count_coordinated()
        groups = sum(coordinated.get(name, 0) for name in victims)
        others = [name for name in self.cluster.broker_names() if name not in victims]

        async def count() -> float:
            return sum((await self.cluster.read_all("migratory_takeovers_total", brokers=others)).values())

        before = await count()

        async def look() -> Observation:
            now = await count() - before
            return now >= groups, f"{now:g}"

        async def prove() -> None:
            if groups:
                await self.wait_until("takeovers by the others", f">= {groups}", look)

        return prove

    async def wait_fenced(self, broker: str, within: float) -> None:
        """Prove that the broker fences itself within `within` seconds, because it has received nothing from the
        other brokers for too long."""

        async def look() -> Observation:
            value: Any = (await self.cluster.read_all("migratory_fenced", brokers=[broker])).get(broker, "no answer")
            return value == 1, value

        await self.wait_until(f"migratory_fenced of {broker}", "1", look, within)
