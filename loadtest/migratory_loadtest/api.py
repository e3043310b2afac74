"""What a program calls to put load on a cluster and to learn exactly what became of every publication.

    async with Load(scenario, on_event=show) as load:   # workers run, every subscriber has its receipt
        await load.measuring()                           # warm-up is over
        await load.mark("kill", "demo-broker-1")         # before the fault: who is connected there is noted now
        ...                                              # bring the fault about
        result = await load.result()                     # after the last publication and its deliveries
    # leaving the block waits for the last scrapes (two scrape intervals) and ends the workers

`run_load(scenario)` is the same without marks, blocking.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from migratory_loadtest.account import TopicAccount
from migratory_loadtest.fleet import Fleet, LoadFailed
from migratory_loadtest.progress import LoadEvent, OnEvent
from migratory_loadtest.result import LoadResult
from migratory_loadtest.scenario import Scenario

__all__ = ["Load", "LoadEvent", "LoadFailed", "LoadResult", "OnEvent", "Scenario", "run_load"]


class Load:
    """One run. `on_event` is called in the event loop's thread. Raises LoadFailed when a worker ends early, and when
    the subscribers are not all connected in time (naming how many are, and the last error seen)."""

    def __init__(self, scenario: Scenario, on_event: OnEvent | None = None) -> None:
        self.scenario = scenario
        self._fleet = Fleet(scenario, on_event)

    async def __aenter__(self) -> Self:
        try:
            await self._fleet.start()
        except BaseException:
            await self._fleet.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._fleet.linger()
        await self._fleet.stop()

    @property
    def targets(self) -> list[str]:
        """host:port of each worker's /metrics, when the scenario asks for metrics."""
        return self._fleet.targets

    @property
    def pids(self) -> list[int]:
        """The worker processes, for accounting of their CPU and memory."""
        return self._fleet.pids

    async def measuring(self) -> None:
        """Returns when the warm-up is over."""
        await self._fleet.measuring()

    async def mark(self, name: str, broker: str | None = None) -> None:
        """Splits the run into before and after. Call it before the fault. With `broker` every client that is connected
        there now must lose its link and resume within `resume_limit` seconds, else the verdict is `missed`."""
        await self._fleet.mark(name, broker)

    def cease(self) -> None:
        """Publishes nothing more: the run ends now, and not when its duration is over."""
        self._fleet.cease()

    async def connections(self) -> dict[str, int]:
        """Connections per broker, now."""
        return await self._fleet.connections()

    @property
    def accounts(self) -> list[TopicAccount]:
        """After `result`: what it was verified from, by topic."""
        return self._fleet.accounts

    async def result(self) -> LoadResult:
        """Waits for the end of the run and verifies it."""
        return await self._fleet.result()


def run_load(scenario: Scenario, on_event: OnEvent | None = None) -> LoadResult:
    """A whole run without marks."""

    async def run() -> LoadResult:
        async with Load(scenario, on_event) as load:
            return await load.result()

    return asyncio.run(run())
