"""The public API of the load generator: put load on a cluster, and learn what happened to every publication.

    async with Load(scenario, on_event=show) as load:   # workers run, every subscriber has its receipt
        await load.measuring()                           # the warm-up is over
        await load.mark("kill", "demo-broker-1")         # before the fault: the clients connected there are noted
        ...                                              # cause the fault
        result = await load.result()                     # after the last publication and its deliveries
    # leaving the block waits for the last scrapes (two scrape intervals) and ends the workers

`run_load(scenario)` is a whole run without marks, blocking.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from migratory_loadtest.controller import LoadController, LoadFailed
from migratory_loadtest.records import TopicRecord
from migratory_loadtest.result import LoadEvent, LoadResult, OnEvent
from migratory_loadtest.scenario import Scenario

__all__ = ["Load", "LoadEvent", "LoadFailed", "LoadResult", "OnEvent", "Scenario", "run_load"]


class Load:
    """One run.

    :param on_event: called with every `LoadEvent` in the event loop's thread.
    :raises LoadFailed: from any method, if a worker ends early or not all clients connect in time. The text names how
        many are connected, and their last error.
    """

    def __init__(self, scenario: Scenario, on_event: OnEvent | None = None) -> None:
        self.scenario = scenario
        self._controller = LoadController(scenario, on_event)

    async def __aenter__(self) -> Self:
        try:
            await self._controller.start()
        except BaseException:
            await self._controller.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._controller.linger()
        await self._controller.stop()

    @property
    def targets(self) -> list[str]:
        """The host:port of each worker's /metrics, if the scenario asks for metrics."""
        return self._controller.targets

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, for measuring their CPU and memory."""
        return self._controller.pids

    async def measuring(self) -> None:
        """Wait until the warm-up is over."""
        await self._controller.measuring()

    async def mark(self, name: str, broker: str | None = None) -> None:
        """Split the run into before and after. Call it before the fault.

        :param broker: the broker that will fail. Every client that is connected to it now must lose its link and resume
            within the scenario's `resume_limit`; otherwise the verdict is `missed`.
        """
        await self._controller.mark(name, broker)

    def stop_publishing(self) -> None:
        """Publish nothing more: end the run now instead of after its duration."""
        self._controller.stop_publishing()

    async def connections(self) -> dict[str, int]:
        """Return the current number of connections per broker."""
        return await self._controller.connections()

    @property
    def records(self) -> list[TopicRecord]:
        """The records that `result` verified, by topic. Empty before."""
        return self._controller.records

    async def result(self) -> LoadResult:
        """Wait for the end of the run, verify it and return the result."""
        return await self._controller.result()


def run_load(scenario: Scenario, on_event: OnEvent | None = None) -> LoadResult:
    """Run a scenario without marks and return the result."""

    async def run() -> LoadResult:
        async with Load(scenario, on_event) as load:
            return await load.result()

    return asyncio.run(run())
