"""The public API of the load generator: put load on a cluster, and learn what happened to every publication.

    async with Load(scenario, on_event=show) as load:   # workers run, every subscriber has its receipt
        await load.measuring()                           # the warm-up is over
        await load.mark("kill", "demo-broker-1")         # before the fault: the clients connected there are recorded
        ...                                              # cause the fault
        result = await load.result()                     # after the last publication and its deliveries
    # leaving the block waits for the last scrapes and ends the workers

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
    """One run of the load generator. Entering it as a context starts the workers and waits until all clients are
    connected. Leaving it ends the workers. After a result with metrics, and if the block raised nothing, it first waits
    for the last scrapes.

    :param scenario: the parameters of the run.
    :param on_event: called with every `LoadEvent` in the event loop's thread.
    :raises LoadFailed: on entry, if not all clients connect in time; there and from every coroutine, if a worker ended
        early or did not answer. After a timeout the message has the numbers of connected clients and their errors.
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
        """The host:port of each worker's /metrics. Empty if the scenario does not ask for metrics."""
        return self._controller.targets

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, for measuring their CPU and memory."""
        return self._controller.pids

    async def measuring(self) -> None:
        """Wait until the warm-up is over. Return at once after that. Raise LoadFailed if a worker has ended early."""
        await self._controller.measuring()

    async def mark(self, name: str, broker: str | None = None) -> None:
        """Mark the moment before a fault, and wait until all workers have recorded it. Call it before the fault. The
        first mark of a run splits its latencies into before, during and after. Raise LoadFailed if a worker has ended
        early or does not answer.

        :param name: the name of the fault in the result.
        :param broker: the broker that will fail. Every client that is connected to it now must lose its link and resume
            within the scenario's `resume_limit`; otherwise the verdict is not `met`. None if no single broker fails:
            then nothing is required of the clients.
        """
        await self._controller.mark(name, broker)

    def stop_publishing(self) -> None:
        """End the measured time and publish nothing more. Do nothing before the first publication is scheduled, or if
        the run's duration is over."""
        self._controller.stop_publishing()

    async def connections(self) -> dict[str, int]:
        """Return the number of connected subscribers by broker, as the workers last reported it (every 0.5 s). Raise
        LoadFailed if a worker has ended early."""
        return await self._controller.connections()

    @property
    def records(self) -> list[TopicRecord]:
        """The records that `result` verified, one per topic, sorted by topic. Empty before."""
        return self._controller.records

    async def result(self) -> LoadResult:
        """Wait for the end of the run, verify every delivery and return the result. Later calls return the same result.
        Raise LoadFailed if a worker has ended early or does not answer; a verdict that is not `met` raises nothing."""
        return await self._controller.result()


def run_load(scenario: Scenario, on_event: OnEvent | None = None) -> LoadResult:
    """Run a scenario without marks, block until it has ended, and return the result. Raise LoadFailed if not all
    clients connect, or a worker ends early or does not answer. Call it where no event loop runs."""

    async def run() -> LoadResult:
        async with Load(scenario, on_event) as load:
            return await load.result()

    return asyncio.run(run())
