"""The load generator on a real cluster, for tests that inject a fault: they wait for traffic, not for time."""

from __future__ import annotations

import asyncio
import time

from migratory_loadtest.api import LoadEvent, LoadResult, Scenario
from migratory_local.cluster.local_cluster import LocalCluster

SECOND = 60
"""Publications per second of `scenario`."""


def scenario(cluster: LocalCluster) -> Scenario:
    """Return a load scenario that lasts longer than any test. The test ends the load when it has seen enough
    traffic. Clients have long to resume, because other tests keep the machine busy."""
    return Scenario(
        servers=tuple(cluster.urls), subscribers=300, topics=30, rate=2.0, duration=150.0, warmup=2.0, seed=7,
        workers=1, groups=cluster.resource.spec.topics.groups, resume_limit=20.0,
    )  # fmt: skip


def flawless(result: LoadResult) -> None:
    """Check that a load run had no problem: everything was acknowledged, and all that was expected was delivered, each
    once and in order. Raise AssertionError otherwise."""
    assert result.problems == []
    assert (result.lost, result.duplicates, result.reordered, result.unexpected) == (0, 0, 0, 0)
    assert result.delivered == result.expected > 0
    assert result.acknowledged == result.published > 0


class Traffic:
    """The progress of a load, as its observer receives it: `Load(scenario, traffic)`."""

    def __init__(self) -> None:
        self._last: LoadEvent | None = None

    def __call__(self, event: LoadEvent) -> None:
        self._last = event

    async def flows(self, publications: int, within: float) -> None:
        """Wait until this number of further publications is acknowledged and there are as many further deliveries.
        Raise AssertionError after `within` seconds."""
        acknowledged, received = self._counts()
        deadline = time.monotonic() + within
        while True:
            now = self._counts()
            more = (now[0] - acknowledged, now[1] - received)
            if min(more) >= publications:
                return
            assert time.monotonic() < deadline, (
                f"{more[0]} acknowledged and {more[1]} delivered within {within:g} s, waited for {publications}"
            )
            await asyncio.sleep(0.1)

    def _counts(self) -> tuple[int, int]:
        return (self._last.acknowledged, self._last.received) if self._last is not None else (0, 0)
