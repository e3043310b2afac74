"""The work queue, which runs reconciliations: when a resource changed, after a backoff when one failed, and after the
time that the last one asked for.

One resource is reconciled by one task at a time. Changes during a reconciliation lead to one more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from migratory_operator.api.kubernetes import ApiError
from migratory_operator.telemetry.metrics import OperatorMetrics

ResourceKey = tuple[str, str]
"""Namespace and name."""

MAX_CONCURRENT = 8
"""Resources of one queue that are reconciled at the same time. Bounds the load on the API server after a restart."""
_FIRST_BACKOFF = 0.5
_MAX_BACKOFF = 30.0
"""Seconds until a failed reconciliation is retried; the delay doubles from the first to the maximum."""
_SETTLE_SECONDS = 0.2
"""Seconds from a change to the reconciliation. Changes come in bursts, which one reconciliation handles."""
_log = logging.getLogger(__name__)


class WorkQueue:
    """A queue of clusters or of reports, with one task per resource. A reconciliation that raises ApiError is repeated
    after a backoff, and one that raises another exception after 30 s; both are logged and counted.

    :param reconcile: reconciles the resource of this namespace and name, and returns the seconds after which to requeue
        it, 0 for not at all.
    """

    def __init__(self, reconcile: Callable[[str, str], Awaitable[float]], metrics: OperatorMetrics) -> None:
        self._reconcile = reconcile
        self._metrics = metrics
        self._wakeups: dict[ResourceKey, asyncio.Event] = {}
        self._tasks: dict[ResourceKey, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    def wake(self, namespace: str, name: str) -> None:
        """Schedule a reconciliation of the resource, after 0.2 s in which more changes may arrive. Add the resource to
        the queue if it is new."""
        key = (namespace, name)
        if key not in self._tasks:
            self._wakeups[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"{namespace}/{name}")
        self._wakeups[key].set()

    def resource_keys(self) -> list[ResourceKey]:
        """Return namespace and name of every resource in the queue."""
        return list(self._tasks)

    async def forget(self, namespace: str, name: str) -> None:
        """Remove a resource from the queue, cancel its reconciliation, and wait at most 5 s for its end. Do nothing if
        it is not in the queue."""
        task = self._tasks.pop((namespace, name), None)
        self._wakeups.pop((namespace, name), None)
        if task is not None:
            await _cancel(task)

    async def close(self) -> None:
        """Cancel all reconciliations, and remove all resources."""
        for key in self.resource_keys():
            await self.forget(*key)

    async def _run(self, key: ResourceKey) -> None:
        """Reconcile one resource until cancelled: whenever it is woken, and after the time that the last reconciliation
        returned or that a failure requires."""
        wakeup, delay = self._wakeups[key], 0.0
        while True:
            if delay:
                await _wait_for_event(wakeup, delay)
            else:
                await wakeup.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
            wakeup.clear()
            async with self._slots:
                try:
                    delay = await self._reconcile(*key)
                    self._metrics.reconciled("done")
                except ApiError as error:
                    delay = min(max(_FIRST_BACKOFF, 2 * delay), _MAX_BACKOFF)
                    self._metrics.reconciled("failed")
                    _log.warning("%s/%s: %s; retrying in %g s", *key, error, delay)
                except Exception:  # noqa: BLE001 - a fault with one resource must not stop the others
                    delay = _MAX_BACKOFF
                    self._metrics.reconciled("broken")
                    _log.exception("%s/%s: a fault of the operator; retrying in %g s", *key, delay)


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel the task, and wait at most 5 s until it has ended."""
    task.cancel()
    await asyncio.wait([task], timeout=5)
