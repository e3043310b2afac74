"""When a cluster is looked at: when something of it changed, again after a failure, and every so often anyhow.

One cluster is looked at by one task at a time. What changes meanwhile leads to one more look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from migratory_operator.api import ApiError
from migratory_operator.metrics import Metrics

Cluster = tuple[str, str]
"""Namespace and name."""

AT_ONCE = 8
"""Clusters that are looked at side by side."""
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 30.0
# Changes come in bursts: one look serves them all.
_SETTLE = 0.2
_log = logging.getLogger(__name__)


class Queue:
    """:param look: one look; gives the seconds after which there is more to see, 0 when something must change first."""

    def __init__(self, look: Callable[[str, str], Awaitable[float]], metrics: Metrics) -> None:
        self._look = look
        self._metrics = metrics
        self._wanted: dict[Cluster, asyncio.Event] = {}
        self._tasks: dict[Cluster, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    def wake(self, namespace: str, name: str) -> None:
        cluster = (namespace, name)
        if cluster not in self._tasks:
            self._wanted[cluster] = asyncio.Event()
            self._tasks[cluster] = asyncio.create_task(self._keep(cluster), name=f"{namespace}/{name}")
        self._wanted[cluster].set()

    def known(self) -> list[Cluster]:
        return list(self._tasks)

    async def forget(self, namespace: str, name: str) -> None:
        """Of a cluster that is no more."""
        task = self._tasks.pop((namespace, name), None)
        self._wanted.pop((namespace, name), None)
        if task is not None:
            await _end(task)

    async def close(self) -> None:
        for cluster in self.known():
            await self.forget(*cluster)

    async def _keep(self, cluster: Cluster) -> None:
        wanted, wait = self._wanted[cluster], 0.0
        while True:
            if wait:
                # A failure is tried again after a while, or sooner when something happens.
                await _either(wanted, wait)
            else:
                await wanted.wait()
            await asyncio.sleep(_SETTLE)
            wanted.clear()
            async with self._room:
                try:
                    wait = await self._look(*cluster)
                    self._metrics.looked("done")
                except ApiError as error:
                    wait = min(max(_FIRST_WAIT, 2 * wait), _LONGEST_WAIT)
                    self._metrics.looked("failed")
                    _log.warning("%s/%s: %s; again in %g s", *cluster, error, wait)
                except Exception:  # noqa: BLE001 - one cluster's fault must not end the care for the others
                    wait = _LONGEST_WAIT
                    self._metrics.looked("broken")
                    _log.exception("%s/%s: a fault of the operator; again in %g s", *cluster, wait)


async def _either(wanted: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wanted.wait()
    except TimeoutError:
        return


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=5)
